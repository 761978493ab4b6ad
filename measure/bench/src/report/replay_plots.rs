//! The watched replay on the page: how old memory is, how fast it is written, how long faults take, what flushes are for.

use crate::report::figure_text::{ns, percent, plain, short_ns, tick};
use crate::report::latency_plot::name;
use crate::report::page_model::{Plot, Source, Table, cell, figures, number, words};
use crate::report::plot::{Axis, Bar, Line, Look, SHADES, Scale, bars, heat, histogram, lines, shade};
use crate::report::replay::flush_causes::Cause;
use crate::report::replay::{Replay, Stretch};

/// Time, as a replay has it.
fn accesses(replay: &Replay) -> Axis {
    Axis::new("Accesses that the guest has made", Scale::linear([replay.accesses as f64 / 1.04]), tick)
}

/// How old each page is.
pub fn ages(replay: &Replay) -> Plot {
    let heat_of = &replay.heat;
    let all = || heat_of.ages.iter().flatten();
    let known = all().flatten().count();
    let share = |holds: &dyn Fn(f32) -> bool| {
        all().flatten().filter(|age| holds(**age)).count() as f64 / known.max(1) as f64
    };
    let (recent, old) = (|age| age < 1.5, |age| age >= 7.5);
    let title = format!(
        "Age of memory: {} of what is in memory was used in the last two aging passes, {} not in the last eight",
        percent(share(&recent)),
        percent(share(&old))
    );
    let y = Axis::new(
        "Pages of 4K, by guest frame",
        Scale::linear([(heat_of.pages_per_row * heat_of.first.len()) as f64 / 1.04]),
        tick,
    );
    let about = format!(
        "A heat map. To the right: time, {} aging passes. Upwards: the {} pages that {} uses. Shade: passes since one found the page in \
         use, the hottest just now; no shade where the page is not in memory.",
        heat_of.ages.len(),
        plain(replay.pages as f64),
        replay.trace
    );
    let shades = SHADES.iter().enumerate().map(|(nth, (_, name))| (*name, share(&|age| shade(age) == nth)));
    let ends = [("1 or fewer", share(&recent)), ("8 or more", share(&old))];
    let table = Table::of(
        "Parts of the guest's memory by age, over all passes",
        shades.chain(ends),
        [
            (words("passes since last use"), &|(name, _)| cell(*name)),
            (figures("share", Source::Here), &|(_, share)| cell(percent(*share))),
        ],
    );
    let drawing = heat((&accesses(replay), &y), &heat_of.ages);
    Plot::new("age-of-memory", (title, about), &[Source::Here], &drawing, Some(table))
}

/// Dirty rate, and the latency of faults.
pub fn writes_and_faults(replay: &Replay) -> [Plot; 2] {
    [dirty(replay), latency(replay)]
}

/// Pages that a second of the guest's own time makes dirty.
fn rate(stretch: &Stretch) -> f64 {
    stretch.dirty as f64 * 1e3 / stretch.ms.max(1e-6)
}

fn dirty(replay: &Replay) -> Plot {
    let points: Vec<(f64, f64)> =
        replay.stretches.iter().map(|stretch| (stretch.accesses as f64, rate(stretch))).collect();
    let mut sorted: Vec<f64> = points.iter().map(|point| point.1).collect();
    sorted.sort_by(f64::total_cmp);
    let [median, most] =
        [sorted.get(sorted.len() / 2), sorted.last()].map(|rate| rate.copied().unwrap_or(0.0));
    let title = format!(
        "Dirty rate: {} writes to {} pages a second at most, half of the time to fewer than {}",
        replay.trace,
        plain(most.round()),
        plain(median.round())
    );
    let y = Axis::new("Pages dirtied per second", Scale::linear([most]), tick);
    let about = format!(
        "Pages that the dirty log told of, for a second of the guest's time, over {} harvests of a replay. A migration of this guest has to \
         send faster than that.",
        replay.stretches.len()
    );
    let line = Line { name: "Dirty rate".into(), look: Look::Area(0), points };
    let count = |count: f64| cell(plain(count));
    let mut table = Table::of(
        "Each eighth stretch of the replay",
        replay.stretches.iter().step_by(8),
        [
            (number("accesses"), &|stretch| count(stretch.accesses as f64)),
            (figures("dirty pages", Source::Here), &|stretch| count(stretch.dirty as f64)),
            (figures("pages a second", Source::Here), &|stretch| count(rate(stretch).round())),
            (figures("faults", Source::Here), &|stretch| count(stretch.faults as f64)),
            (figures("pages in memory", Source::Here), &|stretch| count(stretch.resident as f64)),
        ],
    );
    for (name, rate) in [("at most", most), ("half of the time, fewer than", median)] {
        let [rate, none] = [plain(rate.round()), "–".into()];
        table.rows.push([name.into(), none.clone(), rate, none.clone(), none].map(cell).into());
    }
    let drawing = lines((&accesses(replay), &y), &[line]);
    Plot::new("dirty-rate", (title, about), &[Source::Here], &drawing, Some(table))
}

/// The name of the last quantile, which is no mark of the histogram.
const LONGEST: &str = "longest";

fn latency(replay: &Replay) -> Plot {
    let name = |share: f64| if share < 1.0 { name(1.0 / (1.0 - share)) } else { LONGEST.to_owned() };
    let mut quantiles: Vec<(f64, String)> =
        replay.quantiles.iter().map(|&(share, ns)| (ns as f64, name(share))).collect();
    let at = |wanted| quantiles.iter().find(|(_, name)| name == wanted).map_or(0.0, |(ns, _)| *ns);
    let title = format!("Fault latency, one vCPU: p50 is {}, p99.99 is {}", ns(at("p50")), ns(at("p99.99")));
    // A bucket begins where the one before could have ended.
    let buckets: Vec<(f64, f64, f64)> = replay
        .fault_ns
        .iter()
        .map(|(upto, count)| (*upto as f64 / 2f64.powf(0.25), *upto as f64, *count as f64))
        .collect();
    let x = Axis::new(
        "Time of a fault: guest left until entered again",
        Scale::log(buckets.iter().flat_map(|bucket| [bucket.0, bucket.1])),
        short_ns,
    );
    let y = Axis::new("Faults", Scale::log(buckets.iter().map(|bucket| bucket.2).chain([1.0])), tick);
    let about = "A histogram of the time that faults take, both axes logarithmic, with marks at the quantiles p50 to p99.99. The faults are \
                 of all kinds: new memory, pages that come back from swap, write permission that a dirty log took."
        .to_owned();
    let table = Table::of(
        "time of a fault",
        &quantiles,
        [
            (words("quantile"), &|(_, name)| cell(name)),
            (figures("at most", Source::Here), &|(time, _)| cell(ns(*time))),
        ],
    );
    quantiles.retain(|(_, name)| name != LONGEST);
    let drawing = histogram((&x, &y), &buckets, &quantiles);
    Plot::new("fault-histogram", (title, about), &[Source::Here], &drawing, Some(table))
}

/// The causes of flushes.
pub fn causes(replay: &Replay) -> Plot {
    let all: u64 = replay.causes.iter().map(|cause| cause.flushes).sum();
    let aging = replay.causes.iter().find(|cause| cause.why == "aging").map_or(0, |aging| aging.flushes);
    let title = match replay.causes.first() {
        Some(first) if all > 0 => format!(
            "Flushes by cause: {} of them for `{}`; aging costs {}",
            percent(first.flushes as f64 / all as f64),
            first.why,
            if aging == 0 { "none".into() } else { plain(aging as f64) }
        ),
        _ => "Flushes by cause: there were none".to_owned(),
    };
    let bar = |cause: &Cause| Bar {
        name: cause.why.clone(),
        value: cause.flushes as f64,
        text: plain(cause.flushes as f64),
    };
    let bars_of: Vec<Bar> = replay.causes.iter().map(bar).collect();
    let about = "Bars: remote TLB flushes that were paid in a replay, for each reason that the host gave, on a logarithmic axis.".to_owned();
    let count = |count: u64| cell(plain(count as f64));
    let table = Table::of(
        "Causes of lost translations",
        &replay.causes,
        [
            (words("why"), &|cause| cell(format!("`{}`", cause.why))),
            (figures("times told", Source::Here), &|cause| count(cause.told)),
            (figures("flushes paid", Source::Here), &|cause| count(cause.flushes)),
            (figures("pages they were for", Source::Here), &|cause| count(cause.pages)),
            (figures("of all flushes", Source::Here), &|cause| {
                cell(percent(cause.flushes as f64 / all.max(1) as f64))
            }),
        ],
    );
    let drawing = bars("Remote TLB flushes paid, logarithmic", &bars_of);
    Plot::new("flushes-by-cause", (title, about), &[Source::Here], &drawing, Some(table))
}
