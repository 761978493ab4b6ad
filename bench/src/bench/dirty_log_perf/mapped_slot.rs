//! One memslot with every leaf table in place, for the tests of the engine alone. A test sets for each page whether it has been
//! written.

use super::logged_vm::{LoggedVm, build, builder, slot};
use crate::bench::leaf_tables::{ENTRIES, LeafTables};
use crate::bench::machine::pin;
use crate::bench::machine_error;
use crate::bench::software_vcpu::vcpu;
use slat::table::formats::Ept4;
use slat::table::{Entry, Word};
use slat::{DirtyLog, Format, Gfn, Idle, Level, Slot, Span, Track};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined};
use std::thread;

/// See the module's header.
pub struct MappedSlot {
    pub vm: LoggedVm,
    pub slot: Slot,
    pub tables: LeafTables,
    /// Pages that are mapped.
    pub pages: u64,
}

impl MappedSlot {
    /// All of `gfns` in one slot: every page of its part `dense` is mapped, and the first of each 2 MiB elsewhere.
    pub fn new(log: DirtyLog, idle: &mut Idle, gfns: Span<Gfn>, dense: Span<Gfn>) -> Result<Self, Error> {
        let slot = slot(0, gfns);
        let vm = build(builder(Level::K4).dirty_log(log), idle, &[slot])?;
        let mut vcpu = vcpu(&vm, 0)?;
        let mut mapped = 0;
        for region in (gfns.start.0..gfns.end.0).step_by(ENTRIES).map(Gfn) {
            let pages = if dense.contains(region) { Level::M2.pages() } else { 1 };
            mapped += vcpu.prefault(idle, Span::sized(region, pages)).map_err(machine_error)?;
        }
        drop(vcpu);
        // SAFETY: each 2 MiB has been mapped in, and nothing is unlinked from a VM whose host has small pages only.
        let tables = unsafe { LeafTables::of(&vm, gfns) };
        Ok(Self { vm, slot, tables, pages: mapped })
    }

    /// Each page of which `written` says so has been stored to, and the others have not since they were last tracked.
    pub fn write(&self, track: Track, written: impl Fn(Gfn) -> bool) {
        let noted = noted_in(track);
        let all = Ept4::WRITE | Ept4::DIRTY | Ept4::ACCESSED;
        self.each_leaf(|gfn, word| Word((word.0 | all) & if written(gfn) { u64::MAX } else { !noted }));
    }

    /// Clears Accessed and Dirty of each page.
    pub fn rest(&self) {
        self.each_leaf(|_, word| Word(word.0 & !(Ept4::DIRTY | Ept4::ACCESSED)));
    }

    fn each_leaf(&self, new: impl Fn(Gfn, Word) -> Word) {
        let mut gfn = self.slot.gfns.start;
        for (_, table) in self.tables.linked() {
            for entry in table {
                let word = entry.load();
                if Ept4::is_present(word) {
                    // SAFETY: the leaf as it was, but for Accessed, Dirty and permission.
                    unsafe { entry.store_raw(new(gfn, word)) };
                }
                gfn = gfn + 1;
            }
        }
    }

    /// Counts the pages whose next store would not be noticed.
    pub fn untracked(&self, track: Track) -> u64 {
        let words = self.tables.linked().flat_map(|(_, table)| table).map(Entry::load);
        words.filter(|&word| Ept4::is_present(word) && word.0 & noted_in(track) != 0).count() as u64
    }
}

/// The bit that a store sets, or needs.
fn noted_in(track: Track) -> u64 {
    match track {
        Track::Writes => Ept4::WRITE,
        Track::DirtyBits => Ept4::DIRTY,
    }
}

/// Does `work` on a thread of its own, on the first CPU. Tying this thread to it would tie those that come later, too.
pub fn on_first_cpu<R: Send>(work: impl FnOnce(&mut Idle) -> Result<R, Error> + Send) -> Result<R, Error> {
    let work = || {
        pin(0);
        work(&mut idle()?)
    };
    thread::scope(|scope| joined(slat_cli::thread::start(scope, work).join()))
}
