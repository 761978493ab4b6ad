//! The memslots of a running VM: transactions concurrent with faults, and snapshots.
//!
//! ```text
//! lock the transaction mutex
//!   operations on the next version       an error ends here: nothing is published; undoing allocates nothing
//!   begin an invalidation of the gfns that change     faults there wait; none takes them for MMIO
//!     the embedder's own operation     an error ends here and cancels the invalidation
//!     zap what slots lose, and flush once             only these ranges, never the whole VM
//!     publish the next version
//!     something was taken from readers?               wait for a grace period
//!   end                                               faults continue, and see the next version
//!   a log was switched on?                            split its large pages, arm it, and flush once; also if the
//!                                                     host panics while they are split
//!   a log was switched off?                           recover large pages in place
//! ```
//! Notifiers see the old slots until nothing is mapped through them any more, as in KVM's invalid phase. KVM's
//! publication waits for open invalidations, because an invalidation must end with the slots that it began with. Here
//! an invalidation publishes host addresses, and a fault compares its own address with them, through whichever slots it
//! found it. No transaction waits for another thread's invalidation. A transaction inside an invalidation does not
//! deadlock, in any number of threads: the active set grows for the invalidation that it begins (see [`Vm::invalidate`](crate::Vm::invalidate)
//! for the limit).
//!
//! A transaction waits for vCPUs and readers, so it takes `&mut Idle`. No invalidation and no walk takes its mutex.
//!
//! **Why the grace period comes before the end**: an invalidation k may have looked up the old slots. After the end,
//! other pages may be mapped at those frames, and k would zap them under an old number.

use crate::notify::begun::{Begun, Range, Scope};
use crate::oracle;
use crate::slots::{Change, Transaction};
use crate::trace::TraceEvent;
use crate::{
    CommitError, Format, Gfn, GuestSpace, Host, Idle, Reason, Region, Slot, SlotError, SlotId, Span,
};
use core::convert::Infallible;
use core::marker::PhantomData;

mod generation;
mod snapshot;

pub use generation::Generation;
pub use snapshot::Snapshot;

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Runs `operations` and publishes their result atomically. After an error of `operations` or of this function,
    /// nothing is published.
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, slots::Rule, table::formats::Npt4};
    /// # struct Nothing;
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// let low = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000));
    /// let high = Slot::new(SlotId(1), Gfn(0x10_0000), 512, Hva(0x7000_0000)); // an alias: fine
    /// vm.memory().commit(&mut idle, |tx| {
    ///     tx.create(low)?;
    ///     tx.create(high)
    /// })?;
    ///
    /// // The two slots change places: no vCPU ever sees one of them missing.
    /// vm.memory().commit(&mut idle, |tx| {
    ///     tx.move_to(SlotId(0), Gfn(0x20_0000))?;
    ///     tx.move_to(SlotId(1), Gfn(0))?;
    ///     tx.move_to(SlotId(0), Gfn(0x10_0000))
    /// })?;
    /// assert_eq!(vm.memory().find(&mut idle, Gfn(3)).unwrap().id, SlotId(1));
    ///
    /// let refused = vm.memory().commit(&mut idle, |tx| {
    ///     tx.delete(SlotId(1))?;
    ///     tx.create(Slot::new(SlotId(2), Gfn(0x10_01ff), 1, Hva(0)))
    /// });
    /// let error = refused.unwrap_err();
    /// assert_eq!(error.to_string(), "memslot 2 at 0x1001ff000..0x100200000: it overlaps memslot 0 at 0x100000000..0x100200000");
    /// assert_eq!(error.errno(), 17, "EEXIST");
    /// assert!(vm.memory().get(&mut idle, SlotId(1)).is_some(), "nothing half-done");
    /// # Ok::<(), SlotError>(())
    /// ```
    pub fn commit<R>(
        &self,
        idle: &mut Idle,
        operations: impl FnOnce(&mut Transaction<'_>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        Ok(self.commit_with(idle, operations, |_| Ok::<_, Infallible>(()))?)
    }

    /// Commits together with an operation of the embedder that may fail, for example a system call that gives the same
    /// slots to another MMU, as `KVM_SET_USER_MEMORY_REGION` does. `confirm` is called once with the result of the slot
    /// operations, after all of them have succeeded. If it refuses, neither the slots nor the mappings have changed.
    /// After it, nothing can fail.
    ///
    /// From before `confirm` until the new version is published, faults through the changing slots wait. They map
    /// nothing that the other MMU has already lost. A frame that gets its first slot is MMIO until the publication; if
    /// the other MMU shows it earlier, the vCPU faults again. `confirm` may sleep. It must not wait for a vCPU of this
    /// VM, nor commit a transaction of this address space (it has no `Idle`, so it cannot).
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, slots::CommitError, table::formats::Npt4};
    /// # struct Nothing;
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// # fn kvm_set_user_memory_region(slot: Slot) -> Result<(), i32> { if slot.id.0 < 4 { Ok(()) } else { Err(22) } }
    /// let give = |idle: &mut Idle, slot: Slot| {
    ///     vm.memory().commit_with(idle, |tx| tx.create(slot), |()| kvm_set_user_memory_region(slot))
    /// };
    /// give(&mut idle, Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000)))?;
    /// let refused = give(&mut idle, Slot::new(SlotId(4), Gfn(512), 512, Hva(0x7020_0000)));
    /// assert_eq!(refused, Err(CommitError::Refused(22)));
    /// assert_eq!(vm.memory().len(), 1);
    /// # Ok::<(), CommitError<i32>>(())
    /// ```
    pub fn commit_with<R, E>(
        &self,
        idle: &mut Idle,
        operations: impl FnOnce(&mut Transaction<'_>) -> Result<R, SlotError>,
        confirm: impl FnOnce(&R) -> Result<(), E>,
    ) -> Result<R, CommitError<E>> {
        let vm = self.vm;
        let _changed = oracle::harvesting(&vm.host, true);
        let sets = &self.space.memslots;
        let mut writer = sets.writer.lock();
        // Before the operations, which can then use the nodes that a wait frees.
        writer.make_room(sets, &vm.reads);
        let mut tx = writer.map.begin();
        let result = operations(&mut tx)?;
        tx.check()?;
        if tx.effects().changed.is_empty() {
            confirm(&result).map_err(CommitError::Refused)?;
            return Ok(result);
        }
        let mut change = Begun::begin(vm, Range::Gfns(self.space.id, tx.effects().changed), Reason::Slot);
        // If it refuses, dropping `change` cancels the invalidation.
        confirm(&result).map_err(CommitError::Refused)?;
        change.edit(idle, &Scope::Parts(&tx.effects().zap), None);
        change.settle(true);
        let (set, leftovers, effects) = tx.finish();
        // SAFETY: the transaction mutex is held, and `make_room` made room.
        unsafe { sets.publish(set, change.ticket.version(), effects.takes) };
        writer.keep(leftovers);
        let takes = effects.takes;
        if takes {
            // Before the end: a host's invalidation that looked up the old slots may still zap frames under an old
            // number, and these frames may hold other pages after the end. One grace period serves slots and tables.
            let taken = vm.grace.take_flushed();
            writer.wait(sets, &vm.reads);
            if let Some(taken) = taken {
                vm.grace.mark_dead(taken);
            }
        }
        drop(change);

        // Readers see the logs: nothing may leave this function before they are armed. A panic in here does not.
        if !writer.map.logs_set() {
            vm.begin_logs(idle, self.space, &effects.log);
        }
        let ended = writer.map.done(effects);
        drop(writer);
        // The version is published, and all that it needs is done: events, and work that only saves time.
        if takes {
            vm.host.observe(TraceEvent::GracePeriod);
        }
        for gfns in ended {
            self.recover(idle, gfns);
        }
        if takes {
            // Only a few: this thread need not wait for the tables of a large slot, or of another thread.
            vm.dead_tables().take_some_apart();
        }
        Ok(result)
    }

    /// Makes one request in KVM's form: [`Transaction::set`] in a transaction of its own.
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, slots::{Change, Region}, table::formats::Npt4};
    /// # struct Nothing;
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// let ram = Region { slot: SlotId(0), flags: 0, gpa: Gpa(0), bytes: 2 << 20, hva: Hva(0x7000_0000) };
    /// assert_eq!(vm.memory().set(&mut idle, ram)?, Change::Created);
    /// assert_eq!(vm.memory().set(&mut idle, ram)?, Change::Nothing);
    /// let moved = Region { gpa: Gpa(0x1000), flags: Region::LOG_DIRTY, ..ram };
    /// assert!(matches!(vm.memory().set(&mut idle, moved)?, Change::Moved(_)));
    /// let grown = Region { bytes: 4 << 20, ..moved };
    /// assert_eq!(vm.memory().set(&mut idle, grown).unwrap_err().errno(), 22, "EINVAL");
    /// # Ok::<(), SlotError>(())
    /// ```
    pub fn set(&self, idle: &mut Idle, region: Region) -> Result<Change, SlotError> {
        self.commit(idle, |tx| tx.set(region))
    }

    /// Makes frames private or shared. Each must be in a slot that was [created with private
    /// memory](Transaction::create_with_private). Frames that already are of that kind keep their mappings. The others
    /// lose them by one flush, and then fault in memory of the new kind; a large page that changes only in part is
    /// split. Nothing is copied, and both memories keep their contents. No fault in flight maps memory of the old kind
    /// afterwards, and no large page spans both kinds. (`KVM_SET_MEMORY_ATTRIBUTES`; there the attribute belongs to the
    /// VM, here to the slot.)
    ///
    /// Waits for vCPUs in the guest and for readers, as every transaction that takes something away does.
    /// [`Vcpu::fault_as`](crate::Vcpu::fault_as) has an example.
    pub fn set_private(&self, idle: &mut Idle, gfns: Span<Gfn>, private: bool) -> Result<(), SlotError> {
        self.commit(idle, |tx| tx.set_private(gfns, private))
    }

    /// Holds one version of the slots. Transactions that take something away wait until it is dropped; of transactions
    /// that only create, one in sixteen waits. The borrow of `idle` prevents this thread from starting one.
    pub fn snapshot<'s>(&'s self, idle: &'s mut Idle) -> Snapshot<'s> {
        let seat = self.vm.borrow_seat(idle);
        let reading = self.space.memslots.read(&self.vm.reads, seat.for_owner());
        let generation = self.number(reading.number());
        Snapshot { reading, generation, _seat: seat, _idle: PhantomData }
    }

    /// The slot that contains `gfn`. In a slot with private memory: the part around `gfn` that is all private or all
    /// shared.
    pub fn find(&self, idle: &mut Idle, gfn: Gfn) -> Option<Slot> {
        self.snapshot(idle).find(gfn)
    }

    /// The slot with the given id.
    pub fn get(&self, idle: &mut Idle, id: SlotId) -> Option<Slot> {
        self.snapshot(idle).get(id)
    }

    /// Visits every slot of one version in order of guest frames. Slots with private memory come in parts.
    pub fn for_each(&self, idle: &mut Idle, visit: impl FnMut(Slot)) {
        self.snapshot(idle).iter().for_each(visit);
    }

    /// Number of slots in the published version.
    pub fn len(&self) -> usize {
        let seat = self.vm.borrow_seat_without_idle();
        self.space.memslots.read(&self.vm.reads, &seat).version().len()
    }

    /// Whether the published version has no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the published version. One load.
    pub fn generation(&self) -> Generation {
        let (number, in_progress) = self.space.memslots.progress();
        let Generation(number) = self.number(number);
        Generation(number | if in_progress { Generation::IN_PROGRESS } else { 0 })
    }

    fn number(&self, version: u64) -> Generation {
        Generation(version * self.vm.spaces.len() as u64 + u64::from(self.space.id.0))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
