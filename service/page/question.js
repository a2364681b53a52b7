// What the controls say, and the body of POST /v1/recommend that it makes.

// low, high: where the slider ends unless the policy was trained for another range; places: steps of it per doubling.
export const FIELDS = [
  { name: "prompt_tokens", label: "Prompt", unit: "tokens, mean", low: 16, high: 32768, places: 4 },
  { name: "max_new_tokens", label: "Output", unit: "tokens, limit or p95", low: 1, high: 4096, places: 4 },
  { name: "shared_prefix_ratio", label: "Shared prefix", unit: "share of the prompt", share: true },
];
export const LOADS = [
  { name: "concurrency", label: "Clients at once", unit: "each with one request in flight", low: 1, high: 512, places: 4 },
  { name: "requests_per_second", label: "Requests per second", unit: "mean when it is busy", low: 1, high: 1024, places: 4 },
];
export const LIMITS = [
  { name: "max_p95_ttft_ms", label: "Time to first token, p95", unit: "ms" },
  { name: "max_p95_tpot_ms", label: "Time per output token, p95", unit: "ms" },
];
export const FORMS = ["command", "yaml", "helm", "kserve", "ray", "metis"];

export const FIRST = {
  source: "name",
  name: "Qwen/Qwen3-8B",
  config: "",
  gpu: "",
  load: "concurrency",
  prompt_tokens: "512",
  max_new_tokens: "256",
  shared_prefix_ratio: "0",
  concurrency: "64",
  requests_per_second: "8",
  max_p95_ttft_ms: "",
  max_p95_tpot_ms: "",
  max_model_len: "",
  extra_args: "",
  confidence: "typical",
  gpu_shared: false,
  form: "command",
};

// {body, errors}: errors by the path of the control, empty where the body can be sent.
export function bodyOf(question) {
  const errors = {};
  const workload = {};
  for (const field of [...FIELDS, LOADS.find((load) => load.name === question.load)]) {
    put(workload, field.name, question[field.name], `$.workload.${field.name}`, errors, { workload: true });
  }
  if (question.confidence !== "typical") workload.confidence = question.confidence;
  const slo = {};
  for (const limit of LIMITS) put(slo, limit.name, question[limit.name], `$.slo.${limit.name}`, errors);
  const body = { model: model(question, errors), workload, explain: true };
  put(body, "max_model_len", question.max_model_len, "$.max_model_len", errors);
  if (question.gpu.trim()) body.gpu = question.gpu.trim();
  if (Object.keys(slo).length) body.slo = slo;
  if (question.extra_args.trim()) body.extra_args = question.extra_args.trim();
  if (question.gpu_shared) body.gpu_shared = true;
  return { body, errors };
}

function model(question, errors) {
  if (question.source === "name") {
    if (!question.name.trim()) errors["$.model"] = "choose a model";
    return { name: question.name.trim() };
  }
  try {
    const config = JSON.parse(question.config);
    if (config === null || typeof config !== "object" || Array.isArray(config)) throw new Error("it is no JSON object");
    return { config };
  } catch (error) {
    errors["$.model"] = question.config.trim()
      ? `this is not the content of a config.json: ${error.message}`
      : "paste or drop the model's config.json";
    return {};
  }
}

function put(into, name, text, path, errors, { workload = false } = {}) {
  const trimmed = text.trim();
  if (!trimmed) {
    if (workload) errors[path] = "give a number";
    return;
  }
  const values = trimmed.split(":").map((part) => (part.trim() ? Number(part) : NaN));
  if (values.length > (workload ? 2 : 1) || !values.every(Number.isFinite)) {
    errors[path] = `${trimmed} is not a number${workload ? ", nor a range such as 4000:8000" : ""}`;
  } else into[name] = values.length === 2 ? values : values[0];
}

// Messages by the control that they are about: a path, or the nearest one above it that has a control. What belongs to
// none is under "".
export function errorsOf(problem) {
  const paths = [
    ...["$.model", "$.gpu", "$.max_model_len", "$.extra_args", "$.workload.confidence"],
    ...[...FIELDS, ...LOADS].map((field) => `$.workload.${field.name}`),
    ...LIMITS.map((limit) => `$.slo.${limit.name}`),
  ];
  const details = problem.details?.length ? problem.details : [{ path: "", message: problem.detail ?? "refused" }];
  const errors = {};
  for (const { path, message } of details) {
    const owner = paths.find((known) => path === known || path.startsWith(`${known}.`) || path.startsWith(`${known}[`)) ?? "";
    const text = owner || !path ? message : `${path}: ${message}`;
    errors[owner] = errors[owner] ? `${errors[owner]}; ${text}` : text;
  }
  return errors;
}
