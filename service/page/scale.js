// Sliders over quantities that matter by their ratio: a list of values, one for each place of the slider.

// Whole numbers from low to high, so many for each doubling, each of them once: no press of a key is without effect.
export function doublings(low, high, places) {
  const values = new Set();
  const first = Math.round(Math.log2(low) * places);
  const last = Math.round(Math.log2(high) * places);
  for (let place = first; place <= last; place++) values.add(Math.round(2 ** (place / places)));
  return [...values].filter((value) => value >= low && value <= high);
}

// The place of the value that is nearest by ratio, of an ascending list; by difference where 0 is in it.
export function nearest(values, value) {
  const measure = values[0] > 0 && value > 0 ? Math.log : (number) => number;
  let best = 0;
  for (let place = 1; place < values.length; place++) {
    if (Math.abs(measure(values[place]) - measure(value)) < Math.abs(measure(values[best]) - measure(value))) best = place;
  }
  return best;
}

export function hundredths(low, high, step) {
  const values = [];
  for (let value = low; value <= high; value += step) values.push(value / 100);
  return values;
}
