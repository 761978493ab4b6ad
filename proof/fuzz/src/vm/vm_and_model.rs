//! A VM and its model: takes each step in both, and panics if the answers differ.

use super::model::{Outcome, Rules, Space};
use super::plain_host::{Changed, PlainHost, hva};
use super::step::{LOGGED, Step, To};
use super::tables::{Leaf, leaf};
use super::tlb::{Cached, Tlb};
use slat::GuestSpace;
use slat::table::{Entry, Kind, TableMemory};
use slat::{
    Access, Emulate, Fault, Format, Gfn, Hva, Idle, Next, Reason, Slot, SlotId, SpaceId, Span, Vcpu, VcpuId,
    Vm,
};
use std::collections::{BTreeMap, BTreeSet};

/// A VM and its model.
#[derive(Debug)]
pub struct Machine<'v, F: Format> {
    pub(super) idle: Idle,
    pub(super) vm: &'v Vm<F, PlainHost>,
    pub(super) vcpus: [Vcpu<'v, F, PlainHost>; 2],
    pub(super) tlbs: [Tlb; 2],
    pub spaces: [Space; 2],
}

impl<'v, F: Format> Machine<'v, F> {
    pub fn new(idle: Idle, vm: &'v Vm<F, PlainHost>, rules: Rules) -> Self {
        let vcpus = [0, 1].map(|id: u8| {
            let mut vcpu = vm.vcpu(VcpuId(id.into())).unwrap();
            assert!(vcpu.switch_to(SpaceId(id)));
            vcpu
        });
        Self { idle, vm, vcpus, tlbs: Default::default(), spaces: [Space::new(rules), Space::new(rules)] }
    }

    pub(super) fn rules(&self) -> Rules {
        self.spaces[0].rules
    }

    pub(super) fn slots(&self, space: usize) -> GuestSpace<'v, F, PlainHost> {
        self.vm.space(SpaceId(space as u8)).unwrap()
    }

    /// Takes a step in both.
    pub fn take(&mut self, step: &Step) {
        match *step {
            Step::Access { space, gfn, pages, access } => {
                (gfn..gfn + pages).for_each(|gfn| self.access(space, gfn, access));
            }
            Step::Invalidate { hvas, why } => self.change(hvas, why, |_| ()),
            Step::InvalidateGfns { gfns, why } => {
                drop(self.vm.memory().invalidate(gfns, why).apply(&mut self.idle).settle());
                self.spaces[0].invalidate(&[gfns], why, None);
            }
            Step::Change { pages, why, to } => self.change_pages(pages, why, to),
            Step::Grant { pages } => {
                for page in pages.start.0..pages.end.0 {
                    self.change_page(page, To::Writable);
                }
            }
            Step::Restore { pages } => {
                let bytes = Span::new(hva(pages.start.0), hva(pages.end.0));
                self.change(bytes, Reason::Migrate, |plain_host| plain_host.restore(pages));
            }
            Step::Create { space, slot } => self.create(space, slot),
            Step::Delete { space, id } => self.delete(space, id),
            Step::Move { space, id, gfn } => self.move_to(space, id, gfn),
            Step::Log { space, id, on } => self.log(space, id, on),
            Step::Harvest { space, id, commit } => self.harvest(space, id, commit),
            Step::HarvestAll { space, commit } => self.harvest_all(space, commit),
            Step::Clear { space, id, first, pages, ref bits } => self.clear(space, id, (first, pages), bits),
            Step::Device { space, gfns } => {
                self.slots(space).mark_dirty(gfns);
                (gfns.start.0..gfns.end.0).for_each(|gfn| self.spaces[space].stored(gfn));
            }
            Step::DeviceByHost { hvas } => {
                self.vm.mark_dirty(hvas);
                for space in &mut self.spaces {
                    let parts = space.behind(hvas);
                    parts.iter().flat_map(|part| part.start.0..part.end.0).for_each(|gfn| space.stored(gfn));
                }
            }
            Step::WriteProtect { gfns } => {
                self.vm.memory().write_protect(&mut self.idle, gfns).settle();
                self.spaces[0].write_protect(gfns);
            }
            Step::Split { gfns, to } => {
                let split = self.vm.memory().split(&mut self.idle, gfns, to).unwrap();
                assert_eq!(split, self.spaces[0].split(gfns, to), "leaves split");
            }
            Step::Recover { gfns } => {
                let recovered = self.vm.memory().recover(&mut self.idle, gfns);
                assert_eq!(recovered, self.spaces[0].recover(self.vm.host(), gfns), "leaves recovered");
            }
            Step::Age { gfns } => self.age(gfns),
            Step::ZapAll => {
                self.vm.zap_all(&mut self.idle).unwrap();
                self.spaces.iter_mut().for_each(|space| space.tables.clear());
            }
        }
    }

    /// The guest walks, and faults if it must.
    fn access(&mut self, space: usize, gfn: u64, access: Access) {
        let expected = self.spaces[space].access(self.vm.host(), gfn, access);
        let mut faults = 0;
        let outcome = loop {
            if self.walk(space, gfn, access) {
                break Outcome::Reached;
            }
            faults += 1;
            assert!(faults < 8, "the fault is dealt with, but the access does not come through");
            match self.vcpus[space].fault(&mut self.idle, Fault { gpa: Gfn(gfn).gpa(), access }) {
                Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => break Outcome::Mmio,
                Ok(_) => {}
                Err(_) => break Outcome::Fails,
            }
        };
        assert_eq!(outcome, expected);
    }

    /// Does the hardware's walk. Returns false for a fault.
    fn walk(&mut self, space: usize, gfn: u64, access: Access) -> bool {
        if gfn >> F::FRAME_BITS != 0 {
            return false;
        }
        let guest = self.vcpus[space].enter(&mut self.idle, &mut self.tlbs[space]).poll();
        let (mut table, mut level) = (guest.root(), F::ROOT_LEVEL);
        loop {
            // SAFETY: a table page that is linked, there is no other thread, and an index inside it.
            let entry =
                unsafe { self.vm.tables().at(table).cast::<Entry>().add(F::index(Gfn(gfn), level)).as_ref() };
            let word = entry.load();
            match word.kind::<F>(level) {
                Kind::Table(below) => {
                    let bits = F::touch_link(level);
                    // SAFETY: a walker sets these bits in a link.
                    assert!(bits == 0 || unsafe { entry.touch_raw(word, bits) });
                    (table, level) = (below, level.down());
                }
                _ if !F::is_present(word) || !F::read_leaf(word).perms.allows(access) => return false,
                _ => {
                    let bits = F::touch(access);
                    // SAFETY: a walker sets these bits in a leaf.
                    assert!(bits == 0 || unsafe { entry.touch_raw(word, bits) });
                    let Leaf { level, pfn, write, .. } = leaf::<F>(entry.load(), level);
                    let dirty = F::read_leaf(entry.load()).dirty;
                    let first = Gfn(gfn).base(level);
                    drop(guest);
                    self.tlbs[space].fill(Cached { first, level, pfn, write, dirty });
                    return true;
                }
            }
        }
    }

    /// Makes a change of the host inside an invalidation.
    fn change(&mut self, hvas: Span<Hva>, why: Reason, change: impl FnOnce(&PlainHost)) {
        let invalidation = self.vm.invalidate(hvas, why).apply(&mut self.idle).settle();
        change(self.vm.host());
        drop(invalidation);
        for space in &mut self.spaces {
            let why = if space.rules.contexts { why } else { Reason::Unmap };
            let parts = space.behind(hvas);
            space.invalidate(&parts, why, None);
        }
    }

    fn change_pages(&mut self, pages: Span<Gfn>, why: Reason, to: To) {
        let hvas = Span::new(hva(pages.start.0), hva(pages.end.0));
        if !why.page_by_page() {
            self.change(hvas, why, |_| ());
            return (pages.start.0..pages.end.0).for_each(|page| self.change_page(page, to));
        }
        let mut invalidation = self.vm.invalidate(hvas, why);
        let contexts = self.rules().contexts;
        if !contexts {
            invalidation = invalidation.apply(&mut self.idle).settle();
            self.spaces
                .iter_mut()
                .for_each(|space| space.invalidate(&space.behind(hvas), Reason::Unmap, None));
        }
        for page in pages.start.0..pages.end.0 {
            change_page(self.vm.host(), page, to);
            let now = self.vm.host().page(page);
            let hvas = Span::new(hva(page), hva(page + 1));
            invalidation.changed(&mut self.idle, hvas, now).settle();
            for space in self.spaces.iter_mut().filter(|_| contexts) {
                space.invalidate(&space.behind(hvas), why, now);
            }
        }
    }

    fn change_page(&self, page: u64, to: To) {
        change_page(self.vm.host(), page, to);
    }

    fn create(&mut self, space: usize, slot: Slot) {
        let id = slot.id.0;
        let said = self.slots(space).commit(&mut self.idle, |tx| tx.create(slot));
        let space = &mut self.spaces[space];
        let others = || space.slots.values().filter(|other| other.id != slot.id);
        let expected =
            if space.slots.contains_key(&id) || others().any(|other| other.gfns.overlaps(&slot.gfns)) {
                Err(17)
            } else if slot.gfns.end.0 >> space.rules.frame_bits != 0
                && slot.gfns.end.0 != 1 << space.rules.frame_bits
            {
                Err(22)
            } else {
                Ok(())
            };
        assert_eq!(said.map_err(|error| error.errno()), expected);
        if expected.is_ok() {
            space.slots.insert(id, slot);
            if slot.log_dirty {
                space.begin_log(&slot);
            }
        }
    }

    fn delete(&mut self, space: usize, id: u32) {
        let said = self.slots(space).commit(&mut self.idle, |tx| tx.delete(SlotId(id)));
        let space = &mut self.spaces[space];
        let slot = space.slots.remove(&id);
        assert_eq!(said.ok(), slot);
        if let Some(slot) = slot {
            space.logs.remove(&id);
            space.invalidate(&[slot.gfns], Reason::Slot, None);
        }
    }

    fn move_to(&mut self, space: usize, id: u32, gfn: u64) {
        let said = self.slots(space).commit(&mut self.idle, |tx| tx.move_to(SlotId(id), Gfn(gfn)));
        let space = &mut self.spaces[space];
        let Some(old) = space.slots.get(&id).copied() else {
            return assert_eq!(said.unwrap_err().errno(), 22);
        };
        let slot = Slot { gfns: Span::sized(Gfn(gfn), old.gfns.len()), ..old };
        let others = || space.slots.values().filter(|other| other.id != slot.id);
        let expected = if slot == old {
            Ok(())
        } else if others().any(|other| other.gfns.overlaps(&slot.gfns)) {
            Err(17)
        } else if slot.gfns.end.0 > 1 << space.rules.frame_bits {
            Err(22)
        } else {
            space.slots.insert(id, slot);
            space.invalidate(&[old.gfns], Reason::Slot, None);
            Ok(())
        };
        assert_eq!(said.map(drop).map_err(|error| error.errno()), expected);
    }

    fn log(&mut self, space: usize, id: u32, on: bool) {
        let Some(&old) = self.spaces[space].slots.get(&id) else { return };
        if old.gfns.len() > LOGGED {
            return;
        }
        self.slots(space).commit(&mut self.idle, |tx| tx.set_log_dirty(SlotId(id), on)).unwrap();
        let space = &mut self.spaces[space];
        let slot = Slot { log_dirty: on, ..old };
        space.slots.insert(id, slot);
        if on && !old.log_dirty {
            space.begin_log(&slot);
            space.arm_all(&slot);
        } else if old.log_dirty && !on {
            space.logs.remove(&id);
            space.recover(self.vm.host(), slot.gfns);
        }
    }

    fn harvest(&mut self, space: usize, id: u32, commit: bool) {
        let said = self.slots(space).harvest(&mut self.idle, SlotId(id));
        let space = &mut self.spaces[space];
        let Some(slot) = space.slots.get(&id).copied().filter(|slot| slot.log_dirty) else {
            return assert_eq!(said.unwrap_err().errno(), 2);
        };
        let expected = space.harvest(&slot);
        let harvest = said.unwrap();
        assert!(harvest.iter().map(|page| page.page).eq(expected.iter().copied()), "pages harvested");
        if commit {
            harvest.commit();
        } else {
            drop(harvest);
            space.logs.get_mut(&id).unwrap().pages = expected;
        }
    }

    fn harvest_all(&mut self, space: usize, commit: bool) {
        let harvest = self.slots(space).harvest_all(&mut self.idle).unwrap();
        let space = &mut self.spaces[space];
        let mut told: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for page in harvest.iter() {
            told.entry(page.slot.0).or_default().insert(page.page);
        }
        for slot in space.slots.values().filter(|slot| slot.log_dirty).copied().collect::<Vec<_>>() {
            let expected = space.harvest(&slot);
            assert_eq!(told.remove(&slot.id.0).unwrap_or_default(), expected, "pages harvested");
            if !commit {
                space.logs.get_mut(&slot.id.0).unwrap().pages = expected;
            }
        }
        assert!(told.is_empty(), "pages of slots that do not log");
        if commit {
            harvest.commit();
        }
    }

    fn clear(&mut self, space: usize, id: u32, (first, pages): (u64, u64), bits: &[u64]) {
        let said = self.slots(space).clear_dirty(&mut self.idle, SlotId(id), first, pages, bits);
        let said = said.map_err(|error| error.errno());
        let space = &mut self.spaces[space];
        let slot = space.slots.get(&id).copied().filter(|slot| slot.log_dirty);
        let whole = |pages: u64| pages.is_multiple_of(64);
        let (true, Some(slot)) = (whole(first), slot) else {
            return assert_eq!(said, Err(if whole(first) { 2 } else { 22 }));
        };
        let (end, of) = (first + pages, slot.gfns.len());
        if end > of || !whole(pages) && end != of {
            return assert_eq!(said, Err(22));
        }
        let named = |page: &u64| bits[((page - first) / 64) as usize] >> (page % 64) & 1 != 0;
        // Without named pages nothing is split.
        let expected = if pages == 0 { 0 } else { space.clear(&slot, &(first..end).filter(named).collect()) };
        assert_eq!(said, Ok(expected), "pages cleaned");
    }

    fn age(&mut self, gfns: Span<Gfn>) {
        let any = self.vm.memory().lockless(&mut self.idle).is_young(gfns);
        let mut told: Vec<Span<Gfn>> = Vec::new();
        let mut tell = |run: Span<Gfn>| match told.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => told.push(run),
        };
        self.vm.memory().lockless(&mut self.idle).age(gfns, |seen| {
            if seen.count() == seen.len() {
                tell(Span::sized(seen.first(), seen.len().into()));
            } else {
                seen.pages().for_each(|page| tell(Span::sized(page, 1)));
            }
        });
        let mut expected: Vec<Span<Gfn>> = Vec::new();
        for run in self.spaces[0].age(gfns) {
            match expected.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => expected.push(run),
            }
        }
        assert_eq!(told, expected, "pages accessed");
        assert_eq!(any, !expected.is_empty());
    }
}

fn change_page(plain_host: &PlainHost, page: u64, to: To) {
    let now = plain_host.page(page);
    let pfn = || now.map_or_else(|| plain_host.frame(), |now| now.pfn);
    let changed = match to {
        To::Nothing => None,
        To::Elsewhere => Some(Changed { pfn: plain_host.frame(), writable: true }),
        To::Copy => Some(Changed { pfn: plain_host.frame(), writable: false }),
        To::ReadOnly => now.map(|now| Changed { pfn: now.pfn, writable: false }),
        // A writable page keeps its size.
        To::Writable if now.is_some_and(|now| now.writable) => return,
        To::Writable => Some(Changed { pfn: pfn(), writable: true }),
    };
    plain_host.change(page, changed);
}
