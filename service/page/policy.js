// Which of the service's policies a question is for, and what it was trained for.

// A name in the spelling that the service compares: nvidia-smi's spaces are a node label's hyphens, case is nothing.
function spelling(name) {
  const words = name.toLowerCase().split(/[\s_-]+/).filter(Boolean);
  return (words[0] === "nvidia" ? words.slice(1) : words).join("-");
}

// The manifest of the policy for the GPU and the confidence of the question; null as long as the policies are not
// there. Of a GPU the one of that confidence, else the typical one, else any; the primary one for every other GPU.
export function manifestFor(policy, gpus, { gpu, confidence }) {
  if (!policy) return null;
  const all = [policy, ...policy.others].map((one) => one.manifest);
  const wanted = spelling(gpu);
  const listed = gpus.find((one) => [one.name, ...one.aliases].some((alias) => spelling(alias) === wanted));
  const name = wanted ? listed?.name : policy.manifest.gpu;
  const same = all.filter((one) => one.gpu === name);
  const known = (word) => same.find((one) => (one.confidence ?? "typical") === word);
  return known(confidence) ?? known("typical") ?? same[0] ?? policy.manifest;
}

// [low, high] that it was trained for, as far as there is one; null: not known.
export function trained(manifest, name) {
  const ranges = manifest?.training_range;
  if (!ranges || name === "shared_prefix_ratio") return null;
  if (name === "concurrency") return ranges.log2_concurrency.map((value) => 2 ** value);
  return ranges[name] ? [Math.ceil(ranges[name][0]), Math.floor(ranges[name][1])] : null;
}
