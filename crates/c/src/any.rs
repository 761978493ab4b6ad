//! A VM of any format, and its vCPUs, invalidations and harvests, as trait objects. Each trait has one implementation,
//! generic over the format.

use crate::any_hold::{AnyHold, Holding};
use crate::any_memory::AnyMemory;
use crate::c_host::{CHost, CTlb};
use crate::slat_status::{SLAT_EINVAL, SLAT_ENOENT};
use crate::types::{DIRTY_FLAGS, SLAT_VM_NX_HUGE_PAGES, dirty_log};
use crate::{slat_config, slat_format, slat_host, slat_status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use slat::slots::Transaction;
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat::{
    Access, Again, DirtyError, DirtyLog, DirtyPage, DirtyWord, Fault, FaultError, Format, Gfn, Gpa,
    GuestSpace, Harvest, HostPage, Hva, Idle, InGuest, Invalidation, Level, Mapping, Next, Population,
    Prefault, Reason, SecondaryMmu, Slot, SlotError, SlotId, SpaceId, Span, Stats, Token, Unanswered, Vcpu,
    VcpuId, Vm, WriteListener, WriteTracking,
};

/// The operations of a transaction.
pub(crate) type Operations<'o> = dyn FnMut(&mut Transaction<'_>) -> Result<(), SlotError> + 'o;

/// A VM. [`SecondaryMmu`] has the aging functions.
pub(crate) trait AnyVm: SecondaryMmu + AnyMemory {
    fn commit(
        &self,
        idle: &mut Idle,
        space: SpaceId,
        operations: &mut Operations<'_>,
    ) -> Told<Result<(), SlotError>>;
    fn find(&self, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Told<Option<Slot>>;
    fn translate(&self, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Told<Option<Mapping>>;
    fn stats(&self) -> Stats;
    fn host(&self) -> &CHost;
    fn mark_dirty(&self, hvas: Span<Hva>);
    fn vcpu(&self, id: VcpuId) -> Option<Box<dyn AnyVcpu + '_>>;
    fn invalidate(&self, hvas: Span<Hva>, why: Reason) -> Result<Box<dyn AnyChange + '_>, Again>;
    /// Harvests one slot, or all slots of the space.
    fn harvest(&self, idle: &mut Idle, space: SpaceId, id: Option<SlotId>) -> Told<Box<dyn AnyHarvest + '_>>;
    fn harvest_ring(&self, idle: &mut Idle, vcpu: VcpuId) -> Told<Box<dyn AnyHarvest + '_>>;
    fn collect_ring(&self, idle: &mut Idle, vcpu: VcpuId, tell: &mut dyn FnMut(DirtyPage)) -> Told<u64>;
    fn reset_rings(&self, idle: &mut Idle) -> Told<u64>;
    fn collected_not_reset(&self, idle: &mut Idle, vcpu: VcpuId) -> Told<u64>;
    fn set_dirty_log(&self, idle: &mut Idle, log: DirtyLog) -> Result<(), DirtyError>;
    fn ready(&self, token: Token) -> usize;
    fn waiters(&self, token: Token) -> Vec<VcpuId>;
    fn unanswered(&self) -> Vec<Unanswered>;
    fn track_writes(
        &self,
        idle: &mut Idle,
        frames: (SpaceId, Span<Gfn>),
        listener: Arc<dyn WriteListener>,
    ) -> Told<Box<dyn AnyTracking + '_>>;
    fn emulate_store(
        &self,
        idle: &mut Idle,
        at: (SpaceId, Gpa),
        bytes: &[u8],
        store: &mut dyn FnMut(Hva),
    ) -> Told<()>;
    fn hold(
        &self,
        idle: &mut Idle,
        at: (SpaceId, Gfn),
        access: Access,
        for_hardware: bool,
    ) -> Told<Box<dyn AnyHold + '_>>;
}

/// A result, or the status of the failure.
pub(crate) type Told<T> = Result<T, slat_status>;

/// A vCPU.
pub(crate) trait AnyVcpu: Send {
    fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Next, FaultError>;
    fn fault_as(&mut self, idle: &mut Idle, fault: Fault, private: bool) -> Result<Next, FaultError>;
    fn access(&mut self, idle: &mut Idle, gpa: Gpa, access: Access) -> Result<Mapping, Fault>;
    fn enter<'a>(&'a mut self, idle: &'a mut Idle, tlb: &mut CTlb) -> InGuest<'a>;
    fn switch_to(&mut self, space: SpaceId) -> bool;
    fn pending_token(&self) -> Option<Token>;
    fn take_ready(&mut self) -> Option<Token>;
    fn forget_tokens(&mut self);
    fn prefault(&mut self, idle: &mut Idle, gfns: Span<Gfn>, how: Prefault) -> Result<u64, FaultError>;
    fn populate(&mut self, idle: &mut Idle, population: &Population) -> Option<Span<Gfn>>;
}

/// Tracks stores to some frames until it is dropped.
pub(crate) trait AnyTracking: Send {}

impl<F: Format> AnyTracking for WriteTracking<'_, F> {}

/// An invalidation. Each call settles its debts at once.
pub(crate) trait AnyChange: Send {
    fn apply(&mut self, idle: &mut Idle);
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>);
}

/// A harvest.
pub(crate) trait AnyHarvest: Send + Sync {
    fn pages(&self) -> u64;
    fn words(&self) -> Box<dyn Iterator<Item = DirtyWord> + '_>;
    fn commit(self: Box<Self>);
}

fn space_of<F: Format>(vm: &Vm<F, CHost>, id: SpaceId) -> Told<GuestSpace<'_, F, CHost>> {
    vm.space(id).ok_or(SLAT_ENOENT)
}

impl<F: Format> AnyVm for Vm<F, CHost> {
    fn commit(
        &self,
        idle: &mut Idle,
        space: SpaceId,
        operations: &mut Operations<'_>,
    ) -> Told<Result<(), SlotError>> {
        Ok(space_of(self, space)?.commit(idle, operations))
    }

    fn find(&self, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Told<Option<Slot>> {
        Ok(space_of(self, space)?.find(idle, gfn))
    }

    fn translate(&self, idle: &mut Idle, space: SpaceId, gfn: Gfn) -> Told<Option<Mapping>> {
        Ok(space_of(self, space)?.translate(idle, gfn))
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

    fn invalidate(&self, hvas: Span<Hva>, why: Reason) -> Result<Box<dyn AnyChange + '_>, Again> {
        Ok(Box::new(Some(self.try_invalidate(hvas, why)?)))
    }

    fn harvest(&self, idle: &mut Idle, space: SpaceId, id: Option<SlotId>) -> Told<Box<dyn AnyHarvest + '_>> {
        let slots = space_of(self, space)?;
        let harvest = match id {
            Some(id) => slots.harvest(idle, id),
            None => slots.harvest_all(idle),
        };
        Ok(Box::new(harvest?))
    }

    fn harvest_ring(&self, idle: &mut Idle, vcpu: VcpuId) -> Told<Box<dyn AnyHarvest + '_>> {
        Ok(Box::new(self.harvest_ring(idle, vcpu)?))
    }

    fn collect_ring(&self, idle: &mut Idle, vcpu: VcpuId, tell: &mut dyn FnMut(DirtyPage)) -> Told<u64> {
        Ok(self.collect_ring(idle, vcpu, tell)?)
    }

    fn reset_rings(&self, idle: &mut Idle) -> Told<u64> {
        Ok(self.reset_rings(idle)?)
    }

    fn collected_not_reset(&self, idle: &mut Idle, vcpu: VcpuId) -> Told<u64> {
        Ok(self.collected_not_reset(idle, vcpu)?)
    }

    fn set_dirty_log(&self, idle: &mut Idle, log: DirtyLog) -> Result<(), DirtyError> {
        self.set_dirty_log(idle, log)
    }

    fn ready(&self, token: Token) -> usize {
        self.ready(token)
    }

    fn waiters(&self, token: Token) -> Vec<VcpuId> {
        self.waiters(token)
    }

    fn unanswered(&self) -> Vec<Unanswered> {
        Self::unanswered(self).collect()
    }

    fn track_writes(
        &self,
        idle: &mut Idle,
        (space, gfns): (SpaceId, Span<Gfn>),
        listener: Arc<dyn WriteListener>,
    ) -> Told<Box<dyn AnyTracking + '_>> {
        Ok(Box::new(space_of(self, space)?.track_writes(idle, gfns, listener)?))
    }

    fn emulate_store(
        &self,
        idle: &mut Idle,
        (space, gpa): (SpaceId, Gpa),
        bytes: &[u8],
        store: &mut dyn FnMut(Hva),
    ) -> Told<()> {
        Ok(space_of(self, space)?.emulate_store(idle, gpa, bytes, store)?)
    }

    fn hold(
        &self,
        idle: &mut Idle,
        (space, gfn): (SpaceId, Gfn),
        access: Access,
        for_hardware: bool,
    ) -> Told<Box<dyn AnyHold + '_>> {
        let slots = space_of(self, space)?;
        Ok(Box::new(if for_hardware {
            Holding::for_hardware(slots.hold_for_hardware(idle, gfn, access)?)
        } else {
            Holding::new(slots.hold(idle, gfn, access)?)
        }))
    }
}

impl<F: Format> AnyVcpu for Vcpu<'_, F, CHost> {
    fn fault(&mut self, idle: &mut Idle, fault: Fault) -> Result<Next, FaultError> {
        self.fault(idle, fault)
    }

    fn access(&mut self, idle: &mut Idle, gpa: Gpa, access: Access) -> Result<Mapping, Fault> {
        self.access(idle, gpa, access)
    }

    fn enter<'a>(&'a mut self, idle: &'a mut Idle, tlb: &mut CTlb) -> InGuest<'a> {
        self.enter(idle, tlb).poll()
    }

    fn fault_as(&mut self, idle: &mut Idle, fault: Fault, private: bool) -> Result<Next, FaultError> {
        self.fault_as(idle, fault, private)
    }

    fn switch_to(&mut self, space: SpaceId) -> bool {
        self.switch_to(space)
    }

    fn pending_token(&self) -> Option<Token> {
        self.pending_token()
    }

    fn take_ready(&mut self) -> Option<Token> {
        self.take_ready()
    }

    fn forget_tokens(&mut self) {
        self.forget_tokens();
    }

    fn prefault(&mut self, idle: &mut Idle, gfns: Span<Gfn>, how: Prefault) -> Result<u64, FaultError> {
        self.prefault(idle, gfns, how)
    }

    fn populate(&mut self, idle: &mut Idle, population: &Population) -> Option<Span<Gfn>> {
        self.populate(idle, population)
    }
}

/// `None` after a call that panicked.
impl<F: Format> AnyChange for Option<Invalidation<'_, F, CHost>> {
    fn apply(&mut self, idle: &mut Idle) {
        *self = self.take().map(|change| change.apply(idle).settle());
    }

    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        if let Some(change) = self {
            change.changed(idle, hvas, to).settle();
        }
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
    let is_sound = config.size == size_of::<slat_config>()
        && config.flags & !(DIRTY_FLAGS | SLAT_VM_NX_HUGE_PAGES) == 0
        && config.vcpus <= 1 << 16
        && config.max_level <= 3;
    let log = dirty_log(config.flags, config.ring_bytes).filter(|_| is_sound).ok_or(SLAT_EINVAL)?;
    let spaces = u8::try_from(config.address_spaces).map_err(|_| SLAT_EINVAL)?;
    let host = CHost::new(host, F::ADDRESS).ok_or(SLAT_EINVAL)?;
    let mut builder = Vm::<F, _>::builder(host).vcpus(config.vcpus.max(1)).dirty_log(log);
    builder = builder.nx_huge_pages(config.flags & SLAT_VM_NX_HUGE_PAGES != 0).address_spaces(spaces);
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
