//! A VM whose guest is L1, and the translations that each vCPU may use.

use super::drawn::Drawn;
use super::ram::{FRAMES, Ram, hva};
use crate::Input;
use slat::nested::{L1Access, L1Format, L1Stop, L2Next};
use slat::{
    Access, Format, Gfn, HostPage, Idle, Next, Perms, Pfn, Reason, Resume, Slot, SlotId, SpaceId, Span,
    Translations, Vcpu, VcpuId, Vm,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

/// L1's roots.
pub(super) const ROOTS: [u64; 2] = [4, 8];

/// Used entries of each table.
const ENTRIES: [u64; 3] = [0, 1, 511];
/// Frames of L2: all paths through these entries, at the lowest two levels.
const G2S: [u64; 9] = [0, 1, 511, 512, 513, 1023, 511 << 9, 511 << 9 | 1, 511 << 9 | 511];
/// Slots: first frame, frames, first page of the host. The tables are in the first slot, the second may be read-only,
/// and the last is an alias of pages of the first.
const SLOTS: [(u64, u64, u64); 3] = [(0, 16, 0), (16, 8, 16), (24, 8, 12)];

/// Result of a walk of T: the frame of L1, and its permissions.
type Walk = Option<(Gfn, Perms)>;
/// A table of L1, and a frame of L2.
type Place = (usize, u64);

/// A TLB that forgets only on a flush.
#[derive(Debug, Default)]
struct Cached(BTreeMap<Place, (Pfn, bool)>);

impl Translations for &mut Cached {
    fn flush_all(&mut self) {
        self.0.clear();
    }

    fn flush(&mut self, _: Span<Gfn>) {}

    fn flush_nested(&mut self) {
        self.0.clear();
    }
}

struct Known<'v, F: Format> {
    vcpu: Vcpu<'v, F, Ram>,
    cached: Cached,
    /// Results that it may use: frames of L1, and whether stores are allowed.
    allowed: BTreeMap<Place, BTreeSet<(Gfn, bool)>>,
    /// Tables on which it has run L2.
    entered: [bool; 2],
}

/// A VM and its oracle.
pub struct World<'v, F: Format, T> {
    vm: &'v Vm<F, Ram>,
    idle: Idle,
    tables: [T; 2],
    vcpus: [Known<'v, F>; 2],
    slots: [Option<Slot>; 3],
    /// Frames of logging slots that were stored to since their harvest.
    written: BTreeSet<u64>,
    words: Vec<u64>,
}

impl<'v, F: Format, T: L1Format> World<'v, F, T> {
    pub fn machine(input: &mut Input<'_>) -> (Vm<F, Ram>, Idle) {
        let sleeps = if input.below(4) == 3 { input.word() } else { 0 };
        let idle = Idle::take().expect("one VM of this kind at a time on a thread");
        (Vm::builder(Ram::new(sleeps)).vcpus(2).build().unwrap(), idle)
    }

    pub fn new(vm: &'v Vm<F, Ram>, idle: Idle, tables: [T; 2]) -> Self {
        let vcpus = [0, 1].map(|id| Known {
            vcpu: vm.vcpu(VcpuId(id)).unwrap(),
            cached: Cached::default(),
            allowed: BTreeMap::new(),
            entered: [false; 2],
        });
        let (written, words) = (BTreeSet::new(), Self::entries(vm));
        let mut world = Self { vm, idle, tables, vcpus, slots: [None; 3], written, words };
        (0..3).for_each(|nth| world.create(nth, false, false));
        world
    }

    /// Gives each root tables whose first entries map something; otherwise most walks would end at once.
    pub fn chains(&mut self, drawn: Drawn) {
        for (root, first) in ROOTS.into_iter().zip([12, 14]) {
            let put = |frame: u64, entry: u64, word| self.vm.host().word(frame, entry).store(word, Relaxed);
            put(root, 0, drawn.link_to(Gfn(root + 1)));
            put(root + 1, 0, drawn.link_to(Gfn(root + 2)));
            for entry in ENTRIES {
                put(root + 2, entry, drawn.link_to(Gfn(first)));
                put(first, entry, drawn.leaf_of(16 + entry % 7, 0));
            }
        }
        self.words = Self::entries(self.vm);
        self.look();
        self.flush_all();
    }

    fn create(&mut self, nth: usize, readonly: bool, log_dirty: bool) {
        let (first, len, page) = SLOTS[nth];
        let slot = Slot { readonly, log_dirty, ..Slot::new(SlotId(nth as u32), Gfn(first), len, hva(page)) };
        self.vm.memory().commit(&mut self.idle, |tx| tx.create(slot)).unwrap();
        self.slots[nth] = Some(slot);
        self.written.retain(|g1| !slot.gfns.contains(Gfn(*g1)));
    }

    /// Returns the slot of a frame, and its page.
    fn behind(&self, g1: Gfn) -> Option<(Slot, u64)> {
        let nth = (0..3).find(|&nth| self.slots[nth].is_some_and(|slot| slot.gfns.contains(g1)))?;
        Some((self.slots[nth]?, SLOTS[nth].2 + (g1.0 - SLOTS[nth].0)))
    }

    /// Walks T for a frame of L2: the frame of L1, and whether a shadow may allow stores there.
    fn walk(&self, (table, g2): Place) -> Option<(Gfn, bool)> {
        let leaf = self.vm.memory().look_l1(&self.tables[table], Gfn(g2).gpa()).ok()?;
        Some((leaf.gfn, leaf.dirty && leaf.allowed.perms.allows(Access::Write)))
    }

    fn places() -> impl Iterator<Item = Place> {
        (0..2).flat_map(|table| G2S.map(|g2| (table, g2)))
    }

    /// Adds the current walks of T to the results that each vCPU may use. Notes changed words of L1's memory as dirty.
    pub fn look(&mut self) {
        for place in Self::places() {
            if let Some(now) = self.walk(place) {
                for known in &mut self.vcpus {
                    known.allowed.entry(place).or_default().insert(now);
                }
            }
        }
    }

    /// Limits this vCPU to the current walks of T.
    fn forget(&mut self, nth: usize, places: impl Iterator<Item = Place>) {
        for place in places {
            let now = self.walk(place).into_iter().collect();
            self.vcpus[nth].allowed.insert(place, now);
        }
    }

    fn flush_all(&mut self) {
        (0..2).for_each(|nth| self.forget(nth, Self::places()));
    }

    /// Returns whether a vCPU may use `pfn` there, for a store or not.
    fn may_use(&self, nth: usize, place: Place, (pfn, writes): (Pfn, bool)) -> bool {
        let Some(allowed) = self.vcpus[nth].allowed.get(&place) else { return false };
        allowed.iter().any(|&(g1, stores)| {
            let Some((slot, page)) = self.behind(g1) else { return false };
            let HostPage { pfn: now, writable, .. } = self.vm.host().now(page);
            now == pfn && (!writes || stores && writable && !slot.readonly)
        })
    }

    /// Does one step. Returns its description.
    pub fn step(&mut self, input: &mut Input<'_>, drawn: Drawn) -> String {
        let table = usize::from(input.below(4) == 3);
        let place = (table, input.pick(&G2S));
        let nth = input.below(2) as usize;
        let access = input.pick(&[Access::Read, Access::Write, Access::Fetch, Access::Write]);
        let page = input.below(FRAMES);
        match input.below(24) {
            0..10 => {
                self.access(nth, place, access);
                format!("vCPU {nth}: {access:?} at {place:x?}")
            }
            10..15 => {
                let (frame, entry) =
                    (input.pick(&[4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 17]), input.pick(&ENTRIES));
                let level = match frame {
                    4 | 8 => 3,
                    5 | 9 => 2,
                    6 | 10 => 1,
                    _ => 0,
                };
                let word = drawn.word(input, level);
                self.vm.host().word(frame, entry).store(word, Relaxed);
                self.words = Self::entries(self.vm);
                format!("T: frame {frame}, entry {entry} = {word:#x}")
            }
            15 | 16 => {
                let flushed = self.tables[table];
                let g2s = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
                let all = input.flag();
                if all {
                    self.vm.l1_broadcasts(&mut self.idle, SpaceId(0), g2s, |t: &T| *t == flushed);
                } else {
                    self.vcpus[nth].vcpu.l1_flushes(|t: &T| *t == flushed);
                }
                for vcpu in (0..2).filter(|&vcpu| all || vcpu == nth) {
                    self.forget(vcpu, G2S.map(|g2| (table, g2)).into_iter());
                }
                format!("L1 flushes table {table}: vCPU {nth}, or all: {all}")
            }
            17..20 => {
                let pages = input.below(3).min(FRAMES - 1 - page) + 1;
                let why = input.pick(&[Reason::Migrate, Reason::Unmap, Reason::Clear, Reason::Protect]);
                let _change = self
                    .vm
                    .invalidate(Span::new(hva(page), hva(page + pages)), why)
                    .apply(&mut self.idle)
                    .settle();
                for page in page..page + pages {
                    if why == Reason::Protect {
                        self.vm.host().protect(page);
                    } else {
                        self.vm.host().moves(page);
                    }
                }
                format!("the host: {why:?} of {pages} pages from {page}")
            }
            20 => {
                let (slot, readonly, log) = (input.below(3) as usize, input.below(4) == 3, input.flag());
                self.vm.memory().commit(&mut self.idle, |tx| tx.delete(SlotId(slot as u32))).unwrap();
                self.slots[slot] = None;
                // Not a change by L1: its tables may have been there.
                self.flush_all();
                if input.below(8) != 7 {
                    self.create(slot, readonly && slot == 1, log);
                }
                self.flush_all();
                let what = self.slots[slot];
                self.revive(slot);
                format!("slot {slot}: {what:?}")
            }
            21 => {
                self.harvest();
                "harvest".into()
            }
            22 if input.flag() => {
                self.vm.zap_all(&mut self.idle).unwrap();
                "zap all".into()
            }
            _ => {
                self.vm.memory().write_protect(&mut self.idle, Span::sized(Gfn(page), 4)).settle();
                format!("write-protect from {page}")
            }
        }
    }

    /// Restores a deleted slot, because little happens without memory.
    fn revive(&mut self, nth: usize) {
        if self.slots[nth].is_none() {
            self.create(nth, false, false);
            self.flush_all();
        }
    }

    /// L2 accesses a frame, through its TLB, its tables, or faults.
    fn access(&mut self, nth: usize, place: Place, access: Access) {
        let (table, gpa) = (self.tables[place.0], Gfn(place.1).gpa());
        if !std::mem::replace(&mut self.vcpus[nth].entered[place.0], true) {
            self.forget(nth, G2S.map(|g2| (place.0, g2)).into_iter());
        }
        let store = access == Access::Write;
        let usable = |&(_, writes): &(Pfn, bool)| writes || !store;
        let before = self.walk_for(place, access);
        let mut outcome = None;
        for _ in 0..8 {
            let Known { vcpu, cached, .. } = &mut self.vcpus[nth];
            let mut l2 = vcpu.nested(&mut self.idle, table).unwrap();
            drop(l2.enter(&mut self.idle, &mut &mut *cached).poll());
            let leaf = l2.translate(gpa).filter(|leaf| leaf.perms.allows(access));
            if let Some(leaf) = leaf
                && !cached.0.get(&place).is_some_and(usable)
            {
                cached.0.insert(place, (leaf.pfn, leaf.perms.allows(Access::Write)));
            }
            if leaf.is_some() && cached.0.get(&place).is_some_and(usable) {
                break;
            }
            match l2.fault(&mut self.idle, L1Access::new(gpa, access)).unwrap() {
                L2Next::Handled { next: Next::Resume(Resume::Mapped(_) | Resume::Spurious), .. } => {}
                done => {
                    outcome = Some(done);
                    break;
                }
            }
        }
        self.note_words();
        self.look();
        match outcome {
            None => {
                let cached = self.vcpus[nth].cached.0.get(&place).copied();
                let Some(cached) = cached.filter(usable) else {
                    panic!("the fault is dealt with, but the access does not come through")
                };
                if store {
                    self.stored(nth, place, cached.0);
                }
            }
            Some(L2Next::ForL1(_)) => {
                // A and D must be set in read-only memory, which is an error on some formats.
                let rom = T::ROM_IS_AN_ERROR && self.slots[1].is_some_and(|slot| slot.readonly);
                assert!(before.is_none() || rom, "T allows it: {before:?}");
                self.forget(nth, std::iter::once(place));
            }
            Some(L2Next::Handled { .. }) => {
                let (g1, perms) = before.expect("T refuses it, which is L1's to know");
                let readonly = self.behind(g1).is_some_and(|(slot, _)| slot.readonly && store);
                let unsaid = perms != Perms::RWX;
                assert!(
                    self.behind(g1).is_none() || readonly || unsaid,
                    "memory is there: {g1:?}, {perms:?}"
                );
            }
            Some(other) => panic!("{other:?}"),
        }
        self.judge(nth, place.0);
    }

    /// Checks that the vCPU's TLB and its tables have only allowed translations when it comes back to L2.
    fn judge(&mut self, nth: usize, table: usize) {
        let Known { vcpu, cached, .. } = &mut self.vcpus[nth];
        let mut l2 = vcpu.nested(&mut self.idle, self.tables[table]).unwrap();
        drop(l2.enter(&mut self.idle, &mut &mut *cached).poll());
        for (&place, &cached) in &self.vcpus[nth].cached.0 {
            assert!(self.may_use(nth, place, cached), "vCPU {nth} has {cached:?} at {place:x?}");
        }
        let entered = self.vcpus[nth].entered;
        for place in Self::places().filter(|place| entered[place.0]) {
            let table = self.tables[place.0];
            let l2 = self.vcpus[nth].vcpu.nested(&mut self.idle, table).unwrap();
            let leaf = l2.translate(Gfn(place.1).gpa());
            if let Some(leaf) = leaf {
                let found = (leaf.pfn, leaf.perms.allows(Access::Write));
                assert!(self.may_use(nth, place, found), "a leaf for vCPU {nth}: {found:?} at {place:x?}");
            }
        }
    }

    /// Walks T for an access, unless T refuses it.
    fn walk_for(&self, (table, g2): Place, access: Access) -> Walk {
        let walked = self.vm.memory().look_l1(&self.tables[table], Gfn(g2).gpa());
        match walked {
            Ok(leaf) => {
                let demands = self.tables[table].demands(&L1Access::new(Gfn(g2).gpa(), access));
                let missing = demands.without(leaf.allowed.of(false));
                (missing == Perms::NONE).then_some((leaf.gfn, leaf.allowed.perms))
            }
            Err(L1Stop::Fault(_)) => None,
            Err(other) => panic!("{other}"),
        }
    }

    /// Notes newly set A and D in the log.
    fn note_words(&mut self) {
        let now = Self::entries(self.vm);
        let changed = self.words.iter().zip(&now).zip(Self::places_of_entries());
        let pages: Vec<_> = changed.filter(|((old, new), _)| old != new).map(|(_, (page, _))| page).collect();
        for page in pages {
            self.dirtied(page);
        }
        self.words = now;
    }

    /// Returns the entries that walks may read, by page of the host.
    fn places_of_entries() -> impl Iterator<Item = (u64, u64)> {
        (0..FRAMES).flat_map(|page| ENTRIES.map(|entry| (page, entry)))
    }

    fn entries(vm: &Vm<F, Ram>) -> Vec<u64> {
        Self::places_of_entries().map(|(page, entry)| vm.host().word(page, entry).load(Relaxed)).collect()
    }

    /// Notes a store to a page through one of its frames: if only one frame maps the page, through that one.
    fn dirtied(&mut self, page: u64) {
        let frames = SLOTS.iter().zip(&self.slots).filter_map(|(&(first, len, at), slot)| {
            let shows = (at..at + len).contains(&page);
            slot.filter(|_| shows).map(|slot| (slot, first + (page - at)))
        });
        let frames: Vec<_> = frames.collect();
        if let [(slot, g1)] = frames[..]
            && slot.log_dirty
        {
            self.written.insert(g1);
        }
    }

    fn stored(&mut self, nth: usize, place: Place, pfn: Pfn) {
        let by = self.vcpus[nth].allowed[&place]
            .iter()
            .filter(|(g1, _)| self.behind(*g1).is_some_and(|(_, page)| self.vm.host().now(page).pfn == pfn));
        let frames: BTreeSet<Gfn> = by.map(|&(g1, _)| g1).collect();
        if let [g1] = frames.into_iter().collect::<Vec<_>>()[..]
            && self.behind(g1).is_some_and(|(slot, _)| slot.log_dirty)
        {
            self.written.insert(g1.0);
        }
    }

    fn harvest(&mut self) {
        for nth in 0..3 {
            let Some(slot) = self.slots[nth].filter(|slot| slot.log_dirty) else { continue };
            let harvest = self.vm.memory().harvest(&mut self.idle, slot.id).unwrap();
            let told: BTreeSet<u64> = harvest.iter().map(|page| page.gfn.0).collect();
            let of_slot = |g1: &&u64| slot.gfns.contains(Gfn(**g1));
            let lost: Vec<_> = self.written.iter().filter(of_slot).filter(|g1| !told.contains(g1)).collect();
            assert!(lost.is_empty(), "no log has {lost:?}");
            harvest.commit();
            self.written.retain(|g1| !slot.gfns.contains(Gfn(*g1)));
        }
    }
}
