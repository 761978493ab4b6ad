//! The hardware's walker, in software: no lock, no section. Flushes and their answers keep the tables that it reads.

use crate::caches::{Caches, Translation};
use crate::host::Primary;
use slat::table::{Entry, Word};
use slat::{Access, Format, Gfn, Pfn, Span};

/// Why there is no translation.
pub enum Missing {
    /// An entry does not allow the access: a fault.
    Fault,
    /// A link leads to no table: a table was freed under the walker.
    Stray,
}

/// Walks for `gfn` from `root`, or from the lowest link in `caches`. Sets Accessed on the way, and Dirty in a leaf for
/// a store. The vCPU is in the guest, and has not answered since `caches` were filled.
pub fn walk<F: Format>(
    host: &Primary,
    root: Pfn,
    caches: &mut Caches,
    (gfn, access): (Gfn, Access),
) -> Result<Translation, Missing> {
    'again: loop {
        let (mut level, mut table) = caches.link(gfn).unwrap_or((F::ROOT_LEVEL, root));
        loop {
            let page = host.table(table).ok_or(Missing::Stray)?.cast::<Entry>();
            // SAFETY: a page of the arena, which outlives the VM; all its words are atomics.
            let entry = unsafe { page.add(F::index(gfn, level)).as_ref() };
            let word = entry.load();
            if !F::is_present(word) {
                return Err(Missing::Fault);
            }
            if F::is_table(word, level) {
                if !touched(entry, word, F::touch_link(level)) {
                    continue 'again;
                }
                (level, table) = (level.down(), F::pfn(word));
                caches.insert_link(gfn, level, table);
                continue;
            }
            let leaf = F::read_leaf(word);
            if !leaf.perms.allows(access) {
                return Err(Missing::Fault);
            }
            if !touched(entry, word, F::touch(access)) {
                continue 'again;
            }
            let gfns = Span::sized(gfn.base(level), level.pages());
            let dirty = leaf.dirty || access == Access::Write;
            return Ok(Translation { gfns, pfn: leaf.pfn, perms: leaf.perms, dirty });
        }
    }
}

/// Sets the missing bits of `bits`; false if the entry changed meanwhile.
fn touched(entry: &Entry, seen: Word, bits: u64) -> bool {
    // SAFETY: what a walker sets in that word.
    seen.0 & bits == bits || unsafe { entry.touch_raw(seen, bits) }
}
