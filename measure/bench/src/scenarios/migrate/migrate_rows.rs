//! The report: the rounds of each migration, what it took against halting first, and whether every byte came.

use super::endpoint::Compared;
use super::migration::Sample;
use crate::scenarios::threads_prelude::*;
use crate::sim::sim_tables::Grid;
use slat_migrate::Round;
use std::fmt;

const FIGURES: [Figure<Sample>; 3] = [
    ("downtime", "ms", |sample| Some(ms(sample.downtime()))),
    ("whole migration", "ms", |sample| Some(ms(sample.outcome.total))),
    ("sent", "MiB", |sample| Some(sum(sample, |round| round.sent.bytes) / f64::from(1 << 20))),
];

const OF_RUN: [Figure<Sample>; 4] = [
    ("logs enabled in", "ms", |sample| Some(ms(sample.outcome.enable))),
    ("rounds received", "rounds", |sample| Some(sum(sample, |round| round.received.into()))),
    ("rounds failed", "rounds", |sample| Some(sum(sample, |round| (!round.received).into()))),
    ("exits with a full ring", "exits", |sample| Some(sample.ring_full as f64)),
];

/// A figure of a round: its name, its unit, and its value.
type OfRound = (&'static str, &'static str, fn(&Round) -> f64);

const OF_ROUND: [OfRound; 5] = [
    ("pages told", "pages", |round| round.told as f64),
    ("pages of zeroes", "pages", |round| round.sent.zeroes as f64),
    ("sent", "bytes", |round| round.sent.bytes as f64),
    ("time", "ms", |round| ms(round.took)),
    ("dirty rate", "pages/s", |round| rate(round).unwrap_or(0.0)),
];

/// Pre-copy against halting first.
pub fn rows(pre_copy: &[Sample], halt_first: &[Sample]) -> Vec<Row> {
    let params = params! { "baseline": "halt first, send everything" };
    answering(Row::compare_each(&FIGURES, &params, [halt_first, pre_copy]))
}

/// The tables of rounds, as rows. Where runs have different numbers of rounds, a round is the median of those that had it.
pub fn rounds(samples: &[Sample]) -> Vec<Row> {
    let most = samples.iter().map(|sample| sample.outcome.rounds.len()).max().unwrap_or(0);
    let mut rows = Row::alone_each(&OF_RUN, &params! {}, samples);
    for (figure, unit, of) in OF_ROUND {
        for nth in 0..most {
            let had: Vec<&Round> =
                samples.iter().filter_map(|sample| sample.outcome.rounds.get(nth)).collect();
            let name = format!("round {}{}", had[0].number, if had[0].received { "" } else { ", failed" });
            let series = Series::of(&had, |round| of(round));
            rows.push(Row::alone(&name, params! { "figure": figure }, unit, &series));
        }
    }
    answering(rows)
}

fn answering(rows: Vec<Row>) -> Vec<Row> {
    rows.into_iter().map(|row| row.answering(PatchSeries::TdpMmu)).collect()
}

/// Checks that every byte arrived, in every run of every entrant.
pub fn checks<E>(laps: &Lineup<E, Sample>) -> Vec<Check> {
    let samples = laps.all();
    let none = |name: &str, of: &str, bad: fn(&Sample) -> u64, all: fn(&Sample) -> u64| {
        let (bad, all) = (samples.clone().map(bad).sum::<u64>(), samples.clone().map(all).sum::<u64>());
        let first = samples.clone().find_map(|sample| sample.compared.first);
        let first =
            first.filter(|_| bad > 0).map_or(String::new(), |gfn| format!("; the first is {:#x}", gfn.0));
        Check { name: name.into(), ok: bad == 0 && all > 0, detail: format!("{bad} of {all} {of}{first}") }
    };
    let pages = |sample: &Sample| sample.compared.pages;
    vec![
        none("byte-identical with the sender", "pages differ", |s| s.compared.not_the_senders, pages),
        none(
            "byte-identical with what the guest has written",
            "pages differ",
            |s| s.compared.not_the_guests,
            pages,
        ),
        none("what came is in the receiver's own log", "pages are missing", |s| s.compared.unmarked, pages),
        none(
            "the guest reads what it has written, on both machines",
            "reads are wrong",
            |s| s.reads[1],
            |s| s.reads[0] + s.reads[1],
        ),
    ]
}

/// The rounds of each migration, for people.
pub struct Table<'s>(pub &'s [Sample]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (run, sample) in (1..).zip(self.0) {
            writeln!(f, "run {run}")?;
            let head = ["round", "pages", "of zeroes", "MiB sent", "ms", "MiB/s", "dirty pages/s"];
            let mut lines = vec![head.map(str::to_owned).to_vec()];
            lines.extend(sample.outcome.rounds.iter().map(|round| {
                let mib = round.sent.bytes as f64 / f64::from(1 << 20);
                let note = match (round.received, round.last) {
                    (false, false) => "failed: given back",
                    (false, true) => "failed: given back, the guest runs on",
                    (true, true) => "the guest stands still",
                    (true, false) => "",
                };
                vec![
                    round.number.to_string(),
                    round.told.to_string(),
                    round.sent.zeroes.to_string(),
                    format!("{mib:.1}"),
                    format!("{:.1}", ms(round.took)),
                    format!("{:.0}", mib / round.took.as_secs_f64()),
                    rate(round).map_or("-".into(), |rate| format!("{rate:.0}")),
                    note.to_owned(),
                ]
            }));
            write!(f, "{}", Grid(&lines))?;
            let Compared { pages, not_the_senders, not_the_guests, .. } = sample.compared;
            writeln!(
                f,
                "  log enabled in {:.3} ms, {:.0} ms in all, downtime {:.1} ms, {} exits with a full ring\n  of {pages} pages \
                 {not_the_senders} differ from the sender's, {not_the_guests} from what the guest wrote\n",
                ms(sample.outcome.enable),
                ms(sample.outcome.total),
                ms(sample.downtime()),
                sample.ring_full,
            )?;
        }
        Ok(())
    }
}

/// Pages written per second, where it is known.
fn rate(round: &Round) -> Option<f64> {
    round.written_in.map(|time| round.told as f64 / time.as_secs_f64())
}

fn sum(sample: &Sample, figure: fn(&Round) -> u64) -> f64 {
    sample.outcome.rounds.iter().map(figure).sum::<u64>() as f64
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
