// The page, from the data in it: sections of the summary, of each series, of the simulations, the checks and the commands.

const data = JSON.parse(document.getElementById("data").textContent);
const part = kind => data.parts.filter(part => kind in part.outcome).map(part => ({ command: part.command, ...part.outcome[kind] }));
const [benches, sims, [replay]] = [part("bench"), part("sim"), part("replay")];
const settings = params => Object.entries(params).map(([key, value]) => `${key}: ${value}`).join(", ");
const unique = values => [...new Set(values)];
const range = values => [Math.min(...values), Math.max(...values)];
const said = ({ from, text }) => html("p", { class: "sentence" }, badge(from), " ", rich(text));

// A plot with its sources, its title, the sentences about it, and its figures.
function figure(id, from, title, drawn, figures) {
  const about = data.sections.flatMap(section => section.sentences).filter(sentence => sentence.plot === id);
  return html("figure", { id: id.replaceAll(/[^A-Za-z0-9]+/g, "-") }, html("figcaption", {}, from.map(one => [badge(one), " "]), title), drawn,
    about.map(said), fold("The figures", figures));
}

// The figures of lines: a row for each place, a column for each line.
function of_lines(caption, head, all, write_x, write) {
  const places = unique(all.flatMap(line => line.points.map(point => point[0]))).sort((a, b) => a - b);
  const at = (line, x) => line.points.find(point => point[0] === x)?.[1];
  return table(caption, [[head, "n"], ...all.map(line => [line.name, line.from])],
    places.map(x => [write_x(x), ...all.map(line => write(at(line, x)))]));
}

// An axis of counts, with ticks at these.
const counts = (title, at) => {
  const [least, most] = range(at);
  return axis(title, scale(true, least * 0.9, most * 1.1), tick, at);
};

function summary() {
  const { machine, quick } = data;
  const claims = data.sections.flatMap(section => section.claims);
  const count = verdict => claims.filter(claim => claim.verdict === verdict).length;
  const cards = data.sections.map(({ id, name, title, sentences }) => {
    const lines = sentences.filter(sentence => sentence.plot === null);
    return lines.length ? html("a", { class: "card", href: `#series-${id}` }, html("strong", {}, `${name}: ${title}`), lines.map(said)) : null;
  });
  const facts = [
    ["machine", `${machine.cpu ?? "unknown CPU"}, ${machine.cores} CPUs, ${machine.arch}, ${machine.os}`],
    ["version", `slat ${data.slat}; ${quick ? "quick: small sizes, few rounds" : "full"}; measured in ${data.seconds.toFixed(0)} s`],
    ["the series' claims", `${count("reproduced")} reproduced, ${count("better")} better, ${count("not-reproduced")} not reproduced, ` +
      `${count("no-verdict")} without a verdict; of all ${claims.length}, ${claims.filter(claim => claim.from === "simulated").length} by simulation`],
    ["checks", `${data.checks.filter(([, check]) => check.ok).length} of ${data.checks.length} hold`],
    ["to make it again", `\`slat report${quick ? " --quick" : ""}\``],
  ];
  return ["summary", "Summary", "slat: second-level address translation, measured", [
    html("p", {}, "slat keeps the page tables that hardware walks for a guest's memory. Five patch series for Linux asked for it to be " +
      "quick with hundreds of vCPUs; here each series' own figures stand beside ours. A figure that one machine can show is measured on " +
      "it. A figure that takes hundreds of CPUs is simulated, in virtual time, with the engine as it ships. Every figure says which it is."),
    data.alarms.map(alarm => html("p", { class: "alarm", role: "alert" }, rich(alarm))),
    html("div", { class: "cards" }, cards),
    table("This report", [["", ""], ["", ""]], facts),
  ]];
}

function series(section) {
  const { id, name, title, about, sides, published, claims, ideas } = section;
  const [runs, simulated] = [benches.filter(run => section.benches.includes(run.bench)), sims.filter(sim => section.benches.includes(sim.sim))];
  const plots = [...simulated.flatMap(of_sim), ...(PLOTS[id] ?? (() => []))(section)];
  const content = [
    ideas.map(idea => [contribution(idea), html("p", {}, rich(idea.says)), idea.no_gain.map(text => html("p", {}, text))]),
    plots.length ? html("div", { class: "plots" }, plots) : null,
    claims.length ? verdicts(claims) : null,
    published.length ? beside(published, sides) : null,
    simulated.map(sim => fold(`Every figure of \`slat ${sim.command}\``, every_figure(sim), hottest(sim))),
    runs.map(run => fold(`Every row of \`slat ${run.command}\``, every_row(run))),
  ];
  return [`series-${id}`, name, `${name}: ${title}`, [html("p", {}, rich(about)), content]];
}

// The contribution of each idea.
function contribution({ what, columns, rows }) {
  const cell = (figure, unit) => figure && withUnit(figure.median, unit) +
    (figure.factor === null ? "" : ` (${figure.factor.toFixed(2)} ×${figure.inside_spread ? " ≈" : ""})`);
  return table(`Contribution of each idea. ${what}`, [["", ""], ...columns.map(name => [name, "here"])],
    rows.map(([name, unit, figures]) => [name, ...figures.map(figure => cell(figure, unit) ?? DASH)]));
}

function verdicts(claims) {
  const MARKS = { reproduced: "good", better: "good", "not-reproduced": "bad", "no-verdict": "open" };
  // The name of a figure may have its sides.
  const what = ({ what, sides }) => sides && !what.includes("→") ? `${what} (${sides.join(" / ")})` : what;
  return table("Published figures, and whether they are reproduced",
    [["claim", ""], ["", "series"], ["ours", "n"], ["where", ""], ["verdict", ""], ["reproduced is", ""], ["note", ""]],
    claims.map(claim => [what(claim), withUnit(claim.published, claim.unit), [withUnit(claim.ours, claim.unit), "strong"], SOURCES[claim.from].replace(" ", "\u00a0"),
      [claim.verdict.replaceAll("-", " "), MARKS[claim.verdict]], claim.tolerance, claim.note]));
}

// Published figures, and those of the same comparison here.
function beside(published, [before, after]) {
  const three = (fact, mark) => [withUnit(fact?.before ?? NaN, fact?.unit ?? ""), withUnit(fact?.after ?? NaN, fact?.unit ?? ""), [times(fact?.ratio ?? NaN), mark]];
  const heads = from => [[before, from], [after, from], ["ratio", from]];
  const like = ({ ratio, here }) => here ? here.ratio >= ratio / 1.25 ? "good" : "bad" : "";
  const ours = published.some(fact => fact.here);
  return table(`The figures of the series${ours ? "; ✓: our ratio is within a factor of 1.25 of the series', or more; a dash: not measured this time" : ""}`,
    [["figure", ""], ["settings", ""], ...heads("series"), ...(ours ? heads("here") : [])],
    published.map(fact => [fact.name, settings(fact.params), ...three(fact, ""), ...(ours ? three(fact.here, like(fact)) : [])]));
}

function every_row({ params, rows }) {
  return table(settings(params),
    [["baseline, or operation", ""], ["settings", ""], ["baseline", "here"], ["slat", "here"], ["baseline / slat", "here"], ["the same ratio", "series"]],
    rows.map(row => [row.name, settings(row.params), withUnit(row.baseline ?? NaN, row.unit), [withUnit(row.slat, row.unit), "strong"],
      times(row.ratio ?? NaN), times(row.series_ratio ?? NaN)]));
}

const vcpus_of = sim => unique(sim.rows.map(row => row.vcpus)).sort((a, b) => a - b);
const policies_of = sim => unique(sim.rows.map(row => row.policy));
const row_at = (sim, vcpus, policy) => sim.rows.find(row => row.vcpus === vcpus && row.policy === policy);
const named = (row, name) => row?.figures.find(figure => figure.name === name);

// A line for each policy. The last policy is slat as it ships, and looks the same in all plots.
function policies(sim, value) {
  const all = policies_of(sim);
  return all.map((name, nth) => ({
    name, look: nth === all.length - 1 ? 0 : nth + 1, from: "simulated",
    points: sim.rows.filter(row => row.policy === name && !row.case).map(row => [row.vcpus, value(row)]).filter(point => Number.isFinite(point[1])),
  })).filter(line => line.points.length);
}

// Plots of a simulation: those that have a sentence; and how much each of many vCPUs does, where more vCPUs do more.
function of_sim(sim) {
  const x = counts("vCPUs", vcpus_of(sim)), [first, last] = range(vcpus_of(sim));
  const about = `A line for each policy against the number of vCPUs, from ${first} to ${last}.`;
  const draw = (id, title, value, y, write) => {
    const all = policies(sim, value);
    return all.length ? figure(id, ["simulated"], title, lines(title, about, x, y(all.flatMap(line => line.points.map(point => point[1]))), all),
      of_lines(title, "vCPUs", all, plain, write)) : null;
  };
  const marked = data.sections.flatMap(section => section.sentences).map(sentence => sentence.plot ?? "").filter(plot => plot.startsWith(`${sim.sim}: `));
  const plots = marked.map(id => {
    const name = id.slice(sim.sim.length + 2), figure = sim.rows.map(row => named(row, name)).find(figure => figure);
    if (!figure) {
      return draw(id, `${sim.sim}: share of the time spent ${name}`, row => row.waiting, all => axis("Waiting", linear(all), value => tickPercent(value * 100)), value => withUnit(value, "share"));
    }
    const time = TIMES[figure.unit];
    return draw(id, id, row => (named(row, name)?.value ?? NaN) * (time ?? 1),
      all => axis(time ? "Time" : figure.unit, logarithmic(all), time ? tickNs : tick), value => withUnit(value, time ? "ns" : figure.unit));
  });
  const done = vcpus => sim.rows.find(row => row.vcpus === vcpus).operations;
  if (done(last) >= 4 * done(first)) {
    const rate = row => row.operations / Math.max(row.wall_ns, 1) / row.vcpus;
    plots.push(draw(`${sim.sim}: efficiency`, `${sim.sim}: operations of a vCPU, as a share of what it does alone`,
      row => rate(row) / rate(row_at(sim, first, row.policy)), all => axis("Alone: 100 %", logarithmic(all), value => tickPercent(value * 100)), value => withUnit(value, "share")));
  }
  return plots;
}

function every_figure({ rows }) {
  const count = value => [plain(value), ""];
  return table("Everything that was counted", [["vCPUs", "n"], ["policy", ""], ["figures", ""], ["waiting", "simulated"],
    ["operations", "simulated"], ["in a second", "simulated"], ["flushes", "simulated"], ["kicks", "simulated"], ["time", "simulated"]],
    rows.map(row => [String(row.vcpus), row.case ? `${row.policy}, ${row.case}` : row.policy,
      row.figures.map(figure => `${figure.name}: ${withUnit(figure.value, figure.unit)}`).join("; "),
      withUnit(row.waiting, "share"), count(row.operations), count(Math.round(row.operations * 1e9 / Math.max(row.wall_ns, 1))), count(row.flushes), count(row.kicks), ns(row.wall_ns)]));
}

function hottest(sim) {
  const largest = Math.max(...vcpus_of(sim));
  return table(`The hottest cache lines with ${largest} vCPUs`,
    [["policy", ""], ["line", ""], ["touched most at", ""], ["transfers", "simulated"], ["waited for, all CPUs", "simulated"]],
    sim.rows.filter(row => row.vcpus === largest).flatMap(row => row.lines.slice(0, 4)
      .map(line => [row.policy, line.name, `\`${line.site}\``, plain(line.transfers), ns(line.waited_ns)])));
}

// Further plots of a series.
const PLOTS = {
  "mglru-aging": ({ published }) => [shorter(published), ...(replay ? [ages(replay)] : [])],
  "scalable-memslots": ({ published }) => [growth(published)],
  "numa-protection": () => replay ? [causes(replay)] : [],
  "tdp-mmu": () => [...benches.filter(run => run.bench === "demand-paging").map(latency), ...(replay ? [dirty(replay), faults(replay)] : [])],
};

// Ratios of before over after, ours as lines and the series' as rings, on logarithmic axes.
function ratios(id, title, about, x, quantity, all) {
  const drawn = all.filter(line => line.points.length);
  const y = axis(quantity, logarithmic(drawn.flatMap(line => line.points.map(point => point[1]))), tick);
  return figure(id, unique(drawn.map(line => line.from)), title, lines(title, about, x, y, drawn), of_lines(title, x.title, drawn, plain, value => times(value ?? NaN)));
}
const points = (facts, key, ratio) => facts.map(fact => [Number(fact.params[key]), ratio(fact) ?? NaN]).filter(point => Number.isFinite(point[1]));

function shorter(published) {
  const passes = published.filter(fact => fact.params.figure === "average pass");
  const sim = sims.find(sim => sim.sim === "access-tracking-perf");
  const simulated = (sim ? vcpus_of(sim) : []).map(vcpus => {
    const [locked, lockless] = ["locked", "lockless"].map(policy => named(row_at(sim, vcpus, policy), "average pass")?.value);
    return [vcpus, locked / lockless];
  });
  return ratios("aging-shorter", "An aging pass page by page: lock held over no lock held",
    "The length of a pass under the MMU lock, divided by its length without, against the number of vCPUs that fault meanwhile. The series " +
    "is on 112 CPUs; here the vCPUs share the CPUs of this machine.", counts("vCPUs", passes.map(fact => Number(fact.params.vcpus))), "Times shorter", [
      { name: "the series", look: 5, rings: true, from: "series", points: points(passes, "vcpus", fact => fact.ratio) },
      { name: "simulated", look: 2, from: "simulated", points: simulated.filter(point => Number.isFinite(point[1])) },
      { name: "real, here", look: 0, from: "here", points: points(passes, "vcpus", fact => fact.here?.ratio) },
    ]);
}

function growth(published) {
  const all = ["unmap", "move-active", "setup"].flatMap((test, look) => {
    const rows = published.filter(fact => fact.name === test);
    return [{ name: test, look, from: "here", points: points(rows, "slots", fact => fact.here?.ratio) },
      { name: `the series: ${test}`, look, rings: true, from: "series", points: points(rows, "slots", fact => fact.ratio) }];
  });
  return ratios("memslots-growth", "Time with a sorted array over time with trees",
    "Time of an iteration before, divided by its time after, against the number of memslots. Lines are measured here, rings are the series'.",
    counts("Memslots", unique(published.filter(fact => fact.name === "unmap").map(fact => Number(fact.params.slots)))), "Times quicker", all);
}

// Of how many faults one takes longer; and the figure of `slat bench demand-paging`.
const QUANTILES = [[2, "p50 of a fault"], [10, "p90"], [100, "p99"], [1000, "p99.9"], [10000, "p99.99"]];
const quantile = one_of => `p${Number((100 * (1 - 1 / one_of)).toFixed(4))}`;

function latency({ params, rows }, nth) {
  const line = (name, look, baseline, value) => ({
    name, look, from: "here",
    points: QUANTILES.map(([one_of, figure]) => [one_of, value(rows.find(row => row.name === baseline && row.params.figure === figure))])
      .filter(point => Number.isFinite(point[1])),
  });
  const [mutex, lock] = ["one mutex: before", "reader-writer lock: the series"];
  const all = [line("no lock: slat", 0, mutex, row => row?.slat), line("one mutex", 1, mutex, row => row?.baseline), line("reader-writer lock", 2, lock, row => row?.baseline)];
  const title = `Fault latency, ${params.vcpus} vCPUs, pages served ${params.served}`;
  const x = axis("Quantile of all faults", scale(true, 1.8, 11500), quantile, QUANTILES.map(([one_of]) => one_of));
  const y = axis("Time of a fault", logarithmic(all.flatMap(line => line.points.map(point => point[1]))), tickNs);
  return figure(`demand-paging: latency ${nth + 1}`, ["here"], title,
    lines(title, "The quantiles of fault latency from p50 to p99.99, a line for each MMU lock, time on a logarithmic axis.", x, y, all),
    of_lines("Time of a fault", "quantile", all, quantile, value => ns(value ?? NaN)));
}

// Time, as a replay has it.
const accesses = ({ accesses }) => axis("Accesses that the guest has made", scale(false, 0, accesses), tick);

function ages(replay) {
  const { ages, pages_per_row, first } = replay.heat, known = ages.flat().filter(age => age !== null);
  const share = holds => withUnit(known.filter(holds).length / Math.max(known.length, 1), "share");
  const rows = SHADES.map(([, name], nth) => [name, share(age => shade(age) === nth)]);
  rows.push(["1 or fewer", share(age => age < 1.5)], ["8 or more", share(age => age >= 7.5)]);
  const title = `Age of the memory of ${replay.trace}`;
  const about = `A heat map. To the right: time, ${ages.length} aging passes. Upwards: ${plain(replay.pages)} pages. Shade: passes since one ` +
    "found the page in use, the darkest just now; no shade where the page is not in memory.";
  const y = axis("Pages of 4K, by guest frame", scale(false, 0, pages_per_row * first.length), tick);
  return figure("replay: ages 1", ["here"], title, heat(title, about, accesses(replay), y, ages),
    table("Parts of the guest's memory by age, over all passes", [["passes since last use", ""], ["share", "here"]], rows));
}

function dirty(replay) {
  const rate = ({ dirty, ms }) => dirty * 1e3 / Math.max(ms, 1e-6);
  const rates = replay.stretches.map(rate).sort((a, b) => a - b);
  const rows = replay.stretches.filter((_, nth) => nth % 8 === 0).map(stretch =>
    [plain(stretch.accesses), plain(stretch.dirty), withUnit(Math.round(rate(stretch)), "pages"), plain(stretch.faults), plain(stretch.resident)]);
  for (const [name, rate] of [["at most", rates.at(-1)], ["half of the time, fewer than", rates[rates.length >> 1]]]) {
    rows.push([name, DASH, withUnit(Math.round(rate), "pages"), DASH, DASH]);
  }
  const title = `Dirty rate of ${replay.trace}`;
  const line = { name: title, look: 0, area: true, points: replay.stretches.map(stretch => [stretch.accesses, rate(stretch)]) };
  return figure("replay: dirty rate 1", ["here"], title,
    lines(title, "Pages that the dirty log reported, for a second of the guest's time. A migration of this guest has to send faster.",
      accesses(replay), axis("Pages dirtied per second", linear(rates), tick), [line]),
    table("Each eighth stretch of the replay", [["accesses", "n"], ["dirty pages", "here"], ["in a second", "here"], ["faults", "here"], ["pages in memory", "here"]], rows));
}

function faults(replay) {
  // A bucket begins where the one before could have ended.
  const buckets = replay.fault_ns.map(([upto, count]) => [upto / 2 ** 0.25, upto, count]);
  const marks = replay.quantiles.filter(([share]) => share < 1).map(([share, time]) => [time, quantile(1 / (1 - share))]);
  const title = `Fault latency of ${replay.trace}, one vCPU`;
  const x = axis("Time of a fault: guest left until entered again", logarithmic(buckets.flatMap(bucket => bucket.slice(0, 2))), tickNs);
  const y = axis("Faults", logarithmic([1, ...buckets.map(bucket => bucket[2])]), tick);
  return figure("replay: faults 1", ["here"], title,
    histogram(title, "A histogram of the time that faults take, both axes logarithmic, with marks at the quantiles p50 to p99.99. The faults " +
      "are of all kinds: new memory, pages that come back from swap, write permission that a dirty log took.", x, y, buckets, marks),
    table("Time of a fault", [["quantile", ""], ["at most", "here"]], replay.quantiles.map(([share, time]) => [share < 1 ? quantile(1 / (1 - share)) : "longest", ns(time)])));
}

function causes(replay) {
  const all = replay.causes.reduce((sum, cause) => sum + cause.flushes, 0);
  const title = `TLB flushes of a replay of ${replay.trace}, by cause`;
  return figure("replay: causes 1", ["here"], title,
    bars(title, "Remote TLB flushes that were paid, for each reason that the host gave, on a logarithmic axis.", "Remote TLB flushes paid, logarithmic",
      replay.causes.map(cause => [cause.why, cause.flushes, plain(cause.flushes)])),
    table("Causes of lost translations", [["why", ""], ["times told", "here"], ["flushes paid", "here"], ["pages they were for", "here"], ["of all flushes", "here"]],
      replay.causes.map(cause => [`\`${cause.why}\``, plain(cause.told), withUnit(cause.flushes, "flushes"), plain(cause.pages), withUnit(cause.flushes / Math.max(all, 1), "share")])));
}

function simulations() {
  const sweep = sim => {
    const [first] = sim.sweep;
    if (!first) return null;
    const { vcpus } = first.rows[0], unit = row_at(sim, vcpus, first.rows[0].policy).figures[0];
    return table(`${sim.sim}: ${unit.name} with ${vcpus} vCPUs, with one cost changed`,
      [["cost", ""], ["times", "n"], ...first.rows.map(row => [row.policy, "simulated"]), ["ranking", ""]],
      sim.sweep.map(swept => [swept.cost, times(swept.factor), ...swept.rows.map(row => withUnit(row.value, unit.unit)),
        swept.ranking_holds ? ["holds", "good"] : ["changes", "bad"]]));
  };
  const [{ costs, costs_from }] = sims;
  return ["simulations", "Simulations", "How far to believe the simulations", [
    html("p", {}, "Simulated figures are of the engine as it ships, compiled a second time on simulated atomics and locks. It runs on " +
      "hundreds of CPUs in virtual time. Each shared operation costs what the table says, and waits for the CPU that holds the cache line, " +
      "for the holder of the lock, or for the memory's bandwidth. They show ranking and shape. They do not model caches' sizes, " +
      "hyperthreads, frequency, unfair locks, other load, and what the host does besides what a bench says."),
    html("h3", {}, "Does the ranking hang on uncertain costs?"), sims.map(sweep),
    html("h3", {}, "The costs of operations"),
    table("The costs of the simulated machine", [["cost", ""], ["value", "n"], ["unit", ""], ["from", ""], ["operation", ""]],
      data.costs.filter(([name]) => name in costs).map(([name, unit, about]) => [`\`${name}\``, plain(costs[name]), unit, [costs_from[name], costs_from[name] === "measured" ? "good" : "open"], about])),
  ]];
}

function checks() {
  const of = (caption, ok, mark) => {
    const rows = data.checks.filter(([, check]) => check.ok === ok);
    return rows.length ? table(caption, [["command", ""], ["condition", ""], ["verdict", ""], ["evidence", ""]],
      rows.map(([command, { name, detail }]) => [`\`slat ${command}\``, name, mark, detail])) : null;
  };
  const held = data.checks.filter(([, check]) => check.ok).length;
  return ["checks", "Checks", "Checks", [
    html("p", {}, "Figures count only if the engine did what was asked: every page mapped to its frame, nothing lost, every byte what the " +
      "guest had stored. These conditions are checked in every round."),
    of("Checks that do not hold", false, ["does not hold", "bad"]),
    fold(`${held} checks that hold`, of("Checks that hold", true, ["holds", "good"]))]];
}

function commands() {
  const line = part => "replay" in part.outcome
    ? `slat run --dirty-log bitmap --swap mem   # like the watched replay, with every vCPU: ${part.command}` : `slat ${part.command}`;
  return ["commands", "Commands", "The commands", [
    html("p", {}, rich("Each part by itself; with `--json`, the figures that this page is made of, which are in `data.json`, too.")),
    html("pre", { tabindex: 0 }, html("code", {}, data.parts.map(line).join("\n"))),
    fold("How long each part took", table("How long each part took", [["command", ""], ["seconds", "n"]],
      data.parts.map(part => [`\`slat ${part.command}\``, part.seconds.toFixed(1)])))]];
}

const sections = [summary(), ...data.sections.map(series), ...(sims.length ? [simulations()] : []), checks(), commands()];
document.querySelector("nav").append(...sections.map(([id, short]) => html("a", { href: `#${id}` }, short)));
document.querySelector("main").append(...sections.map(([id, , title, blocks], nth) =>
  html("section", { id }, html(nth ? "h2" : "h1", {}, rich(title)), blocks)));
