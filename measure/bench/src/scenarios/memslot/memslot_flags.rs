//! `slat bench memslot-perf`: what memslots cost a running guest and its host, before the scalable memslots series and with slat.
//!
//! ```text
//! micro/        the maps alone, beside the standard library's and vm-memory's: look-ups, changes, bytes
//! kvm_requests.rs        the requests of a VMM, beside the machine's own KVM
//! ```
//! The scenarios (map, unmap, unmap-2m, move-active, move-inactive, setup) and both designs of memslots are those that virtual time
//! has, too: `guest_tests.rs`. They are those of KVM's `memslot_perf_test`, with a software vCPU that really runs and
//! really caches translations. A figure is the time of one iteration.

use super::array::IDS;
use super::array::array_host::Adapter;
use super::guest_tests::GuestTest;
use super::slot_design::engine_alone;
use super::{guest_tests, kvm_requests, micro};
use crate::scenarios::threads_prelude::*;
use clap::builder::PossibleValue;

/// More slots than the array can have: slat runs alone.
const MOST: u32 = 1_000_000;

/// The flags of `slat bench memslot-perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench memslot-perf -s 10,509 --runs 3")]
pub struct MemslotPerf {
    /// Numbers of memslots: 2 to 1000000; slat runs alone above 32764
    #[arg(short, long, value_name = "N,…", default_value = "10,30,50,100,509,8194,32764,1000000")]
    #[arg(value_delimiter = ',')]
    slots: Vec<u32>,
    /// The tests to run
    #[arg(
        long,
        value_name = "TEST,…",
        value_delimiter = ',',
        default_value = "map,unmap,unmap-2m,move-active,move-inactive,setup,look-up,hva-range,changes,memory"
    )]
    tests: Vec<Test>,
    /// Time for each sample of a test with a guest; it has one iteration at least
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    seconds: f64,
    /// Measure a VMM's requests too, beside those to the machine's own /dev/kvm
    #[arg(long)]
    kvm: bool,
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    /// Slots under a guest that runs.
    Guest(guest_tests::Test),
    /// Maps alone: finding the slots of random frames, each after the answer to the one before.
    LookUp,
    /// Finding the frames behind random host pages, in the same way.
    HvaRange,
    /// Creating, moving and deleting single slots at random places.
    Changes,
    /// Bytes, the same for every list of slot counts.
    Memory,
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Self::Guest(test) => test.name(),
            Self::LookUp => "look-up",
            Self::HvaRange => "hva-range",
            Self::Changes => "changes",
            Self::Memory => "memory",
        }
    }
}

impl ValueEnum for Test {
    fn value_variants<'a>() -> &'a [Self] {
        use guest_tests::Test::{Map, MoveActive, MoveInactive, Setup, Unmap, Unmap2m};
        &[
            Self::Guest(Map),
            Self::Guest(Unmap),
            Self::Guest(Unmap2m),
            Self::Guest(MoveActive),
            Self::Guest(MoveInactive),
            Self::Guest(Setup),
            Self::LookUp,
            Self::HvaRange,
            Self::Changes,
            Self::Memory,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(self.name().into())
    }
}

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[Grid {
    what: "32,764 memslots, one operation",
    columns: &[
        ("a sorted array, copied for each change", Cell::baseline("array")),
        ("a tree, copied where it changes: slat", Cell::slat("array")),
        ("three BTreeMaps, changed in place", Cell::baseline("BTreeMap")),
    ],
    rows: &[
        ("a look-up", &[("operation", "look-up"), ("slots", "32764")], "ns"),
        ("a memslot is created", &[("operation", "create"), ("slots", "32764")], "ns"),
        ("a memslot moves", &[("operation", "move"), ("slots", "32764")], "ns"),
        ("a memslot is deleted", &[("operation", "delete"), ("slots", "32764")], "ns"),
    ],
    says: "The tree is the idea of the scalable memslots series. A tree for each version, which shares what did not change, is\n\
           slat's: readers continue beside a change. BTreeMaps allow no reader beside a change. A memslot has 88 bytes in the array.",
}];

/// `slat bench memslot-perf`.
pub const MEASURED: Measured = Measured {
    takes: ["4 min", "400 MiB"],
    question: "How much do 10 to 1,000,000 memslots cost guest and host?",
    kept: "--kvm",
    headlines: &[Headline {
        what: "one of 32,764 memslots moves while its guest uses it",
        against: "a sorted array, copied for each change",
        row: "move-active",
        params: &[("slots", "32764")],
    }],
    levers: LEVERS,
    ci: &["-s 10,509,1000000 --kvm"],
    quick: &[
        "-s 10,100,509 --tests map,unmap,unmap-2m,move-active,move-inactive,setup --runs 3 --seconds 0.02",
        "-s 32764 --tests unmap-2m,unmap,move-active,move-inactive,setup --runs 1 --seconds 0",
        "-s 8194 --tests map --runs 3 --seconds 0.02",
    ],
    full: &[
        "-s 10,30,50,100,509 --tests map,unmap,unmap-2m,move-active,move-inactive,setup",
        "-s 32764 --tests unmap-2m,unmap,move-active,move-inactive,setup --runs 3 --seconds 0",
        "-s 8194 --tests map",
        "-s 1000000 --tests unmap-2m,unmap,move-active,move-inactive,look-up --runs 3",
    ],
    ..Measured::of::<MemslotPerf>()
};

impl Flags for MemslotPerf {
    fn unused(&self) -> Unused {
        let mut unused = Unused::new();
        if !self.tests.iter().any(|test| matches!(test, Test::Guest(_))) {
            unused.push(("seconds".into(), "none of --tests has a guest".into()));
        }
        if !self.kvm && self.tests.iter().all(|test| *test == Test::Memory) {
            let why = || "--tests memory counts bytes once, for slots of its own".to_owned();
            unused.extend(["slots", "runs"].map(|flag| (flag.into(), why())));
        }
        unused
    }

    fn report(&self, scenario: &'static crate::scenario::Scenario, asked: Asked) -> Result<Report> {
        if let Some(slots) = self.slots.iter().find(|slots| !(2..=MOST).contains(*slots)) {
            return Err(Error::Usage(format!("--slots: {slots} is not between 2 and {MOST}")));
        }
        if !(0.0..=3600.0).contains(&self.seconds) {
            return Err(Error::Usage(format!("--seconds: {} is not between 0 and 3600", self.seconds)));
        }
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "runs": asked.runs,
            "seconds_per_sample": self.seconds,
            "baseline": "the sorted array before the scalable memslots series, unless named",
        };
        for (slots, test) in self.todo() {
            if interrupt::asked() {
                break;
            }
            progress(slots, test.name(), asked.runs);
            match test {
                Test::Guest(test) => self.with_guest(test, slots, asked.runs, &mut report)?,
                Test::LookUp => micro::look_ups(slots, asked.runs, &mut report)?,
                Test::HvaRange => micro::hva_ranges(slots, asked.runs, &mut report)?,
                Test::Changes => micro::changes(slots, asked.runs, &mut report)?,
                Test::Memory => micro::memory(&mut report)?,
            }
        }
        if self.kvm {
            self.beside_kvm(asked.runs, &mut report)?;
        }
        Ok(report)
    }
}

impl MemslotPerf {
    /// The tests in order: guests, maps, bytes. The last runs once, since its result is the same for every number.
    fn todo(&self) -> Vec<(u32, Test)> {
        let at = |slots: u32| self.tests.iter().map(move |&test| (slots, test));
        let mut todo: Vec<_> = self.slots.iter().flat_map(|&slots| at(slots)).collect();
        todo.sort_by_key(|(_, test)| match test {
            Test::Guest(_) => 0,
            Test::LookUp | Test::HvaRange | Test::Changes => 1,
            Test::Memory => 2,
        });
        todo.dedup_by(|(_, test), (_, before)| [*test, *before] == [Test::Memory; 2]);
        todo
    }

    /// Both designs in one scenario, at one number of slots.
    fn with_guest(&self, test: guest_tests::Test, slots: u32, runs: u32, report: &mut Report) -> Result<()> {
        let designs = ["slat", "baseline"].into_iter().take(if slots <= IDS { 2 } else { 1 });
        let scenario = GuestTest::new(test, slots);
        let ns = (self.seconds * 1e9) as u64;
        let laps = Lineup::run(runs, designs, |&design| {
            let sample =
                if design == "slat" { GuestTest::sample::<SimHost> } else { GuestTest::sample::<Adapter> };
            sample(&scenario, &engine_alone(), ns).map_err(Error::Machine)
        })?;
        let us = |design| Series::known(laps.of(design), |sample| Some(sample.ns / 1000.0));
        report.rows.extend(us("slat").map(|slat| {
            let params = params! { "slots": slots };
            Row::against(test.name(), params, "us/iteration", us("baseline"), &slat)
                .answering(PatchSeries::ScalableMemslots)
                .claiming(slat_series::scalable_memslots::ratio(test.name(), slots))
        }));
        let who = |design: &&str| format!("{design}, {}", test.name());
        report.checks.extend(laps.checks(&format!(" at {slots} slots"), who, |sample| &sample.tally));
        if test == guest_tests::Test::Setup && slots > IDS {
            self.with_guest(guest_tests::Test::SetupAtOnce, slots, runs, report)?;
        }
        Ok(())
    }

    fn beside_kvm(&self, runs: u32, report: &mut Report) -> Result<()> {
        let opened = kvm_requests::open(kvm_requests::PATH)
            .inspect_err(|reason| eprintln!("skipped: /dev/kvm: {reason}"));
        let Ok(kvm) = opened else { return Ok(()) };
        for &slots in self.slots.iter().take_while(|_| !interrupt::asked()) {
            if slots > kvm.slots {
                eprintln!("skipped: /dev/kvm has {} slots, not {slots}", kvm.slots);
            } else {
                progress(slots, "/dev/kvm", runs);
                kvm_requests::measure(&kvm, slots, runs, report)?;
            }
        }
        Ok(())
    }
}

fn progress(slots: u32, test: &str, runs: u32) {
    say(format_args!("{slots} slots, {test}: {runs} rounds"));
}
