import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Choice } from "./controls.js";
import { exact, percent, short } from "./format.js";
import { ask, BATCH } from "./service.js";

// 100 questions: the service takes 256 in a batch.
const PROMPTS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
const CLIENTS = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
const LETTERS = "ABCDEFGHIJKLMNO";
const OTHER = {
  keep: ["–", "keep vLLM's default"],
  outside: ["?", "not trained for, keep vLLM's default"],
  none: ["×", "nothing would start"],
  refused: ["!", "cannot be asked"],
};

// The question at every point of prompt × clients. Drawn when it is asked for: each point goes on record.
export function Plan({ body }) {
  const [drawn, setDrawn] = useState(null);
  const [state, setState] = useState({ busy: false, fault: "" });
  const [shows, setShows] = useState("best");
  const control = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  const key = body && JSON.stringify({ ...body, workload: { ...body.workload, prompt_tokens: 0, concurrency: 0 } });
  const draw = async () => {
    control.current?.abort();
    const mine = (control.current = new AbortController());
    setState({ busy: true, fault: "" });
    try {
      const { items } = await ask(BATCH, { body: { items: questions(body) }, signal: mine.signal });
      if (mine.signal.aborted) return;
      setDrawn({ key, cells: items.map(cellOf) });
      setState({ busy: false, fault: "" });
    } catch (error) {
      if (!mine.signal.aborted) setState({ busy: false, fault: error.message });
    }
  };
  const gains = drawn?.cells.some((cell) => cell.gain !== null);
  return html`<section class="card" aria-labelledby="map-head">
    <div class="head">
      <h2 id="map-head">Map over prompt and clients</h2>
      <button type="button" id="draw" disabled=${!body || state.busy} aria-describedby="map-said" onClick=${draw}>
        ${state.busy ? "Asking…" : drawn ? "Draw again" : "Draw it"}
      </button>
    </div>
    <p id="map-said" role="status" class=${state.fault ? "fault" : "unit"}>${
      state.fault ||
      (drawn && drawn.key !== key
        ? "This map is of an earlier question."
        : `${PROMPTS.length * CLIENTS.length} questions in one batch, with everything else as it is set.`)
    }</p>
    ${drawn && html`
      ${gains && html`<${Choice} name="shows" legend="Shown" options=${[["best", "Best configuration"], ["gain", "Gain in throughput"]]} value=${shows} onChange=${setShows} />`}
      <${Grid} cells=${drawn.cells} shows=${gains ? shows : "best"} stale=${drawn.key !== key} />
    `}
  </section>`;
}

function questions(body) {
  const { requests_per_second: _, ...workload } = body.workload;
  const same = { ...body, explain: false, render: undefined };
  return CLIENTS.flatMap((concurrency) =>
    PROMPTS.map((prompt_tokens) => ({ ...same, workload: { ...workload, prompt_tokens, concurrency } })),
  );
}

// choice: a config_id, or a key of OTHER. gain: of throughput over the engine's default, 0 where the estimate cannot
// tell it from none, null where it is not known.
function cellOf({ answer }) {
  if (!answer) return { choice: "refused", gain: null };
  const sides = answer.expected;
  const known = sides?.recommended && sides.engine_default;
  const gain = known
    ? !sides.told_apart.output_throughput_tps ? 0
      : sides.change?.output_throughput_tps.value ?? sides.recommended.output_throughput_tps.value / sides.engine_default.output_throughput_tps.value - 1
    : sides && answer.decision === "keep_engine_default" ? 0 : null;
  const met = (side) => side.meets_slo.max_p95_ttft_ms && side.meets_slo.max_p95_tpot_ms;
  const rescued = Boolean(known && met(sides.recommended) && !met(sides.engine_default));
  const choice =
    answer.decision === "recommended" ? answer.ranked[0].config_id
    : answer.decision === "none_feasible" ? "none"
    : answer.support.in_distribution ? "keep" : "outside";
  return { choice, gain, rescued };
}

function Grid({ cells, shows, stale }) {
  const chosen = [...new Set(cells.map((cell) => cell.choice))].filter((choice) => !(choice in OTHER)).sort();
  const others = Object.keys(OTHER).filter((name) => cells.some((cell) => cell.choice === name));
  const faces = Object.fromEntries(chosen.map((choice, place) => [choice, [LETTERS[place], choice, `tone-${place}`]]));
  for (const name of others) faces[name] = [...OTHER[name], "tone-other"];
  return html`
    <table class=${`map${stale ? " stale" : ""}`}>
      <caption>${shows === "gain" ? "Gain in output tokens per second over vLLM's default, in percent" : "What to set"}; down: clients at once, across: prompt tokens</caption>
      <thead>
        <tr>
          <td></td>
          ${PROMPTS.map((prompt) => html`<th scope="col" key=${prompt} aria-label=${`${exact(prompt)} prompt tokens`}>${short(prompt)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${CLIENTS.map((clients, row) => html`<tr key=${clients}>
          <th scope="row" aria-label=${`${clients} clients`}>${clients}</th>
          ${PROMPTS.map((prompt, column) => html`<${Cell} key=${prompt} cell=${cells[row * PROMPTS.length + column]} faces=${faces} shows=${shows} />`)}
        </tr>`)}
      </tbody>
    </table>
    <ul class="legend" aria-label="Legend">
      ${shows === "best" && [...chosen, ...others].map((choice) => html`<li key=${choice}>
        <span class=${`swatch ${faces[choice][2]}`}>${faces[choice][0]}</span>${` ${faces[choice][1]}`}</li>`)}
      ${shows === "gain" && html`<li>percent of output tokens per second; 0 where vLLM's default is kept</li>
        <li>underlined: the default misses a limit there and this one is expected to meet both</li>`}
    </ul>`;
}

function Cell({ cell, faces, shows }) {
  const [letter, words, tone] = faces[cell.choice];
  if (shows === "best") {
    return html`<td class=${tone} title=${words}><span aria-hidden="true">${letter}</span><span class="hidden">${words}</span></td>`;
  }
  if (cell.gain === null) {
    return html`<td class="tone-other"><span aria-hidden="true">${cell.choice in faces ? "?" : ""}</span><span class="hidden">not known</span></td>`;
  }
  const points = Math.round(100 * cell.gain);
  const step = points <= 0 ? (points < 0 ? "less" : "same") : points < 5 ? "more-1" : points < 20 ? "more-2" : "more-3";
  const said = `${percent(Math.round(100 * cell.gain) / 100)}${cell.rescued ? ", and the limits are met" : ""}`;
  return html`<td class=${`gain-${step}`} title=${words}>
    <span aria-hidden="true" class=${cell.rescued ? "rescued" : ""}>${String(points).replace("-", "−")}</span>
    <span class="hidden">${said}</span>
  </td>`;
}
