//! Memslots of slat and KVM, changed together.
//!
//! **KVM waits for its vCPUs** when memslots change, since a vCPU that sleeps in a fault holds the old version.
//! slat's transactions make faults wait. So KVM must not be called inside a transaction if a vCPU can wait for
//! a fault in that memslot:
//!
//! | change | order | if the second fails |
//! |---|---|---|
//! | created | KVM inside slat's transaction ([`commit_with`](slat::GuestSpace::commit_with)); its window is closed until both have it, so no vCPU sleeps there | nothing has changed |
//! | moved, flags | KVM, then slat; meanwhile pages are found by their old frame numbers | KVM gets the old memslot back |
//! | deleted | KVM, then slat | the same |
//!
//! slat's rules are KVM's. A transaction that is called off checks them first, so the second step fails only
//! for lack of memory.

use crate::{KvmError, KvmVm};
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY, kvm_userspace_memory_region};
use slat::slots::{Change, CommitError, Region, Slot};
use slat::{Gfn, Idle, PAGE_SIZE, Span};

impl KvmVm {
    /// Creates, moves or deletes a memslot, or changes its flags, like `KVM_SET_USER_MEMORY_REGION`, in both
    /// VMs or in neither. [`Region::hva`] is an address in [`space`](Self::space). Guests may run meanwhile;
    /// frames that a memslot loses are unmapped before this returns. Waits for faults in progress.
    ///
    /// # Errors
    /// [`KvmError::Slots`] by KVM's rules. [`KvmError::Kvm`] if KVM itself fails: it lacks memory, or supports
    /// fewer guest addresses.
    pub fn set(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        let _changes = self.changes.lock();
        let id = region.slot;
        match self.outcome(idle, region)? {
            Change::Nothing => Ok(Change::Nothing),
            Change::Created => self.create(idle, region),
            change @ (Change::Deleted(old) | Change::Moved(old) | Change::Flags(old)) => {
                let base = self.view.base(id).expect("each memslot has a window");
                self.tell_kvm(region, base)?;
                if let Err(error) = self.memory().set(idle, region) {
                    self.tell_kvm(old.into(), base)?;
                    return Err(error.into());
                }
                match change {
                    Change::Deleted(_) => self.view.close(id),
                    _ => self.view.move_to(id, self.gfns(idle, old)),
                }
                Ok(change)
            }
        }
    }

    /// Returns what a request would change, without changing it.
    fn outcome(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        match self.memory().commit_with(idle, |tx| tx.set(region), |change| Err::<(), _>(*change)) {
            Ok(change) | Err(CommitError::Refused(change)) => Ok(change),
            Err(CommitError::Slots(error)) => Err(error.into()),
        }
    }

    fn create(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        let id = region.slot;
        let gfns = Span::sized(region.gpa.gfn(), region.bytes / PAGE_SIZE);
        let base = self.view.reserve(id, gfns)?;
        let created = self.memory().commit_with(idle, |tx| tx.set(region), |_| self.tell_kvm(region, base));
        match created {
            Ok(change) => {
                self.view.open(id)?;
                Ok(change)
            }
            Err(error) => {
                self.view.close(id);
                Err(match error {
                    CommitError::Slots(error) => error.into(),
                    CommitError::Refused(error) => error,
                })
            }
        }
    }

    fn gfns(&self, idle: &mut Idle, old: Slot) -> Span<Gfn> {
        self.memory().get(idle, old.id).map_or(old.gfns, |slot| slot.gfns)
    }

    /// Sets KVM's memslot to `region`, at the window's addresses.
    fn tell_kvm(&self, region: Region, base: usize) -> Result<(), KvmError> {
        let log = region.flags & Region::LOG_DIRTY != 0 && self.kvm_log;
        let readonly = region.flags & Region::READONLY != 0;
        let flags =
            if log { KVM_MEM_LOG_DIRTY_PAGES } else { 0 } | if readonly { KVM_MEM_READONLY } else { 0 };
        let told = kvm_userspace_memory_region {
            slot: region.slot.0,
            flags,
            guest_phys_addr: region.gpa.0,
            memory_size: region.bytes,
            userspace_addr: base as u64,
        };
        // SAFETY: the addresses are a window's: guest memory, which this process accesses only through the
        // arena. It is unmapped after KVM's memslot was deleted.
        unsafe { self.kvm.set_user_memory_region(told) }
            .map_err(|error| KvmError::Kvm { id: region.slot, error })
    }

    /// Deletes all of KVM's memslots.
    pub(crate) fn forget_slots(&self) {
        for id in self.view.ids() {
            if let Err(error) = self.tell_kvm(Region::deletion(id), 0) {
                // The window must stay, or KVM could find other memory there.
                self.view.leak(id);
                debug_assert!(false, "{error}");
            }
        }
    }
}
