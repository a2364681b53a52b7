// What the browser's tests evaluate in the page.

// Texts in sight whose contrast to what lies behind them is less than WCAG 2.2 asks for at level AA, and how many
// were looked at. Text of a disabled control needs none.
function pale() {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  let seen = 0;
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    const element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest(":disabled, option, datalist, .hidden")) continue;
    seen++;
    const style = getComputedStyle(element);
    const under = behind(element);
    const [brighter, darker] = [light(over(parsed(style.color), under)), light(under)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (brighter + 0.05) / (darker + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
  }
  return { seen, found };
}

function parsed(colour) {
  const [red, green, blue, alpha] = colour.match(/[\d.]+/g).map(Number);
  return [red, green, blue, alpha ?? 1];
}

function over(top, under) {
  return top.slice(0, 3).map((one, channel) => one * top[3] + under[channel] * (1 - top[3]));
}

function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
}

// Relative luminance of sRGB.
function light(colour) {
  const linear = colour.map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// How far the page scrolls sideways, and what stands out to the right. Tracks cut off what they hold.
function tooWide() {
  const most = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll("body *")].filter(
    (one) => !one.closest(".hidden, thead, .track") && one.getBoundingClientRect().right > most + 0.5,
  );
  return { scrolled: document.documentElement.scrollWidth - most, out: out.map((one) => one.outerHTML.slice(0, 80)) };
}

// What has the focus, and whether a line around it says so.
function focused() {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  return { name: at.id || at.innerText, shown: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
}
