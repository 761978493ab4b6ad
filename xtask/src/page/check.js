// Looks at the page in the iframe, and writes what it saw, and what is wrong with it, into #seen, as JSON.
"use strict";

// Pixels that rounding may cost.
const SLACK = 1;
// Of text against what is behind it: WCAG 2, level AA.
const CONTRAST = 4.5;
// The smallest letters that can be read, in pixels.
const SMALLEST = 8.5;

function check(frame) {
  const findings = new Set();
  const find = (what, element) => findings.add(element ? `${what}: ${name(element)}` : what);
  const seen = { plots: 0, texts: 0 };
  try {
    const view = frame.contentWindow, page = frame.contentDocument;
    // What is folded must look good when it is opened.
    page.querySelectorAll("details").forEach(details => { details.open = true; });
    if (!view.matchMedia(`(prefers-color-scheme: ${SCHEME})`).matches) find(`the page is not asked for ${SCHEME}`);
    fits(view, page, find);
    const plots = [...page.querySelectorAll("svg.plot")];
    plots.forEach(svg => plot(view, svg, find));
    seen.plots = plots.length;
    seen.texts = texts(view, page, find);
    self_contained(view, page, find);
    complete(page, find);
  } catch (error) {
    find(`the checks failed: ${error}`);
  }
  seen.findings = [...findings].slice(0, 60);
  document.getElementById("seen").textContent = JSON.stringify(seen);
}

function name(element) {
  const id = element.closest("[id]");
  const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 50);
  return `<${element.tagName.toLowerCase()}> in #${id ? id.id : ""} "${text}"`;
}

// Nothing is past the right edge, but for what is inside a scroller of its own.
function fits(view, page, find) {
  const width = page.documentElement.clientWidth;
  if (page.documentElement.scrollWidth > width) find(`the page is ${page.documentElement.scrollWidth} pixels wide, of ${width}`);
  const scrolls = element => {
    for (let at = element.parentElement; at && at !== page.body; at = at.parentElement) {
      if (["auto", "scroll"].includes(view.getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  for (const element of page.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + SLACK || box.left < -SLACK) && !scrolls(element)) find("past the edge", element);
  }
}

// A plot is there, has words for those who cannot see it, draws something, and its texts stay inside and apart.
function plot(view, svg, find) {
  const box = svg.getBoundingClientRect();
  if (box.width < 100 || box.height < 60) find(`a plot of ${box.width} times ${box.height} pixels`, svg);
  for (const words of ["title", "desc"]) {
    const element = svg.querySelector(`:scope > ${words}`);
    if (!element || element.textContent.trim().length < 10) find(`a plot without <${words}>`, svg);
  }
  let drawn = 0;
  for (const path of svg.querySelectorAll("path")) {
    const d = path.getAttribute("d") || "";
    if (!/^M/.test(d) || /[^MmLlHhVvAaZz0-9eE.,\s+-]/.test(d)) find(`a path that is none: ${d.slice(0, 40)}`, svg);
    const size = path.getBBox();
    if (![size.x, size.y, size.width, size.height].every(Number.isFinite)) find("a path without an end", svg);
    const axis = path.matches(".axis, .grid, .mark");
    if (!axis && size.width + size.height > 0) drawn += 1;
    const at = path.getBoundingClientRect();
    if (at.left < box.left - 2 || at.right > box.right + 2 || at.top < box.top - 2 || at.bottom > box.bottom + 2) find("a path outside of its plot", svg);
  }
  if (drawn === 0) find("an empty plot", svg);
  const texts = [...svg.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
  const scale = box.width / (svg.viewBox.baseVal.width || box.width);
  texts.forEach(([text, at], nth) => {
    if (at.left < box.left - SLACK || at.right > box.right + SLACK || at.top < box.top - SLACK || at.bottom > box.bottom + SLACK) find("text outside of its plot", text);
    if (parseFloat(view.getComputedStyle(text).fontSize) * scale < SMALLEST) find(`letters of less than ${SMALLEST} pixels`, text);
    for (const [other, there] of texts.slice(nth + 1)) {
      const wide = Math.min(at.right, there.right) - Math.max(at.left, there.left);
      // A line's box is higher than its letters.
      const high = Math.min(at.bottom, there.bottom) - Math.max(at.top, there.top);
      if (wide > SLACK && high > 4) find(`text over "${other.textContent}"`, text);
    }
  });
}

// Every text can be read on what is behind it, and says something. How many there are.
function texts(view, page, find) {
  let count = 0;
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, words = node.textContent.trim();
    if (!words || element.closest("style, script, title, desc")) continue;
    count += 1;
    if (/\bNaN\b|\bInfinity\b|\binf\b|\bundefined\b|\bnull\b/.test(words)) find(`"${words.slice(0, 60)}" is no figure`, element);
    const style = view.getComputedStyle(element);
    const colour = element.namespaceURI.endsWith("/svg") ? style.fill : style.color;
    const ratio = contrast(rgb(colour), behind(view, element));
    if (!(ratio >= CONTRAST)) find(`contrast of ${ratio.toFixed(2)}`, element);
  }
  return count;
}

function rgb(colour) {
  const parts = colour.match(/[\d.]+/g);
  return parts ? parts.map(Number) : [NaN, NaN, NaN];
}

// The nearest background that is not transparent.
function behind(view, element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(view.getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}

function contrast(one, other) {
  const light = colour => {
    const [r, g, b] = colour.slice(0, 3).map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

// Nothing was fetched, and nothing that could be is named.
function self_contained(view, page, find) {
  for (const entry of view.performance.getEntriesByType("resource")) find(`fetched: ${entry.name}`);
  for (const element of page.querySelectorAll("script, link, img, iframe, object, embed, video, audio, source, image, use")) {
    const from = element.getAttribute("src") || element.getAttribute("href") || element.getAttribute("data") || "";
    if (!/^(data:|#|$)/.test(from)) find(`needs something else: ${from}`, element);
  }
}

// The page shows all rows and checks of its data, and each figure of a sentence is in a table.
function complete(page, find) {
  const cells = new Set([...page.querySelectorAll("td")].map(cell => cell.textContent.replace(/^[✓✗○] /, "")));
  for (const figure of page.querySelectorAll("b.figure")) {
    if (!cells.has(figure.textContent)) find(`"${figure.textContent}" is in no table`, figure);
  }
  const json = page.getElementById("data");
  if (!json) return;
  const data = JSON.parse(json.textContent);
  const shown = caption => [...page.querySelectorAll("details")].filter(fold => fold.firstElementChild.textContent === caption)
    .reduce((rows, fold) => rows + fold.querySelector("tbody").rows.length, 0);
  for (const { command, outcome } of data.parts) {
    const [kind, { rows }] = Object.entries(outcome)[0];
    if (kind !== "bench" && kind !== "sim") continue;
    const caption = `Every ${kind === "bench" ? "row" : "figure"} of slat ${command}`;
    if (shown(caption) < rows.length) find(`${caption}: ${shown(caption)} of ${rows.length} rows`);
  }
  const verdicts = page.querySelectorAll("#checks tbody tr").length;
  if (verdicts !== data.checks.length) find(`${verdicts} of ${data.checks.length} checks`);
}
