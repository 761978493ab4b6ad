//! Ranges that several vCPUs map together, ahead of the guest.
//!
//! ```text
//! Population: frames │ stretch │ stretch │ stretch │ stretch │ …      next ─▶ one read-modify-write takes a stretch
//!                       vCPU 0    vCPU 1    vCPU 0    not taken       each vCPU maps its own by `Vcpu::prefault`
//! ```
//! vCPUs share only the number of the next stretch. Stretches are aligned to whole leaf tables, so two vCPUs rarely
//! write to one table.

use super::Prefault;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::{Format, Gfn, Host, Idle, Level, Span, Vcpu};

/// The smallest and the largest stretch: 2 MiB and 32 MiB.
const LEAST_FRAMES: u64 = Level::M2.pages();
const MOST_FRAMES: u64 = 16 * LEAST_FRAMES;
/// The target number of stretches, so that each of a few hundred vCPUs gets several.
const STRETCHES: u64 = 1024;

/// Frames that vCPUs map together before the guest runs, stretch by stretch: a whole memslot, or any other range. It
/// belongs to no VM and holds no resources. Any thread may read its progress and stop it.
///
/// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// # struct Identity;
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
/// #     }
/// # }
///
/// # let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).vcpus(2).build()?;
/// let ram = Slot::new(SlotId(0), Gfn(0), 1 << 16, Hva(0x4000_0000));
/// vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
///
/// let population = Population::new(ram.gfns, Prefault::young(Access::Write));
/// std::thread::scope(|scope| {
///     for id in 0..2 {
///         let (vm, population) = (&vm, &population);
///         scope.spawn(move || {
///             let mut idle = Idle::take().unwrap();
///             let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
///             while let Some(rest) = vcpu.populate(&mut idle, population) {
///                 // A frame was not mapped. A retry says why; here it would return the host's error.
///                 vcpu.prefault(&mut idle, rest, Prefault::OLD).expect("the host has every page");
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
    /// Number of frames in a stretch; a power of two.
    stretch: u64,
    /// The first frame of the next stretch; at or above `gfns.end` if there is none.
    next: AtomicU64,
    /// Number of frames that are mapped.
    mapped: AtomicU64,
}

impl Population {
    /// A population that maps `gfns`, so that the access in `how` needs no fault afterwards.
    pub fn new(gfns: Span<Gfn>, how: Prefault) -> Self {
        let stretch = (gfns.len() / STRETCHES).clamp(LEAST_FRAMES, MOST_FRAMES).next_power_of_two();
        let first = gfns.start.0 & !(stretch - 1);
        Self { gfns, how, stretch, next: AtomicU64::new(first), mapped: AtomicU64::new(0) }
    }

    /// Returns the number of frames mapped so far, and the total. Vcpus that still work may be ahead of the first
    /// number.
    pub fn progress(&self) -> (u64, u64) {
        (self.mapped.load(Relaxed), self.gfns.len())
    }

    /// Stops the population: no vCPU takes another stretch. Each finishes its current one of at most 32 MiB.
    pub fn stop(&self) {
        self.next.store(self.gfns.end.0, Relaxed);
    }

    /// Takes a stretch that no other vCPU gets.
    fn take(&self) -> Option<Span<Gfn>> {
        // Keeps the number from growing forever.
        if self.next.load(Relaxed) >= self.gfns.end.0 {
            return None;
        }
        let first = self.next.fetch_add(self.stretch, Relaxed);
        let stretch = Span::sized(Gfn(first), self.stretch).clamp(&self.gfns);
        (!stretch.is_empty()).then_some(stretch)
    }
}

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Takes stretches of `population` and maps them in the vCPU's address space, until none is left; then returns
    /// `None`. Other vCPUs may still map theirs at that time. May sleep in the host. No flush is owed.
    ///
    /// Returns frames if this vCPU's stretch ends early, before a frame at which [`prefault`](Self::prefault)
    /// stops. They are the rest of the stretch; no other vCPU maps them. A prefault of the rest gives the reason: it
    /// fails, or maps nothing, or the page has arrived since. If the page is [pending](crate::HostError::Pending), the
    /// vCPU waits for its token. The next call takes the next stretch.
    pub fn populate(&mut self, idle: &mut Idle, population: &Population) -> Option<Span<Gfn>> {
        loop {
            let stretch = population.take()?;
            // The error is dropped here; it returns when the caller retries the rest.
            let mapped = self.prefault(idle, stretch, population.how).unwrap_or(0);
            population.mapped.fetch_add(mapped, Relaxed);
            if mapped < stretch.len() {
                return Some(Span::new(stretch.start + mapped, stretch.end));
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::table::formats::Npt4;
    use crate::*;

    struct Identity;

    impl Host for Identity {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
        }
    }

    /// One vCPU maps what it can of 2,000 frames, of which the memslot has 700.
    #[test]
    fn frames_that_cannot_be_mapped_are_handed_back() {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Identity).build().unwrap();
        let ram = Slot::new(SlotId(0), Gfn(0), 700, Hva(1 << 30));
        vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
        let population = Population::new(Span::new(Gfn(0), Gfn(2000)), Prefault::OLD);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let rests: Vec<_> = core::iter::from_fn(|| vcpu.populate(&mut idle, &population)).collect();
        let spans = [700..1024, 1024..1536, 1536..2000].map(|span| Span::new(Gfn(span.start), Gfn(span.end)));
        assert_eq!((population.progress().0, rests), (700, spans.to_vec()));
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests {
    use super::*;
    use crate::loom_tests::{explore, finds, thread};
    use crate::table::format::Access;
    use std::sync::Arc;

    /// Two vCPUs take all stretches.
    fn taken(take: fn(&Population) -> Option<Span<Gfn>>) {
        let gfns = Span::new(Gfn(5), Gfn(5 + 2 * LEAST_FRAMES));
        let population = Arc::new(Population::new(gfns, Prefault::young(Access::Write)));
        let all = move |population: &Population| -> u64 {
            core::iter::from_fn(|| take(population)).map(|stretch| stretch.len()).sum()
        };
        let theirs = population.clone();
        let other = thread::spawn(move || all(&theirs));
        let own = all(&population);
        let both = own + other.join().expect("it ends");
        assert_eq!(both, gfns.len(), "a stretch is taken twice, or not at all");
    }

    #[test]
    fn each_stretch_is_taken_once() {
        explore(|| taken(Population::take));
    }

    /// Takes a stretch by a load and a store.
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
