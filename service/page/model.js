import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Choice, Fault } from "./controls.js";
import { number } from "./format.js";
import { ask } from "./service.js";

const PATIENCE_MS = 150;
const LISTED = 30;
const MOST_CONFIG_BYTES = 500_000;

export function Model({ question, error, session, change }) {
  return html`<section class="group" aria-labelledby="model-head">
    <h2 id="model-head">Model</h2>
    <${Choice}
      name="source"
      legend="Where it is described"
      options=${[["name", "Catalogue"], ["config", "Own config.json"]]}
      value=${question.source}
      onChange=${(source) => change({ source })}
    />
    ${question.source === "name"
      ? html`<${Catalogue} value=${question.name} error=${error} session=${session} onChange=${(name) => change({ name })} />`
      : html`<${Config} value=${question.config} error=${error} onChange=${(config) => change({ config })} />`}
  </section>`;
}

// A combobox with a list that the service searches. What is typed counts too: the service says what it does not know.
function Catalogue({ value, error, session, onChange }) {
  const [text, setText] = useState(value);
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1);
  const found = useModels(open ? (text === value ? "" : text) : null, session);
  const models = found?.models ?? [];
  const choose = (name) => {
    setText(name);
    setOpen(false);
    setActive(-1);
    if (name !== value) onChange(name);
  };
  const onKeyDown = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) {
      event.preventDefault();
      setOpen(true);
      if (models.length) setActive((active + steps[event.key] + models.length + (active < 0 && steps[event.key] < 0)) % models.length);
    } else if (event.key === "Enter") choose(open && models[active] ? models[active].id : text.trim());
    else if (event.key === "Escape") {
      setText(value);
      setOpen(false);
    }
  };
  return html`<div class="text combobox">
    <label for="model">Name<span class="unit"> search by words of it, family, kind or quantisation</span></label>
    <input
      id="model"
      role="combobox"
      autocomplete="off"
      spellcheck=${false}
      value=${text}
      aria-expanded=${open ? "true" : "false"}
      aria-controls="models"
      aria-autocomplete="list"
      aria-activedescendant=${open && models[active] ? `model-${active}` : undefined}
      aria-invalid=${error ? "true" : "false"}
      aria-describedby=${error ? "model-fault" : undefined}
      onFocus=${(event) => event.target.select()}
      onClick=${() => setOpen(true)}
      onInput=${(event) => {
        setText(event.target.value);
        setActive(-1);
        setOpen(true);
      }}
      onKeyDown=${onKeyDown}
      onBlur=${() => choose(text.trim())}
    />
    <${Models} hidden=${!open} found=${found} active=${active} choose=${choose} />
    <${Fault} id="model-fault" message=${error} />
  </div>`;
}

function Models({ hidden, found, active, choose }) {
  const list = useRef();
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [active]);
  const models = found?.models ?? [];
  return html`<ul id="models" role="listbox" aria-label="Models" hidden=${hidden} ref=${list}>
    ${models.map(
      (model, place) => html`<li
        key=${model.id}
        id=${`model-${place}`}
        role="option"
        aria-selected=${place === active ? "true" : "false"}
        onMouseDown=${(event) => event.preventDefault()}
        onClick=${() => choose(model.id)}
      >
        <span>${model.id}</span>
        <small>${number(model.weight_gb)} GB ${model.kind}${model.quantisation ? ` ${model.quantisation}` : ""}${
          model.support.in_distribution ? "" : " · not trained for"}</small>
      </li>`,
    )}
    ${found && found.total > models.length &&
    html`<li role="presentation" class="more">${found.total - models.length} more: type to narrow them down</li>`}
    ${found && !found.total && html`<li role="presentation" class="more">No model of the catalogue matches.</li>`}
  </ul>`;
}

// The models that match; null as long as nobody looks. What comes late for an earlier text is dropped.
function useModels(text, session) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (text === null) return undefined;
    const control = new AbortController();
    const look = async () => {
      try {
        const listed = await ask(`v1/models?limit=${LISTED}&q=${encodeURIComponent(text.trim())}`, control);
        if (!control.signal.aborted) setFound(listed);
      } catch {
        // The question itself says what is wrong.
        if (!control.signal.aborted) setFound(null);
      }
    };
    const timer = setTimeout(look, PATIENCE_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [text, session]);
  return found;
}

function Config({ value, error, onChange }) {
  const [fault, setFault] = useState("");
  const take = async (file) => {
    if (!file) return;
    setFault(file.size > MOST_CONFIG_BYTES ? `${file.name} is too large for a config.json` : "");
    if (file.size <= MOST_CONFIG_BYTES) onChange(await file.text());
  };
  const message = fault || error;
  return html`<div class="text">
    <label for="config">Content of config.json<span class="unit"> paste it, or drop the file here</span></label>
    <textarea
      id="config"
      rows="6"
      spellcheck=${false}
      value=${value}
      aria-invalid=${message ? "true" : "false"}
      aria-describedby=${message ? "config-fault" : undefined}
      onInput=${(event) => onChange(event.target.value)}
      onDragOver=${(event) => event.preventDefault()}
      onDrop=${(event) => {
        event.preventDefault();
        take(event.dataTransfer.files[0]);
      }}
    ></textarea>
    <label class="file" for="config-file">or choose the file</label>
    <input id="config-file" type="file" accept=".json,application/json" onChange=${(event) => take(event.target.files[0])} />
    <${Fault} id="config-fault" message=${message} />
  </div>`;
}
