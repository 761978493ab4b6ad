//! Memslots are created, deleted, moved and logged while their guests run; each log is compared with the stores.

use crate::VCPUS;
use crate::hazards::{caught, often};
use crate::meddlers::Meddler;
use crate::slot_places::{Known, SIZE, SLOTS, State, places_of, slot_at};
use crate::vm_under_test::{Wrong, count};
use slat::*;
use std::collections::BTreeSet;
use std::sync::PoisonError;

/// One change of one slot, or one look at its log.
pub fn change<F: Format>(meddler: &mut Meddler<'_, F>) {
    let slot = meddler.random.below(SLOTS);
    meddler.share.about_to("wait for a slot's other meddlers");
    let world = meddler.world;
    let known = world.places.known(slot);
    let mut state = known.state.lock().unwrap_or_else(PoisonError::into_inner);
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
            // A deletion whose callback panicked may not be made.
            if state.at.is_none() {
                changing.create(&mut state, slot_at(slot, place));
            }
        }
        (Some(_), 2..4) => changing.move_to(&mut state, place),
        (Some(_), 4..8) if state.log == 0 => changing.log(&mut state, true),
        (Some(_), 4..7) => changing.log(&mut state, false),
        (Some(_), 8..12) if world.setting.chaos && state.log != 0 => changing.harvest(&mut state),
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
        self.place(state, Some(slot.gfns.start), |slots, idle| slots.commit(idle, |tx| tx.create(slot)));
    }

    fn delete(&mut self, state: &mut State) {
        self.check(state);
        self.meddler.share.about_to("delete a slot");
        self.meddler.world.logs.end(self.slot);
        let id = SlotId(self.slot as u32);
        self.place(state, None, |slots, idle| slots.commit(idle, |tx| tx.delete(id).map(drop)));
    }

    fn move_to(&mut self, state: &mut State, to: Gfn) {
        self.meddler.share.about_to("move a slot");
        let id = SlotId(self.slot as u32);
        self.place(state, Some(to), |slots, idle| slots.commit(idle, |tx| tx.move_to(id, to).map(drop)));
    }

    fn log(&mut self, state: &mut State, on: bool) {
        self.check(state);
        self.meddler.share.about_to("switch a log");
        let (world, id) = (self.meddler.world, SlotId(self.slot as u32));
        world.logs.end(self.slot);
        state.log_anew(0);
        self.place(state, state.at, |slots, idle| {
            slots.commit(idle, |tx| tx.set_log_dirty(id, on).map(drop))
        });
    }

    /// Makes a transaction that puts the slot at `to`, and learns from the engine where the slot is now: if a callback
    /// panicked, the transaction is made or not.
    fn place(
        &mut self,
        state: &mut State,
        to: Option<Gfn>,
        change: impl FnOnce(GuestSpace<'_, F>, &mut Idle) -> Result<(), SlotError>,
    ) {
        let (world, idle) = (self.meddler.world, &mut self.meddler.idle);
        self.known.going(to);
        let is_often = self.meddler.random.one_in(3);
        let slots = || change(world.vm.memory(), idle).expect("no other slot is in the way");
        let made = caught(|| often(is_often, slots));
        let slot = world.vm.memory().get(idle, SlotId(self.slot as u32));
        state.at = slot.map(|slot| slot.gfns.start);
        assert!(made.is_none() || state.at == to, "{slot:?} {to:?}");
        self.known.arrived(state.at);
        match slot {
            Some(slot) if slot.log_dirty && state.log == 0 => state.log_anew(world.logs.begin(self.slot)),
            Some(slot) if slot.log_dirty => {}
            _ => state.log_anew(0),
        }
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
        missing.retain(|page| !state.taken.contains(page));
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

    /// Takes the log, or clears it, and compares. A harvest that is dropped gives its pages back.
    fn harvest(&mut self, state: &mut State) {
        self.meddler.share.about_to("harvest a log");
        let (vm, idle) = (&self.meddler.world.vm, &mut self.meddler.idle);
        let id = SlotId(self.slot as u32);
        if self.meddler.random.one_in(2) {
            // With rings it is refused.
            let Ok(harvest) = vm.memory().harvest(idle, id) else { return };
            if self.meddler.random.one_in(4) {
                drop(harvest);
                return self.check(state);
            }
            state.taken.extend(harvest.iter().map(|page| page.page));
            harvest.commit();
        } else {
            let mut bits = vec![0; SIZE as usize / 64];
            if vm.memory().dirty_bits(idle, id, &mut bits).is_err() {
                return;
            }
            state.taken.extend((0..SIZE).filter(|page| bits[*page as usize / 64] >> (page % 64) & 1 != 0));
            vm.memory().clear_dirty(idle, id, 0, SIZE, &bits).expect("no other thread changes it");
        }
        self.check(state);
        state.log_anew(self.meddler.world.logs.begin(self.slot));
    }

    fn without_marked(&mut self, pages: &mut Vec<u64>, state: &State) {
        let (vm, start) = (&self.meddler.world.vm, state.at.expect("it logs").0);
        let mut marked = BTreeSet::new();
        let id = SlotId(self.slot as u32);
        match vm.memory().dirty(&mut self.meddler.idle, id, |gfn| _ = marked.insert(gfn.0 - start)) {
            Err(DirtyError::RingOnly) => {
                let harvest = vm.memory().harvest_all(&mut self.meddler.idle).expect("memory");
                self.meddler.world.logs.take_from_rings(|taken| {
                    taken.extend(harvest.iter().map(|page| (u64::from(page.slot.0), page.page)));
                    marked.extend(taken.iter().filter(|(slot, _)| *slot == self.slot).map(|(_, page)| page));
                });
                harvest.commit();
            }
            logs => assert_eq!(logs, Ok(()), "it logs"),
        }
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

type GuestSpace<'vm, F> = slat::GuestSpace<'vm, F, crate::host::Primary>;
