//! The engine's dirty log, for a [`Source`](crate::Source).

use crate::identity::Session;
use slat::{DirtyError, DirtyWord, Format, Harvest, Host, Idle, LogState, SlotError, SlotId, Vm};
use std::collections::BTreeMap;

/// The dirty logs of some slots of a [`Vm`]'s own address space, with their last harvest and their [`Session`]. Dropping
/// this gives the harvest back, and forgets the receiver: another log begins anew. Keep it to continue a migration.
///
/// Harvests only the slots that were given to [`mark_all`](Self::mark_all) or [`watch`](Self::watch). The logs of other
/// slots stay as they are.
///
/// **Must be the only one that takes marks of these logs.** It notices if it is not: if another `VmLog`, another harvest, a
/// ring's harvest or [`clear_dirty`](slat::GuestSpace::clear_dirty) has taken from one of them, even if the pages were given
/// back; or if a log was switched off, also if the slot has another log since, or was deleted and created again. Between
/// two calls of [`PreCopy::send`](crate::PreCopy::send) it then forgets the receiver, so that the migration begins anew.
/// During a call, the harvest fails with [`LogError::Lost`] or [`LogError::Dirty`], and the next call begins anew. Looking
/// ([`dirty_bits`](slat::GuestSpace::dirty_bits)) takes nothing.
///
/// Slots may move meanwhile: [`PreCopy`](crate::PreCopy) sends pages by slot and page number. Read them by
/// [`hva`](slat::DirtyPage::hva) then, not by guest frame.
///
/// `Identity` is one of the [hosts of the examples](slat::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # use slat_migrate::VmLog;
/// # struct Identity;
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut log = VmLog::new(&vm);
/// log.mark_all(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?.len(), 8, "512 pages, 64 per word");
/// log.commit();
///
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// // Only pages stored to since are dirty.
/// assert_eq!(log.harvest(&mut idle)?[0].bits, 1 << 5);
/// log.give_back();
/// assert_eq!(log.harvest(&mut idle)?.len(), 1);
/// log.commit();
///
/// // Another migration begins with every page.
/// log.mark_all(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VmLog<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    /// Each harvested slot, with the state of its log right after the last harvest, or before all was marked.
    logs: BTreeMap<SlotId, LogState>,
    harvest: Option<Harvest<'vm, F, H>>,
    session: Session,
}

/// Why a call of [`VmLog`] failed. The migration must begin anew: with [`VmLog::mark_all`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A change of the memslots failed.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The log of a slot failed, for example since the slot does not log any more.
    #[error(transparent)]
    Dirty(#[from] DirtyError),
    /// Marks of this slot may be lost: another harvester takes from its log, or it has another log since.
    #[error("memslot {0}: its log was replaced, or another harvester took from it")]
    Lost(SlotId),
    /// A harvest before any slot was given to [`VmLog::mark_all`] or [`VmLog::watch`].
    #[error("no memslot was given to harvest")]
    NoSlots,
}

/// Words that are marked in one call: 128 MiB.
const WORDS: usize = 512;

impl<'vm, F: Format, H: Host> VmLog<'vm, F, H> {
    /// Wraps the log of `vm`.
    pub fn new(vm: &'vm Vm<F, H>) -> Self {
        Self { vm, logs: BTreeMap::new(), harvest: None, session: Session::new() }
    }

    /// [`Source::session`](crate::Source::session). Forgets the receiver if marks may be lost.
    pub fn session(&mut self) -> &mut Session {
        if self.session.identity().is_some() && self.intact().is_err() {
            self.session.forget();
        }
        &mut self.session
    }

    /// [`Source::mark_all`](crate::Source::mark_all): these slots, and no others, log from here on, and each of their pages
    /// is dirty. With [`DirtyLog::initially_set`](slat::DirtyLog::initially_set), this write-protects nothing at once.
    pub fn mark_all(
        &mut self,
        idle: &mut Idle,
        slots: impl IntoIterator<Item = SlotId>,
    ) -> Result<(), LogError> {
        self.give_back();
        // After an error, nothing is harvested.
        self.logs.clear();
        let (slots, ids): (_, Vec<SlotId>) = (self.vm.memory(), slots.into_iter().collect());
        slots.commit(idle, |tx| ids.iter().try_for_each(|&id| tx.set_log_dirty(id, true).map(drop)))?;
        let mut logs = BTreeMap::new();
        for id in ids {
            let before = slots.log_state(id)?;
            let len = slots.snapshot(idle).get(id).ok_or(DirtyError::NoSuchSlot(id))?.gfns.len();
            // By page of the slot, wherever it is: slots move.
            for first in (0..len).step_by(WORDS * 64) {
                let words = (len - first).div_ceil(64).min(WORDS as u64) as usize;
                slots.mark_dirty_bits(id, first, &[u64::MAX; WORDS][..words])?;
            }
            // The same log all the while, from which nothing was taken.
            if slots.log_state(id)?.takings_since(before) != Some(0) {
                return Err(LogError::Lost(id));
            }
            logs.insert(id, before);
        }
        self.logs = logs;
        Ok(())
    }

    /// Harvests these slots too, whose logs stay as they are: pages that were never marked are not sent. Each slot must log.
    /// Instead of [`mark_all`](Self::mark_all) for memory that was logged since it was created, and from whose log nothing
    /// was taken. Slots that are harvested already are left alone.
    ///
    /// `Identity` is one of the [hosts of the examples](slat::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use slat_migrate::VmLog;
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// let plugged = Slot::new(SlotId(1), Gfn(512), 64, Hva(1 << 30)).log_dirty();
    /// vm.memory().commit(&mut idle, |tx| tx.create(plugged))?;
    /// let mut log = VmLog::new(&vm);
    /// log.watch([SlotId(1)])?;
    /// vm.memory().mark_dirty(Span::new(Gfn(512), Gfn(515)));
    /// assert_eq!(log.harvest(&mut idle)?[0].bits, 0b111);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&mut self, slots: impl IntoIterator<Item = SlotId>) -> Result<(), LogError> {
        for id in slots {
            if !self.logs.contains_key(&id) {
                self.logs.insert(id, self.vm.memory().log_state(id)?);
            }
        }
        Ok(())
    }

    /// [`Source::harvest`](crate::Source::harvest). Gives an uncommitted harvest back first. After an error, begin anew with
    /// [`mark_all`](Self::mark_all).
    pub fn harvest(&mut self, idle: &mut Idle) -> Result<Vec<DirtyWord>, LogError> {
        self.give_back();
        if self.logs.is_empty() {
            return Err(LogError::NoSlots);
        }
        self.intact()?;
        let slots = self.vm.memory();
        let harvest = slots.harvest_slots(idle, self.logs.keys().copied())?;
        let mut logs = BTreeMap::new();
        for (&id, before) in &self.logs {
            let now = slots.log_state(id)?;
            // This harvest, and no other beside it.
            if now.takings_since(*before) != Some(1) {
                return Err(LogError::Lost(id));
            }
            logs.insert(id, now);
        }
        self.logs = logs;
        Ok(self.harvest.insert(harvest).words().collect())
    }

    /// [`Source::commit`](crate::Source::commit).
    pub fn commit(&mut self) {
        if let Some(harvest) = self.harvest.take() {
            harvest.commit();
        }
    }

    /// [`Source::give_back`](crate::Source::give_back).
    pub fn give_back(&mut self) {
        self.harvest = None;
    }

    /// Whether each log is the one that was harvested last, and nothing was taken from it since.
    fn intact(&self) -> Result<(), LogError> {
        for (&id, then) in &self.logs {
            if self.vm.memory().log_state(id)?.takings_since(*then) != Some(0) {
                return Err(LogError::Lost(id));
            }
        }
        Ok(())
    }
}
