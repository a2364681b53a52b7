import { html, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { exact, flags, milliseconds } from "./format.js";
import { Expected, Limits } from "./expected.js";
import { FORMS } from "./question.js";
import { Ranking } from "./ranking.js";
import { Reasons } from "./reasons.js";

const DECISIONS = {
  recommended: ["Set these flags", "set"],
  keep_engine_default: ["Set nothing: keep vLLM's default", "keep"],
  none_feasible: ["Nothing would start", "none"],
};

// What the service answered; form: in which it is wanted to be started; meanwhile: what stands there until it is.
// map: what stands between the numbers and the ranking.
export function Answer({ answer, form, meanwhile, onForm, map }) {
  return html`
    <${Decision} answer=${answer} />
    <${Limits} expected=${answer.expected} />
    <${Start} answer=${answer} form=${form} meanwhile=${meanwhile} onForm=${onForm} />
    <${Expected} answer=${answer} />
    ${map}
    <${Ranking} answer=${answer} />
    <${Reasons} answer=${answer} />
    <${Notes} answer=${answer} />
  `;
}

export function titleOf(answer) {
  return DECISIONS[answer.decision][0];
}

function Decision({ answer }) {
  const [title, kind] = DECISIONS[answer.decision];
  return html`<div class=${`card decision ${kind}`}>
    <p class="tags">
      <span class="tag evidence">${answer.policy.evidence}</span>
      ${!answer.support.in_distribution && html`<span class="tag">outside of support</span>`}
    </p>
    <h2 id="decision">${title}</h2>
    <p id="summary">${answer.summary}</p>
    ${answer.decision === "recommended" && html`<p class="flags">${flags(answer.ranked[0].engine_args)}</p>`}
    ${answer.warnings.length > 0 &&
    html`<h3>Warned of</h3><ul class="warnings">${answer.warnings.map((text) => html`<li key=${text}>${text}</li>`)}</ul>`}
    ${answer.policy.evidence === "simulated" &&
    html`<p class="unit">Every number here was learnt from simulated runs; none was measured on such a server.</p>`}
  </div>`;
}

function Start({ answer, form, meanwhile, onForm }) {
  const text = formText(answer, form);
  const instead = answer.decision === "none_feasible" ? "Nothing would start." : meanwhile;
  const [said, setSaid] = useState("");
  const copy = async () => setSaid((await copied(text)) ? "Copied." : "Select the text and copy it.");
  return html`<section class="card" aria-labelledby="start-head">
    <div class="head">
      <h2 id="start-head">Start it</h2>
      <label class="inline" for="form">Form
        <select id="form" value=${form} onChange=${(event) => (setSaid(""), onForm(event.target.value))}>
          ${FORMS.map((name) => html`<option key=${name} value=${name} selected=${name === form}>${name}</option>`)}
        </select>
      </label>
      <button type="button" id="copy" disabled=${!text} onClick=${copy}>Copy</button>
      <span role="status" id="copied">${said}</span>
    </div>
    <pre id="text" tabindex="0" aria-label="What to start it with">${text || instead}</pre>
  </section>`;
}

// The answer in that form; "" where nothing would start or the form is still asked for.
function formText(answer, form) {
  const rendered = form === "command" ? answer.command : answer.renders[form];
  if (rendered === null || rendered === undefined) return "";
  return typeof rendered === "string" ? rendered : `${JSON.stringify(rendered, null, 2)}\n`;
}

// Browsers give the clipboard to encrypted pages and to this machine's own alone; elsewhere the older way has to do.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(document.getElementById("text"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  }
}

function Notes({ answer }) {
  const assumed = Object.entries(answer.assumed);
  return html`<section class="card" aria-labelledby="notes-head">
    <h2 id="notes-head">Assumed</h2>
    ${assumed.length > 0 && html`<dl>${assumed.map(([path, value]) => html`<div key=${path}><dt>${path}</dt><dd>${shown(path, value)}</dd></div>`)}</dl>`}
    ${!assumed.length && html`<p>Nothing.</p>`}
    <p class="unit">
      Policy ${answer.policy.version} for ${answer.policy.gpu}, vLLM ${answer.policy.engine_version}. On record as
      ${" "}${answer.recommendation_id}, as tried out.
    </p>
  </section>`;
}

function shown(path, value) {
  if (typeof value !== "number") return String(value);
  return path.endsWith("_ms") ? milliseconds(value) : exact(value);
}
