//! Runs worlds of many seeds on all processors of this machine, until one fails or the time is up.

use crate::plan::{Plan, draw};
use crate::shrink;
use crate::world::{Wrong, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// One world in this many is run twice, to check that both runs are the same.
const TWICE: u64 = 64;

/// The parameters of a hunt.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The first seed.
    pub first: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Time limit.
    pub at_most: Option<Duration>,
    /// Number of CPUs per world; `None` lets the seed choose.
    pub cpus: Option<u64>,
    /// Whether all worlds run in rounds.
    pub rounds: bool,
    /// Whether TLBs ignore flushes: a control, which must fail.
    pub faulty_tlbs: bool,
}

/// The result of a hunt.
#[derive(Clone, Debug)]
pub struct Found {
    /// Worlds run, including those with seeds above the first failing one.
    pub worlds: u64,
    /// Accesses in these worlds.
    pub steps: u64,
    /// The first failing seed.
    pub failing: Option<(u64, Wrong)>,
}

/// Two runs of one plan differ.
pub const DIFFERS: &str = "two runs of one seed differ";

impl Hunt {
    /// The plan of a seed.
    pub fn plan(&self, seed: u64) -> Plan {
        Plan { faulty_tlbs: self.faulty_tlbs, ..draw(seed, self.cpus, self.rounds) }
    }

    /// Runs the worlds. All seeds below the returned failing seed have passed.
    ///
    /// # Panics
    /// When a worker panics.
    pub fn go(&self) -> Found {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let (next, worlds, steps) = (AtomicU64::new(self.first), AtomicU64::new(0), AtomicU64::new(0));
        let failing: Mutex<Option<(u64, Wrong)>> = Mutex::new(None);
        let began = Instant::now();
        let work = || {
            loop {
                let seed = next.fetch_add(1, Relaxed);
                let failed = failing.lock().expect("no worker panics").is_some();
                let late = self.at_most.is_some_and(|most| began.elapsed() > most);
                if seed >= self.first.saturating_add(self.seeds) || failed || late {
                    return;
                }
                let plan = self.plan(seed);
                let outcome = run(&plan, false);
                worlds.fetch_add(1, Relaxed);
                steps.fetch_add(outcome.steps, Relaxed);
                let again = (seed % TWICE == 0).then(|| run(&plan, false));
                let differs = again.filter(|again| *again != outcome);
                let wrong = differs.map_or(outcome.wrong, |again| {
                    let how = format!("{:x} and {:x}", outcome.hash, again.hash);
                    Some(Wrong { what: DIFFERS, how })
                });
                if let Some(wrong) = wrong {
                    let mut failing = failing.lock().expect("no worker panics");
                    if failing.as_ref().is_none_or(|(first, _)| seed < *first) {
                        *failing = Some((seed, wrong));
                    }
                }
            }
        };
        thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        Found {
            worlds: worlds.into_inner(),
            steps: steps.into_inner(),
            failing: failing.into_inner().expect("no worker panics"),
        }
    }

    /// The command that repeats a plan of this hunt.
    pub fn command(&self, plan: &Plan) -> String {
        let mut words = vec![format!("cargo xtask explore --first {} --seeds 1", plan.seed)];
        words.extend(self.cpus.map(|cpus| format!("--cpus {cpus}")));
        words.extend(self.rounds.then(|| "--rounds".to_owned()));
        words.extend(self.faulty_tlbs.then(|| "--faulty-tlbs".to_owned()));
        if self.plan(plan.seed) != *plan {
            words.push(format!("--only {} --turn {}", shrink::kept(plan), plan.turn));
        }
        words.join(" ")
    }
}
