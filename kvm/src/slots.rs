//! Memslots of slat's and of KVM's, changed together.
//!
//! **KVM waits for its vCPUs** when memslots change: a vCPU that sleeps in a fault holds the old version. slat's transactions make
//! faults wait for them. So KVM must not be asked within a transaction where a vCPU can wait for a fault of that memslot:
//!
//! | change | order | where the second fails |
//! |---|---|---|
//! | created | KVM within slat's transaction ([`commit_with`](slat::memslots::Memslots::commit_with)); its window is closed until both have it, so no vCPU sleeps there | nothing has changed |
//! | moved, flags | KVM, then slat; meanwhile pages come by the old frames' numbers | KVM gets the old memslot back |
//! | deleted | KVM, then slat | the same |
//!
//! slat's rules are KVM's, and are asked first by a transaction that is called off. So the second fails where memory is out.

use crate::{KvmError, KvmVm};
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY, kvm_userspace_memory_region};
use slat::slots::{Change, CommitError, Region, Slot};
use slat::{Gfn, Idle, PAGE_SIZE, Span};

impl KvmVm {
    /// Creates, moves or deletes a memslot, or changes its flags, as `KVM_SET_USER_MEMORY_REGION` does, in both VMs or in neither.
    /// [`Region::hva`] is an address of [`space`](Self::space)'s. Guests may run meanwhile; what a memslot loses they
    /// lose before this returns. Waits for faults that are under way.
    ///
    /// # Errors
    /// [`KvmError::Slots`] by KVM's rules. [`KvmError::Kvm`] where KVM refuses all the same: it has no memory, or knows fewer
    /// guest addresses.
    pub fn set(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        let _changes = self.changes.lock();
        let id = region.slot;
        match self.outcome(idle, region)? {
            Change::Nothing => Ok(Change::Nothing),
            Change::Created => self.create(idle, region),
            change @ (Change::Deleted(old) | Change::Moved(old) | Change::Flags(old)) => {
                let base = self.view.base(id).expect("each memslot has a window");
                self.tell_kvm(region, base)?;
                if let Err(error) = self.slots().set(idle, region) {
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

    /// What a request amounts to, without making it.
    fn outcome(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        match self.slots().commit_with(idle, |tx| tx.set(region), |change| Err::<(), _>(*change)) {
            Ok(change) | Err(CommitError::Refused(change)) => Ok(change),
            Err(CommitError::Slots(error)) => Err(error.into()),
        }
    }

    fn create(&self, idle: &mut Idle, region: Region) -> Result<Change, KvmError> {
        let id = region.slot;
        let gfns = Span::sized(region.gpa.gfn(), region.bytes / PAGE_SIZE);
        let base = self.view.reserve(id, gfns)?;
        let created = self.slots().commit_with(idle, |tx| tx.set(region), |_| self.tell_kvm(region, base));
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
        self.slots().get(idle, old.id).map_or(old.gfns, |slot| slot.gfns)
    }

    /// KVM's memslot is `region`, at the window's addresses.
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
        // SAFETY: the addresses are a window's: memory of the guest's, which this process uses by the arena alone. It is
        // unmapped after KVM's memslot has gone.
        unsafe { self.kvm.set_user_memory_region(told) }
            .map_err(|error| KvmError::Kvm { id: region.slot, error })
    }

    /// KVM has no memslots any more.
    pub(crate) fn forget_slots(&self) {
        for id in self.view.ids() {
            if let Err(error) = self.tell_kvm(Region::deletion(id), 0) {
                // Its window must stay, or KVM would find other memory there.
                self.view.leak(id);
                debug_assert!(false, "{error}");
            }
        }
    }
}
