//! L1's memory with T in it, and slat on it.
//!
//! ```text
//! L1's frames   root │ 3 upper tables │ leaf tables of T │ data: page n of L2 is in data page n │ shared │ apart, apart │ pages of 2 MiB
//! ```

use crate::parts::setting::{Setting, Work};
use crate::parts::sim_host::{BASE, SimHost, first_page, gfn_of, hva_of, hvas_of};
use crate::parts::vcpu_parts::Parts;
use crate::parts::vm_setup::{idle, vcpu, with_one_slot};
use crate::parts::word_lines::Words;
use crate::world::Ordering::Relaxed;
use crate::world::{AtomicU64, compute};
use slat::nested::{EptFeatures, EptTable, L1Access, L2Next};
use slat::table::Word;
use slat::table::formats::Ept4;
use slat::{
    Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Next, Pfn, Reason, Resume, Slot, SlotId, Span,
    Vcpu, VcpuId, Vm,
};

/// Frames of L2 that show one frame of L1.
pub const ALIASES: u64 = 100;
/// Frames that the host takes back one by one.
const TAKEN: u64 = 64;
/// Entries of a table.
const TABLE: u64 = Level::M2.pages();

/// See the module's header.
pub struct L1Layout {
    /// L2's pages, a part for each vCPU.
    pub parts: Parts,
    leaf_tables: u64,
    work: Work,
    vcpus: u32,
}

/// L1's frames of its root and its upper tables: the last is of pages of 2 MiB, in the second GiB of L2.
const ROOT: u64 = 0;
const UPPER: u64 = 1;
const OF_LARGE: u64 = 3;
const FIRST_LEAF_TABLE: u64 = 4;
/// The first of those pages, which the host has as large, too.
const FIRST_LARGE: Gfn = Gfn(TABLE * TABLE);
/// The pages of a vCPU, at most.
const MOST_LARGE: u64 = 64;

impl L1Layout {
    pub fn new(setting: &Setting<'_>) -> Self {
        let parts = Parts::new(setting, setting.pages_per_vcpu());
        // One table more, for the aliases.
        let leaf_tables = parts.all().len() / TABLE + 1;
        Self { parts, leaf_tables, work: setting.work.clone(), vcpus: setting.vcpus }
    }

    /// The first frame of L1 that is no table.
    fn data(&self) -> u64 {
        (FIRST_LEAF_TABLE + self.leaf_tables).next_multiple_of(TABLE)
    }

    /// L1's frame behind a page of L2.
    pub fn g1(&self, g2: Gfn) -> Gfn {
        if g2 >= FIRST_LARGE {
            return self.first_large() + (g2.0 - FIRST_LARGE.0);
        }
        if g2 >= self.first_alias() { self.shared() } else { Gfn(self.data() + g2.0) }
    }

    /// The frames of L2 that show one frame.
    pub fn aliases(&self) -> Span<Gfn> {
        Span::sized(self.first_alias(), ALIASES)
    }

    fn first_alias(&self) -> Gfn {
        Gfn((self.leaf_tables - 1) * TABLE)
    }

    /// The frame of L1 that they show.
    pub fn shared(&self) -> Gfn {
        Gfn(self.data() + self.leaf_tables * TABLE)
    }

    /// Frames of L1 that L2 has never, before L2 runs and after.
    pub fn apart(&self, nth: u64) -> Span<Gfn> {
        Span::sized(self.shared() + TABLE * (1 + nth), TAKEN)
    }

    /// All of L1's frames but those of large pages.
    pub fn frames(&self) -> u64 {
        self.apart(1).end.0
    }

    /// The first frame of L1's large pages.
    pub fn first_large(&self) -> Gfn {
        Gfn(self.frames().next_multiple_of(TABLE))
    }

    /// The pages of 2 MiB of each vCPU, in L2: their first frames.
    pub fn large_of(&self, vcpu: u32) -> impl Iterator<Item = Gfn> + use<> {
        let each = (TABLE / u64::from(self.vcpus)).min(MOST_LARGE);
        let first = FIRST_LARGE + u64::from(vcpu) * each * TABLE;
        (0..each).map(move |nth| first + nth * TABLE)
    }

    /// All of its tables.
    pub fn tables(&self) -> u64 {
        FIRST_LEAF_TABLE + self.leaf_tables
    }

    /// The host's page behind a page of L2.
    pub fn behind(&self, g2: Gfn) -> Pfn {
        first_page(self.g1(g2)).pfn
    }

    /// The kernel's work under its lock for a fault.
    pub fn under_lock_ns(&self) -> u64 {
        self.work.under_lock_ns
    }

    /// Pages of the first vCPU, in L2.
    pub fn some_of_the_first_in_l2(&self) -> Span<Gfn> {
        let first = self.parts.each().next().map_or(Gfn(0), |part| part.start);
        Span::sized(first, TAKEN.min(self.parts.pages))
    }

    /// The same, in L1.
    pub fn some_of_the_first(&self) -> Span<Gfn> {
        let pages = self.some_of_the_first_in_l2();
        Span::sized(self.g1(pages.start), pages.len())
    }

    /// Leaf tables of T for a part, by L1's frame.
    pub fn tables_of(part: Span<Gfn>) -> impl Iterator<Item = Gfn> {
        let tables = part.start.0 / TABLE..part.end.0.div_ceil(TABLE);
        tables.map(|table| Gfn(FIRST_LEAF_TABLE + table))
    }

    /// T's words, by L1's frame and entry.
    fn words(&self) -> Words {
        let mut words = vec![0; (self.tables() * TABLE) as usize];
        let link = |frame: u64| frame << 12 | 7;
        words[(ROOT * TABLE) as usize] = link(UPPER);
        words[(UPPER * TABLE) as usize] = link(UPPER + 1);
        words[(UPPER * TABLE + 1) as usize] = link(OF_LARGE);
        for (entry, g2) in (0..self.vcpus).flat_map(|vcpu| self.large_of(vcpu)).enumerate() {
            words[OF_LARGE as usize * TABLE as usize + entry] = self.g1(g2).0 << 12 | 1 << 7 | 6 << 3 | 7;
        }
        for table in 0..self.leaf_tables {
            words[((UPPER + 1) * TABLE + table) as usize] = link(FIRST_LEAF_TABLE + table);
        }
        let all = self.leaf_tables * TABLE;
        for g2 in (0..all).map(Gfn).filter(|&g2| g2 < self.aliases().end) {
            words[(FIRST_LEAF_TABLE * TABLE + g2.0) as usize] = self.g1(g2).0 << 12 | 6 << 3 | 7;
        }
        Words::new(words.len(), |at| words[at])
    }

    /// The host, with T in L1's memory.
    pub fn host(&self) -> L1Memory {
        let pages = SimHost::filled(self.frames(), &self.work);
        L1Memory { pages, words: self.words(), first_large: self.first_large() }
    }

    /// Where the entry for a page of L2 is, level by level from the root: L1's frame, and the entry; and how many levels there are.
    pub fn path(g2: Gfn) -> ([(u64, u64); 4], usize) {
        let (table, entry) = (g2.0 / TABLE, g2.0 % TABLE);
        if g2 >= FIRST_LARGE {
            return ([(ROOT, 0), (UPPER, 1), (OF_LARGE, table % TABLE), (0, 0)], 3);
        }
        ([(ROOT, 0), (UPPER, 0), (UPPER + 1, table), (FIRST_LEAF_TABLE + table, entry)], 4)
    }
}

/// L1's memory: pages of arithmetic, and T's words.
pub struct L1Memory {
    pub pages: SimHost,
    words: Words,
    first_large: Gfn,
}

impl L1Memory {
    pub fn word(&self, frame: u64, entry: u64) -> &AtomicU64 {
        &self.words[(frame * TABLE + entry) as usize]
    }

    /// The large page there, if it is one.
    pub fn large(&self, hva: Hva) -> Option<HostPage> {
        let gfn = gfn_of(hva);
        (gfn >= self.first_large).then(|| HostPage { level: Level::M2, ..first_page(gfn) })
    }

    /// L1 makes no entry of a leaf table, or the one that was there, of the table above it.
    pub fn links(&self, table: Gfn, is_there: bool) {
        let entry = self.word(UPPER + 1, table.0 - FIRST_LEAF_TABLE);
        // ORDER(edit): as below.
        entry.store(if is_there { table.0 << 12 | 7 } else { 0 }, Relaxed);
    }

    /// L1 stores to the first entry of a table: bit 9, which says nothing.
    pub fn edit(&self, table: Gfn) {
        let entry = self.word(table.0, 0);
        // ORDER(edit): Relaxed: a flush follows. Only the vCPU whose table it is stores there.
        entry.store(entry.load(Relaxed) ^ 1 << 9, Relaxed);
    }
}

impl Host for L1Memory {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.large(hva).or_else(|| self.pages.lookup(hva, access))
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.pages.resolve(idle, hva, access)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        let at = (hva.0 - BASE.0) / 8;
        Some(Word(self.words.get(at as usize)?.load(Relaxed)))
    }

    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        let at = ((hva.0 - BASE.0) / 8) as usize;
        let is_there = at + words.len() <= self.words.len();
        if is_there {
            (at..).zip(words).for_each(|(at, word)| *word = Word(self.words[at].load(Relaxed)));
        }
        is_there
    }

    fn kick(&self, vcpu: VcpuId) {
        self.pages.kick(vcpu);
    }
}

/// A hypervisor that runs L2: slat, or the one that it is compared with.
pub trait Side: Sync {
    /// The part of a CPU.
    type Vcpu<'v>: Send
    where
        Self: 'v;

    /// For the CPU of that number, which has been in L2 once.
    fn vcpu(&self, id: u32) -> Result<Self::Vcpu<'_>, String>;
    /// The first nested guest is about to begin.
    fn begin(&self);
    /// The frame that hardware finds for a page of L2.
    fn finds(&self, idle: &mut Idle, vcpu: &mut Self::Vcpu<'_>, g2: Gfn) -> Option<Pfn>;
    /// L2 runs, and stores to these pages, one after the other. It exits to the hypervisor for a page that hardware does
    /// not find, and never to L1. Returns the number of faults that mapped a page: an error is found when pages are missed.
    fn touch(
        &self,
        idle: &mut Idle,
        vcpu: &mut Self::Vcpu<'_>,
        work: &Work,
        g2s: &mut dyn Iterator<Item = Gfn>,
    ) -> u64;
    /// L1 flushes on this vCPU, and enters L2.
    fn flush(&self, idle: &mut Idle, vcpu: &mut Self::Vcpu<'_>);
    /// The same, and all of a part goes.
    fn drop_all(&self, idle: &mut Idle, vcpu: &mut Self::Vcpu<'_>, part: Span<Gfn>);
    /// L1 stores to the first entry of a table of T. Whether that exits.
    fn edit(&self, table: Gfn) -> bool;
    /// The host takes a page of L1 back.
    fn take_back(&self, idle: &mut Idle, g1: Gfn);
    /// Bytes of tables, and of what leads back to their entries.
    fn bytes(&self) -> u64;
}

/// slat.
pub struct Engine {
    vm: Vm<Ept4, L1Memory>,
}

impl Engine {
    pub fn new(layout: &L1Layout) -> Result<Self, String> {
        let builder = Vm::builder(layout.host()).vcpus(layout.vcpus);
        let (vm, first) = (with_one_slot(builder, layout.frames())?, layout.first_large());
        let large = Slot::new(SlotId(1), first, TABLE * TABLE, hva_of(first));
        vm.memory().commit(&mut idle()?, |tx| tx.create(large)).map_err(|error| error.to_string())?;
        Ok(Self { vm })
    }
}

/// T's root, as L1 gives it to its processor.
fn ept() -> EptTable {
    EptTable::new(ROOT << 12 | 3 << 3 | 6, EptFeatures::of(46)).expect("a pointer that VM entry takes")
}

impl Side for Engine {
    type Vcpu<'v> = Vcpu<'v, Ept4, L1Memory>;

    fn vcpu(&self, id: u32) -> Result<Vcpu<'_, Ept4, L1Memory>, String> {
        let mut vcpu = vcpu(&self.vm, id)?;
        // Its first entry has a flush before it.
        vcpu.nested(&mut idle()?, ept()).map_err(|error| error.to_string())?;
        Ok(vcpu)
    }

    fn begin(&self) {}

    fn finds(&self, idle: &mut Idle, vcpu: &mut Vcpu<'_, Ept4, L1Memory>, g2: Gfn) -> Option<Pfn> {
        let l2 = vcpu.nested(idle, ept()).ok()?;
        l2.translate(g2.gpa()).map(|leaf| leaf.pfn)
    }

    fn touch(
        &self,
        idle: &mut Idle,
        vcpu: &mut Vcpu<'_, Ept4, L1Memory>,
        work: &Work,
        g2s: &mut dyn Iterator<Item = Gfn>,
    ) -> u64 {
        let Ok(mut l2) = vcpu.nested(idle, ept()) else { return 0 };
        let mut mapped = 0;
        for g2 in g2s {
            compute(work.guest_ns);
            if l2.translate(g2.gpa()).is_none() {
                compute(work.exit_ns);
                let done = l2.fault(idle, L1Access::new(g2.gpa(), Access::Write));
                let is_mapped =
                    matches!(done, Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. }));
                mapped += u64::from(is_mapped);
            }
        }
        mapped
    }

    fn flush(&self, idle: &mut Idle, vcpu: &mut Vcpu<'_, Ept4, L1Memory>) {
        vcpu.l1_flushes(|table: &EptTable| *table == ept());
        // An error is found when pages are missed.
        let _ = vcpu.nested(idle, ept());
    }

    fn drop_all(&self, idle: &mut Idle, vcpu: &mut Vcpu<'_, Ept4, L1Memory>, part: Span<Gfn>) {
        // T says nothing there at the moment of the flush.
        L1Layout::tables_of(part).for_each(|table| self.vm.host().links(table, false));
        self.flush(idle, vcpu);
        L1Layout::tables_of(part).for_each(|table| self.vm.host().links(table, true));
    }

    fn edit(&self, table: Gfn) -> bool {
        self.vm.host().edit(table);
        false
    }

    fn take_back(&self, idle: &mut Idle, g1: Gfn) {
        drop(self.vm.invalidate(hvas_of(Span::sized(g1, 1)), Reason::Unmap).apply(idle).settle());
    }

    fn bytes(&self) -> u64 {
        self.vm.stats().table_bytes
    }
}
