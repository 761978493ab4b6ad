//! Memslots are created, deleted, moved and logged while their guests run; each log is compared with the stores.

use crate::VCPUS;
use crate::meddlers::Meddler;
use crate::slot_places::{Known, SLOTS, State, places_of, slot_at};
use crate::vm_under_test::{Wrong, count};
use slat::*;
use std::collections::BTreeSet;

/// One change of one slot, or one look at its log.
pub fn change<F: Format>(meddler: &mut Meddler<'_, F>) {
    let slot = meddler.random.below(SLOTS);
    meddler.share.about_to("wait for a slot's other meddlers");
    let world = meddler.world;
    let known = world.places.known(slot);
    let mut state = known.state.lock().unwrap();
    let place = meddler.random.pick(&places_of(slot));
    let choice = meddler.random.below(16);
    let mut changing = Changing { meddler, known, slot };
    match (state.at, choice) {
        (None, 0..4) => changing.create(&mut state, slot_at(slot, place).log_dirty()),
        (None, _) => changing.create(&mut state, slot_at(slot, place)),
        (Some(_), 0) => changing.delete(&mut state),
        (Some(_), 1) => {
            changing.delete(&mut state);
            std::thread::yield_now();
            changing.create(&mut state, slot_at(slot, place));
        }
        (Some(_), 2..4) => changing.move_to(&mut state, place),
        (Some(_), 4..8) if state.log == 0 => changing.log(&mut state, true),
        (Some(_), 4..7) => changing.log(&mut state, false),
        _ => changing.check(&state),
    }
}

struct Changing<'a, 'w, F: Format> {
    meddler: &'a mut Meddler<'w, F>,
    known: &'a Known,
    slot: u64,
}

impl<F: Format> Changing<'_, '_, F> {
    fn create(&mut self, state: &mut State, slot: Slot) {
        self.meddler.share.about_to("create a slot");
        self.place(Some(slot.gfns.start), |slots, idle| slots.commit(idle, |tx| tx.create(slot)));
        *state = State { at: Some(slot.gfns.start), log: 0 };
        if slot.log_dirty {
            state.log = self.meddler.world.logs.begin(self.slot);
        }
    }

    fn delete(&mut self, state: &mut State) {
        self.check(state);
        self.meddler.share.about_to("delete a slot");
        self.meddler.world.logs.end(self.slot);
        let id = SlotId(self.slot as u32);
        self.place(None, |slots, idle| slots.commit(idle, |tx| tx.delete(id).map(drop)));
        *state = State::default();
    }

    fn move_to(&mut self, state: &mut State, to: Gfn) {
        self.meddler.share.about_to("move a slot");
        let id = SlotId(self.slot as u32);
        self.place(Some(to), |slots, idle| slots.commit(idle, |tx| tx.move_to(id, to).map(drop)));
        state.at = Some(to);
    }

    fn log(&mut self, state: &mut State, on: bool) {
        self.check(state);
        self.meddler.share.about_to("switch a log");
        let (world, id) = (self.meddler.world, SlotId(self.slot as u32));
        world.logs.end(self.slot);
        let idle = &mut self.meddler.idle;
        world.vm.slots().commit(idle, |tx| tx.set_log_dirty(id, on)).expect("no other thread changes it");
        state.log = if on { world.logs.begin(self.slot) } else { 0 };
        count(&world.counts.slot_changes);
    }

    /// Moves the slot.
    fn place(
        &mut self,
        to: Option<Gfn>,
        change: impl FnOnce(Memslots<'_, F>, &mut Idle) -> Result<(), SlotError>,
    ) {
        let world = self.meddler.world;
        self.known.going(to);
        change(world.vm.slots(), &mut self.meddler.idle).expect("no other slot is in the way");
        self.known.gone();
        count(&world.counts.slot_changes);
    }

    /// Checks that every page whose store was noted under the present log is marked. A vCPU may use a permission that
    /// another one has just got and not marked yet: missing pages are looked for again when all faults of that time
    /// have ended.
    fn check(&mut self, state: &State) {
        let world = self.meddler.world;
        if state.log == 0 {
            return;
        }
        self.meddler.share.about_to("check a log");
        let mut missing = world.logs.noted(self.slot, state.log);
        self.without_marked(&mut missing, state);
        if !missing.is_empty() {
            self.let_faults_end();
            self.without_marked(&mut missing, state);
        }
        if !missing.is_empty() && !world.watch.is_stopped() {
            world.wrong(Wrong::Unmarked, || format!("slot {}, log {}: {missing:?}", self.slot, state.log));
        }
        count(&world.counts.log_checks);
    }

    fn without_marked(&mut self, pages: &mut Vec<u64>, state: &State) {
        let (vm, start) = (&self.meddler.world.vm, state.at.expect("it logs").0);
        let mut marked = BTreeSet::new();
        let id = SlotId(self.slot as u32);
        let logs = vm.slots().dirty(&mut self.meddler.idle, id, |gfn| _ = marked.insert(gfn.0 - start));
        assert_eq!(logs, Ok(()), "it logs");
        pages.retain(|page| !marked.contains(page));
    }

    /// Returns when each vCPU has begun another step.
    fn let_faults_end(&self) {
        let watch = &self.meddler.world.watch;
        for vcpu in 0..VCPUS {
            let step = watch.steps(vcpu);
            while !watch.is_over(vcpu, step) && !watch.is_stopped() {
                std::thread::yield_now();
            }
        }
    }
}

type Memslots<'vm, F> = slat::memslots::Memslots<'vm, F, crate::host::Primary>;
