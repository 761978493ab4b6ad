//! The engine's dirty log, for a [`Source`](crate::Source).

use slat::{DirtyError, DirtyWord, Format, Harvest, Host, Idle, SlotError, SlotId, Vm};

/// The dirty log of a [`Vm`]'s own address space, with its last harvest. Dropping this gives the harvest back.
///
/// Build the VM with [`DirtyLog::initially_set`](slat::DirtyLog::initially_set), or let its slots log from
/// their creation.
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
/// assert_eq!(log.harvest(&mut idle)?.len(), 8, "512 pages, 64 per word");
/// log.commit();
///
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// // Another call continues the migration: only pages stored to since are dirty.
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
    /// Wraps the log of `vm`.
    pub fn new(vm: &'vm Vm<F, H>) -> Self {
        Self { vm, harvest: None }
    }

    /// [`Source::start_log`](crate::Source::start_log). Slots that log already continue.
    pub fn start(
        &mut self,
        idle: &mut Idle,
        slots: impl IntoIterator<Item = SlotId>,
    ) -> Result<(), SlotError> {
        self.vm
            .slots()
            .commit(idle, |tx| slots.into_iter().try_for_each(|id| tx.set_log_dirty(id, true).map(drop)))
    }

    /// [`Source::harvest`](crate::Source::harvest). Gives an uncommitted harvest back first.
    pub fn harvest(&mut self, idle: &mut Idle) -> Result<Vec<DirtyWord>, DirtyError> {
        self.give_back();
        Ok(self.harvest.insert(self.vm.slots().harvest_all(idle)?).words().collect())
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
}
