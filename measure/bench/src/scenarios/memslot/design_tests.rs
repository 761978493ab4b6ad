//! Every scenario, by every design, honest or not.

use super::guest_tests::{GuestTest, Sample, Test};
use crate::scenarios::memslot::array::array_host::Adapter;
use crate::scenarios::memslot::slot_design::{Design, Machine};
use crate::scenarios::prelude::*;
use core::sync::atomic::AtomicU32;

const ALL: [Test; 7] = [
    Test::Map,
    Test::Unmap,
    Test::Unmap2m,
    Test::MoveActive,
    Test::MoveInactive,
    Test::Setup,
    Test::SetupAtOnce,
];

/// One iteration, or as many as begin within so long.
fn sample<D: Design>(test: Test, slots: u32, ns: u64) -> Sample {
    let setting = Setting { vcpus: 1, work: Work::none(), ..setting(NONE) };
    GuestTest::new(test, slots).sample::<D>(&setting, ns).unwrap()
}

#[test]
fn every_design_passes_every_check() {
    for test in ALL {
        for slots in [2, 11, 700] {
            for sample in [sample::<SimHost>(test, slots, 0), sample::<Adapter>(test, slots, 0)] {
                assert!(sample.ns > 0.0 && sample.tally[0] == ("the guest came to its end", [1, 1]));
                for check in sample.tally.iter().map(Check::from) {
                    assert!(check.ok, "{test:?} of {slots}: {}: {}", check.name, check.detail);
                }
            }
        }
    }
}

/// Simulated only: on threads, times are chance. Searches and copies both cost virtual time.
#[cfg(virtual_time)]
#[test]
fn a_move_by_the_array_grows_with_the_slots_and_by_slat_it_hardly_does() {
    let grows = |sample: fn(Test, u32, u64) -> Sample| {
        let of = |slots| sample(Test::MoveInactive, slots, 0).ns;
        assert_eq!(of(10).to_bits(), of(10).to_bits(), "a run is the same each time");
        of(32_764) / of(10)
    };
    let [slat, array] = [grows(sample::<SimHost>), grows(sample::<Adapter>)];
    assert!(slat <= 2.0 && array >= 20.0, "{slat} and {array} times");
}

#[test]
fn guests_use_what_they_should() {
    let uses = |test| {
        let uses = |(name, _): &&Tally| name.starts_with("the guest found in each page");
        sample::<SimHost>(test, 700, 0).tally.iter().find(uses).unwrap().1[1]
    };
    // One iteration: after the half that was warm, the other one, and the first one again.
    assert_eq!(uses(Test::Map), 2 * 4096);
    assert_eq!(uses(Test::Unmap), 2);
    assert_eq!(uses(Test::Setup), 0);
    assert!(uses(Test::MoveInactive) >= 50);
}

/// slat's slots, but for one lie.
struct Liar<const LIE: u8>(SimHost, AtomicU32);

/// Pages go without a word to the VM.
const SILENT: u8 = 0;
/// The VM is told about pages further on.
const ASTRAY: u8 = 1;
/// A slot that moves stays where it is.
const STUCK: u8 = 2;
/// A slot that moves away does not come back.
const LOST: u8 = 3;

impl<const LIE: u8> Host for Liar<LIE> {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.0.lookup(hva, access)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.0.resolve(idle, hva, access)
    }

    fn kick(&self, vcpu: VcpuId) {
        self.0.kick(vcpu);
    }
}

impl<const LIE: u8> Design for Liar<LIE> {
    fn over(memory: SimHost) -> Self {
        Self(memory, AtomicU32::new(0))
    }

    fn memory(&self) -> &SimHost {
        &self.0
    }

    fn move_to(vm: &Machine<Self>, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<()> {
        let moves = vm.host().1.fetch_add(1, Relaxed) + 1;
        if LIE == STUCK || LIE == LOST && moves.is_multiple_of(2) {
            return Ok(());
        }
        vm.memory().commit(idle, |tx| tx.move_to(id, gfn)).map(|_| ()).map_err(|error| error.to_string())
    }

    fn take_away(vm: &Machine<Self>, idle: &mut Idle, hvas: Span<Hva>) {
        if LIE == ASTRAY {
            let other = Span::sized(hvas.start + PAGE_SIZE, hvas.len());
            drop(vm.invalidate(other, Reason::Clear).apply(idle).settle());
        }
        vm.host().0.take_away(hvas);
    }
}

/// Whether a check of a test finds out about a design.
fn finds_out<D: Design>(test: Test) -> bool {
    sample::<D>(test, 50, 0).tally.iter().any(|(_, [good, of])| good != of)
}

#[test]
fn each_kind_of_lie_is_found() {
    for test in [Test::Map, Test::Unmap, Test::Unmap2m] {
        assert!(finds_out::<Liar<SILENT>>(test), "{test:?}");
        assert!(finds_out::<Liar<ASTRAY>>(test), "{test:?}");
    }
    for test in [Test::MoveActive, Test::MoveInactive] {
        assert!(finds_out::<Liar<LOST>>(test), "{test:?}");
    }
    assert!(finds_out::<Liar<STUCK>>(Test::MoveActive));
}
