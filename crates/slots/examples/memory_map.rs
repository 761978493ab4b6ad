//! Guest memory of a VMM: hotplug beside devices that look addresses up, each in its own snapshot.
//!
//! `GuestMemory` has the shape of vm-memory's `GuestAddressSpace`: a handle that can be cloned, whose
//! `memory()` returns one version.

use slat_slots::{Gfn, Gpa, Hva, Limits, PAGE_SHIFT, SharedSlots, Slot, SlotError, SlotId, Snapshot};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;

/// The devices' handle.
#[derive(Clone)]
struct GuestMemory(Arc<RwLock<Snapshot>>);

impl GuestMemory {
    fn memory(&self) -> Snapshot {
        self.0.read().unwrap().clone()
    }
}

/// The owner's side: only this part changes the slots.
struct MemoryManager {
    slots: Mutex<SharedSlots>,
    devices: GuestMemory,
}

impl MemoryManager {
    fn new(limits: Limits) -> Self {
        let slots = SharedSlots::new(limits);
        let devices = GuestMemory(Arc::new(RwLock::new(slots.snapshot())));
        Self { slots: Mutex::new(slots), devices }
    }

    /// Adds all of `slots` at once, or none.
    fn plug(&self, slots: &[Slot]) -> Result<(), SlotError> {
        let mut owner = self.slots.lock().unwrap();
        owner.commit(|tx| slots.iter().try_for_each(|&slot| tx.create(slot)))?;
        // Here a VMM makes the same changes in KVM, before devices see them.
        *self.devices.0.write().unwrap() = owner.snapshot();
        Ok(())
    }
}

/// Returns the host address of guest address `gpa`.
fn host_address(memory: &Snapshot, gpa: Gpa) -> Option<Hva> {
    let slot = memory.find(gpa.gfn())?;
    Some(slot.hva_of(gpa.gfn()) + gpa.offset())
}

fn main() -> Result<(), SlotError> {
    let manager = MemoryManager::new(Limits::default());
    let dimm = |id: u32| {
        Slot::new(SlotId(id), Gfn(u64::from(id) << 15), 1 << 15, Hva((u64::from(id) << 27) + (1 << 40)))
    };
    manager.plug(&[dimm(0), dimm(1)])?;

    let devices: Vec<_> = (0..4)
        .map(|_| {
            let guest = manager.devices.clone();
            thread::spawn(move || {
                (0..10_000)
                    .filter(|at| host_address(&guest.memory(), Gpa(at << PAGE_SHIFT)).is_some())
                    .count()
            })
        })
        .collect();
    for id in 2..100 {
        manager.plug(&[dimm(id)])?;
    }
    let found: usize = devices.into_iter().map(|device| device.join().unwrap()).sum();
    assert_eq!(found, 4 * 10_000, "every version has the first two modules");

    let refused = manager.plug(&[dimm(200), Slot::new(SlotId(201), Gfn(5), 1, Hva(0))]).unwrap_err();
    assert_eq!(manager.devices.memory().len(), 100, "neither of them");
    println!("{} slots; refused: {refused}", manager.devices.memory().len());
    Ok(())
}
