import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { chance, exact, flags, number } from "./format.js";

const WHY_NOT = {
  kv_cache_too_small: "the KV cache is too small",
  too_few_batched_tokens: "too few tokens a step",
  contradicts_fixed: "contradicts what is fixed",
  not_learnt: "nothing was learnt about it",
};

// All 15, best first.
export function Ranking({ answer }) {
  return html`<section class="card" aria-labelledby="ranking-head">
    <h2 id="ranking-head">All ${answer.ranked.length} configurations</h2>
    <table class="ranking" role="table">
      <thead role="rowgroup">
        <tr role="row">
          ${["Rank", "Configuration", "Score", "Not worse than the default", "Requests that fit"].map(
            (head) => html`<th scope="col" role="columnheader" key=${head}>${head}</th>`,
          )}
        </tr>
      </thead>
      <tbody role="rowgroup">${answer.ranked.map((row) => html`<${Row} key=${row.config_id} row=${row} />`)}</tbody>
    </table>
    <p class="unit">
      The score orders the 15 of one answer and means nothing else. The chance is that no limit of training is newly missed
      and goodput is at most 5 % below what vLLM's default gives.
    </p>
  </section>`;
}

function Row({ row }) {
  const sure = row.p_not_worse_than_engine_default;
  return html`<tr role="row" class=${row.feasible ? "" : "cannot"}>
    <td role="cell" data-label="Rank">${row.rank}</td>
    <th scope="row" role="rowheader">${row.config_id}
      <small>${row.feasible ? flags(row.engine_args) : `cannot be chosen: ${WHY_NOT[row.feasibility.reason] ?? row.feasibility.reason}`}</small>
    </th>
    <td role="cell" data-label="Score">${row.score.toFixed(3).replace("-", "−")}</td>
    <td role="cell" data-label="Not worse than the default">${sure === null ? "not estimated" : chance(sure)}</td>
    <td role="cell" data-label="Requests that fit" title=${`${exact(row.capacity.kv_cache_tokens)} tokens of KV cache`}>
      ${number(row.capacity.requests_that_fit)}
    </td>
  </tr>`;
}
