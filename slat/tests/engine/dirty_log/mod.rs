//! The rules of dirty logs, asked from every side: what is returned, what stays, and what is refused.
//!
//! ```text
//!   operations ──▶ model       the rules, as plainly as they can be written: a set of pages
//!             ├───▶ slat       must return what the model returns, page by page, and refuse what it refuses
//!             └───▶ /dev/kvm   the same, with a guest that really runs: the rules are KVM's
//! ```
//! A walk is a function of its seed: stores and loads of a guest, writes of a device, harvests that are committed or
//! given back, bits got and cleared in parts, logs switched on and off, slots that are created, moved and deleted, and
//! pages taken away under them; a few requests are invalid. One thread: so nothing spurious is allowed, either.
//!
//! | file | contents |
//! |---|---|
//! | [`model`] | the rules |
//! | [`operations`] | operations worth testing |
//! | [`subject`] | slat, with a guest whose walker sets Dirty |
//! | [`kvm`] | the kernel, if there is one |
//! | [`errors`] | every error: its type, its text, its number; and that nothing was changed |
//! | [`frozen`] | a leaf that is zapped during its next store's fault |
//! | [`harvests`] | a harvest that is still held when its log or its slot changes |

mod errors;
mod frozen;
mod harvests;
mod model;
mod operations;
mod subject;

#[cfg(all(feature = "std", target_os = "linux", target_arch = "x86_64"))]
mod kvm;

use crate::common::identity::Identity;
use crate::common::thorough::thorough;
use model::{BIG, LARGE, Model, Operation, Reply, SMALL, Shape};
use operations::Operations;
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::{DirtyLog, Format, Idle, RingSize, Splitting, Track};
use std::collections::BTreeSet;
use subject::Slat;

/// A keeper of dirty logs.
trait Subject {
    /// Runs an operation, and returns its result.
    fn ask(&mut self, idle: &mut Idle, operation: &Operation) -> Result<Reply, i32>;
}

/// Runs `steps` operations on all subjects, as `choose` says. Returns the first disagreement, as text.
fn walk(
    seed: u64,
    steps: u64,
    mut choose: impl FnMut(&Model) -> Operation,
    model: &mut Model,
    subjects: &mut [&mut dyn Subject],
) -> Result<Tally, String> {
    let mut idle = Idle::take().expect("one walk at a time");
    let mut tally = Tally::default();
    for step in 0..steps {
        let operation = choose(model);
        let expected = model.ask(&operation);
        for subject in &mut *subjects {
            let said = subject.ask(&mut idle, &operation);
            let agrees = match (&said, &expected) {
                (Ok(Reply::Unsaid), Ok(_)) => true,
                _ => said == expected,
            };
            if !agrees {
                return Err(format!("seed {seed}, step {step}: {operation:x?}: {said:?}, not {expected:?}"));
            }
        }
        tally.count(&operation, &expected);
    }
    Ok(tally)
}

/// Counts of the entries that a walk has met.
#[derive(Default, Debug)]
struct Tally {
    told: u64,
    refused: BTreeSet<i32>,
    kinds: BTreeSet<&'static str>,
}

impl Tally {
    fn count(&mut self, operation: &Operation, reply: &Result<Reply, i32>) {
        match reply {
            Ok(Reply::Pages(pages)) => self.told += pages.len() as u64,
            Ok(_) => {}
            Err(errno) => _ = self.refused.insert(*errno),
        }
        self.kinds.insert(operation.kind());
    }

    fn must_be_worth_something(&self) {
        assert!(self.told > 100, "{self:?}");
        assert!(self.refused.contains(&2) && self.refused.contains(&22), "{self:?}");
        assert_eq!(self.kinds.len(), Operation::KINDS, "{self:?}");
    }
}

const STEPS: u64 = 4_000;

fn agree<F: Format>(log: DirtyLog, initially_set: bool, (shapes, large): (&'static [Shape; 3], bool)) {
    let (seeds, steps) = if std::ptr::eq(shapes, &raw const BIG) {
        (1, STEPS / 10)
    } else {
        (thorough(3, 1), thorough(STEPS, STEPS / 2))
    };
    for seed in 1..=seeds {
        let mut slat =
            Slat::<F>::new(Identity::of(if large { slat::Level::M2 } else { slat::Level::K4 }), shapes, log);
        let mut operations = Operations::new(seed);
        let choose = |model: &Model| operations.next(model);
        let walked = walk(seed, steps, choose, &mut Model::new(shapes, initially_set), &mut [&mut slat]);
        walked.unwrap_or_else(|wrong| panic!("{} {log:?}: {wrong}", F::NAME)).must_be_worth_something();
    }
}

#[test]
fn rings_report_exactly_the_stores() {
    let tracks = [Track::Writes, Track::DirtyBits];
    for log in tracks.map(|track| DirtyLog::bitmap().track(track)) {
        for (log, initially_set) in [(log, false), (log.initially_set(), true)] {
            agree::<Ept4>(log, initially_set, (&SMALL, false));
            agree::<Ept4NoAd>(log, initially_set, (&SMALL, false));
            agree::<Ept5>(log, initially_set, (&SMALL, false));
            agree::<Npt4>(log, initially_set, (&SMALL, false));
            agree::<Npt5>(log, initially_set, (&SMALL, false));
            agree::<Pae>(log, initially_set, (&SMALL, false));
        }
    }
}

/// Write protection logs single pages of large ones, too.
#[test]
fn of_large_pages_what_is_told_is_what_was_stored_and_no_more() {
    for splitting in [Splitting::Eager, Splitting::Lazy] {
        let log = DirtyLog::bitmap().track(Track::Writes).splitting(splitting);
        for (log, initially_set) in [(log, false), (log.initially_set(), true)] {
            agree::<Ept4>(log, initially_set, (&LARGE, true));
            agree::<Ept4NoAd>(log, initially_set, (&LARGE, true));
            agree::<Npt4>(log, initially_set, (&LARGE, true));
        }
    }
}

/// Slots of several chunks, not all of which are aligned to their frames.
#[test]
fn of_big_slots_what_is_told_is_what_was_stored_and_no_more() {
    for initially_set in [false, true] {
        let log = DirtyLog::bitmap();
        let log = if initially_set { log.initially_set() } else { log };
        agree::<Ept4>(log, initially_set, (&BIG, true));
        agree::<Npt4>(log.splitting(Splitting::Lazy), initially_set, (&BIG, true));
        agree::<Npt4>(log.track(Track::DirtyBits), initially_set, (&BIG, false));
    }
}

/// Rings are harvested all together, with what devices marked.
#[test]
fn of_rings_what_is_told_is_what_was_stored_and_no_more() {
    let rings = DirtyLog::ring(RingSize::new(4096).unwrap());
    for (seed, log, initially_set) in [(1, rings, false), (2, rings, false), (3, rings.initially_set(), true)]
    {
        let mut slat = Slat::<Ept4>::new(Identity::default(), &SMALL, log);
        let mut operations = Operations::new(seed);
        let choose = |model: &Model| match operations.next(model) {
            Operation::Harvest { commit, .. } => Operation::HarvestAll { commit },
            Operation::Get { .. } | Operation::Clear { .. } => Operation::HarvestAll { commit: true },
            operation => operation,
        };
        let walked = walk(seed, STEPS, choose, &mut Model::new(&SMALL, initially_set), &mut [&mut slat]);
        assert!(walked.unwrap_or_else(|wrong| panic!("{wrong}")).told > 100);
    }
}

type Mistake = fn(Result<Reply, i32>) -> Result<Reply, i32>;

/// Slat, with a mistake in its answers.
struct Mistaken(Slat<Npt4>, Mistake);

impl Subject for Mistaken {
    fn ask(&mut self, idle: &mut Idle, operation: &Operation) -> Result<Reply, i32> {
        self.1(self.0.ask(idle, operation))
    }
}

#[test]
fn negative_control_a_subject_that_errs_is_found_out() {
    let one_less: Mistake = |said| match said {
        Ok(Reply::Pages(pages)) if pages.len() > 1 => Ok(Reply::Pages(pages[1..].to_vec())),
        said => said,
    };
    let one_more: Mistake = |said| match said {
        Ok(Reply::Pages(pages)) if !pages.is_empty() => Ok(Reply::Pages([&pages[..], &[99]].concat())),
        said => said,
    };
    let another_error: Mistake = |said| said.map_err(|errno| errno ^ 4);
    for mistake in [one_less, one_more, another_error] {
        let mut subject = Mistaken(Slat::new(Identity::default(), &SMALL, DirtyLog::bitmap()), mistake);
        let mut operations = Operations::new(1);
        let choose = |model: &Model| operations.next(model);
        assert!(walk(1, STEPS, choose, &mut Model::new(&SMALL, false), &mut [&mut subject]).is_err());
    }
}
