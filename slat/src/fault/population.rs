//! Frames that several vCPUs map together, ahead of the guest.
//!
//! ```text
//! Population: frames │ stretch │ stretch │ stretch │ stretch │ …      next ─▶ one read-modify-write takes a stretch
//!                       vCPU 0    vCPU 1    vCPU 0    not taken       each maps its own, as `Vcpu::prefault_as` does
//! ```
//! vCPUs share the number of the next stretch, and nothing else of it. Stretches begin at whole tables of leaves, so that two vCPUs
//! rarely write to one table.

use super::Prefault;
use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::sync::idle::Idle;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::format::Format;
use crate::vcpu::Vcpu;

/// The least stretch, and the largest: 2 MiB, and 32 MiB.
const LEAST_FRAMES: u64 = Level::M2.pages();
const MOST_FRAMES: u64 = 16 * LEAST_FRAMES;
/// Of memory that is not small, each vCPU of a few hundred finds several stretches.
const STRETCHES: u64 = 1024;

/// Frames that vCPUs map together before the guest runs, each the stretches that it takes: a whole memslot, or any other range.
/// It belongs to no VM and holds nothing. Any thread may look at its progress, and stop it.
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
/// #     }
/// # }
///
/// # let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).vcpus(2).build()?;
/// let ram = Slot::new(SlotId(0), Gfn(0), 1 << 16, Hva(0x4000_0000));
/// vm.slots().commit(&mut idle, |tx| tx.create(ram))?;
///
/// let population = Population::new(ram.gfns, Prefault::young(Access::Write));
/// std::thread::scope(|scope| {
///     for id in 0..2 {
///         let (vm, population) = (&vm, &population);
///         scope.spawn(move || {
///             let mut idle = Idle::take().unwrap();
///             let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
///             while let Some(rest) = vcpu.populate_with(&mut idle, population) {
///                 // A frame that could not be mapped. Another try says why: this ends with the host's error.
///                 vcpu.prefault(&mut idle, rest).expect("the host has every page");
///             }
///         });
///     }
/// });
/// assert_eq!(population.progress(), (1 << 16, 1 << 16));
/// assert_eq!(vm.stats().mapped_bytes(), 256 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Population {
    gfns: Span<Gfn>,
    how: Prefault,
    /// Frames of a stretch: a power of two.
    stretch: u64,
    /// The first frame of the next stretch that a vCPU takes; `gfns.end`, or more, where there is none.
    next: AtomicU64,
    /// Frames that are mapped.
    mapped: AtomicU64,
}

impl Population {
    /// These frames, mapped so that such an access needs no fault afterwards.
    pub fn new(gfns: Span<Gfn>, how: Prefault) -> Self {
        let stretch = (gfns.len() / STRETCHES).clamp(LEAST_FRAMES, MOST_FRAMES).next_power_of_two();
        let first = gfns.start.0 & !(stretch - 1);
        Self { gfns, how, stretch, next: AtomicU64::new(first), mapped: AtomicU64::new(0) }
    }

    /// How many of its frames are mapped by now, and how many they are. It may lag behind vCPUs that still work.
    pub fn progress(&self) -> (u64, u64) {
        (self.mapped.load(Relaxed), self.gfns.len())
    }

    /// No vCPU takes another stretch. Each finishes the one that it has: 32 MiB at most.
    pub fn stop(&self) {
        self.next.store(self.gfns.end.0, Relaxed);
    }

    /// A stretch that no other vCPU gets.
    fn take(&self) -> Option<Span<Gfn>> {
        // So that the number does not grow for ever.
        if self.next.load(Relaxed) >= self.gfns.end.0 {
            return None;
        }
        let first = self.next.fetch_add(self.stretch, Relaxed);
        let stretch = Span::sized(Gfn(first), self.stretch).clamp(&self.gfns);
        (!stretch.is_empty()).then_some(stretch)
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Takes stretches of `population` and maps them, in the space that the vCPU is in, until none is left: `None`. Other vCPUs
    /// may still map theirs then. May sleep in the host; nothing is owed.
    ///
    /// Some frames: this vCPU's stretch ends early, before a frame that [`prefault_as`](Self::prefault_as) ends at, and these are
    /// the rest of it. No other vCPU maps them. A prefault of the rest says why: it is an error, or it maps nothing, or the page is
    /// there by now. Where the page is [pending](crate::HostError::Pending), the vCPU waits for its token. The next call takes
    /// the next stretch.
    pub fn populate_with(&mut self, idle: &mut Idle, population: &Population) -> Option<Span<Gfn>> {
        loop {
            let stretch = population.take()?;
            // An error comes again where the rest is asked for.
            let mapped = self.prefault_as(idle, stretch, population.how).unwrap_or(0);
            population.mapped.fetch_add(mapped, Relaxed);
            if mapped < stretch.len() && !seeded!(RestLost) {
                return Some(Span::new(stretch.start + mapped, stretch.end));
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::seeded::{self, Bug};
    use crate::table::formats::Npt4;
    use crate::*;

    struct Identity;

    // SAFETY: the defaults keep the contract.
    unsafe impl TableMemory for Identity {}

    impl Host for Identity {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
        }
    }

    /// What one vCPU is left with, where the memslot has 700 frames of 2,000.
    fn rests() -> (u64, Vec<Span<Gfn>>) {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Identity).build().unwrap();
        let ram = Slot::new(SlotId(0), Gfn(0), 700, Hva(1 << 30));
        vm.slots().commit(&mut idle, |tx| tx.create(ram)).unwrap();
        let population = Population::new(Span::new(Gfn(0), Gfn(2000)), Prefault::OLD);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let rests = core::iter::from_fn(|| vcpu.populate_with(&mut idle, &population)).collect();
        (population.progress().0, rests)
    }

    #[test]
    fn frames_that_cannot_be_mapped_are_handed_back() {
        let spans = [700..1024, 1024..1536, 1536..2000].map(|span| Span::new(Gfn(span.start), Gfn(span.end)));
        assert_eq!(rests(), (700, spans.to_vec()));
    }

    #[test]
    fn mistake_frames_that_cannot_be_mapped_are_lost() {
        assert_eq!(seeded::with(Bug::RestLost, rests), (700, vec![]));
        seeded::found(Bug::RestLost, 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::loom_tests::{explore, finds};
    use crate::table::format::Access;
    use std::sync::Arc;

    /// Two vCPUs take what there is.
    fn taken(take: fn(&Population) -> Option<Span<Gfn>>) {
        let gfns = Span::new(Gfn(5), Gfn(5 + 2 * LEAST_FRAMES));
        let population = Arc::new(Population::new(gfns, Prefault::young(Access::Write)));
        let all = move |population: &Population| -> u64 {
            core::iter::from_fn(|| take(population)).map(|stretch| stretch.len()).sum()
        };
        let theirs = population.clone();
        let other = loom::thread::spawn(move || all(&theirs));
        let own = all(&population);
        let both = own + other.join().expect("it ends");
        assert_eq!(both, gfns.len(), "a stretch is taken twice, or not at all");
    }

    #[test]
    fn each_stretch_is_taken_once() {
        explore(|| taken(Population::take));
    }

    /// By a load and a store.
    #[test]
    fn mistake_a_stretch_that_is_taken_by_two() {
        let take = |population: &Population| {
            let next = population.next.load(Relaxed);
            population.next.store(next + population.stretch, Relaxed);
            let stretch = Span::sized(Gfn(next), population.stretch).clamp(&population.gfns);
            (!stretch.is_empty()).then_some(stretch)
        };
        assert!(finds("taken twice", move || taken(take)));
    }
}
