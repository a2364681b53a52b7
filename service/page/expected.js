import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { chance, milliseconds, number, signed } from "./format.js";

const LIMITS = [
  { limit: "max_p95_ttft_ms", quantity: "ttft_p95_ms", label: "Time to first token, p95" },
  { limit: "max_p95_tpot_ms", quantity: "tpot_p95_ms", label: "Time per output token, p95" },
];
const QUANTITIES = [
  ["output_throughput_tps", "Output tokens per second", number],
  ["ttft_p95_ms", "Time to first token, p95", milliseconds],
  ["tpot_p95_ms", "Time per output token, p95", milliseconds],
];
// How much room the scale leaves on both sides of what it shows, as a factor.
const ROOM = 1.4;

// Each limit against what is expected of what would run.
export function Limits({ expected }) {
  const side = expected && (expected.recommended ?? expected.engine_default);
  if (!side) return null;
  const other = side === expected.recommended ? expected.engine_default : expected.declined;
  const asTrained = JSON.stringify(expected.slo) === JSON.stringify(expected.slo_trained_for);
  return html`<section class="card" aria-labelledby="limits-head">
    <h2 id="limits-head">Against the limits</h2>
    ${LIMITS.map((one) => html`<${Limit} key=${one.limit} one=${one} side=${side} slo=${expected.slo} />`)}
    ${side.slo_met_chance !== null && html`<p id="met">
      Both met in <strong>${chance(side.slo_met_chance)}</strong> of the workloads that may come${
        other ? ` (${side === expected.recommended ? "with nothing further set" : other.config_id}: ${chance(other.slo_met_chance)})` : ""
      }.${opposed(side) && " That is estimated separately from the numbers above."}
    </p>`}
    ${!asTrained &&
    html`<p class="unit">
      The ranking was trained for ${milliseconds(expected.slo_trained_for.max_p95_ttft_ms)} and
      ${" "}${milliseconds(expected.slo_trained_for.max_p95_tpot_ms)}; these limits are judged by the expected numbers.
    </p>`}
  </section>`;
}

// Whether the chance of the limits says the opposite of the verdicts.
function opposed({ meets_slo: meets, slo_met_chance: met }) {
  return meets.max_p95_ttft_ms && meets.max_p95_tpot_ms ? met < 0.5 : met > 0.5;
}

function Limit({ one, side, slo }) {
  const range = side[one.quantity];
  const most = slo[one.limit];
  const met = side.meets_slo[one.limit];
  if (range === null) return html`<p>${one.label}: an answer has one token, so there is none.</p>`;
  const low = Math.log(Math.min(range.low, most) / ROOM);
  const high = Math.log(Math.max(range.high, most) * ROOM);
  const at = (value) => `${(100 * (Math.log(value) - low)) / (high - low)}%`;
  const width = `${(100 * Math.log(range.high / range.low)) / (high - low)}%`;
  return html`<div class=${`limit ${met ? "met" : "missed"}`}>
    <p>
      <span class="mark" aria-hidden="true">${met ? "✓" : "✗"}</span>
      ${` ${one.label}: `}<strong>${milliseconds(range.value)}</strong>
      ${` (${milliseconds(range.low)} to ${milliseconds(range.high)}) against ${milliseconds(most)}: `}
      <strong>${met ? "met" : "missed"}</strong>
    </p>
    <div class="track" aria-hidden="true">
      <span class="band" style=${{ left: at(range.low), width }}></span>
      <span class="value" style=${{ left: at(range.value) }}></span>
      <span class="most" style=${{ left: at(most) }}></span>
    </div>
  </div>`;
}

// The numbers of what is recommended (or was declined) beside those of the engine's default.
export function Expected({ answer }) {
  const { expected } = answer;
  return html`<section class="card" aria-labelledby="expected-head">
    <h2 id="expected-head">Expected numbers <span class="tag evidence">${expected?.evidence ?? answer.policy.evidence}</span></h2>
    ${expected
      ? html`<${Sides} expected=${expected} />`
      : html`<p id="no-numbers">${
          answer.support.in_distribution
            ? "No expected numbers: this policy estimates none."
            : "No expected numbers outside of support: they would be made up."
        }</p>`}
  </section>`;
}

function Sides({ expected }) {
  const sides = [
    [expected.recommended, "Recommended"],
    [expected.declined, "Ranks first, not set"],
    [expected.engine_default, "Nothing further set"],
  ].filter(([side]) => side);
  const base = expected.engine_default;
  const unknown = byReason(Object.assign({}, ...sides.map(([side]) => side.simulator_error_unknown)));
  return html`
    <table class="sides" role="table">
      <thead role="rowgroup">
        <tr role="row">
          <th scope="col" role="columnheader">Quantity</th>
          ${sides.map(([side, title]) => html`<th scope="col" role="columnheader" key=${title}>${title}<small>${side.config_id}</small></th>`)}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${QUANTITIES.map(
          ([name, label, written]) => html`<tr role="row" key=${name}>
            <th scope="row" role="rowheader">${label}</th>
            ${sides.map(([side, title]) => html`<td role="cell" key=${title} data-label=${title}>
              <${Value} range=${side[name]} written=${written} />
              ${side !== base && base && html`<${Change} change=${expected.change?.[name]} apart=${expected.told_apart?.[name]} ours=${side[name]} theirs=${base[name]} />`}
            </td>`)}
          </tr>`,
        )}
        <tr role="row">
          <th scope="row" role="rowheader">What bounds it</th>
          ${sides.map(([side, title]) => html`<td role="cell" key=${title} data-label=${title}>${side.regime}</td>`)}
        </tr>
      </tbody>
    </table>
    <p class="unit">
      In brackets the ${100 * expected.band.from_quantile} % and ${100 * expected.band.to_quantile} % quantile of what
      would be measured: true workloads behind the announced one, joined with the simulator's own error where that is known.
    </p>
    ${expected.change && html`<p class="unit">
      A change is that against vLLM's default in the same true workload, with the same quantiles, by ${expected.evidence}
      ${" "}runs. It is estimated by itself: the quotient of the two numbers, into which the errors of both go, need not be it.
    </p>`}
    ${unknown.map(([why, names]) => html`<p class="unit" key=${why}>
      Without the simulator's own error: ${names.join("; ").toLowerCase()}. ${why[0].toUpperCase()}${why.slice(1)}.
    </p>`)}
  `;
}

// [reason, labels of quantities] of {quantity: reason}.
function byReason(unknown) {
  const reasons = new Map();
  for (const [name, label] of QUANTITIES) {
    const why = unknown[name] ?? unknown[name.replace("output_", "")];
    if (why) reasons.set(why, [...(reasons.get(why) ?? []), label]);
  }
  return [...reasons];
}

function Value({ range, written }) {
  if (range === null || range === undefined) return html`<span>–</span>`;
  return html`<strong>${written(range.value)}</strong>
    <small>(${written(range.low)} – ${written(range.high)})</small>`;
}

// Whole percent within which all of a range is close to no change.
const ALIKE = 10;

// Where the estimate cannot tell a difference there is none worth a percentage; against what is fixed none was learnt,
// and the two numbers have to do.
function Change({ change, apart, ours, theirs }) {
  if (!ours || !theirs) return null;
  if (!change) return html`<span class="change"> ${apart ? `${signed(ours.value / theirs.value - 1, 0)} %` : "about the same"}</span>`;
  const most = Math.max(Math.abs(change.low), Math.abs(change.high));
  const ends = [change.low, change.high].map((end) => signed(end, most < 0.0095 ? 1 : 0)).join(" to ");
  const same = Math.round(100 * most) <= ALIKE ? "about the same" : "no clear change";
  const size = apart ? `${signed(change.value, Math.abs(change.value) < 0.0995 ? 1 : 0)} %` : same;
  return html`<span class="change"> ${size}</span> <small>(${ends} %)</small>`;
}
