//! Samples into rows: each way against the baselines that it has, and what others saw meanwhile.

use super::super::harness::Series;
use super::super::latencies::{Pick, latencies};
use super::super::report::{Check, Row, params};
use super::zap_sample::{Entrant, Sample, WAYS, name};
use super::zapped_range::Ground;
use serde_json::{Map, Value};
use slat::MmuLock;
use slat_cli::size;
use slat_threads::benches::zap::Way;

/// The samples of every entrant on one ground.
pub struct Samples<'a> {
    pub ground: &'a Ground,
    pub entrants: &'a [Entrant],
    pub samples: &'a [Vec<Sample>],
}

/// One number of a sample.
type Figure = fn(&Sample) -> f64;

/// One that not every way has.
type Part = fn(&Sample) -> Option<f64>;

impl Samples<'_> {
    fn of(&self, way: Way, lock: MmuLock) -> &[Sample] {
        let at = self.entrants.iter().position(|who| *who == Entrant { way, lock });
        &self.samples[at.expect("every way runs under every policy")]
    }

    fn size(&self) -> String {
        size::text(self.ground.bytes)
    }

    fn params(&self, baseline: &str) -> Map<String, Value> {
        params! { "size": self.size(), "pages": self.ground.pages.name(), "baseline": baseline }
    }

    /// All rows of this ground.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = self.against_leaf_by_leaf();
        rows.extend(self.against_the_mutex());
        rows.extend(self.against_no_zap());
        rows.extend(self.faults_against_the_mutex());
        rows.extend(self.counts());
        rows
    }

    /// The headline: what it takes to be rid of the range, with all accounting.
    fn against_leaf_by_leaf(&self) -> Vec<Row> {
        let total = |way| series(self.of(way, MmuLock::None), total);
        let params = self.params("leaf by leaf");
        let others = WAYS.into_iter().filter(|way| *way != Way::LeafByLeaf);
        others
            .map(|way| {
                Row::compare(
                    &format!("{}: total", name(way)),
                    params.clone(),
                    "us",
                    &total(Way::LeafByLeaf),
                    &total(way),
                )
            })
            .collect()
    }

    fn against_the_mutex(&self) -> Vec<Row> {
        let figures: [(&str, Part); 5] = [
            ("total", |sample| Some(us(sample.times.total_ns))),
            ("walk", |sample| sample.times.parts_ns.map(|[walk, _, _]| us(walk))),
            ("flush", |sample| sample.times.parts_ns.map(|[_, flush, _]| us(flush))),
            ("collect", |sample| sample.times.parts_ns.map(|[_, _, collect]| us(collect))),
            ("longest wait of a memslot", |sample| Some(us(sample.waits.beside.longest_ns))),
        ];
        let mut rows = Vec::new();
        for way in WAYS {
            for (what, figure) in figures {
                let of = |lock| self.of(way, lock).iter().map(figure).collect::<Option<Vec<_>>>();
                if let (Some(slat), Some(mutex)) = (of(MmuLock::None), of(MmuLock::Exclusive)) {
                    let (slat, mutex) = (Series::new(slat), Series::new(mutex));
                    let name = format!("{}: {what}", name(way));
                    rows.push(Row::compare(&name, self.params("--mmu-lock exclusive"), "us", &mutex, &slat));
                }
            }
        }
        rows
    }

    fn against_no_zap(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for way in WAYS {
            let samples = self.of(way, MmuLock::None);
            let [quiet, beside]: [Pick<Sample>; 2] =
                [|sample| &sample.faults.control, |sample| &sample.faults.beside];
            let params = self.params("no zap");
            rows.extend(latencies(
                &format!("fault beside {}", name(way)),
                "max",
                &params,
                [(samples, quiet), (samples, beside)],
            ));
            let [alone, beside]: [Pick<Sample>; 2] =
                [|sample| &sample.waits.control, |sample| &sample.waits.beside];
            let hold = [(samples, alone), (samples, beside)];
            rows.extend(
                latencies(&format!("memslot made and deleted beside {}", name(way)), "max", &params, hold)
                    .pop(),
            );
        }
        rows
    }

    fn faults_against_the_mutex(&self) -> Vec<Row> {
        let beside: Pick<Sample> = |sample| &sample.faults.beside;
        let row = |way| {
            let both = [MmuLock::Exclusive, MmuLock::None].map(|lock| (self.of(way, lock), beside));
            latencies(
                &format!("fault beside {}", name(way)),
                "max",
                &self.params("--mmu-lock exclusive"),
                both,
            )
        };
        WAYS.into_iter().flat_map(row).collect()
    }

    fn counts(&self) -> Vec<Row> {
        let counts: [(&str, Figure); 3] = [
            ("flushes paid", |sample| sample.flushes),
            ("tables freed", |sample| sample.freed),
            ("faults beside it", |sample| sample.faults.beside.each.len() as f64),
        ];
        let mut rows = Vec::new();
        for way in WAYS {
            for (what, count) in counts {
                let name = format!("{}: {what}", name(way));
                let count = series(self.of(way, MmuLock::None), count);
                let params = params! { "size": self.size(), "pages": self.ground.pages.name() };
                rows.push(Row::alone(&name, params, "count", &count));
            }
        }
        rows
    }

    /// What must have happened for the rows to count.
    pub fn checks(&self) -> Vec<Check> {
        self.entrants
            .iter()
            .zip(self.samples)
            .flat_map(|(who, samples)| self.checks_of(*who, samples))
            .collect()
    }

    fn checks_of(&self, who: Entrant, samples: &[Sample]) -> Vec<Check> {
        let policy = if who.lock == MmuLock::None { "slat" } else { "exclusive" };
        let at = format!(" at {}, {}", self.size(), self.ground.pages.name());
        let tallies = samples.iter().flat_map(|sample| &sample.tally);
        Check::tallied(&format!("{policy}, {}", name(who.way)), &at, tallies)
    }
}

fn total(sample: &Sample) -> f64 {
    us(sample.times.total_ns)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn series(samples: &[Sample], figure: Figure) -> Series {
    Series::new(samples.iter().map(figure).collect())
}
