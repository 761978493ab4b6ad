// Plots as SVG. Colours are variables of the style sheet, so a plot follows the reader's scheme. No two lines differ by colour alone:
// each has dashes and a marker of its own. A value that is no finite number is not drawn.

// Units of the view box. A plot is between 340 and 520 pixels wide, so letters have nearly their size.
const WIDTH = 440, HEIGHT = 310, RIGHT = WIDTH - 14, BOTTOM = HEIGHT - 48;
const DASHES = ["none", "7 4", "2 4", "10 3 2 3", "4 3", "1 3"];

const round = value => Math.round(value * 10) / 10;
// About what a text takes.
const width = text => 6.7 * [...text].length;
const colour = nth => `var(--s${nth % DASHES.length})`;

// The round figure at or above, and at or below: 1, 2 or 5 times a power of ten.
function above(value) {
  const decade = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(digit => digit * decade).find(round => round >= value) ?? 10 * decade;
}
function below(value) {
  const decade = 10 ** Math.floor(Math.log10(value));
  return [5, 2].map(digit => digit * decade).find(round => round <= value) ?? decade;
}

// A scale: from figures to places, from 0 to 1; null where a figure has no place.
function scale(log, from, to) {
  const place = value => log ? Math.log(Math.max(value, 0)) : value;
  if (!(to > from)) to = log ? from * 10 : from + 1;
  const at = value => {
    const at = (place(value) - place(from)) / (place(to) - place(from));
    return Number.isFinite(at) && at >= -1e-9 && at <= 1 + 1e-9 ? Math.min(Math.max(at, 0), 1) : null;
  };
  return { log, from, to, at, clamped: value => at(value) ?? (value >= to ? 1 : 0) };
}

// From zero to a little above all of these.
const linear = values => scale(false, 0, Math.max(0, ...values.filter(Number.isFinite)) * 1.04 || 1);

// From round figures to round figures.
function logarithmic(values) {
  const all = values.filter(value => Number.isFinite(value) && value > 0);
  return all.length ? scale(true, below(Math.min(...all) * 0.999), above(Math.max(...all) * 1.001)) : scale(true, 1, 10);
}

// Round figures on a scale, about six.
function ticks({ log, from, to, at }) {
  if (!log) {
    const step = above((to - from) / 6);
    return Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, nth) => from + nth * step);
  }
  const decades = Math.log10(to / from);
  const digits = decades <= 1.2 ? [1, 2, 3, 5, 7] : decades <= 2.6 ? [1, 2, 5] : [1];
  const every = digits.length === 1 ? Math.max(1, Math.ceil(decades / 6)) : 1;
  const all = [];
  for (let decade = Math.floor(Math.log10(from)); decade <= Math.ceil(Math.log10(to)); decade++) {
    if (decade % every === 0) all.push(...digits.map(digit => digit * 10 ** decade));
  }
  return all.filter(tick => at(tick) !== null);
}

// An axis: its quantity, its scale, how a tick is written, and where ticks are if not at round figures.
const axis = (title, scale, write, at) => ({ title, scale, write, at: at ?? ticks(scale) });

// The frame: a legend of keys (a sign and a name), axes, and what `draw` makes between them. Also for readers who cannot see it.
function plot(title, about, x, y, keys, draw, top = 14) {
  const legend = [];
  let row = 0, right = 16;
  for (const [sign, name] of keys) {
    const wide = 40 + width(name);
    if (right > 16 && right + wide > WIDTH) [row, right] = [row + 1, 16];
    legend.push(svg("g", { transform: `translate(${round(right)} ${14 + 20 * row})` }, sign, svg("text", { x: 17, y: 4 }, name)));
    right += wide;
  }
  const left = 34 + Math.max(0, ...(y?.at ?? []).map(tick => width(y.write(tick))));
  const canvas = { left, top: keys.length ? top + 20 * (row + 1) : top };
  canvas.x = at => round(canvas.left + at * (RIGHT - canvas.left));
  canvas.y = at => round(BOTTOM - at * (BOTTOM - canvas.top));
  return svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${about}` },
    svg("title", {}, title), svg("desc", {}, about), legend, y ? axes(canvas, x, y) : [], draw(canvas));
}

function axes({ left, top, x: place_x, y: place_y }, x, y) {
  const middle = round((top + BOTTOM) / 2);
  const grid = y.at.map(tick => {
    const at = place_y(y.scale.clamped(tick));
    return [svg("path", { class: "grid", d: `M${left} ${at}H${RIGHT}` }), svg("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, y.write(tick))];
  });
  // Ticks whose names do not touch.
  let free = -Infinity;
  const marks = x.at.map(tick => {
    const at = place_x(x.scale.clamped(tick)), half = width(x.write(tick)) / 2;
    if (at - half < free || at + half > WIDTH) return null;
    free = at + half + 8;
    return [svg("path", { class: "axis", d: `M${at} ${BOTTOM}v5` }), svg("text", { x: at, y: BOTTOM + 19, "text-anchor": "middle" }, x.write(tick))];
  });
  return [grid, marks, svg("path", { class: "axis", d: `M${left} ${BOTTOM}H${RIGHT}` }), below_x(left, x.title),
    svg("text", { class: "title", x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, y.title)];
}

const below_x = (left, title) =>
  svg("text", { class: "title", x: round((left + RIGHT) / 2), y: HEIGHT - 9, "text-anchor": "middle" }, title);

// A marker around a point. Each line has another.
function marker(nth, x, y) {
  const move = (dx, dy) => `M${round(x + dx)} ${round(y + dy)}`;
  return [
    move(-4, 0) + "a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", move(-3.5, -3.5) + "h7v7h-7z", move(0, -5) + "l4.6 8h-9.2z",
    move(0, -5) + "l5 5l-5 5l-5 -5z", move(0, 5) + "l4.6 -8h-9.2z",
    move(-3, -5) + "l3 3l3 -3l2 2l-3 3l3 3l-2 2l-3 -3l-3 3l-2 -2l3 -3l-3 -3z",
  ][nth % DASHES.length];
}

// Lines on two axes. A line: its name, the number of its look, its points; `rings` has points alone, `area` no markers.
function lines(title, about, x, y, all) {
  const stroke = ({ look, area }) =>
    ({ class: area ? "data thin" : "data", stroke: colour(look), "stroke-dasharray": DASHES[look % DASHES.length] });
  const sign = line => [line.rings ? null : svg("path", { ...stroke(line), d: "M-11 0H11" }), mark(line, 0, 0)];
  const mark = ({ look, rings }, at_x, at_y, text) => svg("path",
    { ...(rings ? { class: "ring", stroke: colour(look) } : { class: "dot", fill: colour(look) }), d: marker(look, at_x, at_y) },
    text ? svg("title", {}, text) : null);
  return plot(title, about, x, y, all.length > 1 ? all.map(line => [sign(line), line.name]) : [], canvas => all.map(line => {
    const places = line.points.map(point => [x.scale.at(point[0]), y.scale.at(point[1]), point]).filter(([a, b]) => a !== null && b !== null)
      .map(([a, b, point]) => [canvas.x(a), canvas.y(b), point]);
    if (!places.length) return null;
    // One point is a line of no length: with round ends it is a dot.
    const path = places.map(([a, b], nth) => `${nth ? "L" : "M"}${a} ${b}`).join("") + (places.length === 1 ? "h0" : "");
    const under = `${path}L${places.at(-1)[0]} ${BOTTOM}H${places[0][0]}z`;
    return [
      line.area ? svg("path", { class: "under", fill: colour(line.look), d: under }) : null,
      line.rings ? null : svg("path", { ...stroke(line), d: path }),
      line.area ? null : places.map(([a, b, point]) => mark(line, a, b, `${line.name}, ${x.write(point[0])}: ${y.write(point[1])}`)),
    ];
  }));
}

// Horizontal bars (a name, a value, a text) on a logarithmic axis: figures that differ by thousands are all seen.
function bars(title, about, quantity, all) {
  const size = logarithmic([0.5, ...all.map(bar => bar[1])]);
  return plot(title, about, null, null, [], () => {
    const left = 14 + Math.max(...all.map(bar => width(bar[0]))), right = WIDTH - 20 - Math.max(...all.map(bar => width(bar[2])));
    const pitch = (BOTTOM + 6) / all.length, thick = round(Math.min(pitch * 0.62, 30));
    return [all.map(([name, value, text], nth) => {
      const middle = round(10 + (nth + 0.5) * pitch), end = round(left + size.clamped(value) * (right - left));
      return [svg("text", { class: "title", x: round(left - 8), y: middle + 4, "text-anchor": "end" }, name),
        svg("path", { fill: colour(0), d: `M${left} ${round(middle - thick / 2)}H${end}v${thick}H${left}z` }),
        svg("text", { class: "value", x: round(end + 7), y: middle + 4 }, text)];
    }), svg("path", { class: "axis", d: `M${left} 10V${BOTTOM + 16}` }), below_x(left, quantity)];
  });
}

// Counts between two bounds each; marks (a value, a name) stand above.
function histogram(title, about, x, y, buckets, marks) {
  return plot(title, about, x, y, [], canvas => {
    let free = -Infinity;
    const named = marks.map(([value, name]) => {
      const at = x.scale.at(value);
      if (at === null) return null;
      // A name stays inside of the plot. Where two are too near, that of the second is left out; the table has it.
      const place = canvas.x(at), half = width(name) / 2, middle = Math.min(place, RIGHT - half), apart = middle - half >= free;
      if (apart) free = middle + half + 4;
      return [svg("path", { class: "mark", d: `M${place} ${canvas.top - 6}V${BOTTOM}` }),
        apart ? svg("text", { class: "value", x: round(middle), y: canvas.top - 12, "text-anchor": "middle" }, name) : null];
    });
    return [buckets.map(([from, to, count]) => {
      const [left, right, top] = [canvas.x(x.scale.clamped(from)), canvas.x(x.scale.clamped(to)), canvas.y(y.scale.clamped(count))];
      return svg("path", { fill: colour(0), d: `M${round(left + 0.5)} ${BOTTOM}V${top}H${round(right - 0.5)}V${BOTTOM}z` },
        svg("title", {}, `${x.write(from)} to ${x.write(to)}: ${count}`));
    }), named];
  }, 34);
}

// The shades of ages, from the youngest: up to which age, and its name.
const SHADES = [[0.5, "0"], [1.5, "1"], [3.5, "2–3"], [7.5, "4–7"], [15.5, "8–15"], [31.5, "16–31"], [Infinity, "32+"]];
const shade = age => age === null || age === undefined ? -1 : SHADES.findIndex(([upto]) => age < upto);

// Columns of ages from left to right, each from the bottom up; none is left out. Cells of one shade are one path.
function heat(title, about, x, y, columns) {
  const keys = SHADES.map(([, name], nth) => [svg("path", { fill: `var(--h${nth})`, d: "M-3 -7h15v13h-15z" }), name]);
  keys.push([svg("path", { class: "axis", d: "M-3 -6.5h14v12h-14z" }), "not in memory"]);
  return plot(title, about, x, y, keys, canvas => {
    const rows = columns[0]?.length ?? 0, wide = (RIGHT - canvas.left) / columns.length, high = (BOTTOM - canvas.top) / rows;
    const paths = SHADES.map(() => "");
    for (let row = 0; row < rows; row++) {
      for (let at = 0, next; at < columns.length; at = next) {
        const now = shade(columns[at][row]);
        for (next = at + 1; next < columns.length && shade(columns[next][row]) === now; next++);
        const long = round((next - at) * wide);
        if (now >= 0) paths[now] += `M${round(canvas.left + at * wide)} ${round(BOTTOM - (row + 1) * high)}h${long}v${round(high + 0.05)}h-${long}z`;
      }
    }
    return paths.map((d, nth) => d ? svg("path", { fill: `var(--h${nth})`, "shape-rendering": "crispEdges", d }) : null);
  });
}
