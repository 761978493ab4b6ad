//! A vCPU: a guest that loads and stores; caches that keep entries until a flush; and the hardware's walker, which
//! takes no lock, enters no section, and sets Accessed and Dirty.

use super::vm_on_host::World;
use crate::sync::prim::{spin_loop, step};
use crate::table::{Entry, Word};
use crate::*;
use std::vec::Vec;

/// One translation, as the walker found it.
#[derive(Clone, Copy)]
struct Translation {
    gfns: Span<Gfn>,
    /// Frame of the first page.
    pfn: Pfn,
    perms: Perms,
    /// Whether Dirty is set in the table: a store then needs no walk.
    dirty: bool,
}

/// Cached translations, and links to tables by the frames they serve: the paging-structure cache.
#[derive(Default)]
struct Caches {
    translations: Vec<Translation>,
    links: Vec<(Span<Gfn>, Level, Pfn)>,
}

impl Translations for Caches {
    fn flush_all(&mut self) {
        self.translations.clear();
        self.links.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.translations.retain(|found| !found.gfns.overlaps(&gfns));
        self.links.retain(|(served, ..)| !served.overlaps(&gfns));
    }
}

impl Caches {
    fn find(&self, (gfn, access): (Gfn, Access)) -> Option<Translation> {
        let serves = |found: &&Translation| {
            let allowed = found.perms.allows(access) && (found.dirty || access != Access::Write);
            allowed && found.gfns.contains(gfn)
        };
        self.translations.iter().find(serves).copied()
    }

    /// The lowest cached table for `gfn`.
    fn link(&self, gfn: Gfn) -> Option<(Level, Pfn)> {
        let links = self.links.iter().filter(|(served, ..)| served.contains(gfn));
        links.map(|&(_, level, table)| (level, table)).min_by_key(|(level, _)| level.number())
    }
}

/// Runs vCPU `id` until it has made each access of `program`.
pub(super) fn run<F: Format>(world: &World<F>, id: u32, program: &[(u64, Access)]) {
    let mut idle = Idle::take().expect("one on each thread");
    let mut vcpu = world.vm.vcpu(VcpuId(id)).expect("one thread for each");
    let mut caches = Caches::default();
    let mut left = program;
    loop {
        left = stay(world, &mut vcpu.enter(&mut idle, &mut caches).poll(), &mut caches, left);
        let Some((&(gfn, access), rest)) = left.split_first() else { return };
        let gfn = Gfn(gfn);
        let layout = world.layout();
        match vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access }) {
            Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => {
                world.emulated(gfn, layout);
                left = rest;
            }
            Ok(Next::Emulate(Emulate::Tracked)) => left = rest,
            // Until another thread has harvested, or has given a table back; or has flushed the link to a table that it
            // has unhooked, through which this vCPU still walks.
            Ok(Next::Leave(Leave::RingFull) | Next::Resume(Resume::Spurious)) | Err(FaultError::NoMemory) => {
                spin_loop()
            }
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs in the guest until a fault, or until nothing is left. Returns the remaining accesses.
fn stay<'p, F: Format>(
    world: &World<F>,
    guest: &mut InGuest<'_>,
    caches: &mut Caches,
    mut left: &'p [(u64, Access)],
) -> &'p [(u64, Access)] {
    while let Some((&(gfn, access), rest)) = left.split_first() {
        if guest.kicked() {
            guest.answer(caches);
        }
        let wanted = (Gfn(gfn), access);
        let Some(found) = caches.find(wanted).or_else(|| walk(world, guest.root(), caches, wanted)) else {
            break;
        };
        // An invalidation that zaps the page now has to wait until this access is over.
        step();
        world.used(wanted, found.pfn + (gfn - found.gfns.start.0));
        left = rest;
    }
    left
}

/// Walks for `gfn` from `root`, or from the lowest cached link.
fn walk<F: Format>(
    world: &World<F>,
    root: Pfn,
    caches: &mut Caches,
    (gfn, access): (Gfn, Access),
) -> Option<Translation> {
    'again: loop {
        let (mut level, mut table) = caches.link(gfn).unwrap_or((F::ROOT_LEVEL, root));
        loop {
            let page = world.host.memory.page(table).cast::<Entry>();
            // SAFETY: a page of words, all of which are atomics.
            let entry = unsafe { page.add(F::index(gfn, level)).as_ref() };
            let word = entry.load();
            if !F::is_present(word) {
                return None;
            }
            if F::is_table(word, level) {
                if !touched(entry, word, F::touch_link(level)) {
                    continue 'again;
                }
                (level, table) = (level.down(), F::pfn(word));
                let served = Span::sized(gfn.base(level.up()), level.up().pages());
                caches.links.push((served, level, table));
                continue;
            }
            let leaf = F::read_leaf(word);
            if !leaf.perms.allows(access) {
                return None;
            }
            if !touched(entry, word, F::touch(access)) {
                continue 'again;
            }
            let gfns = Span::sized(gfn.base(level), level.pages());
            let dirty = !F::HARDWARE_AD || leaf.dirty || access == Access::Write;
            let found = Translation { gfns, pfn: leaf.pfn, perms: leaf.perms, dirty };
            caches.translations.retain(|old| !old.gfns.overlaps(&gfns));
            caches.translations.push(found);
            return Some(found);
        }
    }
}

/// Sets the missing bits of `bits`; false if the entry changed meanwhile.
fn touched(entry: &Entry, seen: Word, bits: u64) -> bool {
    seen.0 & bits == bits || entry.touch(seen, bits)
}
