//! The leaf tables of a VM by address: for benches that set bits as a hardware walker does, and for the floors of passes over the
//! tables.
//!
//! The least that a pass can do is to read each table ([`read`](LeafTables::read)); what it changes costs a locked
//! instruction each ([`locked_rmw`](LeafTables::locked_rmw)). Both go in the order of memory, as fast as this
//! machine does.

use slat::table::{Entry, TableMemory};
use slat::{Format, Gfn, Host, Level, Span, Vm};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Entries of a table.
pub const ENTRIES: usize = 512;

/// One leaf table.
pub type Table = [Entry; ENTRIES];

/// See the module's header.
pub struct LeafTables {
    /// The links, and the tables, in the order of their frames.
    links: Vec<NonNull<Entry>>,
    tables: Vec<NonNull<Table>>,
    in_memory: Vec<NonNull<Table>>,
}

impl LeafTables {
    /// The tables of `gfns`, which begins and ends where a table does.
    ///
    /// # Safety
    /// Each 2 MiB of the range has a table, and none is unlinked while the result is used.
    pub unsafe fn of<F: Format, H: Host>(vm: &Vm<F, H>, gfns: Span<Gfn>) -> Self {
        let (mut links, mut tables) = (Vec::new(), Vec::new());
        for region in (gfns.start.0..gfns.end.0).step_by(ENTRIES).map(Gfn) {
            // SAFETY: required of the caller (see `# Safety`).
            let link = unsafe { link_of(vm, region) };
            links.push(link);
            // SAFETY: inside a table page that stays.
            tables.push(vm.tables().at(F::pfn(unsafe { link.as_ref() }.load())).cast());
        }
        let mut in_memory = tables.clone();
        in_memory.sort_unstable();
        Self { links, tables, in_memory }
    }

    /// Each link with its table, in the order of their frames.
    pub fn linked(&self) -> impl Iterator<Item = (&Entry, &Table)> {
        let linked = self.links.iter().zip(&self.tables);
        // SAFETY: they stay, says who called `of`.
        linked.map(|(link, table)| unsafe { (link.as_ref(), table.as_ref()) })
    }

    /// The tables in the order of memory.
    fn in_memory(&self) -> impl Iterator<Item = &Table> {
        // SAFETY: as in `linked`.
        self.in_memory.iter().map(|table| unsafe { table.as_ref() })
    }

    /// Reads every table.
    pub fn read(&self) {
        let any = self.in_memory().fold(0, |any, table| any | read_table(table));
        black_box(any);
    }

    /// One locked read-modify-write for each entry, which changes nothing.
    pub fn locked_rmw(&self) {
        self.in_memory().flatten().for_each(locked_rmw);
    }

    /// One locked read-modify-write for the entry of each of these pages, numbered from the first one on.
    pub fn locked_rmw_of(&self, pages: &[u64]) {
        for &page in pages {
            let page = page as usize;
            // SAFETY: as in `linked`.
            locked_rmw(unsafe { &self.tables[page / ENTRIES].as_ref()[page % ENTRIES] });
        }
    }
}

fn locked_rmw(entry: &Entry) {
    // SAFETY: an entry is one atomic word.
    let word: &AtomicU64 = unsafe { &*std::ptr::from_ref(entry).cast() };
    // Not known to the compiler, which has cheaper ways to change nothing.
    word.fetch_and(black_box(u64::MAX), Relaxed);
}

/// The entry that links the leaf table of `gfn`.
///
/// # Safety
/// As [`LeafTables::of`].
unsafe fn link_of<F: Format, H: Host>(vm: &Vm<F, H>, gfn: Gfn) -> NonNull<Entry> {
    let (mut table, mut level) = (F::top(vm.memory().root(), gfn), F::ROOT_LEVEL);
    loop {
        // SAFETY: inside a table page of this VM, from which nothing is unlinked.
        let entry = unsafe { vm.tables().at(table).cast::<Entry>().add(F::index(gfn, level)) };
        if level == Level::M2 {
            return entry;
        }
        // SAFETY: as above.
        (table, level) = (F::pfn(unsafe { entry.as_ref() }.load()), level.down());
    }
}

fn read_table(table: &Table) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and no thread writes to the tables meanwhile.
        return unsafe { read_table_avx2(table) };
    }
    table.iter().fold(0, |any, entry| any | entry.peek().0)
}

/// # Safety
/// The processor has AVX2, and no thread writes to the table meanwhile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn read_table_avx2(table: &Table) -> u64 {
    use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm256_or_si256, _mm256_setzero_si256};
    let vectors: *const __m256i = table.as_ptr().cast();
    let mut any = [_mm256_setzero_si256(); 4];
    for at in (0..128).step_by(4) {
        for (lane, any) in any.iter_mut().enumerate() {
            // SAFETY: inside the page, which is aligned.
            *any = _mm256_or_si256(*any, unsafe { _mm256_load_si256(vectors.add(at + lane)) });
        }
    }
    let all = _mm256_or_si256(_mm256_or_si256(any[0], any[1]), _mm256_or_si256(any[2], any[3]));
    // SAFETY: 32 bytes either way.
    let words: [u64; 4] = unsafe { std::mem::transmute(all) };
    words.into_iter().fold(0, |any, word| any | word)
}
