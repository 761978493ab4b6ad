//! A design of memslots: a host under the engine, with operations for the host's thread. They are slat's own unless said otherwise; the
//! design before the series is [`array`](super::array).

use crate::scenarios::prelude::*;

/// The VM that all designs run on; they differ in its host and in their operations.
pub type Machine<D> = Vm<Ept4, D>;

/// See the module's header. One thread at a time does the operations; all may sleep.
pub trait Design: Host + Sized + 'static {
    /// vCPUs that a VM can have, at most.
    const MOST_VCPUS: u32 = u32::MAX;
    /// A host on this memory, for one VM that [`machine`](Self::machine) makes.
    fn over(memory: SimHost) -> Self;
    /// That memory.
    fn memory(&self) -> &SimHost;
    /// The first that is done to a VM.
    fn prepare(_: &Machine<Self>, _: &mut Idle) -> Result<()> {
        Ok(())
    }
    /// Adds many slots at once.
    fn populate(vm: &Machine<Self>, idle: &mut Idle, mut slots: impl Iterator<Item = Slot>) -> Result<()> {
        let made = vm.memory().commit(idle, |tx| slots.try_for_each(|slot| tx.create(slot)));
        made.map_err(|error| error.to_string())
    }
    /// Adds one.
    fn create(vm: &Machine<Self>, idle: &mut Idle, slot: Slot) -> Result<()> {
        vm.memory().commit(idle, |tx| tx.create(slot)).map_err(|error| error.to_string())
    }
    /// Moves one.
    fn move_to(vm: &Machine<Self>, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<()> {
        let moved = vm.memory().commit(idle, |tx| tx.move_to(id, gfn));
        moved.map(|_| ()).map_err(|error| error.to_string())
    }
    /// The slot of this id.
    fn get(vm: &Machine<Self>, idle: &mut Idle, id: SlotId) -> Option<Slot> {
        vm.memory().get(idle, id)
    }
    /// The host takes the pages of `hvas` away, once no vCPU uses them any more.
    fn take_away(vm: &Machine<Self>, idle: &mut Idle, hvas: Span<Hva>) {
        let change = vm.invalidate(hvas, Reason::Clear).apply(idle).settle();
        vm.host().memory().take_away(hvas);
        drop(change);
    }

    /// A VM that can have so many slots, and has none. `with` has the last word.
    fn machine(
        memory: SimHost,
        setting: &Setting<'_>,
        slots: u32,
        with: impl FnOnce(Builder<Ept4, Self>) -> Builder<Ept4, Self>,
    ) -> Result<Machine<Self>> {
        if setting.vcpus > Self::MOST_VCPUS {
            return Err(format!(
                "{} vCPUs are too many for this design: {} at most",
                setting.vcpus,
                Self::MOST_VCPUS
            ));
        }
        let builder = builder(Self::over(memory), setting, setting.column.lock).max_slots(slots);
        let vm = with(builder).build().map_err(|error| error.to_string())?;
        Self::prepare(&vm, &mut idle()?)?;
        Ok(vm)
    }
}

impl Design for SimHost {
    fn over(memory: SimHost) -> Self {
        memory
    }

    fn memory(&self) -> &SimHost {
        self
    }
}

/// The setting of a real run in which only the engine, the slots and the guest take time.
pub fn engine_alone() -> Setting<'static> {
    Setting::real(NONE, 1, Work::none())
}

/// A VM of slat's that can have so many slots, and has none; its host has no page.
pub fn empty_vm(slots: u32) -> Result<Machine<SimHost>> {
    SimHost::machine(SimHost::new(0, &Work::none()), &engine_alone(), slots, |builder| builder)
}

// The test area: so many pages, cut into so many memslots.
//
// ```text
// gfn   0                                                                 end
//       │ slot 0 │ slot 1 │ … │ slot n−1: as long as the others, plus the rest │
// hva   host::BASE, in the same order, without gaps
// ```
// Every slot has a page at least, so the area grows with the number of slots. Of a large area only a part is used.

/// Pages of the last slot that guests use, as in the series' test.
pub const ACTIVE: u64 = 25;

/// An area cut into memslots.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    slots: u32,
    /// Of every slot but the last.
    each: u64,
    last: u64,
}

impl Layout {
    /// `slots` slots (two at least) over `pages` pages, or over as many as it takes for each slot to have one and
    /// for the last to have `last`.
    pub fn new(slots: u32, pages: u64, last: u64) -> Self {
        let each = (pages / u64::from(slots)).max(1);
        let rest = pages.saturating_sub(each * u64::from(slots - 1));
        Self { slots, each, last: rest.max(last).max(1) }
    }

    /// Slot number `nth`; its number is its id.
    fn slot(&self, nth: u32) -> Slot {
        let first = u64::from(nth) * self.each;
        let pages = if nth + 1 == self.slots { self.last } else { self.each };
        Slot::new(SlotId(nth), Gfn(first), pages, hva_of(Gfn(first)))
    }

    /// All of them, in order.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        let layout = *self;
        (0..self.slots).map(move |nth| layout.slot(nth))
    }

    /// The last one.
    pub fn last(&self) -> Slot {
        self.slot(self.slots - 1)
    }

    /// The slot before it.
    pub fn beside(&self) -> Slot {
        self.slot(self.slots - 2)
    }

    /// Where the area ends, and slots move to.
    pub fn end(&self) -> Gfn {
        self.last().gfns.end
    }

    /// How many slots a design has where they are at first.
    pub fn at_home<D: Design>(&self, vm: &Machine<D>, idle: &mut Idle) -> u64 {
        self.slots().filter(|&slot| D::get(vm, idle, slot.id) == Some(slot)).count() as u64
    }

    /// `gfns`, in parts that each lie in one slot.
    pub fn by_slot(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Span<Gfn>> + use<> {
        let layout = *self;
        let mut at = gfns.start;
        std::iter::from_fn(move || {
            let nth = (at.0 / layout.each).min(u64::from(layout.slots) - 1);
            let part = Span::new(at, layout.slot(nth as u32).gfns.end.min(gfns.end));
            at = part.end;
            (!part.is_empty()).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_area_and_the_last_takes_the_rest() {
        for (slots, pages, last) in [(2, 7, 0), (10, 8192, 0), (509, 8192, 25), (8194, 8192, 25), (3, 3, 25)]
        {
            let layout = Layout::new(slots, pages, last);
            let mut at = Gfn(0);
            for slot in layout.slots() {
                assert_eq!((slot.gfns.start, slot.hvas()), (at, hvas_of(slot.gfns)));
                at = slot.gfns.end;
            }
            assert_eq!(at, layout.end());
            assert!(at.0 >= pages && layout.last().gfns.len() >= last.max(1));
            assert_eq!(layout.slots().len(), slots as usize);
        }
        assert_eq!(Layout::new(32_764, 32_768, 0).last().gfns.len(), 5);
    }

    #[test]
    fn parts_end_where_slots_end() {
        let layout = Layout::new(3, 10, 0); // 3, 3 and 4 pages
        let parts = |from, to| {
            let parts = layout.by_slot(Span::new(Gfn(from), Gfn(to)));
            parts.map(|part| (part.start.0, part.end.0)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0, 10), [(0, 3), (3, 6), (6, 10)]);
        assert_eq!(parts(2, 7), [(2, 3), (3, 6), (6, 7)]);
        assert_eq!(parts(9, 10), [(9, 10)]);
        assert_eq!(parts(4, 4), []);
    }
}
