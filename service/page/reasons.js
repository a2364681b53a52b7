import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { exact, milliseconds, number } from "./format.js";

const FIELD = {
  prompt_tokens: "Prompt tokens",
  max_new_tokens: "Output tokens",
  shared_prefix_ratio: "Shared prefix",
  concurrency: "Clients at once",
};

// Why, and how far it holds; each part where the answer has it.
export function Reasons({ answer }) {
  const { explanation, holds_until: holds, range } = answer;
  if (!explanation && !holds && !range) return null;
  return html`<section class="card" aria-labelledby="reasons-head">
    <h2 id="reasons-head">Why, and how far it holds</h2>
    ${explanation?.limit && html`<p>${explanation.limit.sentence}</p>`}
    ${explanation && html`<${Margin} margin=${explanation.margin} />`}
    ${range?.first && html`<${Over} range=${range} />`}
    ${holds && html`<h3>How far ${holds.choice.replace("_", " ")} stays the choice</h3><ul>${Object.entries(FIELD).map(
      ([name, label]) => html`<li key=${name}>${label}: ${until(holds[name])}</li>`,
    )}</ul>`}
    ${explanation?.neighbours.length > 0 && html`<${Neighbours} rows=${explanation.neighbours} evidence=${answer.policy.evidence} />`}
  </section>`;
}

function Margin({ margin }) {
  const known = margin.to_engine_default !== null;
  return html`<p>
    ${known && html`${side(margin.to_engine_default)} what would run otherwise by <strong>${size(margin.to_engine_default)}</strong> in utility${
      margin.needed === null ? "" : ` (more than ${signed(margin.needed)} is needed to set flags)`}. `}
    ${margin.to_second !== null && html`${side(margin.to_second)} ${margin.second} by ${size(margin.to_second)}.`}
  </p>`;
}

function Over({ range }) {
  const { first } = range;
  return html`<p>
    Over the range, by ${range.points} points: ${first.config_id} loses ${signed(first.worst_regret)} of utility to the best
    where it loses most${first.mean_gain === null ? "" : `, and gains ${signed(first.mean_gain)} over what would run otherwise on average`}.
    ${range.best_mean.config_id !== first.config_id && ` ${range.best_mean.config_id} is best on average.`}
  </p>`;
}

function until({ below, above }) {
  const side = (turn, word) => turn && `${word} ${exact(turn.value)} (${turn.choice.replace("_", " ")} there)`;
  return [side(below, "above"), side(above, "below")].filter(Boolean).join(" and ") || "as far as it was trained for";
}

function Neighbours({ rows, evidence }) {
  return html`<h3>Nearest ${evidence} runs it was trained on</h3>
    <ul id="nearest">${rows.map((row) => html`<li key=${row.distance}>
      ${exact(Math.round(row.prompt_tokens))} → ${exact(Math.round(row.max_new_tokens))} tokens,
      ${" "}${exact(Math.round(row.concurrency))} clients, ${number(row.weight_gb)} GB of weights (distance
      ${" "}${number(row.distance)}), ${evidence}: ${row.config_id} was best with ${number(row.best.throughput_tps)} tokens/s${ttft(row.best)},
      vLLM's default had ${number(row.engine_default.throughput_tps)}${ttft(row.engine_default)}.
    </li>`)}</ul>`;
}

function ttft(seen) {
  return seen.ttft_p95_ms === null ? "" : ` and ${milliseconds(seen.ttft_p95_ms)} to the first token`;
}

const side = (value) => (value < 0 ? "Behind" : "Ahead of");
const size = (value) => Math.abs(value).toFixed(3);

function signed(value) {
  return value.toFixed(3).replace("-", "−");
}
