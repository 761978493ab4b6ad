//! A guest with two vCPUs whose pages are migrated, swapped out and merged a million times while it runs. The
//! guest checks every word; then the dirty log is compared with what it wrote. Each check is repeated and must
//! fail: a host stores to the guest's pages, and the guest stores to a page that the log must not have.
//!
//! `cargo run --release -p slat-kvm --example churn -- [OPERATIONS]`; `cargo xtask clients kvm` runs it.

use guest::stage::{DATA, DATA_AT, Stage, bound};
use guest::{Job, Work};
use slat::slots::Region;
use slat::{Hva, Idle, PAGE_SIZE, Span};
use slat_mm::{Advice, Ksm};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

mod guest;

const PAGES: u64 = 2048;
/// Pages from here on have equal contents from time to time.
const ALIKE: u64 = 1536;
/// Number of pages per job.
const CHUNK: u64 = 32;
/// Operations in which the guest has to find what the host stored.
const SPOILED: u64 = 100_000;

/// Counts of the host's changes and of the guest's errors.
#[derive(Default)]
struct Churn {
    /// Whether the host stores to the guest's pages.
    spoils: bool,
    moved: AtomicU64,
    swapped: AtomicU64,
    merged: AtomicU64,
    jobs: AtomicU64,
    wrong: AtomicU64,
    /// Number of operations before the first wrong word.
    first: AtomicU64,
    /// Number of vCPUs that have filled all pages.
    filled: AtomicU64,
    over: AtomicBool,
}

impl Churn {
    fn operations(&self) -> u64 {
        [&self.moved, &self.swapped, &self.merged].into_iter().map(|count| count.load(Relaxed)).sum()
    }

    /// A vCPU: checks a part that it has filled, and fills it with other contents, repeatedly. At the end, or
    /// when a word is wrong, it checks everything.
    fn guest(&self, stage: &Stage, number: u64) {
        let mut idle = Idle::take().expect("a new thread has its token");
        let mut vcpu = stage.vcpu(number);
        let mut random = number + 1;
        let mut salts = vec![0; (PAGES / CHUNK) as usize];
        let mut run = |job, chunk: u64, salt| {
            let start = DATA_AT.0 + chunk * CHUNK * PAGE_SIZE;
            let mask = if chunk * CHUNK < ALIKE { !0 } else { 0x7ff };
            let work = Work { job, start, pages: CHUNK, mask, salt };
            // A page that was corrupted in swap counts as wrong too.
            let wrong = stage.run(&mut idle, (number, &mut vcpu), work).unwrap_or_else(|error| {
                println!("  {error}");
                PAGE_SIZE / 8
            });
            self.jobs.fetch_add(1, Relaxed);
            if wrong > 0 && self.wrong.fetch_add(wrong, Relaxed) == 0 {
                self.first.store(self.operations(), Relaxed);
            }
        };
        (0..PAGES / CHUNK).for_each(|chunk| run(Job::Fill, chunk, 0));
        self.filled.fetch_add(1, Relaxed);
        while !self.over.load(Relaxed) && self.wrong.load(Relaxed) == 0 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chunk = (random >> 33) % (PAGES / CHUNK);
            let salt = &mut salts[chunk as usize];
            run(Job::Check, chunk, *salt);
            // Few different contents where pages are to be merged.
            *salt = if chunk * CHUNK < ALIKE { random } else { random >> 60 & 1 };
            run(Job::Fill, chunk, *salt);
        }
        if self.wrong.load(Relaxed) == 0 {
            (0..PAGES / CHUNK).for_each(|chunk| run(Job::Check, chunk, salts[chunk as usize]));
        }
        self.over.store(true, Relaxed);
    }

    /// The host: migrates and swaps out in turns, until `operations` operations were made, one in fifty of them
    /// a swap-out.
    fn host(&self, stage: &Stage, operations: u64) {
        let mut idle = Idle::take().expect("a new thread has its token");
        while self.filled.load(Relaxed) < 2 {
            sleep(Duration::from_millis(1));
        }
        let mut turn = 0;
        let done = || self.operations() >= operations && self.swapped.load(Relaxed) >= operations / 50;
        while !self.over.load(Relaxed) && !done() {
            let part =
                Span::sized(stage.data.start + turn % 4 * (PAGES / 4) * PAGE_SIZE, PAGES / 4 * PAGE_SIZE);
            // Few pages per swap-out, since each comes back by a fault.
            let few = Span::sized(part.start + turn % 15 * 32 * PAGE_SIZE, 32 * PAGE_SIZE);
            self.moved.fetch_add(stage.space.migrate(&mut idle, part).expect("there is memory"), Relaxed);
            self.swapped.fetch_add(stage.space.pageout(&mut idle, few).expect("there is swap"), Relaxed);
            if self.spoils {
                stage.space.write(&mut idle, few.start, &[0x5a; 8]).expect("it is mapped");
            }
            if turn % 64 == 0 {
                stage.arena.trim().expect("a memfd");
            }
            turn += 1;
            sleep(Duration::from_micros(200));
        }
        self.over.store(true, Relaxed);
    }

    fn merger(&self, stage: &Stage) {
        let mut idle = Idle::take().expect("a new thread has its token");
        let ksm = Ksm::builder(&stage.arena).build().expect("it is set up as usual");
        ksm.add(&stage.space).expect("the same arena");
        let alike = Span::<Hva>::new(stage.data.start + ALIKE * PAGE_SIZE, stage.data.end);
        stage.space.madvise(&mut idle, alike, Advice::Mergeable).expect("it is mapped");
        while !self.over.load(Relaxed) {
            self.merged.fetch_add(ksm.scan(&mut idle, u64::MAX), Relaxed);
            sleep(Duration::from_millis(2));
        }
    }
}

/// Runs guest and host concurrently. `None` if there is no KVM.
fn churn(idle: &mut Idle, operations: u64, spoils: bool) -> Option<Churn> {
    let stage = Stage::new(idle, PAGES, false, |builder| builder)?;
    let churn = Churn { spoils, ..Churn::default() };
    scope(|scope| {
        for number in 0..2 {
            let (churn, stage) = (&churn, &stage);
            scope.spawn(move || churn.guest(stage, number));
        }
        scope.spawn(|| churn.host(&stage, operations));
        scope.spawn(|| churn.merger(&stage));
    });
    println!("  {:?}", stage.vm.view_stats());
    if let Some(error) = stage.vm.take_error() {
        println!("  an error of a pager: {error}");
    }
    Some(churn)
}

/// Rounds of stores with concurrent migration and swap. Returns the number of pages that the guest wrote, and
/// of rounds with a different log. With `more`, a vCPU writes a page more in each round than the log is compared with.
fn logs(idle: &mut Idle, rounds: u64, kvm_log: bool, more: bool) -> Option<(usize, u64)> {
    let stage = Stage::new(idle, PAGES, false, |builder| builder.kvm_log(kvm_log))?;
    let mut vcpus = [0, 1].map(|number| (number, stage.vcpu(number)));
    stage.vm.set(idle, stage.region(Region::LOG_DIRTY)).expect("a log");
    stage.vm.harvest(idle, DATA).expect("it logs").commit();
    let over = AtomicBool::new(false);
    let (mut written, mut different) = (0, 0);
    scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().expect("a new thread has its token");
            // Not too often: most stores should meet pages that are mapped read-only.
            for turn in 0.. {
                if over.load(Relaxed) {
                    break;
                }
                let part =
                    Span::sized(stage.data.start + turn % 8 * (PAGES / 8) * PAGE_SIZE, PAGES / 8 * PAGE_SIZE);
                stage.space.migrate(&mut idle, part).expect("there is memory");
                let few = Span::sized(part.start, 16 * PAGE_SIZE);
                stage.space.pageout(&mut idle, few).expect("there is swap");
                sleep(Duration::from_millis(100));
            }
        });
        for round in 0..rounds {
            // Each of two vCPUs stores to every n-th page from some page on, and reads all.
            let works = [0, 1].map(|vcpu| {
                let (first, stride) = (round * 37 + vcpu * 11, 3 + vcpu + round % 5);
                let start = DATA_AT.0 + first % 512 * PAGE_SIZE;
                Work { job: Job::Touch, start, pages: 100, mask: stride * PAGE_SIZE, salt: round }
            });
            std::thread::scope(|scope| {
                for ((number, vcpu), work) in vcpus.iter_mut().zip(works) {
                    let stage = &stage;
                    scope.spawn(move || {
                        let mut idle = Idle::take().expect("a new thread has its token");
                        let read = Work { job: Job::Check, start: DATA_AT.0, pages: PAGES, mask: 0, salt: 0 };
                        // Stores to pages that are mapped read-only must be reported too.
                        for work in [read, work] {
                            stage.run(&mut idle, (*number, vcpu), work).expect("there is memory");
                        }
                    });
                }
            });
            let said = |work: Work| (0..work.pages).map(move |n| (work.start + n * work.mask) / PAGE_SIZE);
            let mut expected: BTreeSet<u64> = works.into_iter().flat_map(said).collect();
            if more {
                expected.pop_last();
            }
            let harvest = stage.vm.harvest(idle, DATA).expect("it logs");
            let logged: BTreeSet<u64> = harvest.iter().map(|page| page.gfn.0).collect();
            harvest.commit();
            written += expected.len();
            different += u64::from(logged != expected);
        }
        over.store(true, Relaxed);
    });
    Some((written, different))
}

fn main() -> ExitCode {
    bound(Duration::from_secs(1200));
    let operations =
        std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number of operations"));
    let mut idle = Idle::take().expect("the first token of this thread");
    let began = Instant::now();
    let Some(right) = churn(&mut idle, operations, false) else { return ExitCode::SUCCESS };
    let [moved, swapped, merged, jobs, wrong] =
        [&right.moved, &right.swapped, &right.merged, &right.jobs, &right.wrong]
            .map(|count| count.load(Relaxed));
    println!(
        "churn: {moved} pages moved, {swapped} swapped out, {merged} merged under {jobs} jobs of 2 vCPUs in {:?}: {} bytes wrong",
        began.elapsed(),
        wrong * 8
    );
    if wrong > 0 {
        println!("churn: the first after {} operations", right.first.load(Relaxed));
    }
    let mut passed = wrong == 0 && right.operations() >= operations;
    let Some(spoiled) = churn(&mut idle, operations.min(SPOILED), true) else { return ExitCode::FAILURE };
    let found = spoiled.wrong.load(Relaxed) > 0;
    println!(
        "churn: what the host stored is {} after {} operations",
        if found { "found" } else { "NOT found" },
        spoiled.first.load(Relaxed)
    );
    passed &= found;
    for kvm_log in [false, true] {
        let Some((written, different)) = logs(&mut idle, 30, kvm_log, false) else {
            return ExitCode::FAILURE;
        };
        let whose = if kvm_log { "slat's and KVM's" } else { "slat's" };
        println!(
            "dirty log ({whose}): {written} pages written in 30 rounds, {different} rounds differ from what the guest wrote"
        );
        passed &= different == 0;
        let Some((_, different)) = logs(&mut idle, 3, kvm_log, true) else { return ExitCode::FAILURE };
        println!("dirty log ({whose}): a page too many is found in {different} of 3 rounds");
        passed &= different == 3;
    }
    println!("{}", if passed { "kvm: passed" } else { "kvm: FAILED" });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
