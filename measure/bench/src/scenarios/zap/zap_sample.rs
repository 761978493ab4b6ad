//! One sample: fill, zap beside others, count; twice.
//!
//! Beside vCPUs that fault, which gives the times; and beside the probe, which says how long another thread had to wait for the zapper.
//! Beside the probe no other thread takes table pages, so that they can be counted.

use super::zap_run::{Fixture, Times, Way, ZapRun};
use crate::parts::concurrent_latency::{Faulter, TimedAction};
use crate::scenarios::threads_prelude::*;
use crate::threads::arithmetic::frame_of;
use slat::GuestSpace;

/// Onlookers warm up for so long.
const WARM_UP_NS: u64 = 2_000_000;

pub const WAYS: [Way; 3] = [Way::LeafByLeaf, Way::Unhook, Way::All];

pub fn name(way: Way) -> &'static str {
    match way {
        Way::LeafByLeaf => "leaf by leaf",
        Way::Unhook => "unhook",
        Way::All => "zap all",
    }
}

/// A way to zap, and the MMU's lock.
pub type Entrant = (Way, MmuLock);

/// The result of one sample.
pub struct Sample {
    pub times: Times,
    /// Faults beside it, and with no zap for as long.
    pub faults: PhaseLatencies,
    /// Waits for the zapper, and while there is none.
    pub waits: PhaseLatencies,
    /// Shootdowns.
    pub flushes: f64,
    /// Table pages that came back.
    pub freed: f64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

/// Makes the VM's spare memslot and deletes it: that takes the baseline's lock, and ends in a grace period, so it waits for
/// threads that are inside. The longest wait is the longest hold.
struct Probe<'vm>(GuestSpace<'vm, Npt4, Arithmetic>);

impl TimedAction for Probe<'_> {
    fn act(&mut self, idle: &mut Idle) -> bool {
        let slot = spare();
        let made = self.0.commit(idle, |tx| tx.create(slot));
        made.is_ok() && self.0.commit(idle, |tx| tx.delete(slot.id)) == Ok(slot)
    }
}

/// Both laps.
pub fn sample((way, lock): Entrant, range: &ZappedRange) -> Result<Sample> {
    let beside_vcpus = {
        let vm = &range.build(lock)?;
        let vcpu = |nth: u16| Faulter::new(vm, VcpuId(nth.into()), elsewhere(nth));
        range.lap(way, vm, &mut (1..=range.vcpus).map(vcpu).collect::<Vec<_>>())?
    };
    let vm = &range.build(lock)?;
    let beside_probe = range.lap(way, vm, &mut [Probe(vm.memory())])?;
    let (faults, waits) = (beside_vcpus.seen, beside_probe.seen);
    let mut tally = [beside_vcpus.tally, beside_probe.tally].concat();
    tally.extend([
        ("each fault beside it mapped a page", faults.good),
        ("each memslot beside it was made and deleted", waits.good),
        ("the range's tables came back, or none where they stay", [beside_probe.freed, range.frees(way)]),
    ]);
    let (flushes, freed) = (beside_vcpus.flushes as f64, beside_probe.freed as f64);
    Ok(Sample { times: beside_vcpus.times, faults, waits, flushes, freed, tally })
}

/// The VM that is measured.
pub type Machine = Vm<Npt4, Arithmetic>;

/// Frames between the slots of vCPUs, and in each.
const STRIDE: u64 = (1 << 40) / PAGE_SIZE;

/// The most memory that a zap may be of.
pub const MOST: u64 = STRIDE / 2 * PAGE_SIZE;

/// The most vCPUs beside it.
pub const MOST_VCPUS: u16 = 64;

/// Table memory for vCPUs that fault beside a zap: a table for each 512 faults.
const FOR_OTHERS: u64 = 128 << 20;

/// The range that is zapped, and the number of vCPUs that fault meanwhile.
///
/// ```text
/// gfn 0          range          1 TiB            2 TiB
///  │ zapped: slot 0 │ ……………… spare │ vCPU 1's slot │ vCPU 2's slot │ …
/// ```
/// Beside a dense 64 GiB lie 128 MiB of leaf tables; the range begins where a table of each level begins.
#[derive(Clone, Copy, Debug)]
pub struct ZappedRange {
    pub bytes: u64,
    /// Every page is mapped; else the first of each 2 MiB.
    pub dense: bool,
    pub vcpus: u16,
}

impl ZappedRange {
    /// The pages that are mapped, in words.
    pub fn pages(&self) -> &'static str {
        if self.dense { "dense" } else { "sparse" }
    }

    fn gfns(&self) -> Span<Gfn> {
        Span::sized(Gfn(0), self.bytes / PAGE_SIZE)
    }

    /// Frames from one mapped page to the next.
    fn step(&self) -> u64 {
        if self.dense { 1 } else { Level::M2.pages() }
    }

    /// Table pages that a zap frees, where nothing but the range is mapped.
    fn frees(&self, way: Way) -> u64 {
        match way {
            Way::LeafByLeaf => 0,
            // Tables of leaves, and the tables above them.
            Way::Unhook => [Level::M2, Level::G1].map(|level| self.gfns().len() / level.pages()).iter().sum(),
            // And one root for another.
            Way::All => self.tables(),
        }
    }

    /// All tables below the root, where nothing else is mapped.
    fn tables(&self) -> u64 {
        let levels = [Level::M2, Level::G1, Level::G1.up()];
        levels.map(|level| self.gfns().len().div_ceil(level.pages())).iter().sum()
    }

    /// The VM: its memslots made, the range faulted in.
    fn build(&self, lock: MmuLock) -> Result<Machine> {
        table_pool::reserve(self.tables() * PAGE_SIZE * 65 / 64 + FOR_OTHERS);
        let others = (1..=self.vcpus).map(|nth| slot(nth.into(), elsewhere(nth)));
        let slots = std::iter::once(slot(0, self.gfns())).chain(others);
        let vm = vm_with(Arithmetic, u32::from(self.vcpus) + 1, lock, slots)?;
        let (mut vcpu, idle) = (vcpu(&vm, 0)?, &mut idle()?);
        for gfn in (0..self.gfns().len()).step_by(self.step() as usize) {
            let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
            let _ = vcpu.fault(idle, fault).map_err(machine_error)?;
        }
        drop(vcpu);
        Ok(vm)
    }

    /// One zap beside these onlookers.
    fn lap(&self, way: Way, vm: &Machine, onlookers: &mut [impl TimedAction]) -> Result<ZapRun> {
        let (range, mapped) = (self.gfns(), self.gfns().len() / self.step());
        let zapped = Fixture { vm, frame: frame_of, range, mapped, others: 0 };
        let before = || compute(WARM_UP_NS);
        let lap = ZapRun::run(&zapped, way, &Costs::SERVER, onlookers, before, |times| times.total_ns);
        lap.map_err(Error::Machine)
    }
}

/// The frames that vCPU `nth`, from 1, faults in.
pub fn elsewhere(nth: u16) -> Span<Gfn> {
    Span::sized(Gfn(u64::from(nth) * STRIDE), STRIDE)
}

/// A memslot for the probe to make and delete, where no other is.
pub fn spare() -> Slot {
    slot(u32::from(MOST_VCPUS) + 1, Span::sized(Gfn(STRIDE / 2), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_finds_each_page_gone_and_each_table_back() {
        for dense in [false, true] {
            for (nth, way) in WAYS.into_iter().enumerate() {
                for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
                    let range = ZappedRange { bytes: 6 << 20, dense, vcpus: 2 };
                    let sample = sample((way, lock), &range).unwrap();
                    for &(what, [good, of]) in &sample.tally {
                        assert_eq!(good, of, "{what} of {way:?} under {lock:?}");
                    }
                    let mapped = if dense { 3 * 512 } else { 3 };
                    let of = |what| -> Vec<_> {
                        let tally = sample.tally.iter().filter(|(name, _)| name.contains(what));
                        tally.map(|&(_, [_, of])| of).collect()
                    };
                    assert_eq!((of("mapped before"), of("mapped after")), (vec![mapped; 2], vec![mapped; 2]));
                    assert!(sample.faults.good[1] > 0 && sample.waits.good[1] > 0, "onlookers were there");
                    assert_eq!(of("tables came back"), [[0, 3, 5][nth]]);
                }
            }
        }
    }

    /// Negative control: half of the range is zapped, and the lap's own eyes see the other half.
    #[test]
    fn a_zap_that_stops_half_way_is_found_out() {
        let whole = ZappedRange { bytes: 8 << 20, dense: true, vcpus: 1 };
        let vm = &whole.build(MmuLock::None).unwrap();
        let (range, mapped) = (Span::sized(Gfn(0), 2 * 512), 4 * 512);
        let fixture = Fixture { vm, frame: frame_of, range, mapped, others: 0 };
        let none: &mut [Probe<'_>] = &mut [];
        let lap = ZapRun::run(&fixture, Way::Unhook, &Costs::SERVER, none, || (), |_| 0).unwrap();
        let failed: Vec<_> = lap.tally.iter().filter(|(_, [good, of])| good != of).collect();
        assert_eq!(failed, [&("no page beside it was lost", [2 * 512, 0])]);
    }
}
