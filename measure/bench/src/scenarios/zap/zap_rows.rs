//! Samples into rows: each way against the baselines that it has, and what others saw meanwhile.

use super::zap_sample::{Entrant, Sample, WAYS, name};
use super::zapped_range::ZappedRange;
use crate::scenarios::threads_prelude::*;
use crate::scenarios::zap::zap_lap::Way;
use crate::threads::latencies::{Pick, latencies};
use serde_json::{Map, Value};

/// The samples of every entrant on one range.
pub struct Samples<'a> {
    pub range: &'a ZappedRange,
    pub laps: Lineup<Entrant, Sample>,
}

/// The baseline that holds one lock.
pub const MUTEX: &str = "--mmu-lock exclusive";

const TOTAL: Figure<Sample> = ("total", "us", |sample| Some(us(sample.times.total_ns)));

/// Figures that are compared with the mutex. Not every way has parts.
const FIGURES: [Figure<Sample>; 5] = [
    TOTAL,
    ("walk", "us", |sample| sample.times.parts_ns.map(|[walk, _, _]| us(walk))),
    ("flush", "us", |sample| sample.times.parts_ns.map(|[_, flush, _]| us(flush))),
    ("collect", "us", |sample| sample.times.parts_ns.map(|[_, _, collect]| us(collect))),
    ("longest wait of a memslot", "us", |sample| Some(us(sample.waits.beside.longest_ns))),
];

const COUNTS: [Figure<Sample>; 3] = [
    ("flushes paid", "count", |sample| Some(sample.flushes)),
    ("tables freed", "count", |sample| Some(sample.freed)),
    ("faults beside it", "count", |sample| Some(sample.faults.beside.each.len() as f64)),
];

/// Faults with no zap, and beside one; the same of memslots that are made and deleted.
const QUIET: Pick<Sample> = |sample| &sample.faults.control;
const BESIDE: Pick<Sample> = |sample| &sample.faults.beside;
const MADE_QUIET: Pick<Sample> = |sample| &sample.waits.control;
const MADE_BESIDE: Pick<Sample> = |sample| &sample.waits.beside;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Samples<'_> {
    fn of(&self, way: Way, lock: MmuLock) -> &[Sample] {
        self.laps.of(Entrant { way, lock })
    }

    fn slat(&self, way: Way) -> &[Sample] {
        self.of(way, MmuLock::None)
    }

    /// This range, and a baseline unless the name is empty.
    fn params(&self, baseline: &str) -> Map<String, Value> {
        let mut params = params! { "size": size::text(self.range.bytes), "pages": self.range.pages.name() };
        params.extend((!baseline.is_empty()).then(|| ("baseline".to_owned(), baseline.into())));
        params
    }

    /// All rows of this range: first the time of a zap with all accounting.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut add = |way, of: Vec<Row>| rows.extend(of.into_iter().map(|row| row.of(name(way))));
        for way in WAYS.into_iter().filter(|way| *way != Way::LeafByLeaf) {
            let both = [Way::LeafByLeaf, way].map(|way| self.slat(way));
            add(way, Row::compare_each(&[TOTAL], &self.params("leaf by leaf"), both));
        }
        for way in WAYS {
            let both = [self.of(way, MmuLock::Exclusive), self.slat(way)];
            add(way, Row::compare_each(&FIGURES, &self.params(MUTEX), both));
        }
        let latencies = |what: &str, way, baseline, both| {
            latencies(&format!("{what} beside {}", name(way)), "max", &self.params(baseline), both)
        };
        for way in WAYS {
            let samples = self.slat(way);
            rows.extend(latencies("fault", way, "no zap", [(samples, QUIET), (samples, BESIDE)]));
            let made = [(samples, MADE_QUIET), (samples, MADE_BESIDE)];
            rows.extend(latencies("memslot made and deleted", way, "no zap", made).pop());
        }
        for way in WAYS {
            let both = [self.of(way, MmuLock::Exclusive), self.slat(way)].map(|samples| (samples, BESIDE));
            rows.extend(latencies("fault", way, MUTEX, both));
        }
        for way in WAYS {
            let counts = Row::alone_each(&COUNTS, &self.params(""), self.slat(way));
            rows.extend(counts.into_iter().map(|row| row.of(name(way))));
        }
        rows
    }

    /// The conditions under which the rows count.
    pub fn checks(&self) -> Vec<Check> {
        let at = format!(" at {}, {}", size::text(self.range.bytes), self.range.pages.name());
        let who = |who: &Entrant| {
            let policy = if who.lock == MmuLock::None { "slat" } else { "exclusive" };
            format!("{policy}, {}", name(who.way))
        };
        self.laps.checks(&at, who, |sample| &sample.tally)
    }
}
