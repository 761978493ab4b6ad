// Figures as people read them, by the rules of measure/bench/src/figure_text.rs; and elements of the page.

const DASH = "–";

// Three digits that count, or all before the point.
function digits(value) {
  if (!Number.isFinite(value)) return DASH;
  if (value < 0) return "−" + digits(-value);
  if (value === 0) return "0";
  const decimals = value < 0.0995 ? 4 : value < 0.9995 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  const rounded = value * 2 ** (decimals + 1) % 2 === 1 ? even(value * 10 ** decimals) / 10 ** decimals : value;
  return decimals > 0 ? rounded.toFixed(decimals) : Math.round(rounded).toLocaleString("en-US");
}

// A half, rounded as Rust does it: to the even number.
const even = half => Math.floor(half) + Math.floor(half) % 2;

function plain(value) {
  return Number.isInteger(value) && Math.abs(value) < 1000 ? String(value) : digits(value);
}

function ns(value) {
  const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, scale]) => Math.abs(value) >= scale * 0.9995) ?? ["ns", 1];
  return Number.isFinite(value) ? `${digits(value / scale)} ${unit}` : DASH;
}

// Nanoseconds in a unit, if it is one of time.
const TIMES = { ps: 1e-3, ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9 };

// A figure with its unit; times in the unit of time that fits. No value is a dash.
function withUnit(value, unit) {
  if (!Number.isFinite(value)) return DASH;
  const [time, ...each] = unit.split(/[/ ]/);
  if (time in TIMES) {
    const per = each.join(" ").replace(/^a /, "");
    return ns(value * TIMES[time]) + (per ? ` ${/^[aeio]/.test(per) ? "an" : "a"} ${per}` : "");
  }
  if (unit === "share") return `${digits(value * 100)} %`;
  if (unit === "%") return `${digits(value)} %`;
  if (["x", "times", "ratio"].includes(unit)) return times(value);
  return unit ? `${plain(value)} ${unit}` : plain(value);
}

function times(value) {
  return Number.isFinite(value) ? `${digits(value)} ×` : DASH;
}

// A tick of an axis: short, and exact.
function tick(value) {
  const [unit, scale] = [["G", 1e9], ["M", 1e6], ["k", 1e3]].find(([, scale]) => Math.abs(value) >= scale * 0.9995) ?? ["", 1];
  return Number((value / scale).toFixed(4)) + unit;
}

function tickNs(value) {
  const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, scale]) => value >= scale * 0.9995) ?? ["ns", 1];
  return `${Number((value / scale).toFixed(4))} ${unit}`;
}

const tickPercent = value => `${tick(value)} %`;

// An element, HTML or SVG, with attributes and what is inside; nothing for null.
function element(create, tag, attributes, inside) {
  const made = create(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
  made.append(...inside.flat(Infinity).filter(one => one != null));
  return made;
}
const html = (tag, attributes, ...inside) => element(tag => document.createElement(tag), tag, attributes, inside);
const svg = (tag, attributes, ...inside) =>
  element(tag => document.createElementNS("http://www.w3.org/2000/svg", tag), tag, attributes, inside);

// Text: `code`, and **figures**.
function rich(text) {
  return text.split(/(`[^`]*`|\*\*[^*]*\*\*)/).map(part => {
    if (part.startsWith("`")) return html("code", {}, part.slice(1, -1));
    return part.startsWith("**") ? html("b", { class: "figure" }, part.slice(2, -2)) : part;
  });
}

const SOURCES = { series: "series", here: "real, here", simulated: "simulated" };
const badge = from => html("span", { class: `badge ${from}` }, SOURCES[from]);

// So that colours are not needed.
const SIGNS = { good: "✓ ", bad: "✗ ", open: "○ " };

// A table. A column is a label, and where its figures are from, or `n` for a number, or nothing; a cell is a text, or a text and a mark.
function table(caption, columns, rows) {
  const kind = from => from ? "n" : "w";
  const head = ([label, from]) =>
    html("th", { scope: "col", class: kind(from) }, from in SOURCES ? [badge(from), label ? html("br") : null] : null, rich(label));
  const cell = (cell, nth) => {
    const [text, mark] = Array.isArray(cell) ? cell : [cell, ""];
    return html("td", { class: `${kind(columns[nth][1])} ${mark}` }, SIGNS[mark] ?? null, rich(text));
  };
  const heads = columns.some(([label]) => label) ? html("thead", {}, html("tr", {}, columns.map(head))) : null;
  const body = html("tbody", {}, rows.map(row => html("tr", {}, row.map(cell))));
  // Wide tables are scrolled, by keyboard too.
  return html("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": caption.replaceAll("`", "") },
    html("table", {}, html("caption", {}, rich(caption)), heads, body));
}

const fold = (title, ...inside) => html("details", {}, html("summary", {}, rich(title)), ...inside);
