import { html, render, useEffect, useMemo, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Answer, titleOf } from "./answer.js";
import { Choice, Fault, Quantity, Text } from "./controls.js";
import { Plan } from "./map.js";
import { Model } from "./model.js";
import { manifestFor, trained } from "./policy.js";
import { bodyOf, errorsOf, FIELDS, FIRST, LIMITS, LOADS } from "./question.js";
import { ask, RECOMMEND, Refused, setToken } from "./service.js";

const PATIENCE_MS = 300;

function Page() {
  const [question, setQuestion] = useState(FIRST);
  // Counts the tokens that were given: with another one everything is asked anew.
  const [session, setSession] = useState(0);
  const change = (changes) => setQuestion((before) => ({ ...before, ...changes }));
  const choices = useFetched("page/choices.json", session).content;
  const policy = useFetched("v1/policy", session).content;
  const manifest = useMemo(() => manifestFor(policy, choices?.gpus ?? [], question), [policy, choices, question.gpu, question.confidence]);
  const { body, errors } = useMemo(() => bodyOf(question), [question]);
  const asked = useAnswer(body, errors, question.form, session);
  const faults = { ...(asked.refusal?.problem ? errorsOf(asked.refusal.problem) : {}), ...errors };
  // Of the same question in another form the answer is the same.
  const earlier = !asked.current && missing(asked, errors) && asked.of !== JSON.stringify(body);
  const locked = asked.refusal?.status === 401 || asked.refusal?.status === 403;
  return html`
    <header>
      <h1>MemoryPolicy</h1>
      <p>How to start vLLM for a model, a GPU and a load: before launch, from what is known before launch.</p>
      <nav aria-label="Documents"><a href="docs">API</a> <a href="page/vendor/NOTICE.txt">Licences</a></nav>
    </header>
    <div class="columns">
      <form aria-label="Question" onSubmit=${(event) => event.preventDefault()}>
        ${(locked || session > 0) && html`<${Token} refused=${locked} onToken=${() => setSession(session + 1)} />`}
        <${Model} question=${question} error=${faults["$.model"]} session=${session} change=${change} />
        <${Device} question=${question} faults=${faults} choices=${choices} policy=${policy} change=${change} />
        <${Workload} question=${question} faults=${faults} choices=${choices} manifest=${manifest} change=${change} />
        <${Further} question=${question} faults=${faults} manifest=${manifest} change=${change} />
        ${asked.answer && html`<a class="jump" href="#answer"><strong>${titleOf(asked.answer)}${earlier && " (an earlier question)"}</strong><span aria-hidden="true"> ↓</span></a>`}
      </form>
      <main id="answer" tabindex="-1" aria-label="Answer" aria-busy=${asked.busy ? "true" : "false"}>
        <p class="hidden" role="status" aria-live="polite" id="live">${said(asked, errors)}</p>
        <${Trouble} asked=${asked} general=${faults[""]} locked=${locked} errors=${errors} />
        ${asked.answer && html`<div class=${asked.current ? "" : "stale"}>
          ${earlier && html`<p class="earlier" id="earlier">What follows answers an earlier question.</p>`}
          <${Answer}
            answer=${asked.answer}
            form=${question.form}
            meanwhile=${missing(asked, errors) || "Asking…"}
            onForm=${(form) => change({ form })}
            map=${html`<${Plan} key=${session} body=${Object.keys(errors).length ? null : body} />`}
          />
        </div>`}
      </main>
    </div>
  `;
}

// Why there is no answer to the question, "" where there is one or it is awaited.
function missing(asked, errors) {
  if (Object.keys(errors).length) return "The question is not complete.";
  return asked.refusal ? `Not answered: ${asked.refusal.message}` : "";
}

function said(asked, errors) {
  const why = missing(asked, errors);
  if (why || !asked.answer || !asked.current) return why;
  const { summary, warnings } = asked.answer;
  return warnings.length ? `${summary} Warned of: ${warnings.join(" ")}` : summary;
}

function Trouble({ asked, general, locked, errors }) {
  const incomplete = Object.keys(errors).length > 0;
  if (!asked.refusal && !incomplete) return null;
  const text = incomplete ? "The question is not complete: see the marked fields."
    : locked ? asked.refusal.message
    : general ?? (asked.refusal instanceof Refused ? "The service refused the question: see the marked fields." : asked.refusal.message);
  return html`<div class="card trouble"><${Fault} message=${text} /></div>`;
}

function Token({ refused, onToken }) {
  const [text, setText] = useState("");
  const give = () => {
    setToken(text);
    onToken();
  };
  return html`<section class="group" aria-labelledby="token-head">
    <h2 id="token-head">Token</h2>
    <div class="text">
      <label for="token">Bearer token<span class="unit"> kept until the page is closed or loaded again</span></label>
      <input
        id="token"
        type="password"
        autocomplete="off"
        value=${text}
        aria-invalid=${refused ? "true" : "false"}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${(event) => event.key === "Enter" && give()}
      />
      <button type="button" id="give-token" onClick=${give}>Use it</button>
    </div>
  </section>`;
}

function Device({ question, faults, choices, policy, change }) {
  const gpus = choices?.gpus ?? [];
  return html`<section class="group" aria-labelledby="gpu-head">
    <h2 id="gpu-head">GPU</h2>
    <${Text}
      id="gpu"
      label="Name"
      unit="left empty: the service's own"
      list="gpus"
      placeholder=${policy?.manifest.gpu}
      value=${question.gpu}
      error=${faults["$.gpu"]}
      onChange=${(gpu) => change({ gpu })}
    />
    <datalist id="gpus">${gpus.map((gpu) => html`<option key=${gpu.name} value=${gpu.name}>${gpu.short}, ${gpu.memory_gib} GiB</option>`)}</datalist>
    <label class="check">
      <input type="checkbox" id="shared" checked=${question.gpu_shared} onChange=${(event) => change({ gpu_shared: event.target.checked })} />
      <span>Other processes share the GPU's memory</span>
    </label>
    <${Fault} id="shared-fault" message=${faults["$.gpu_shared"]} />
  </section>`;
}

function Workload({ question, faults, choices, manifest, change }) {
  const load = LOADS.find((one) => one.name === question.load);
  const field = (one) => html`<${Quantity}
    key=${one.name}
    field=${one}
    value=${question[one.name]}
    range=${trained(manifest, one.name)}
    error=${faults[`$.workload.${one.name}`]}
    onChange=${(value) => change({ [one.name]: value })}
  />`;
  const take = (preset) =>
    change(Object.fromEntries(FIELDS.map(({ name }) => [name, String(preset[name])])));
  return html`<section class="group" aria-labelledby="load-head">
    <h2 id="load-head">Workload</h2>
    <div class="presets" role="group" aria-label="Presets, which fill in typical numbers">
      ${(choices?.presets ?? []).map((preset) => html`<button
        type="button"
        key=${preset.name}
        aria-pressed=${FIELDS.every(({ name }) => question[name] === String(preset[name])) ? "true" : "false"}
        onClick=${() => take(preset)}
      >${preset.name}</button>`)}
    </div>
    <p class="unit">A range is written LOW:HIGH, such as 4000:8000.</p>
    ${FIELDS.map(field)}
    <${Choice} name="load" legend="How much comes" options=${LOADS.map((one) => [one.name, one.label])} value=${question.load} onChange=${(name) => change({ load: name })} />
    ${field(load)}
    <label class="inline" for="confidence">How well these numbers are known
      <select id="confidence" value=${question.confidence} onChange=${(event) => change({ confidence: event.target.value })}>
        ${["exact", "typical", "rough"].map((name) => html`<option key=${name} value=${name} selected=${name === question.confidence}>${name}</option>`)}
      </select>
    </label>
    <${Fault} id="confidence-fault" message=${faults["$.workload.confidence"]} />
  </section>`;
}

function Further({ question, faults, manifest, change }) {
  const slo = manifest?.slo ?? {};
  return html`<section class="group" aria-labelledby="further-head">
    <h2 id="further-head">Limits and arguments</h2>
    ${LIMITS.map((limit) => html`<${Text}
      key=${limit.name}
      id=${limit.name}
      label=${limit.label}
      unit=${`${limit.unit}, at most`}
      inputmode="decimal"
      placeholder=${slo[limit.name] === undefined ? undefined : String(slo[limit.name])}
      value=${question[limit.name]}
      error=${faults[`$.slo.${limit.name}`]}
      onChange=${(value) => change({ [limit.name]: value })}
    />`)}
    <${Text} id="max_model_len" label="Context" unit="tokens; left empty: the model's own" inputmode="numeric" value=${question.max_model_len} error=${faults["$.max_model_len"]} onChange=${(value) => change({ max_model_len: value })} />
    <${Text} id="extra_args" label="Further arguments of vllm serve" value=${question.extra_args} error=${faults["$.extra_args"]} onChange=${(value) => change({ extra_args: value })} />
  </section>`;
}

// {content} of a GET, null until it is there; whoever uses it can do without.
function useFetched(path, session) {
  const [content, setContent] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    ask(path, { signal: control.signal }).then(setContent, () => {});
    return () => control.abort();
  }, [path, session]);
  return { content };
}

// {answer, of, refusal, busy, current} of the question: asked a moment after the last change; what comes late for an earlier
// one is dropped. The last answer stays while the next one is awaited, and is not current then; of: its question.
function useAnswer(body, errors, form, session) {
  const [state, setState] = useState({ answer: null, of: null, refusal: null, busy: true, current: false });
  const key = Object.keys(errors).length ? null : JSON.stringify(form === "command" ? body : { ...body, render: [form] });
  useEffect(() => {
    if (key === null) {
      setState((before) => ({ ...before, refusal: null, busy: false, current: false }));
      return undefined;
    }
    const control = new AbortController();
    setState((before) => ({ ...before, busy: true, current: false }));
    const timer = setTimeout(async () => {
      try {
        const answer = await ask(RECOMMEND, { body: JSON.parse(key), signal: control.signal });
        if (!control.signal.aborted) setState({ answer, of: JSON.stringify(body), refusal: null, busy: false, current: true });
      } catch (refusal) {
        if (!control.signal.aborted) setState((before) => ({ ...before, refusal, busy: false, current: false }));
      }
    }, PATIENCE_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [key, session]);
  return state;
}

render(html`<${Page} />`, document.getElementById("page"));
