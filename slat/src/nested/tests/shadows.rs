//! Shadows under every operation of L0, L1 and L2, step by step, against a plain model of what each vCPU may use.
//!
//! Each vCPU has a TLB that keeps entries until a flush. The host uses each frame once. A translation of L2 to a frame
//! that is no longer behind L1's memory is therefore one that L0 did not take back. The model keeps T's values since
//! each vCPU's last flush: a translation by none of these values is one that L1's flush has left.

use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::formats::Npt4;
use crate::tries::tries;
use crate::*;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec::Vec;

/// Pages of the host, each behind one frame of L1 at first.
const PAGES: u64 = 40;
/// L1's tables are in the frames before; L2 may have the frames from here on.
const DATA: u64 = 24;
/// The slot with the tables, and two slots with the rest.
const SLOTS: [(u64, u64); 3] = [(0, DATA), (DATA, 8), (DATA + 8, 8)];
const BASE: Hva = Hva(0x7000_0000);
/// Frames of L2 in use, and T's roots: frames 8 and 12.
const G2S: u64 = 6;
const ROOTS: [u64; 2] = [8, 12];
const VCPUS: u32 = 2;
const READ_WRITE: u64 = 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;

/// The host: the frame behind each of its pages, and whether it may be written.
struct Moving {
    words: Vec<AtomicU64>,
    frames: Vec<AtomicU64>,
    sleeps: bool,
}

const WRITABLE: u64 = 1 << 63;

fn page(hva: Hva) -> usize {
    ((hva.0 - BASE.0) >> PAGE_SHIFT) as usize
}

impl Moving {
    fn new(sleeps: bool) -> Self {
        let frames = (0..PAGES).map(|page| AtomicU64::new(0x1000 + page | WRITABLE)).collect();
        Self { words: (0..PAGES * 512).map(|_| AtomicU64::new(0)).collect(), frames, sleeps }
    }

    fn word(&self, hva: Hva) -> &AtomicU64 {
        &self.words[((hva.0 - BASE.0) / 8) as usize]
    }

    fn behind(&self, hva: Hva) -> HostPage {
        let frame = self.frames[page(hva)].load(Relaxed);
        HostPage { pfn: Pfn(frame & !WRITABLE), writable: frame & WRITABLE != 0, ..HostPage::PLAIN }
    }
}

impl Host for Moving {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        (!self.sleeps).then(|| self.behind(hva)).filter(|page| page.writable || access != Access::Write)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if access == Access::Write {
            self.frames[page(hva)].fetch_or(WRITABLE, Relaxed);
        }
        Ok(self.behind(hva))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.word(hva).load(Relaxed)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let exchanged = self.word(hva).compare_exchange(current.0, new.0, Relaxed, Relaxed);
        Some(exchanged.map(Word).map_err(Word))
    }
}

/// A vCPU's cached translations of L2: by root and frame, the host's frame and whether it may be written.
#[derive(Default)]
struct Cached(BTreeMap<(usize, u64), (Pfn, bool)>);

impl Translations for &mut Cached {
    fn flush_all(&mut self) {
        self.0.clear();
    }
    fn flush(&mut self, _: Span<Gfn>) {}
    fn flush_nested(&mut self) {
        self.0.clear();
    }
}

/// The values of T since a flush, by root and frame of L2.
type Allowed = BTreeMap<(usize, u64), BTreeSet<u64>>;

/// Number of times that each event happened.
pub(super) type Happened = BTreeMap<&'static str, u64>;

struct World<'vm> {
    rng: Rng,
    vm: &'vm Vm<Npt4, Moving>,
    vcpus: Vec<(Vcpu<'vm, Npt4, Moving>, Cached, Allowed)>,
    tables: [EptTable; 2],
    /// The number of the host's next frame.
    next: u64,
    /// Frames of L1 that L2 has stored to since the last harvest.
    written: BTreeSet<u64>,
    logs: bool,
    /// vCPUs that have run on the shadow of a root.
    entered: BTreeSet<(usize, usize)>,
    /// The places of the slots.
    bases: [Hva; 3],
}

fn entry(root: usize, g2: u64) -> Hva {
    BASE + ((ROOTS[root] + 3) << PAGE_SHIFT) + g2 * 8
}

impl World<'_> {
    fn t(&self, root: usize, g2: u64) -> u64 {
        self.vm.host().word(entry(root, g2)).load(Relaxed)
    }

    /// L1 writes an entry of T.
    fn store(&mut self, root: usize, g2: u64, word: u64) {
        self.vm.host().word(entry(root, g2)).store(word, Relaxed);
        for (.., allowed) in &mut self.vcpus {
            allowed.entry((root, g2)).or_default().insert(word);
        }
    }

    /// Mostly the first root: a vCPU that changes roots flushes.
    fn root(&mut self) -> usize {
        usize::from(self.rng.u8(..6) == 0)
    }

    fn pages_of(&mut self) -> Hva {
        BASE + (self.rng.u64(DATA..PAGES) << PAGE_SHIFT)
    }

    /// Returns the host's page behind frame `g1` of L1.
    fn behind(&self, g1: u64) -> Option<HostPage> {
        let nth = SLOTS.iter().position(|&(first, len)| (first..first + len).contains(&g1))?;
        Some(self.vm.host().behind(self.bases[nth] + ((g1 - SLOTS[nth].0) << PAGE_SHIFT)))
    }

    /// L2 accesses a frame: by its TLB, by its tables, or by a fault.
    fn access(&mut self, idle: &mut Idle, happened: &mut Happened) -> Result<(), String> {
        let (nth, root, g2) = (self.rng.usize(..VCPUS as usize), self.root(), self.rng.u64(..G2S));
        let store = self.rng.bool();
        let access = L1Access::new(Gfn(g2).gpa(), if store { Access::Write } else { Access::Read });
        let table = self.tables[root];
        if self.entered.insert((nth, root)) {
            // It has no translation of T's old value.
            let now: Vec<_> = (0..G2S).map(|g2| ((root, g2), [self.t(root, g2)].into())).collect();
            self.vcpus[nth].2.extend(now);
        }
        let (vcpu, cached, allowed) = &mut self.vcpus[nth];
        let mut l2 = vcpu.nested(idle, table).map_err(|error| format!("{error}"))?;
        let mut refused = false;
        for _ in 0..3 {
            drop(l2.enter(idle, &mut &mut *cached).poll());
            let usable = |entry: &(Pfn, bool)| entry.1 || !store;
            if let Some(leaf) = l2.translate(access.gpa)
                && !cached.0.get(&(root, g2)).is_some_and(usable)
            {
                cached.0.insert((root, g2), (leaf.pfn, leaf.perms.allows(Access::Write)));
            }
            if cached.0.get(&(root, g2)).is_some_and(usable) {
                break;
            }
            match l2.fault(idle, access).map_err(|error| format!("{error}"))? {
                L2Next::Handled { next: Next::Resume(Resume::Mapped(_) | Resume::Spurious), .. } => {
                    *happened.entry("mapped").or_default() += 1;
                }
                L2Next::ForL1(_) => {
                    *happened.entry("refused").or_default() += 1;
                    refused = true;
                    break;
                }
                L2Next::Handled { .. } => {
                    *happened.entry("device").or_default() += 1;
                    return Ok(());
                }
            }
        }
        let now = self.vm.host().word(entry(root, g2)).load(Relaxed);
        if refused {
            // Hardware has dropped the translation that it hit.
            allowed.insert((root, g2), [now].into());
            return Ok(());
        }
        // A and D.
        for (.., allowed) in &mut self.vcpus {
            allowed.entry((root, g2)).or_default().insert(now);
        }
        let (_, cached, allowed) = &self.vcpus[nth];
        let Some(&(pfn, _)) = cached.0.get(&(root, g2)) else {
            return Err(format!("L2 gets nowhere at {g2}"));
        };
        let gives = |word: &&u64| {
            let behind = self.behind(**word >> 12 & 0xfff);
            let right = behind.is_some_and(|page| page.pfn == pfn && (page.writable || !store));
            let used = **word & ACCESSED != 0 && (!store || **word & (2 | DIRTY) == 2 | DIRTY);
            **word & 7 != 0 && right && used
        };
        let by: BTreeSet<u64> =
            allowed[&(root, g2)].iter().filter(gives).map(|word| word >> 12 & 0xfff).collect();
        if by.is_empty() {
            let all = &allowed[&(root, g2)];
            return Err(format!(
                "vCPU {nth} uses {pfn:?} at {g2} of root {root}, store {store}: T was {all:x?}"
            ));
        }
        // Two frames of L1 may have the same page.
        if store && by.len() == 1 {
            self.written.extend(by);
        }
        *happened.entry("used").or_default() += 1;
        Ok(())
    }

    /// The host changes a page, in one of its ways.
    fn host(&mut self, idle: &mut Idle) {
        let hva = self.pages_of();
        let pages = self.rng.u64(1..4).min(PAGES - page(hva) as u64);
        let hvas = Span::sized(hva, pages << PAGE_SHIFT);
        let why = [Reason::Unmap, Reason::Clear, Reason::Migrate, Reason::Protect][self.rng.usize(..4)];
        let _change = self.vm.invalidate(hvas, why).apply(idle).settle();
        for nth in 0..pages {
            let frame = &self.vm.host().frames[page(hva) + nth as usize];
            if why == Reason::Protect {
                frame.fetch_and(!WRITABLE, Relaxed);
            } else {
                frame.store(self.next | WRITABLE, Relaxed);
                self.next += 1;
            }
        }
    }

    /// A memslot is deleted and created again, with other pages behind it.
    fn slots(&mut self, idle: &mut Idle) {
        let nth = self.rng.usize(1..3);
        let (first, len) = SLOTS[nth];
        let at = BASE + (SLOTS[self.rng.usize(1..3)].0 << PAGE_SHIFT);
        let mut slot = Slot::new(SlotId(nth as u32), Gfn(first), len, at);
        if self.logs {
            slot = slot.log_dirty();
        }
        self.vm.memory().commit(idle, |tx| tx.delete(slot.id)).unwrap();
        self.vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        self.bases[nth] = at;
        // A new slot's log begins empty.
        self.written.retain(|g1| !slot.gfns.contains(Gfn(*g1)));
    }

    /// The slot with L1's tables is replaced by other memory: a copy in which one entry differs.
    fn move_tables(&mut self, idle: &mut Idle) {
        let (first, len) = SLOTS[0];
        self.vm.memory().commit(idle, |tx| tx.delete(SlotId(0))).unwrap();
        let (root, g2) = (self.rng.usize(..2), self.rng.u64(..G2S));
        let word = self.rng.u64(DATA..PAGES) << 12 | 6 << 3 | READ_WRITE;
        self.vm.host().word(entry(root, g2)).store(word, Relaxed);
        let slot = Slot::new(SlotId(0), Gfn(first), len, BASE);
        self.vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        // L1 does nothing here: no vCPU may use the old mapping.
        for (.., allowed) in &mut self.vcpus {
            allowed.insert((root, g2), [word].into());
        }
    }

    fn harvest(&mut self, idle: &mut Idle) -> Result<(), String> {
        for id in [1, 2] {
            let Ok(harvest) = self.vm.memory().harvest(idle, SlotId(id)) else { continue };
            let dirty: BTreeSet<u64> = harvest.iter().map(|page| page.gfn.0).collect();
            let (first, len) = SLOTS[id as usize];
            let lost =
                self.written.iter().find(|g1| (first..first + len).contains(*g1) && !dirty.contains(g1));
            if let Some(lost) = lost {
                return Err(format!("a store to frame {lost} is in no log"));
            }
            self.written.retain(|g1| !(first..first + len).contains(g1));
            harvest.commit();
        }
        Ok(())
    }

    fn step(&mut self, idle: &mut Idle, happened: &mut Happened) -> Result<(), String> {
        match self.rng.u8(..32) {
            0..=15 => self.access(idle, happened)?,
            16..=19 => {
                let (root, g2) = (self.root(), self.rng.u64(..G2S));
                let word = match self.rng.u8(..6) {
                    0 => 0,
                    1 => self.t(root, g2) & !(2 | DIRTY),
                    2 => self.t(root, g2) & !DIRTY,
                    3 => self.t(root, g2) & !ACCESSED,
                    _ => {
                        let used = if self.rng.bool() { ACCESSED | DIRTY } else { 0 };
                        self.rng.u64(DATA..PAGES) << 12 | used | 6 << 3 | READ_WRITE
                    }
                };
                self.store(root, g2, word);
            }
            20..=22 => {
                // L1 flushes: on one vCPU, or on all.
                let (root, nth) = (self.root(), self.rng.usize(..VCPUS as usize));
                let table = self.tables[root];
                let all = self.rng.bool();
                if all {
                    let g2s = Span::new(Gfn(0), Gfn(G2S));
                    self.vm.l1_broadcasts(idle, SpaceId(0), g2s, |t: &EptTable| *t == table);
                } else {
                    self.vcpus[nth].0.l1_flushes(|t: &EptTable| *t == table);
                }
                let now: Vec<_> = (0..G2S).map(|g2| self.t(root, g2)).collect();
                for (index, (.., allowed)) in self.vcpus.iter_mut().enumerate() {
                    if all || index == nth {
                        (0..).zip(&now).for_each(|(g2, &word)| {
                            allowed.insert((root, g2), [word].into());
                        });
                    }
                }
            }
            23..=25 => self.host(idle),
            26 => self.slots(idle),
            27 => {
                let g1 = Gfn(self.rng.u64(DATA..PAGES));
                let fault = Fault { gpa: g1.gpa(), access: Access::Write };
                let _ = self.vcpus[0].0.fault(idle, fault);
            }
            28 if self.logs => self.harvest(idle)?,
            28 => {
                self.logs = true;
                for id in [1, 2] {
                    self.vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(id), true)).unwrap();
                }
                self.written.clear();
            }
            29 => self.move_tables(idle),
            30 if self.rng.u8(..4) == 0 => self.vm.zap_all(idle).unwrap(),
            31 if self.rng.u8(..4) == 0 => {
                let held = self.rng.bool();
                let went = self.vm.take_back_from_a_shadow(idle, held);
                *happened.entry("tables taken").or_default() += u64::from(went && held);
            }
            _ => {
                let g1s = Span::sized(Gfn(self.rng.u64(DATA..PAGES)), 2);
                self.vm.memory().write_protect(idle, g1s).settle();
            }
        }
        Ok(())
    }
}

/// Runs one world. Returns what was wrong.
pub(super) fn world(seed: u64, steps: u32, happened: &mut Happened) -> Result<(), String> {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Moving::new(seed % 4 == 3)).vcpus(VCPUS).build().unwrap();
    for (id, (first, len)) in (0..).zip(SLOTS) {
        let slot = Slot::new(SlotId(id), Gfn(first), len, BASE + (first << PAGE_SHIFT));
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    }
    let features = EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) };
    let tables = ROOTS.map(|root| {
        for level in 0..3 {
            let link = (root + level + 1) << 12 | 7;
            vm.host().words[((root + level) * 512) as usize].store(link, Relaxed);
        }
        EptTable::new(root << 12 | 1 << 6 | 3 << 3 | 6, features).unwrap()
    });
    let vcpu = |id| (vm.vcpu(VcpuId(id)).unwrap(), Cached::default(), Allowed::new());
    let mut world = World {
        rng: Rng::with_seed(seed),
        vm: &vm,
        vcpus: (0..VCPUS).map(vcpu).collect(),
        tables,
        next: 0x2000,
        written: BTreeSet::new(),
        logs: false,
        entered: BTreeSet::new(),
        bases: SLOTS.map(|(first, _)| BASE + (first << PAGE_SHIFT)),
    };
    for (root, g2) in (0..2).flat_map(|root| (0..G2S).map(move |g2| (root, g2))) {
        world.store(root, g2, (DATA + g2) << 12 | 6 << 3 | READ_WRITE);
    }
    for step in 0..steps {
        let done = world.step(&mut idle, happened);
        done.map_err(|wrong| format!("step {step} of seed {seed}: {wrong}"))?;
    }
    drop(world);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
    Ok(())
}

#[test]
fn no_vcpu_uses_what_l0_or_l1_has_taken_away() {
    let mut happened = Happened::new();
    for seed in 0..tries(48) {
        world(seed, 400, &mut happened).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    assert!(["mapped", "refused", "used"].iter().all(|what| happened[what] > 500), "{happened:?}");
    assert!(happened["tables taken"] > 50, "{happened:?}");
}

/// After the place of a shadow went to another table of L1, an empty one, no leaf of it is visible.
#[test]
fn a_shadow_goes_to_another_table_empty() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Moving::new(false)).build().unwrap();
    let ram = Slot::new(SlotId(0), Gfn(0), PAGES, BASE);
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    for level in 0..3 {
        vm.host().words[((8 + level) * 512) as usize].store((9 + level) << 12 | 7, Relaxed);
    }
    vm.host().words[11 * 512].store(DATA << 12 | 6 << 3 | 7, Relaxed);
    let table = |root: u64| EptTable::new(root << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let access = L1Access::new(Gpa(0), Access::Read);
    let mut l2 = vcpu.nested(&mut idle, table(8)).unwrap();
    assert!(matches!(
        l2.fault(&mut idle, access),
        Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })
    ));
    // Eight shadows, for one vCPU: the ninth table gets the first one's.
    for root in 12..20 {
        assert_eq!(vcpu.nested(&mut idle, table(root)).unwrap().translate(access.gpa), None);
    }
}

/// Returns the answers to two stores of L2, where the host names an impossible frame for the second one's page.
fn impossible(sleeps: bool) -> [Result<L2Next, FaultError>; 2] {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Moving::new(sleeps)).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, BASE))).unwrap();
    for level in 0..3 {
        vm.host().words[((8 + level) * 512) as usize].store((9 + level) << 12 | 7, Relaxed);
    }
    for page in 0..2 {
        vm.host().words[(11 * 512 + page) as usize].store((DATA + page) << 12 | 6 << 3 | 7, Relaxed);
    }
    vm.host().frames[DATA as usize + 1].store(1 << 45 | WRITABLE, Relaxed);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let table = EptTable::new(8 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let mut l2 = vcpu.nested(&mut idle, table).unwrap();
    [0, 1].map(|page| l2.fault(&mut idle, L1Access::new(Gpa(page << 12), Access::Write)))
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn l2_gets_no_frame_that_the_format_cannot_hold() {
    for sleeps in [false, true] {
        let [right, wrong] = impossible(sleeps);
        assert!(matches!(right, Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(Level::K4)), .. })));
        assert_eq!(wrong, Err(FaultError::Host(HostError::BadFrame)));
    }
}
