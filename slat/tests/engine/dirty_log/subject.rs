//! Slat, called as a VMM calls it; its guest walks the tables as the hardware does, setting Accessed and Dirty.

use super::Subject;
use super::model::{IDS, Operation, Reply, Shape};
use crate::common::identity::Identity;
use slat::slots::Region;
use slat::table::{Entry, Kind};
use slat::*;

/// An access of a guest: through the tables if they allow it, otherwise by a fault.
pub fn access<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle, gfn: Gfn, access: Access) {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    while !walks(vm, gfn, access) {
        let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access }).unwrap();
        assert!(
            !matches!(done, Next::Emulate(_) | Next::Leave(_)),
            "{gfn:?} has a slot, and rings are emptied: {done:?}"
        );
    }
}

/// A hardware walk; false if it faults. There is no other thread.
fn walks<F: Format, H: Host>(vm: &Vm<F, H>, gfn: Gfn, access: Access) -> bool {
    let (mut table, mut level) = (vm.memory().root(), F::ROOT_LEVEL);
    loop {
        // SAFETY: a table page of this VM, which is not taken apart meanwhile, and an index inside it.
        let entry = unsafe { vm.tables().at(table).cast::<Entry>().add(F::index(gfn, level)).as_ref() };
        let word = entry.load();
        match word.kind::<F>(level) {
            Kind::Table(below) => {
                let bits = F::touch_link(level);
                // SAFETY: what a walker sets in a link.
                assert!(bits == 0 || unsafe { entry.touch_raw(word, bits) });
                (table, level) = (below, level.down());
            }
            _ if !F::is_present(word) || !F::read_leaf(word).perms.allows(access) => return false,
            _ => {
                let bits = F::touch(access);
                // SAFETY: what a walker sets in a leaf.
                assert!(bits == 0 || unsafe { entry.touch_raw(word, bits) });
                return true;
            }
        }
    }
}

/// Host address of slot 0's first page; each slot's is 1 GiB further.
const HVA: Hva = Hva(0x4000_0000);

fn hva(id: u32, page: u64) -> Hva {
    HVA + (u64::from(id) << 30) + page * PAGE_SIZE
}

/// Slat as a subject. See the module's header.
pub struct Slat<F: Format> {
    shapes: &'static [Shape; 3],
    vm: Vm<F, Identity>,
}

impl<F: Format> Slat<F> {
    pub fn new(host: Identity, shapes: &'static [Shape; 3], log: DirtyLog) -> Self {
        let builder = Vm::builder(host).max_slots(IDS).dirty_log(log);
        Self { shapes, vm: builder.build().unwrap() }
    }

    fn gfn(&self, idle: &mut Idle, id: u32, page: u64) -> Gfn {
        self.vm.memory().get(idle, SlotId(id)).unwrap().gfns.start + page
    }

    fn bytes(&self, id: u32) -> u64 {
        self.shapes[id as usize].pages * PAGE_SIZE
    }

    fn set(&self, idle: &mut Idle, id: u32, place: usize, log: bool) {
        let gpa = Gfn(self.shapes[id as usize].places[place]).gpa();
        let flags = if log { Region::LOG_DIRTY } else { 0 };
        let region = Region { slot: SlotId(id), flags, gpa, bytes: self.bytes(id), hva: hva(id, 0) };
        self.vm.memory().set(idle, region).expect("nothing is in the way");
    }

    /// Returns the pages of a harvest, after checking it against itself; then ends it.
    fn pages_of(shapes: &[Shape; 3], harvest: Harvest<'_, F, Identity>, commit: bool) -> Vec<u64> {
        let pages: Vec<_> = harvest.iter().map(|page| page.page).collect();
        for page in harvest.iter() {
            assert_eq!(page.hva, hva(page.slot.0, page.page));
            assert!(shapes[page.slot.0 as usize].places.contains(&(page.gfn.0 - page.page)), "{page:?}");
        }
        assert_eq!(harvest.pages(), pages.len() as u64);
        assert_eq!(harvest.is_empty(), pages.is_empty());
        let mut by_words = Vec::new();
        for word in harvest.words() {
            assert!(word.first.page.is_multiple_of(64) && word.bits != 0, "{word:?}");
            by_words.extend((0..64).filter(|bit| word.bits >> bit & 1 != 0).map(|bit| word.first.page + bit));
        }
        assert_eq!(by_words, pages);
        if commit {
            harvest.commit();
        } else {
            harvest.give_back();
        }
        pages
    }
}

impl<F: Format> Subject for Slat<F> {
    fn ask(&mut self, idle: &mut Idle, operation: &Operation) -> Result<Reply, i32> {
        let slots = self.vm.memory();
        let errno = |error: DirtyError| error.errno();
        match *operation {
            Operation::Create { id, log } => {
                self.set(idle, id, 0, log);
                Ok(Reply::Done)
            }
            Operation::Delete { id } => {
                slots.set(idle, Region::deletion(SlotId(id))).unwrap();
                Ok(Reply::Done)
            }
            Operation::Move { id, place } => {
                let slot = self.vm.memory().get(idle, SlotId(id)).unwrap();
                self.set(idle, id, place, slot.log_dirty);
                Ok(Reply::Done)
            }
            Operation::Log { id, on } => {
                slots.commit(idle, |tx| tx.set_log_dirty(SlotId(id), on)).unwrap();
                Ok(Reply::Done)
            }
            Operation::Store { id, page } | Operation::Load { id, page } => {
                let gfn = self.gfn(idle, id, page);
                let stores = matches!(operation, Operation::Store { .. });
                access(&self.vm, idle, gfn, if stores { Access::Write } else { Access::Read });
                Ok(Reply::Done)
            }
            Operation::Device { id, page, pages } => {
                // By frames or by host addresses, which is the same here.
                if pages % 2 == 0 {
                    let first = self.gfn(idle, id, page);
                    self.vm.memory().mark_dirty(Span::sized(first, pages));
                } else {
                    let bytes = Span::sized(hva(id, page) + 1, pages * PAGE_SIZE - 1);
                    self.vm.mark_dirty(bytes);
                }
                Ok(Reply::Done)
            }
            Operation::Zap { id } => {
                let bytes = Span::sized(hva(id, 0), self.bytes(id));
                drop(self.vm.invalidate(bytes, Reason::Clear).apply(idle).settle());
                Ok(Reply::Done)
            }
            Operation::Harvest { id, commit } => slots
                .harvest(idle, SlotId(id))
                .map(|harvest| Reply::Pages(Self::pages_of(self.shapes, harvest, commit)))
                .map_err(errno),
            Operation::HarvestAll { commit } => slots
                .harvest_all(idle)
                .map(|harvest| Reply::Pages(Self::pages_of(self.shapes, harvest, commit)))
                .map_err(errno),
            Operation::Get { id } => {
                let pages = self.shapes.get(id as usize).map_or(0, |shape| shape.pages);
                let mut bits = vec![u64::MAX; pages.div_ceil(64) as usize];
                slots.dirty_bits(idle, SlotId(id), &mut bits).map_err(errno).map(|set| {
                    let pages: Vec<_> = (0..bits.len() as u64 * 64)
                        .filter(|page| bits[(page / 64) as usize] >> (page % 64) & 1 != 0)
                        .collect();
                    assert_eq!(set, pages.len() as u64);
                    Reply::Pages(pages)
                })
            }
            Operation::Clear { id, first, pages, ref bits } => {
                slots.clear_dirty(idle, SlotId(id), first, pages, bits).map(Reply::Cleared).map_err(errno)
            }
        }
    }
}
