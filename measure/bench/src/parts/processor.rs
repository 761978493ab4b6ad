//! The hardware under a vCPU on an access: a TLB, and a walk on a miss.
//!
//! ```text
//! access ─▶ TLB ─ a miss ─▶ the last table of leaves, or from the root down ─▶ the frame, remembered; or a fault
//! ```
//! A walk takes no lock and is in no section: it is kept from freed tables by flushes and their answers alone. So a flush that
//! comes too late is seen for what it is: a guest that uses a frame which is no longer its own.

use slat::table::formats::Ept4;
use slat::table::{Entry, TableMemory};
use slat::{Access, Format, Gfn, Level, Pfn, Span, Translations};
use std::ptr::NonNull;

/// The processor's cache of tables: the last table of leaves, and the frames that it maps. No leaves.
#[derive(Debug, Default)]
pub struct Tables(Option<(Gfn, Pfn)>);

impl Translations for Tables {
    fn flush_all(&mut self) {
        self.0 = None;
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0 = None;
    }
}

/// Leaves of 4 KiB too, one place for each, as many as the larger of a processor's two TLBs has. Forgetting all takes no longer
/// than forgetting one: on threads it would else take a microsecond, which no hardware does.
#[derive(Debug)]
pub struct Tlb {
    leaves: Box<[Remembered]>,
    /// How often all was forgotten, plus one.
    generation: u64,
    /// For walks.
    pub tables: Tables,
}

/// A leaf, if its generation is the TLB's.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    gfn: Gfn,
    pfn: Pfn,
    /// The walk was for a store: only then has it set Dirty, and does the place answer a store.
    stored: bool,
    generation: u64,
}

const PLACES: u64 = 2048;
const NOTHING: Remembered = Remembered { gfn: Gfn(0), pfn: Pfn(0), stored: false, generation: 0 };

/// Why an access finds no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoFrame {
    /// There is no translation.
    Missing,
    /// There is one, which does not allow the access.
    Forbidden,
}

impl Tlb {
    /// An empty cache.
    pub fn new() -> Self {
        Self { leaves: vec![NOTHING; PLACES as usize].into(), generation: 1, tables: Tables::default() }
    }

    fn place(&mut self, gfn: Gfn) -> &mut Remembered {
        &mut self.leaves[(gfn.0 % PLACES) as usize]
    }

    /// The frame behind a page, if it is remembered for this access.
    pub fn find(&mut self, gfn: Gfn, access: Access) -> Option<Pfn> {
        let place = *self.place(gfn);
        let is_here = place.gfn == gfn && place.generation == self.generation;
        (is_here && (place.stored || access != Access::Write)).then_some(place.pfn)
    }

    /// A walk for this access has found it.
    pub fn remember(&mut self, gfn: Gfn, pfn: Pfn, access: Access) -> Pfn {
        let generation = self.generation;
        *self.place(gfn) = Remembered { gfn, pfn, stored: access == Access::Write, generation };
        pfn
    }
}

impl Translations for Tlb {
    fn flush_all(&mut self) {
        self.generation += 1;
        self.tables.flush_all();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        if gfns.len() >= PLACES {
            return self.flush_all();
        }
        for gfn in (gfns.start.0..gfns.end.0).map(Gfn) {
            if self.place(gfn).gfn == gfn {
                *self.place(gfn) = NOTHING;
            }
        }
        self.tables.flush(gfns);
    }
}

/// A processor's TLB, as its vCPU reaches it: as its own, or shared with other processors.
pub trait OfProcessor: Translations {
    /// Does `work` with the TLB. No other processor changes it meanwhile.
    fn with<T>(&mut self, work: impl FnOnce(&mut Tlb) -> T) -> T;
}

impl OfProcessor for Tlb {
    #[inline]
    fn with<T>(&mut self, work: impl FnOnce(&mut Tlb) -> T) -> T {
        work(self)
    }
}

/// Walks for an access to `gfn`: sets Accessed in each link that it comes through and in the leaf, for a store Dirty in the
/// leaf. The page's frame, or why there is none for the access.
///
/// # Safety
/// The calling vCPU is in guest mode in the VM of these tables, and has not answered a flush since `tables` remembered: so no
/// table that the walk can reach has been freed.
pub unsafe fn walk(
    memory: &impl TableMemory,
    root: Pfn,
    tables: &mut Tables,
    (gfn, access): (Gfn, Access),
) -> Result<Pfn, NoFrame> {
    let of_table = gfn.base(Level::M2);
    'from_cache: loop {
        let (mut level, mut table) = match tables.0 {
            Some((first, table)) if first == of_table => (Level::K4, table),
            _ => (Ept4::ROOT_LEVEL, Ept4::top(root, gfn)),
        };
        loop {
            let page: NonNull<Entry> = memory.at(table).cast();
            // SAFETY: a table page holds 512 entries; the caller promises that it is allocated (see `# Safety`).
            let entry = unsafe { page.add(Ept4::index(gfn, level)).as_ref() };
            let word = entry.load();
            if !Ept4::is_present(word) {
                return Err(NoFrame::Missing);
            }
            let leaf = (!Ept4::is_table(word, level)).then(|| Ept4::read_leaf(word));
            if leaf.is_some_and(|leaf| !leaf.perms.allows(access)) {
                return Err(NoFrame::Forbidden);
            }
            let bits = if leaf.is_some() { Ept4::touch(access) } else { Ept4::touch_link(level) };
            // SAFETY: what a walker sets in that word.
            if word.0 & bits != bits && !unsafe { entry.touch_raw(word, bits) } {
                continue 'from_cache;
            }
            if let Some(leaf) = leaf {
                return Ok(leaf.pfn + (gfn.0 - gfn.base(level).0));
            }
            (level, table) = (level.down(), Ept4::pfn(word));
            if level == Level::K4 {
                tables.0 = Some((of_table, table));
            }
        }
    }
}
