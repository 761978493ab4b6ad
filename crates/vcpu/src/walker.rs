//! The walker: the hardware's walk on a TLB miss, in software.
//!
//! It reads second-level tables from physical memory, level by level, from the deepest link in the
//! paging-structure cache. It atomically sets Accessed on every entry on the way, and Dirty in a leaf that it
//! stores through. It checks permissions, and reports a fault if an entry is missing. It takes no lock and
//! enters no section: like hardware, only flushes and their answers protect it from freed tables.

use crate::psc::Psc;
use crate::tlb::Translation;
use slat::table::{Entry, Word};
use slat::{Access, Fault, Format, Gpa, Level, Pfn, TableMemory};
use std::ptr::NonNull;

/// Walks for `gpa` from the table `root`, and returns what a TLB may cache.
///
/// # Safety
/// The calling vCPU is in guest mode in the VM of these tables, and has not answered a flush since the entries
/// of `psc` were made. So no table that the walk can reach has been freed.
pub unsafe fn walk<F: Format, M: TableMemory>(
    memory: &M,
    root: Pfn,
    psc: &mut Psc,
    gpa: Gpa,
    access: Access,
) -> Result<Translation, Fault> {
    let fault = Fault { gpa, access };
    if gpa.gfn().0 >> F::FRAME_BITS != 0 {
        return Err(fault);
    }
    'from_cache: loop {
        let (mut level, mut table) =
            psc.lookup(gpa.gfn()).unwrap_or_else(|| (F::ROOT_LEVEL, F::top(root, gpa.gfn())));
        loop {
            // SAFETY: the caller keeps the condition.
            let entry = unsafe { entry_of::<F, M>(memory, table, gpa, level) };
            let word = entry.load();
            if !F::is_present(word) {
                return Err(fault);
            }
            if F::is_table(word, level) {
                if !touched(entry, word, F::touch_link(level)) {
                    continue 'from_cache;
                }
                level = level.down();
                table = F::pfn(word);
                psc.insert(gpa.gfn(), level, table);
                continue;
            }
            let leaf = F::read_leaf(word);
            if !leaf.perms.allows(access) {
                return Err(fault);
            }
            let bits = F::touch(access);
            if !touched(entry, word, bits) {
                continue 'from_cache;
            }
            let dirty = F::read_leaf(Word(word.0 | bits)).dirty;
            return Ok(Translation { pfn: leaf.pfn, level, perms: leaf.perms, dirty });
        }
    }
}

/// Sets missing bits of `bits`; returns false if the entry has changed meanwhile.
fn touched(entry: &Entry, word: Word, bits: u64) -> bool {
    // SAFETY: these are bits that a walker sets in that word.
    word.0 & bits == bits || unsafe { entry.touch_raw(word, bits) }
}

/// # Safety
/// As [`walk`].
unsafe fn entry_of<'a, F: Format, M: TableMemory>(
    memory: &M,
    table: Pfn,
    gpa: Gpa,
    level: Level,
) -> &'a Entry {
    let page: NonNull<Entry> = memory.at(table).cast();
    // SAFETY: a table page has 512 entries; the caller ensures that it is allocated.
    unsafe { page.add(F::index(gpa.gfn(), level)).as_ref() }
}
