//! The engine's dirty log, as a [`Source`](crate::Source) wants it.

use slat::{DirtyError, DirtyWord, Format, Harvest, Host, Idle, SlotError, SlotId, Vm};

/// The dirty log of a [`Vm`]'s own address space, and what was harvested from it last. Dropped, it gives that back.
///
/// Build the VM with [`DirtyLog::initially_set`](slat::DirtyLog::initially_set), or have its slots log from the start.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # use slat_migrate::VmLog;
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(DirtyLog::bitmap().initially_set()).build()?;
/// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut log = VmLog::new(&vm);
/// log.start(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?.len(), 8, "512 pages, by 64");
/// log.commit();
///
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// // The migration goes on, by another call: what was stored since is dirty, and no more.
/// log.start(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?[0].bits, 1 << 5);
/// log.give_back();
/// assert_eq!(log.harvest(&mut idle)?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VmLog<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    harvest: Option<Harvest<'vm, F, H>>,
}

impl<'vm, F: Format, H: Host> VmLog<'vm, F, H> {
    /// The log of `vm`.
    pub fn new(vm: &'vm Vm<F, H>) -> Self {
        Self { vm, harvest: None }
    }

    /// See [`Source::start_log`](crate::Source::start_log). Slots that log already go on.
    pub fn start(
        &mut self,
        idle: &mut Idle,
        slots: impl IntoIterator<Item = SlotId>,
    ) -> Result<(), SlotError> {
        self.vm
            .slots()
            .commit(idle, |tx| slots.into_iter().try_for_each(|id| tx.set_log_dirty(id, true).map(drop)))
    }

    /// See [`Source::harvest`](crate::Source::harvest). What was harvested before and not committed is given back first.
    pub fn harvest(&mut self, idle: &mut Idle) -> Result<Vec<DirtyWord>, DirtyError> {
        self.give_back();
        Ok(self.harvest.insert(self.vm.slots().harvest_all(idle)?).words().collect())
    }

    /// See [`Source::commit`](crate::Source::commit).
    pub fn commit(&mut self) {
        if let Some(harvest) = self.harvest.take() {
            harvest.commit();
        }
    }

    /// See [`Source::give_back`](crate::Source::give_back).
    pub fn give_back(&mut self) {
        self.harvest = None;
    }
}
