//! One sample: fill, zap beside others, count; twice.
//!
//! Beside vCPUs that fault, which gives the times; and beside the probe, which says how long another thread had to wait for the zapper.
//! Beside the probe no other thread takes table pages, so that they can be counted.

use crate::parts::concurrent_latency::{Faulter, PhaseLatencies, TimedAction};
use crate::scenarios::threads_prelude::*;
use crate::scenarios::zap::zap_lap;
use crate::scenarios::zap::zap_lap::{Lap, Times, Way};
use crate::threads::arithmetic::Arithmetic;
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

/// Table pages that a zap frees, where nothing but the range is mapped.
fn frees(way: Way, range: &ZappedRange) -> u64 {
    match way {
        Way::LeafByLeaf => 0,
        Way::Unhook => range.tables(),
        // And one root for another.
        Way::All => range.all_tables(),
    }
}

/// One way, under one policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub lock: MmuLock,
}

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

impl Entrant {
    /// Both laps.
    pub fn sample(self, range: &ZappedRange) -> Result<Sample, Error> {
        let beside_vcpus = {
            let vm = &range.build(self.lock, &mut idle()?)?;
            let vcpu = |nth: u16| Faulter::new(vm, VcpuId(nth.into()), elsewhere(nth));
            self.lap(range, vm, &mut (1..=range.vcpus).map(vcpu).collect::<Vec<_>>())?
        };
        let beside_probe = {
            let vm = &range.build(self.lock, &mut idle()?)?;
            self.lap(range, vm, &mut [Probe(vm.memory())])?
        };
        let (faults, waits) = (beside_vcpus.seen, beside_probe.seen);
        let mut tally = [beside_vcpus.tally, beside_probe.tally].concat();
        tally.extend([
            ("each fault beside it mapped a page", faults.good),
            ("each memslot beside it was made and deleted", waits.good),
            (
                "the range's tables came back, or none where they stay",
                [beside_probe.freed, frees(self.way, range)],
            ),
        ]);
        let (flushes, freed) = (beside_vcpus.flushes as f64, beside_probe.freed as f64);
        Ok(Sample { times: beside_vcpus.times, faults, waits, flushes, freed, tally })
    }

    /// One zap beside these onlookers.
    fn lap(
        self,
        range: &ZappedRange,
        vm: &Machine,
        onlookers: &mut [impl TimedAction],
    ) -> Result<Lap, Error> {
        let frame = |gfn| Pfn(hva_of(gfn).0 / PAGE_SIZE);
        let zapped = zap_lap::Fixture { vm, frame, range: range.gfns(), mapped: range.mapped(), others: 0 };
        let before = || compute(WARM_UP_NS);
        let lap = Lap::run(&zapped, self.way, &Costs::SERVER, onlookers, before, |times| times.total_ns);
        lap.map_err(Error::Machine)
    }
}

// The guest memory that is zapped, and what lies beside it.
//
// ```text
// gfn 0          range          1 TiB            2 TiB
//  │ zapped: slot 0 │ ……………… spare │ vCPU 1's slot │ vCPU 2's slot │ …
// ```
// Beside a dense 64 GiB lie 128 MiB of leaf tables; the range begins where a table of each level begins.

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

/// Which pages of a range are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Every one.
    Dense,
    /// The first of each 2 MiB.
    Sparse,
}

/// The range that is zapped, and the number of vCPUs that fault meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct ZappedRange {
    pub bytes: u64,
    pub pages: Pages,
    pub vcpus: u16,
}

impl Pages {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
        }
    }

    fn step(self) -> u64 {
        match self {
            Self::Dense => 1,
            Self::Sparse => Level::M2.pages(),
        }
    }
}

impl ZappedRange {
    /// The range.
    pub fn gfns(&self) -> Span<Gfn> {
        Span::sized(Gfn(0), self.bytes / PAGE_SIZE)
    }

    /// Pages mapped in it.
    pub fn mapped(&self) -> u64 {
        self.gfns().len() / self.pages.step()
    }

    /// Tables that serve nothing but the range: those of leaves, and those above them.
    pub fn tables(&self) -> u64 {
        [Level::M2, Level::G1].map(|level| self.gfns().len() / level.pages()).iter().sum()
    }

    /// All tables below the root, where nothing else is mapped.
    pub fn all_tables(&self) -> u64 {
        [Level::M2, Level::G1, Level::G1.up()]
            .map(|level| self.gfns().len().div_ceil(level.pages()))
            .iter()
            .sum()
    }

    /// The VM: its memslots made, the range faulted in.
    pub fn build(&self, lock: MmuLock, idle: &mut Idle) -> Result<Machine, Error> {
        table_pool::reserve(self.all_tables() * PAGE_SIZE * 65 / 64 + FOR_OTHERS);
        let builder = Vm::<Npt4, _>::builder(Arithmetic)
            .vcpus(u32::from(self.vcpus) + 1)
            .baseline(Baseline::NONE.mmu_lock(lock));
        let vm = builder.build().map_err(machine_error)?;
        vm.memory().commit(idle, |tx| {
            tx.create(slot(0, self.gfns()))?;
            (1..=self.vcpus).try_for_each(|nth| tx.create(slot(u32::from(nth), elsewhere(nth))))
        })?;
        self.fill(&vm, idle)?;
        Ok(vm)
    }

    fn fill(&self, vm: &Machine, idle: &mut Idle) -> Result<(), Error> {
        let mut vcpu = vcpu(vm, 0)?;
        for gfn in (0..self.gfns().len()).step_by(self.pages.step() as usize) {
            let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
            let done = vcpu.fault(idle, fault).map_err(machine_error)?;
            debug_assert_eq!(done, Next::Resume(Resume::Mapped(Level::K4)));
        }
        Ok(())
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

fn slot(id: u32, gfns: Span<Gfn>) -> Slot {
    Slot::new(SlotId(id), gfns.start, gfns.len(), hva_of(gfns.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_finds_each_page_gone_and_each_table_back() {
        for pages in [Pages::Dense, Pages::Sparse] {
            for (nth, way) in WAYS.into_iter().enumerate() {
                for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
                    let range = ZappedRange { bytes: 6 << 20, pages, vcpus: 2 };
                    let sample = Entrant { way, lock }.sample(&range).unwrap();
                    for &(what, [good, of]) in &sample.tally {
                        assert_eq!(good, of, "{what} of {way:?} under {lock:?}");
                    }
                    let mapped = if pages == Pages::Dense { 3 * 512 } else { 3 };
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
        let whole = ZappedRange { bytes: 8 << 20, pages: Pages::Dense, vcpus: 1 };
        let vm = &whole.build(MmuLock::None, &mut Idle::take().unwrap()).unwrap();
        let frame = |gfn| Pfn(hva_of(gfn).0 / PAGE_SIZE);
        let half = Span::sized(Gfn(0), 2 * 512);
        let fixture = zap_lap::Fixture { vm, frame, range: half, mapped: whole.mapped(), others: 0 };
        let none: &mut [Probe<'_>] = &mut [];
        let lap = Lap::run(&fixture, Way::Unhook, &Costs::SERVER, none, || (), |_| 0).unwrap();
        let failed: Vec<_> = lap.tally.iter().filter(|(_, [good, of])| good != of).collect();
        assert_eq!(failed, [&("no page beside it was lost", [2 * 512, 0])]);
    }
}
