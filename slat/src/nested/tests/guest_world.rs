//! A guest with page tables of its own, once on two stages and once on shadows: each load and store gives the same
//! result, whatever its kernel and the host do meanwhile.
//!
//! ```text
//! two stages   the test's walker for the guest's table, with no cache ─▶ g1 ─▶ the VM's table, by faults of `Vcpu`
//! shadows      `Vcpu::guest_paging`: a TLB that keeps entries until a flush ─▶ the shadow, by faults of `L2`
//! ```
//! The kernel flushes exactly what its manual demands, so the result of each access is determined. Each VM has a host
//! of its own, with bytes, which moves, unmaps, protects, ages and logs at the same steps. A moved page leaves poison
//! behind, and its frame is not reused.

use super::guest_tables::{LMA, NXE, PAE, PAT, PCIDE, PG, PSE, SMAP, SMEP, WP};
use super::manual::x86::Guest;
use super::manual::{Words, load, store};
use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::formats::X64;
use crate::tries::tries;
use crate::*;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Pages of the guest. The tables are in the first; a page of 4 MiB is behind [`LARGE`].
pub(super) const PAGES: u64 = 40;
pub(super) const DATA: u64 = 24;
/// Frames of 2 MiB pages that the guest maps; the memslots have the first few frames of each.
pub(super) const LARGE: u64 = 1024;
pub(super) const LARGE_PAGES: u64 = 1024 + 4;
pub(super) const BASE: Hva = Hva(0x7000_0000);
const POISON: u64 = 0xdead_dead_dead_dead;

/// A host: the frame behind each page of the guest, and whether it may be written. Frames hold one word of data per
/// page, and tables.
pub(super) struct Bytes {
    pub(super) words: Vec<AtomicU64>,
    /// By page: its frame now, and whether it is writable.
    frames: Vec<AtomicU64>,
    /// By frame: its first word.
    data: std::sync::Mutex<BTreeMap<u64, u64>>,
}

const WRITABLE: u64 = 1 << 63;

fn page(hva: Hva) -> usize {
    ((hva.0 - BASE.0) >> PAGE_SHIFT) as usize
}

impl Bytes {
    pub(super) fn new() -> Self {
        let count = PAGES + LARGE_PAGES;
        Self {
            words: (0..DATA * 512).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..count).map(|page| AtomicU64::new(0x1000 + page | WRITABLE)).collect(),
            data: std::sync::Mutex::default(),
        }
    }

    fn behind(&self, hva: Hva) -> HostPage {
        let frame = self.frames[page(hva)].load(Relaxed);
        HostPage { pfn: Pfn(frame & !WRITABLE), writable: frame & WRITABLE != 0, ..HostPage::PLAIN }
    }

    fn get(&self, pfn: Pfn) -> u64 {
        self.data.lock().unwrap().get(&pfn.0).copied().unwrap_or(0)
    }

    fn put(&self, pfn: Pfn, value: u64) {
        self.data.lock().unwrap().insert(pfn.0, value);
    }
}

impl Host for Bytes {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        Some(self.behind(hva)).filter(|page| page.writable || access != Access::Write)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if access == Access::Write {
            self.frames[page(hva)].fetch_or(WRITABLE, Relaxed);
        }
        Ok(self.behind(hva))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.words.get(((hva.0 - BASE.0) / 8) as usize)?.load(Relaxed)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let word = self.words.get(((hva.0 - BASE.0) / 8) as usize)?;
        Some(word.compare_exchange(current.0, new.0, Relaxed, Relaxed).map(Word).map_err(Word))
    }
}

/// A vCPU's cached translations, by linear frame: each new root empties them.
#[derive(Default)]
struct Tlb(BTreeMap<u64, Leaf>);

impl Translations for &mut Tlb {
    fn flush_all(&mut self) {
        self.0.clear();
    }
    fn flush(&mut self, _: Span<Gfn>) {}
    fn flush_nested(&mut self) {
        self.0.clear();
    }
}

/// Result of an access.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Value(u64),
    PageFault(u32),
    Device(u64),
}

/// The layout of the guest's tables by its mode: two roots, the table above the leaves, leaf tables.
#[derive(Clone, Copy, Debug)]
struct Layout {
    mode: (u64, u64),
    is_short: bool,
}

const LAYOUTS: [(u64, u64); 4] = [(PSE, 0), (PAE, 0), (PAE, LMA), (PAE | PCIDE | SMEP | SMAP, LMA)];
/// Pages used in each address space; the next pages are a large one.
const VAS: u64 = 6;

impl Layout {
    fn new(mode: (u64, u64)) -> Self {
        Self { mode, is_short: mode.0 & PAE == 0 }
    }

    fn size(&self) -> u64 {
        if self.is_short { 4 } else { 8 }
    }

    /// Number of 4 KiB pages in a large page.
    fn large(&self) -> u64 {
        if self.is_short { 1024 } else { 512 }
    }

    /// Returns the place of the entry for small page `nth` of the address space.
    fn leaf(&self, space: u64, nth: u64) -> u64 {
        (space * 8 + 3) << 12 | nth * self.size()
    }

    /// Returns the places of the entries above, for small pages and for a large one.
    fn upper(&self, space: u64, nth: u64) -> u64 {
        (space * 8 + 2) << 12 | nth * self.size()
    }

    fn registers(&self, space: u64, wp: bool) -> GuestRegisters {
        let root = if self.mode.1 & LMA != 0 { space * 8 } else { space * 8 + 2 };
        let pcid = if self.mode.0 & PCIDE != 0 { space + 1 } else { 0 };
        GuestRegisters {
            cr0: PG | if wp { WP } else { 0 },
            cr3: root << 12 | pcid,
            cr4: self.mode.0,
            efer: self.mode.1 | if self.is_short { 0 } else { NXE },
            pat: PAT,
            pdptes: [(space * 8 + 2) << 12 | 1, 0, 0, 0],
        }
    }
}

pub(super) const PAGING: GuestPaging =
    GuestPaging { physical_bits: 40, large_1g: false, reserves_global: false };

struct World<'vm> {
    rng: Rng,
    layout: Layout,
    vms: [&'vm Vm<X64, Bytes>; 2],
    vcpus: [Vcpu<'vm, X64, Bytes>; 2],
    tlb: Tlb,
    /// The guest's tables in the first world.
    words: Words,
    space: u64,
    privilege: Privilege,
    wp: bool,
    next: u64,
}

impl World<'_> {
    fn table(&self) -> GuestTable {
        GuestTable::new(&self.layout.registers(self.space, self.wp), PAGING, self.privilege).unwrap()
    }

    /// The kernel stores an entry, in both worlds, through their hosts' words: the tables' pages stay in place.
    fn edit(&mut self, place: u64, entry: u64) {
        store(&mut self.words, place, self.layout.size(), entry);
        let mut now = Words::new();
        let shadowed = &self.vms[1].host().words[(place / 8) as usize];
        now.insert(place & !7, shadowed.load(Relaxed));
        store(&mut now, place, self.layout.size(), entry);
        shadowed.store(now[&(place & !7)], Relaxed);
    }

    fn entry(&self, place: u64) -> u64 {
        load(&self.words, place, self.layout.size())
    }

    /// Returns the address of small page `nth`, or of a page of the large one.
    fn address(&mut self) -> u64 {
        let nth = self.rng.u64(..VAS + 3);
        let first = self.layout.large() << 12;
        match nth.checked_sub(VAS) {
            None => nth << 12,
            // In both halves of 4 MiB.
            Some(nth) => first + ((nth % 2 + (nth / 2) * (self.layout.large() / 2)) << 12),
        }
    }

    fn hva(g1: u64) -> Option<Hva> {
        let nth =
            if g1 < PAGES { g1 } else { PAGES + g1.checked_sub(LARGE).filter(|&nth| nth < LARGE_PAGES)? };
        Some(BASE + (nth << PAGE_SHIFT))
    }

    /// An access on two stages.
    fn in_two(&mut self, idle: &mut Idle, va: u64, access: Access, value: u64) -> Result<End, String> {
        let registers = self.layout.registers(self.space, self.wp);
        let walker = Guest { registers, paging: PAGING, privilege: self.privilege };
        let g1 = match walker.walk(&mut self.words, va, access, &mut Vec::new()) {
            Ok(page) => page.frame,
            Err(code) => return Ok(End::PageFault(code)),
        };
        let gpa = Gpa(g1 << PAGE_SHIFT);
        let (vm, vcpu) = (self.vms[0], &mut self.vcpus[0]);
        for _ in 0..4 {
            let done = vcpu.fault(idle, Fault { gpa, access }).map_err(|error| format!("{error}"))?;
            if done == Next::Emulate(Emulate::NoMemory) {
                return Ok(End::Device(g1));
            }
            let Some(Mapping { leaf, .. }) = vm.memory().translate(idle, Gfn(g1)) else { continue };
            if access != Access::Write || leaf.perms.allows(Access::Write) {
                return Ok(use_page(vm.host(), leaf.pfn, access, value));
            }
        }
        Err(format!("the guest gets nowhere at {g1:#x} on two stages"))
    }

    /// An access on the shadow.
    fn in_one(&mut self, idle: &mut Idle, va: u64, access: Access, value: u64) -> Result<End, String> {
        let table = self.table();
        let asked = table.access(Gva(va), access).unwrap();
        let frame = asked.gpa.gfn().0;
        let (vm, vcpu) = (self.vms[1], &mut self.vcpus[1]);
        let mut guest = vcpu.guest_paging(idle, table).map_err(|error| format!("{error}"))?;
        for _ in 0..4 {
            drop(guest.enter(idle, &mut &mut self.tlb).poll());
            let serves = |leaf: &&Leaf| leaf.perms.allows(access);
            if let Some(leaf) = guest.translate(asked.gpa)
                && self.tlb.0.get(&frame).is_none_or(|leaf| !serves(&leaf))
            {
                self.tlb.0.insert(frame, leaf);
            }
            if let Some(leaf) = self.tlb.0.get(&frame).filter(serves) {
                return Ok(use_page(vm.host(), leaf.pfn, access, value));
            }
            match guest.fault(idle, asked).map_err(|error| format!("{error}"))? {
                L2Next::ForL1(fault) => {
                    let PageFault { address, code } = table.injection(&fault);
                    return if address == Gva(va) {
                        Ok(End::PageFault(code))
                    } else {
                        Err(format!("{address}"))
                    };
                }
                L2Next::Handled { next: Next::Emulate(Emulate::NoMemory), gpa } => {
                    return Ok(End::Device(gpa.gfn().0));
                }
                L2Next::Handled { .. } => {}
            }
        }
        Err(format!("the guest gets nowhere at {va:#x} by its shadow"))
    }

    fn access(&mut self, idle: &mut Idle, ends: &mut Ends) -> Result<(), String> {
        let (va, kind) = (self.address(), [Access::Read, Access::Write, Access::Fetch][self.rng.usize(..3)]);
        let value = self.rng.u64(..);
        let two = self.in_two(idle, va, kind, value)?;
        let one = self.in_one(idle, va, kind, value)?;
        let Self { space, privilege, wp, .. } = self;
        if one != two {
            return Err(format!(
                "{kind:?} at {va:#x} of {space}, {privilege:?}, WP {wp}: {two:x?}, {one:x?}"
            ));
        }
        let end = match two {
            End::Value(_) => "value",
            End::PageFault(_) => "page fault",
            End::Device(_) => "device",
        };
        *ends.entry(end).or_default() += 1;
        self.same_tables()
    }

    /// Checks that A, D and all else are equal in both worlds.
    fn same_tables(&self) -> Result<(), String> {
        let shadowed = &self.vms[1].host().words;
        let differs =
            self.words.iter().find(|&(&place, &word)| shadowed[(place / 8) as usize].load(Relaxed) != word);
        differs.map_or(Ok(()), |(place, word)| {
            Err(format!("the tables differ at {place:#x}: {word:#x} on two stages"))
        })
    }

    fn flush(&mut self, flush: GuestFlush) {
        self.vcpus[1].guest_flushes(flush);
    }

    /// The kernel edits an entry of a small page, their common upper entry, or the large page; and flushes where it
    /// must.
    fn kernel(&mut self) {
        let space = self.rng.u64(..2);
        let layout = self.layout;
        let nx = if layout.is_short { 0 } else { 1 << 63 };
        let (place, va, is_upper) = match self.rng.u8(..8) {
            0 => (layout.upper(space, 0), 0, true),
            1 | 2 => (layout.upper(space, 1), layout.large() << 12, false),
            _ => {
                let nth = self.rng.u64(..VAS);
                (layout.leaf(space, nth), nth << 12, false)
            }
        };
        let before = self.entry(place);
        let rights = |rng: &mut Rng| rng.u64(..) & (6 | nx);
        let after = match self.rng.u8(..8) {
            _ if is_upper => before & !(6 | nx) | rights(&mut self.rng) | 1,
            0 => 0,
            1 | 2 => before & !0x60,
            3 | 4 => before & !(6 | nx) | rights(&mut self.rng) | 1,
            _ if place == layout.upper(space, 1) => {
                let first = if self.rng.bool() { LARGE } else { LARGE + layout.large() };
                first << 12 | 0x81 | rights(&mut self.rng)
            }
            _ => self.rng.u64(DATA..=PAGES) << 12 | 1 | rights(&mut self.rng),
        };
        self.edit(place, after);
        // An entry that was not present, or only gains rights, is not flushed. A page may be in both address spaces
        // under one PCID or two.
        let gains = before & !(6 | nx) == after & !(6 | nx)
            && before & 2 & !after == 0
            && (before ^ after) & 4 == 0
            && after & nx & !before == 0;
        if before & 1 == 0 || gains {
            return;
        }
        let pcid = |space: u64| if layout.mode.0 & PCIDE != 0 { space as u16 + 1 } else { 0 };
        // A flush of an address drops one page of those below a link.
        let was_link = va >> 12 >= VAS && before & 0x80 == 0;
        if is_upper || was_link || self.rng.u8(..4) == 0 {
            let all = self.rng.bool();
            self.flush(if all { GuestFlush::All } else { GuestFlush::Pcid(pcid(space)) });
        } else if space == self.space {
            // Any page of the large one will do.
            let inside = if va >> 12 >= VAS { self.rng.u64(..layout.large()) << 12 } else { 0 };
            self.flush(GuestFlush::Address(Gva(va + inside)));
        } else {
            self.flush(GuestFlush::AddressOf(pcid(space), Gva(va)));
        }
    }

    /// The kernel unmaps a page that its user then accesses, and flushes only if that gave no page fault: a fault makes
    /// its processor drop the page, for the kernel's own accesses too. Then the kernel maps another page.
    fn lazily(&mut self, idle: &mut Idle) -> Result<(), String> {
        let nth = self.rng.u64(..VAS);
        let (place, va) = (self.layout.leaf(self.space, nth), nth << 12);
        if self.entry(place) & 1 == 0 {
            return Ok(());
        }
        self.edit(place, 0);
        let before = core::mem::replace(&mut self.privilege, Privilege::User);
        match self.in_one(idle, va, Access::Read, 0)? {
            End::PageFault(_) => {}
            _ => self.flush(GuestFlush::Address(Gva(va))),
        }
        let frame = self.rng.u64(DATA..PAGES);
        self.edit(place, frame << 12 | 7);
        self.privilege = before;
        Ok(())
    }

    /// One operation on both hosts.
    fn host(&mut self, idle: &mut Idle) {
        let g1 = if self.rng.u8(..3) == 0 {
            LARGE + self.rng.u64(..4) * 512 % LARGE_PAGES
        } else {
            self.rng.u64(DATA..PAGES)
        };
        let hva = Self::hva(g1).unwrap();
        let why = [Reason::Unmap, Reason::Migrate, Reason::Protect][self.rng.usize(..3)];
        for vm in self.vms {
            drop(vm.invalidate(Span::sized(hva, PAGE_SIZE), why).apply(idle).settle());
            let frame = &vm.host().frames[page(hva)];
            if why == Reason::Protect {
                frame.fetch_and(!WRITABLE, Relaxed);
                continue;
            }
            let old = Pfn(frame.load(Relaxed) & !WRITABLE);
            vm.host().put(Pfn(self.next), vm.host().get(old));
            vm.host().put(old, POISON);
            frame.store(self.next | WRITABLE, Relaxed);
        }
        self.next += 1;
    }

    /// Harvests a log of both: the same data pages are dirty.
    fn harvest(&mut self, idle: &mut Idle) -> Result<(), String> {
        let mut dirty = self.vms.map(|vm| {
            let harvest = vm.memory().harvest(idle, SlotId(1)).unwrap();
            let dirty: Vec<u64> = harvest.iter().map(|page| page.gfn.0).collect();
            harvest.commit();
            dirty
        });
        let [two, one] = &mut dirty;
        let lost = two.iter().find(|g1| !one.contains(g1));
        lost.map_or(Ok(()), |g1| Err(format!("a store to frame {g1:#x} is in the log of two stages alone")))
    }

    fn step(&mut self, idle: &mut Idle, ends: &mut Ends) -> Result<(), String> {
        match self.rng.u8(..40) {
            0..=19 => self.access(idle, ends)?,
            20..=24 => self.kernel(),
            25 | 26 => self.lazily(idle)?,
            27..=29 => {
                // The guest changes its privilege, or WP.
                let all = [Privilege::User, Privilege::Supervisor, Privilege::SupervisorWithAc];
                self.privilege = all[self.rng.usize(..3)];
                self.wp = self.rng.u8(..4) != 0;
            }
            30..=32 => {
                // A write to CR3. With PCIDs it may suppress the flush.
                self.space = 1 - self.space;
                let pcid = if self.layout.mode.0 & PCIDE != 0 { self.space as u16 + 1 } else { 0 };
                if pcid == 0 || self.rng.u8(..4) == 0 {
                    self.flush(GuestFlush::Pcid(pcid));
                }
            }
            33..=36 => self.host(idle),
            37 => {
                let g1s = Span::sized(Gfn(self.rng.u64(DATA..PAGES)), 2);
                self.vms.iter().for_each(|vm| _ = vm.memory().write_protect(idle, g1s).settle());
            }
            38 => {
                let hvas = Span::sized(BASE + (DATA << PAGE_SHIFT), (PAGES - DATA) << PAGE_SHIFT);
                self.vms.iter().for_each(|vm| vm.age(idle, hvas, &mut |_| ()));
            }
            _ => self.harvest(idle)?,
        }
        Ok(())
    }
}

fn use_page(host: &Bytes, pfn: Pfn, access: Access, value: u64) -> End {
    if access == Access::Write {
        host.put(pfn, value);
    }
    End::Value(host.get(pfn))
}

/// How accesses ended.
type Ends = BTreeMap<&'static str, u64>;

fn world(mode: (u64, u64), seed: u64, steps: u32, ends: &mut Ends) -> Result<(), String> {
    let mut idle = Idle::take().unwrap();
    let vms = [true, false].map(|two| {
        let builder = Vm::<X64, _>::builder(Bytes::new());
        let vm = if two { builder.build() } else { builder.without_two_stages().build() }.unwrap();
        let at = |page: u64| BASE + (page << PAGE_SHIFT);
        let tables = Slot::new(SlotId(0), Gfn(0), DATA, at(0));
        let data = Slot::new(SlotId(1), Gfn(DATA), PAGES - DATA, at(DATA));
        let large = Slot::new(SlotId(2), Gfn(LARGE), LARGE_PAGES, at(PAGES));
        let data = if seed.is_multiple_of(2) { data.log_dirty() } else { data };
        vm.memory()
            .commit(&mut idle, |tx| [tables, data, large].into_iter().try_for_each(|slot| tx.create(slot)))
            .unwrap();
        if !seed.is_multiple_of(2) {
            vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(1), true)).unwrap();
        }
        vm
    });
    let layout = Layout::new(mode);
    let mut world = World {
        rng: Rng::with_seed(seed),
        layout,
        vms: [&vms[0], &vms[1]],
        vcpus: [vms[0].vcpu(VcpuId(0)).unwrap(), vms[1].vcpu(VcpuId(0)).unwrap()],
        tlb: Tlb::default(),
        words: Words::new(),
        space: 0,
        privilege: Privilege::Supervisor,
        wp: true,
        next: 0x10_0000,
    };
    for space in 0..2 {
        if mode.1 & LMA != 0 {
            world.edit((space * 8) << 12, (space * 8 + 1) << 12 | 7);
            world.edit((space * 8 + 1) << 12, (space * 8 + 2) << 12 | 7);
        }
        world.edit(layout.upper(space, 0), (space * 8 + 3) << 12 | 7);
        world.edit(layout.upper(space, 1), LARGE << 12 | 0x87);
        (0..VAS).for_each(|nth| world.edit(layout.leaf(space, nth), (DATA + nth) << 12 | 7));
    }
    for step in 0..steps {
        world
            .step(&mut idle, ends)
            .map_err(|wrong| format!("step {step} of seed {seed}, {mode:x?}: {wrong}"))?;
    }
    Ok(())
}

const STEPS: u32 = 500;

#[test]
fn a_guest_gets_the_same_bytes_on_one_stage_as_on_two() {
    let mut ends = LAYOUTS.map(|_| Ends::new());
    for seed in 0..tries(24) {
        for (mode, ends) in LAYOUTS.into_iter().zip(&mut ends) {
            world(mode, seed, STEPS, ends).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    for ends in ends {
        assert!(["value", "page fault"].iter().all(|end| ends[end] > 500), "{ends:?}");
    }
}

/// Whether a vCPU that has flushed a page may store there through a leaf that another vCPU has installed later, since
/// it remembers the entries above.
fn stores_after_flush() -> bool {
    const FAR: u64 = 300;
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<X64, _>::builder(Bytes::new()).vcpus(2).without_two_stages().build().unwrap();
    let ram = Slot::new(SlotId(0), Gfn(0), PAGES, BASE);
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    let put = |frame: u64, nth: u64, entry: u64| {
        vm.host().words[(frame * 512 + nth) as usize].store(entry, Relaxed);
    };
    (0..3).for_each(|frame| put(frame, 0, (frame + 1) << 12 | 7));
    // Two pages that may be loaded, and one that may be written, which is no neighbour of theirs.
    [(0, 0x65), (1, 0x65), (FAR, 0x67)]
        .into_iter()
        .enumerate()
        .for_each(|(page, (nth, bits))| put(3, nth, (DATA << 12) + ((page as u64) << 12) | bits));
    let layout = Layout::new(LAYOUTS[2]);
    let table = GuestTable::new(&layout.registers(0, true), PAGING, Privilege::Supervisor).unwrap();
    let [mut flusher, mut other] = [0, 1].map(|id| vm.vcpu(VcpuId(id)).unwrap());
    let _ = flusher.guest_paging(&mut idle, table).unwrap();
    let mut guest = other.guest_paging(&mut idle, table).unwrap();
    let loads = |nth: u64| table.access(Gva(nth << 12), Access::Read).unwrap();
    let store = table.access(Gva(FAR << 12), Access::Write).unwrap();
    for nth in 0..2 {
        assert!(matches!(guest.fault(&mut idle, loads(nth)), Ok(L2Next::Handled { .. })));
    }
    // Withdraws stores to all pages, and INVLPG of one. That drops no leaf, so only the line tells the other vCPU.
    put(2, 0, 3 << 12 | 0x65);
    flusher.guest_flushes(GuestFlush::Address(Gva(FAR << 12)));
    let _ = guest.fault(&mut idle, store).unwrap();
    let guest = flusher.guest_paging(&mut idle, table).unwrap();
    guest.translate(store.gpa).is_some_and(|leaf| leaf.perms.allows(Access::Write))
}

#[test]
fn upper_entries_that_a_vcpu_remembers_do_not_outlive_the_flush_of_another() {
    assert!(!stores_after_flush());
}

#[test]
fn a_vm_refuses_guests_that_it_is_not_built_for() {
    let mut idle = Idle::take().unwrap();
    let two = Vm::<X64, _>::builder(Bytes::new()).build().unwrap();
    let one = Vm::<X64, _>::builder(Bytes::new()).without_two_stages().build().unwrap();
    let table = |cr4: u64| {
        let registers = GuestRegisters { cr0: PG, cr4: PAE | cr4, efer: LMA, ..GuestRegisters::default() };
        GuestTable::new(&registers, PAGING, Privilege::User).unwrap()
    };
    let ept = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let [mut in_two, mut in_one] = [&two, &one].map(|vm| vm.vcpu(VcpuId(0)).unwrap());
    let refused = [
        in_two.guest_paging(&mut idle, table(0)).err(),
        in_one.nested(&mut idle, ept).err(),
        in_one.guest_paging(&mut idle, table(1 << 12)).err(),
    ];
    let wide = NestedError::TooWide { guest: 57, format: 48 };
    assert_eq!(refused, [Some(NestedError::TwoStages), Some(NestedError::OneStage), Some(wide)]);
    for error in refused.into_iter().flatten() {
        assert!(!format!("{error}").contains('\n'), "{error}");
    }
}
