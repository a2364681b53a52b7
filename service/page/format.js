const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

// Three digits that count, or a whole number.
export function number(value) {
  return Math.abs(value) >= 1000 ? whole.format(Number(value.toPrecision(3))) : three.format(value);
}

export function exact(value) {
  return new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 }).format(value);
}

export function milliseconds(value) {
  return value >= 1000 ? `${three.format(value / 1000)} s` : `${three.format(value)} ms`;
}

export function percent(share) {
  return `${three.format(100 * share)} %`;
}

// A change with its sign: 0.064 is +6.4 %; with so many decimals.
export function signed(share, decimals) {
  const points = Math.abs(100 * share).toFixed(decimals);
  const sign = Number(points) === 0 ? "" : share > 0 ? "+" : "−";
  return `${sign}${exact(Number(points))}`;
}

// A probability, which is never shown as certain.
export function chance(probability) {
  if (probability > 0.99) return "> 99 %";
  return probability < 0.01 ? "< 1 %" : `${Math.round(100 * probability)} %`;
}

export function flags(engineArgs) {
  return [
    `${exact(engineArgs.max_num_seqs)} sequences`,
    `${exact(engineArgs.max_num_batched_tokens)} tokens a step`,
    `${engineArgs.gpu_memory_utilization.toFixed(2)} of the memory`,
    `prefix caching ${engineArgs.enable_prefix_caching ? "on" : "off"}`,
  ].join(", ");
}

// Short heads of a map: 2048 is 2k.
export function short(value) {
  return value >= 1024 ? `${Math.round(value / 1024)}k` : String(value);
}
