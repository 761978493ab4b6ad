//! KVM's shadow MMU (`arch/x86/kvm/mmu`, 6.11) by its steps, as the baseline. Written here from its behaviour.
//!
//! ```text
//! fault       read T ─▶ mmu_seq ─▶ the host's page ─▶ mmu_lock, stale? ─▶ for each level: the shadow page of T's page, made where it is
//!             missing; T's page write-protected in L1; T's entry read again; linked ─▶ leaf, reverse map ─▶ seven neighbours
//! L1 stores   to a table of T the first time: an exit; the table is out of sync, and L1 may write there
//! INVEPT      each table that is out of sync: write-protected again, 512 entries compared
//! the host    begin: mn_invalidate_lock; mmu_lock: counted; L1's own leaf; each entry in the reverse map
//!             end: mmu_lock: mmu_seq; mn_invalidate_lock
//! ```
//! Left out, so the model is a lower bound: reads of T and of memslots level by level, the look-up of the host's page
//! (`get_user_pages`, for each neighbour too), SRCU, the interval tree of memslots, reference counts of pages, flushes of
//! TLBs (each table that is write-protected takes one on all vCPUs), stores by L1 that are emulated.
//!
//! One lock for all of it. Beside each shadow page is what it was made of, 8 bytes an entry; for each frame of a memslot there is a
//! head of the reverse map, all of them from the first shadow page on. Shadow pages lie ready, as in the caches of KVM's vCPUs, and are
//! found by T's frame in a hash table.

use super::l1_layout::{L1Layout, L1Memory, Side};
use crate::parts::setting::Work;
use crate::parts::sim_host::{first_page, hva_of};
use crate::parts::word_lines::Words;
use crate::world::Ordering::Relaxed;
use crate::world::{AtomicU64, Mutex, compute};
use slat::{Gfn, Idle, Pfn, Span};
use std::collections::{BTreeSet, HashMap};

const PRESENT: u64 = 7;
const WRITE: u64 = 2;
/// In a head of the reverse map: there are more.
const MANY: u64 = 1 << 63;
/// `PTE_PREFETCH_NUM`.
const NEIGHBOURS: u64 = 8;
const TABLE: usize = 512;

/// A shadow page: its entries, and the frame of L1 that each was made of.
struct Page {
    entries: Words,
    made_of: Words,
}

/// The state under the lock, beside the entries.
#[derive(Default)]
struct Under {
    /// Shadow pages by T's frame.
    pages: HashMap<u64, usize>,
    /// Further entries of a frame of L1: page, and entry.
    more: HashMap<u64, Vec<u64>>,
    /// Tables of T that L1 has written to since they were compared.
    unsync: BTreeSet<u64>,
    has_begun: bool,
    /// Invalidations under way.
    invalidations: u64,
}

/// See the module's header. Its lock and its number are where they are from the beginning of a line on.
#[repr(align(64))]
pub struct ShadowMmu<'g> {
    layout: &'g L1Layout,
    host: L1Memory,
    mmu_lock: Mutex<Under>,
    mmu_seq: AtomicU64,
    /// Invalidations between begin and end, as `mn_active_invalidate_count` counts them.
    mn_invalidate_lock: Mutex<u64>,
    pages: Box<[Page]>,
    /// L1's own leaves, by frame.
    direct: Words,
    /// Heads of the reverse map, by frame, and by page of 2 MiB.
    rmap: Words,
    rmap_large: Words,
}

impl<'g> ShadowMmu<'g> {
    pub fn new(layout: &'g L1Layout) -> Self {
        let page = |_| Page { entries: Words::new(TABLE, |_| 0), made_of: Words::new(TABLE, |_| 0) };
        let frames = layout.frames() as usize;
        Self {
            layout,
            host: layout.host(),
            mmu_lock: Mutex::new(Under::default()),
            mmu_seq: AtomicU64::new(0),
            mn_invalidate_lock: Mutex::new(0),
            pages: (0..layout.tables()).map(page).collect(),
            direct: Words::new(frames, |frame| first_page(Gfn(frame as u64)).pfn.0 << 12 | PRESENT),
            rmap: Words::new(frames, |_| 0),
            rmap_large: Words::new(TABLE, |_| 0),
        }
    }

    /// `kvm_mmu_get_shadow_page`: the page for a table of T, which L1 may write no more without an exit.
    fn shadow_page(&self, under: &mut Under, table: u64) -> usize {
        *under.pages.entry(table).or_insert_with(|| {
            // ORDER(kvm): Relaxed, here and below: all of it is under the lock, but for walks by hardware.
            self.direct[table as usize].fetch_and(!WRITE, Relaxed);
            table as usize
        })
    }

    /// `rmap_add`.
    fn enter(&self, under: &mut Under, g1: u64, entry: u64) {
        let head = match g1.checked_sub(self.layout.first_large().0) {
            Some(inside) => &self.rmap_large[inside as usize / TABLE],
            None => &self.rmap[g1 as usize],
        };
        match head.load(Relaxed) {
            0 => head.store(entry + 1, Relaxed),
            first => {
                head.store(first | MANY, Relaxed);
                under.more.entry(g1).or_default().push(entry);
            }
        }
    }

    /// `mmu_set_spte` for an entry of a leaf table, where there is none.
    fn map(&self, under: &mut Under, (table, entry): (u64, u64), word: u64) {
        let page = &self.pages[table as usize];
        let g1 = word >> 12 & 0xff_ffff_ffff;
        let hva = hva_of(Gfn(g1));
        let behind = self.host.large(hva).or_else(|| self.host.pages.page(hva));
        let Some(pfn) = behind.map(|page| page.pfn) else { return };
        page.entries[entry as usize].store(pfn.0 << 12 | PRESENT, Relaxed);
        page.made_of[entry as usize].store(g1 << 12 | word & PRESENT, Relaxed);
        self.enter(under, g1, table << 9 | entry);
    }

    /// `kvm_zap_all_rmap_sptes`.
    fn zap(&self, under: &mut Under, g1: Gfn) {
        if !under.has_begun {
            return;
        }
        let head = self.rmap[g1.0 as usize].swap(0, Relaxed);
        if head == 0 {
            return;
        }
        let more = if head & MANY == 0 { None } else { under.more.remove(&g1.0) };
        for entry in [(head & !MANY) - 1].into_iter().chain(more.into_iter().flatten()) {
            self.pages[(entry >> 9) as usize].entries[(entry & 511) as usize].store(0, Relaxed);
        }
    }

    /// An attempt at a fault; false where something has changed.
    fn attempt(&self, g2: Gfn) -> bool {
        let (path, depth) = L1Layout::path(g2);
        let words = path.map(|(frame, entry)| self.host.word(frame, entry).load(Relaxed));
        let seq = self.mmu_seq.load(Relaxed);
        let mut under = self.mmu_lock.lock();
        compute(self.layout.under_lock_ns());
        if self.mmu_seq.load(Relaxed) != seq || under.invalidations > 0 {
            return false;
        }
        for level in 0..depth - 1 {
            let (at, (child, _)) = (path[level], path[level + 1]);
            let entry = &self.pages[at.0 as usize].entries[at.1 as usize];
            if entry.load(Relaxed) == 0 {
                let child = self.shadow_page(&mut under, child);
                if self.host.word(at.0, at.1).load(Relaxed) != words[level] {
                    return false;
                }
                entry.store((child as u64) << 12 | PRESENT, Relaxed);
            }
        }
        let (table, entry) = path[depth - 1];
        if self.host.word(table, entry).load(Relaxed) != words[depth - 1] {
            return false;
        }
        let first = entry & !(NEIGHBOURS - 1);
        // Pages of 4 KiB alone.
        let near = if depth == 4 { NEIGHBOURS } else { 0 };
        for entry in (first..first + near).filter(|&other| other != entry).chain([entry]) {
            let word = self.host.word(table, entry).load(Relaxed);
            let is_there = self.pages[table as usize].entries[entry as usize].load(Relaxed) != 0;
            if word != 0 && !is_there {
                self.map(&mut under, (table, entry), word);
            }
        }
        true
    }
}

impl Side for ShadowMmu<'_> {
    type Vcpu<'v>
        = ()
    where
        Self: 'v;

    fn vcpu(&self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn begin(&self) {
        let mut under = self.mmu_lock.lock();
        under.has_begun = true;
        self.shadow_page(&mut under, 0);
    }

    fn finds(&self, _: &mut Idle, (): &mut (), g2: Gfn) -> Option<Pfn> {
        let mut found = 0;
        let (path, depth) = L1Layout::path(g2);
        for &(table, entry) in &path[..depth] {
            found = self.pages[table as usize].entries[entry as usize].load(Relaxed);
            if found == 0 {
                return None;
            }
        }
        let inside = if depth < 4 { g2.0 % TABLE as u64 } else { 0 };
        Some(Pfn(found >> 12) + inside)
    }

    fn touch(&self, idle: &mut Idle, (): &mut (), work: &Work, g2s: &mut dyn Iterator<Item = Gfn>) -> u64 {
        let mut mapped = 0;
        for g2 in g2s {
            compute(work.guest_ns);
            if self.finds(idle, &mut (), g2).is_none() {
                compute(work.exit_ns);
                while !self.attempt(g2) {}
                mapped += 1;
            }
        }
        mapped
    }

    fn flush(&self, _: &mut Idle, (): &mut ()) {
        let mut under = self.mmu_lock.lock();
        for table in std::mem::take(&mut under.unsync) {
            self.direct[table as usize].fetch_and(!WRITE, Relaxed);
            let page = &self.pages[table as usize];
            for entry in 0..TABLE {
                if page.entries[entry].load(Relaxed) == 0 {
                    continue;
                }
                let word = self.host.word(table, entry as u64).load(Relaxed);
                let now = word & 0xff_ffff_ffff_f000 | word & PRESENT;
                if now != page.made_of[entry].load(Relaxed) {
                    page.entries[entry].store(0, Relaxed);
                }
            }
        }
    }

    fn drop_all(&self, _: &mut Idle, (): &mut (), part: Span<Gfn>) {
        let _under = self.mmu_lock.lock();
        for table in L1Layout::tables_of(part) {
            let entries = &self.pages[table.0 as usize].entries;
            (0..TABLE).for_each(|entry| entries[entry].store(0, Relaxed));
        }
    }

    fn edit(&self, table: Gfn) -> bool {
        let exits = self.direct[table.0 as usize].load(Relaxed) & WRITE == 0;
        if exits {
            let mut under = self.mmu_lock.lock();
            under.unsync.insert(table.0);
            self.direct[table.0 as usize].fetch_or(WRITE, Relaxed);
        }
        self.host.edit(table);
        exits
    }

    fn take_back(&self, _: &mut Idle, g1: Gfn) {
        *self.mn_invalidate_lock.lock() += 1;
        let mut under = self.mmu_lock.lock();
        under.invalidations += 1;
        self.direct[g1.0 as usize].swap(0, Relaxed);
        self.zap(&mut under, g1);
        drop(under);
        // The host changes its page.
        let mut under = self.mmu_lock.lock();
        self.mmu_seq.fetch_add(1, Relaxed);
        under.invalidations -= 1;
        drop(under);
        *self.mn_invalidate_lock.lock() -= 1;
    }

    fn bytes(&self) -> u64 {
        let under = self.mmu_lock.lock();
        let heads = if under.has_begun { 8 * self.rmap.len() as u64 } else { 0 };
        let more = under.more.values().map(|more| more.len().div_ceil(14) as u64 * 128).sum::<u64>();
        // A page of entries, one of what they were made of, and `struct kvm_mmu_page`.
        under.pages.len() as u64 * (4096 + 4096 + 184) + heads + more
    }
}
