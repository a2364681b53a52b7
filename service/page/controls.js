import { html, useMemo } from "./vendor/htm-preact-standalone-3.1.1.js";
import { exact } from "./format.js";
import { doublings, hundredths, nearest } from "./scale.js";

export function Fault({ id, message }) {
  return message ? html`<p class="fault" id=${id}><span aria-hidden="true">▲ </span>${message}</p>` : null;
}

// A number with a slider beside it. Both have the same value; the number reaches further than the slider.
export function Quantity({ field, value, range, error, onChange }) {
  const id = `field-${field.name}`;
  const [low, high] = range ?? [field.low, field.high];
  const values = useMemo(
    () => (field.share ? hundredths(0, 100, 5) : doublings(Math.max(low, 1), high, field.places)),
    [low, high, field],
  );
  // Of a range, LOW:HIGH, the slider shows the lower end.
  const place = nearest(values, Number(value.split(":")[0]) || 0);
  return html`<div class="quantity">
    <label for=${id}>${field.label}<span class="unit"> ${field.unit}</span></label>
    <input
      id=${id}
      class="number"
      inputmode="decimal"
      autocomplete="off"
      value=${value}
      aria-invalid=${error ? "true" : "false"}
      aria-describedby=${error ? `${id}-fault` : undefined}
      onInput=${(event) => onChange(event.target.value)}
    />
    <input
      type="range"
      id=${`${id}-slider`}
      min="0"
      max=${values.length - 1}
      step="1"
      value=${place}
      aria-label=${`${field.label}, slider`}
      aria-valuetext=${`${exact(values[place])} ${field.unit}`}
      onInput=${(event) => onChange(String(values[Number(event.target.value)]))}
    />
    <${Fault} id=${`${id}-fault`} message=${error} />
  </div>`;
}

export function Text({ id, label, unit, value, error, onChange, list, placeholder, inputmode }) {
  return html`<div class="text">
    <label for=${id}>${label}${unit && html`<span class="unit"> ${unit}</span>`}</label>
    <input
      id=${id}
      list=${list}
      inputmode=${inputmode}
      placeholder=${placeholder}
      autocomplete="off"
      spellcheck=${false}
      value=${value}
      aria-invalid=${error ? "true" : "false"}
      aria-describedby=${error ? `${id}-fault` : undefined}
      onInput=${(event) => onChange(event.target.value)}
    />
    <${Fault} id=${`${id}-fault`} message=${error} />
  </div>`;
}

// One of a few; options: [value, label] each.
export function Choice({ name, legend, options, value, onChange }) {
  return html`<fieldset class="choice">
    <legend>${legend}</legend>
    ${options.map(
      ([option, label]) => html`<label key=${option}>
        <input type="radio" name=${name} value=${option} checked=${value === option} onChange=${() => onChange(option)} />
        <span>${label}</span>
      </label>`,
    )}
  </fieldset>`;
}
