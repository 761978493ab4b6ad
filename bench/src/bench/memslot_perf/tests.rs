//! Every scenario, by every design, honest or not; every request that cannot be met.

use super::design::{Design, Machine, Memslots};
use super::memory::Memory;
use super::ours::{Direct, Ours, Slots};
use super::scenario::{Scenario, Test as Guest};
use super::{Asked, Bench, ENTRANTS, Findings, MOST, MemslotPerf, Test, checks, micro};
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Slot, SlotId, Span};
use slat_cli::error::Error;
use slat_threads::benches::Tally;
use std::sync::Arc;
use std::time::Duration;

const GUESTS: [Guest; 7] = [
    Guest::Map,
    Guest::Unmap,
    Guest::Unmap2m,
    Guest::MoveActive,
    Guest::MoveInactive,
    Guest::Setup,
    Guest::SetupAtOnce,
];

#[test]
fn every_design_passes_every_check() {
    for test in GUESTS {
        for slots in [2, 11, 700] {
            let scenario = Scenario::new(test, slots);
            for entrant in ENTRANTS {
                let sample = (entrant.sample)(&scenario, Duration::from_millis(5)).unwrap();
                assert!(sample.ns > 0.0 && sample.tally[0] == ("the guest came to its end", [1, 1]));
                for check in checks(entrant.name, test, slots, &[sample]) {
                    assert!(check.ok, "{}: {}", check.name, check.detail);
                }
            }
        }
    }
}

#[test]
fn guests_use_what_they_should() {
    let words = |test| {
        let tally = Scenario::new(test, 700).sample::<Ours>(Duration::ZERO).unwrap().tally;
        let words = |(name, _): &&Tally| name.starts_with("the guest found in each page");
        tally.iter().find(words).unwrap().1[1]
    };
    // One iteration: both halves, the first one again, and a look at it.
    assert_eq!(words(Guest::Map), 4 * 4096);
    assert_eq!(words(Guest::Unmap), 4);
    assert_eq!(words(Guest::Setup), 0);
    assert!(words(Guest::MoveInactive) >= 100);
}

/// slat's slots, but for one lie.
struct Liar<const LIE: u8>;

/// Pages go without a word to the VM.
const SILENT: u8 = 0;
/// The VM is told about pages further on.
const ASTRAY: u8 = 1;
/// A slot that moves stays where it is.
const STUCK: u8 = 2;
/// A slot that moves away does not come back.
const LOST: u8 = 3;

struct Lies<'vm, const LIE: u8> {
    vm: &'vm Machine<Ours>,
    slots: Slots<'vm>,
    moves: u32,
}

impl<const LIE: u8> Design for Liar<LIE> {
    type Host = Direct;
    type Slots<'vm> = Lies<'vm, LIE>;

    fn host(memory: &Arc<Memory>) -> Direct {
        Ours::host(memory)
    }

    fn slots<'vm>(vm: &'vm Machine<Self>, idle: &mut Idle) -> Result<Lies<'vm, LIE>, Error> {
        Ok(Lies { vm, slots: Ours::slots(vm, idle)?, moves: 0 })
    }
}

impl<const LIE: u8> Memslots for Lies<'_, LIE> {
    fn populate(&mut self, idle: &mut Idle, slots: impl Iterator<Item = Slot>) -> Result<(), Error> {
        self.slots.populate(idle, slots)
    }

    fn create(&mut self, idle: &mut Idle, slot: Slot) -> Result<(), Error> {
        self.slots.create(idle, slot)
    }

    fn move_to(&mut self, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), Error> {
        self.moves += 1;
        match LIE {
            STUCK => Ok(()),
            LOST if self.moves.is_multiple_of(2) => Ok(()),
            _ => self.slots.move_to(idle, id, gfn),
        }
    }

    fn get(&mut self, idle: &mut Idle, id: SlotId) -> Option<Slot> {
        self.slots.get(idle, id)
    }

    fn take_away(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        match LIE {
            SILENT => self.vm.host().memory().take_away(hvas),
            ASTRAY => {
                let other = Span::sized(hvas.start + PAGE_SIZE, hvas.len());
                self.vm.invalidate(other, slat::Why::Clear).apply(idle).settle();
                self.vm.host().memory().take_away(hvas);
            }
            _ => self.slots.take_away(idle, hvas),
        }
    }
}

/// How many checks of a test find out about a design.
fn found_out<D: Design + 'static>(test: Guest) -> usize {
    let sample = Scenario::new(test, 50).sample::<D>(Duration::from_millis(5)).unwrap();
    checks("liar", test, 50, &[sample]).iter().filter(|check| !check.ok).count()
}

#[test]
fn each_kind_of_lie_is_found() {
    for test in [Guest::Map, Guest::Unmap, Guest::Unmap2m] {
        assert!(found_out::<Liar<SILENT>>(test) > 0, "{test:?}");
        assert!(found_out::<Liar<ASTRAY>>(test) > 0, "{test:?}");
    }
    for test in [Guest::MoveActive, Guest::MoveInactive] {
        assert!(found_out::<Liar<LOST>>(test) > 0, "{test:?}");
    }
    assert!(found_out::<Liar<STUCK>>(Guest::MoveActive) > 0);
}

#[test]
fn every_map_gives_right_answers() {
    let mut findings = Findings::default();
    for test in [micro::Test::LookUp, micro::Test::HvaRange, micro::Test::Changes] {
        for slots in [2, 3, 300] {
            micro::measure(test, slots, 1, &mut findings).unwrap();
        }
    }
    micro::memory(&mut findings).unwrap();
    assert_eq!(findings.rows.len(), 3 * (3 + 1 + 1 + 9) + 3);
    for check in findings.checks {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_by_flag() {
    let bench = |slots: &[u32], seconds: f64| {
        let tests = Test::ALL.to_vec();
        let refused = MemslotPerf { slots: slots.to_vec(), tests, seconds, kvm: false }.report(Asked::ONCE);
        let Err(Error::Usage(line)) = refused else { panic!("{slots:?} and {seconds} s were taken") };
        line
    };
    for slots in [0, 1, MOST + 1, u32::MAX] {
        let line = bench(&[10, slots], 0.0);
        assert!(line.starts_with(&format!("--slots: {slots} ")), "{line}");
    }
    for seconds in [-1.0, 1e9, f64::NAN, f64::INFINITY] {
        assert!(bench(&[10], seconds).starts_with("--seconds: "));
    }
}
