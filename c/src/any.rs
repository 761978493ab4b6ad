//! A VM of whatever format, and what it gives, as trait objects: one implementation each, for every format.

use crate::host::{CHost, CTlb};
use crate::slat_status::SLAT_EINVAL;
use crate::types::{SLAT_VM_DIRTY_BITS, SLAT_VM_DIRTY_INITIALLY_SET, SLAT_VM_NX_HUGE_PAGES};
use crate::{slat_config, slat_format, slat_host, slat_status};
use alloc::boxed::Box;
use slat::slots::Transaction;
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat::{
    Again, DirtyError, DirtyLog, DirtyWord, Done, Fault, FaultError, Format, Gfn, Harvest, HostPage, Hva,
    Idle, InGuest, Invalidation, Level, Mapping, SecondaryMmu, Slot, SlotError, SlotId, Span, Stats, Track,
    Vcpu, VcpuId, Vm, Why,
};

/// What a transaction does.
pub(crate) type Operations<'o> = dyn FnMut(&mut Transaction<'_>) -> Result<(), SlotError> + 'o;

/// A VM: what it says of aging is [`SecondaryMmu`]'s.
pub(crate) trait AnyVm: SecondaryMmu {
    fn commit(&self, idle: &mut Idle, operations: &mut Operations<'_>) -> Result<(), SlotError>;
    fn find(&self, idle: &mut Idle, gfn: Gfn) -> Option<Slot>;
    fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping>;
    fn stats(&self) -> Stats;
    fn host(&self) -> &CHost;
    fn mark_dirty(&self, hvas: Span<Hva>);
    fn vcpu(&self, id: VcpuId) -> Option<Box<dyn AnyVcpu + '_>>;
    fn invalidate(&self, hvas: Span<Hva>, why: Why) -> Result<Box<dyn AnyChange + '_>, Again>;
    fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Box<dyn AnyHarvest + '_>, DirtyError>;
}

/// A vCPU.
pub(crate) trait AnyVcpu: Send {
    fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Done, FaultError>;
    fn enter<'a>(&'a mut self, idle: &'a mut Idle, tlb: &mut CTlb) -> InGuest<'a>;
}

/// An invalidation. Debts are settled at once.
pub(crate) trait AnyChange: Send {
    fn apply(&mut self, idle: &mut Idle);
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>);
}

/// A harvest, of one slot.
pub(crate) trait AnyHarvest: Send + Sync {
    fn pages(&self) -> u64;
    fn words(&self) -> Box<dyn Iterator<Item = DirtyWord> + '_>;
    fn commit(self: Box<Self>);
}

impl<F: Format> AnyVm for Vm<F, CHost> {
    fn commit(&self, idle: &mut Idle, operations: &mut Operations<'_>) -> Result<(), SlotError> {
        self.slots().commit(idle, operations)
    }

    fn find(&self, idle: &mut Idle, gfn: Gfn) -> Option<Slot> {
        self.slots().find(idle, gfn)
    }

    fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.translate(idle, gfn)
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn host(&self) -> &CHost {
        self.host()
    }

    fn mark_dirty(&self, hvas: Span<Hva>) {
        self.mark_dirty(hvas);
    }

    fn vcpu(&self, id: VcpuId) -> Option<Box<dyn AnyVcpu + '_>> {
        Some(Box::new(self.vcpu(id)?))
    }

    fn invalidate(&self, hvas: Span<Hva>, why: Why) -> Result<Box<dyn AnyChange + '_>, Again> {
        Ok(Box::new(self.try_invalidate(hvas, why)?))
    }

    fn harvest(&self, idle: &mut Idle, id: SlotId) -> Result<Box<dyn AnyHarvest + '_>, DirtyError> {
        Ok(Box::new(self.slots().harvest(idle, id)?))
    }
}

impl<F: Format> AnyVcpu for Vcpu<'_, F, CHost> {
    fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Done, FaultError> {
        self.fault(idle, fault)
    }

    fn enter<'a>(&'a mut self, idle: &'a mut Idle, tlb: &mut CTlb) -> InGuest<'a> {
        self.enter(idle, tlb).poll()
    }
}

impl<F: Format> AnyChange for Invalidation<'_, F, CHost> {
    fn apply(&mut self, idle: &mut Idle) {
        self.apply(idle).settle();
    }

    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.changed(idle, hvas, to).settle();
    }
}

impl<F: Format> AnyHarvest for Harvest<'_, F, CHost> {
    fn pages(&self) -> u64 {
        self.pages()
    }

    fn words(&self) -> Box<dyn Iterator<Item = DirtyWord> + '_> {
        Box::new(self.words())
    }

    fn commit(self: Box<Self>) {
        Harvest::commit(*self);
    }
}

/// Builds a VM of the format that `config` names.
pub(crate) fn build(config: &slat_config, host: &slat_host) -> Result<Box<dyn AnyVm>, slat_status> {
    type Build = fn(&slat_config, &slat_host) -> Result<Box<dyn AnyVm>, slat_status>;
    use slat_format as Name;
    let all: [(Name, Build); 14] = [
        (Name::SLAT_EPT4, build_as::<Ept4>),
        (Name::SLAT_EPT5, build_as::<Ept5>),
        (Name::SLAT_EPT4_NO_AD, build_as::<Ept4NoAd>),
        (Name::SLAT_NPT4, build_as::<Npt4>),
        (Name::SLAT_NPT5, build_as::<Npt5>),
        (Name::SLAT_PAE, build_as::<Pae>),
        (Name::SLAT_ARM64_39, build_as::<Arm64L39>),
        (Name::SLAT_ARM64_40, build_as::<Arm64L40>),
        (Name::SLAT_ARM64_48, build_as::<Arm64L48>),
        (Name::SLAT_ARM64_48_NO_AD, build_as::<Arm64NoAd>),
        (Name::SLAT_SV39X4, build_as::<Sv39x4>),
        (Name::SLAT_SV48X4, build_as::<Sv48x4>),
        (Name::SLAT_SV57X4, build_as::<Sv57x4>),
        (Name::SLAT_SV39X4_NO_AD, build_as::<Sv39x4NoAd>),
    ];
    let found = all.into_iter().find(|(name, _)| *name as u32 == config.format);
    found.ok_or(SLAT_EINVAL)?.1(config, host)
}

fn build_as<F: Format>(config: &slat_config, host: &slat_host) -> Result<Box<dyn AnyVm>, slat_status> {
    let known = SLAT_VM_DIRTY_BITS | SLAT_VM_DIRTY_INITIALLY_SET | SLAT_VM_NX_HUGE_PAGES;
    let is_sound = config.size == size_of::<slat_config>() && config.flags & !known == 0;
    if !is_sound || config.vcpus > 1 << 16 || config.max_level > 3 {
        return Err(SLAT_EINVAL);
    }
    let host = CHost::new(host, F::ADDRESS).ok_or(SLAT_EINVAL)?;
    let has = |flag| config.flags & flag != 0;
    let mut log = DirtyLog::bitmap();
    if has(SLAT_VM_DIRTY_BITS) {
        log = log.track(Track::DirtyBits);
    }
    if has(SLAT_VM_DIRTY_INITIALLY_SET) {
        log = log.initially_set();
    }
    let mut builder = Vm::<F, _>::builder(host).vcpus(config.vcpus.max(1)).dirty_log(log);
    builder = builder.nx_huge_pages(has(SLAT_VM_NX_HUGE_PAGES));
    if let Some(level) = Level::new(config.max_level as u8) {
        builder = builder.max_page(level);
    }
    if config.address_bits != 0 {
        builder = builder.address_bits(config.address_bits);
    }
    if config.max_slots != 0 {
        builder = builder.max_slots(config.max_slots);
    }
    if config.table_budget != 0 {
        builder = builder.table_budget(config.table_budget);
    }
    Ok(Box::new(builder.build()?))
}
