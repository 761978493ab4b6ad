//! `Vm` and its builder. The builder fixes all policies for the life of the VM.

#[cfg(feature = "nested")]
mod one_stage;
mod unanswered;

use crate::active::Active;
use crate::dirty_log::ring::Rings;
use crate::hooks::{Nested, NestedHooks, NestedState};
use crate::host::{Kicks, tables_of};
use crate::oracle::{self, Checked};
use crate::slots::Limits;
use crate::slots::holds::Holds;
use crate::space::Space;
use crate::sync::barrier::Barrier;
use crate::sync::gate::Baseline;
use crate::sync::prim::{AtomicBool, AtomicU64, Mutex, Padded, Relaxed};
use crate::sync::{Lock, ReadSide, RetryCause};
use crate::table::format::assert_format;
use crate::table::pool::Pool;
use crate::table::retire::Grace;
use crate::tlb::debt::{Owed, Pay};
use crate::tlb::shootdown::Tlb;
use crate::trace::TraceEvent;
use crate::waits::Waits;
use crate::{
    Cause, DirtyLog, Format, Gfn, Host, Hva, Idle, Level, NoMemory, PAGE_SHIFT, PAGE_SIZE, SpaceId, Span,
    Splitting, TableMemory, VcpuId,
};
use alloc::boxed::Box;
use core::marker::PhantomData;

/// Number of seats made in advance for threads that are not vCPUs. The VM makes more when all are taken.
const OTHER_SEATS: usize = if cfg!(shuttle) { 4 } else { 32 };

/// The policies of a VM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) vcpus: u32,
    pub(crate) max_page: Level,
    pub(crate) nx_huge_pages: bool,
    pub(crate) baseline: Baseline,
    /// Hardware has a second stage of translation.
    pub(crate) has_two_stages: bool,
    pub(crate) dirty: DirtyLog,
}

/// A virtual machine's second level of address translation: gfn → frame, in page-table format `F`, on host `H`.
///
/// Everything takes `&self`: share it by reference or in an `Arc`.
#[doc = include_str!("vm.md")]
pub struct Vm<F: Format, H: Host> {
    pub(crate) host: Checked<H>,
    pub(crate) policy: Policy,
    pub(crate) lock: Lock,
    pub(crate) reads: ReadSide,
    pub(crate) active: Active,
    /// Indexed by the space's number; at least one.
    pub(crate) spaces: Box<[Space<F>]>,
    pub(crate) pool: Pool,
    pub(crate) grace: Grace,
    /// A page larger than 4 KiB has been mapped. On its own cache line, because faults read it.
    large_pages: Padded<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) tlb: Tlb,
    pub(crate) waits: Waits,
    pub(crate) holds: Holds,
    pub(crate) nested: <Nested as NestedState>::OfVm,
    /// One for each vCPU, or empty.
    pub(crate) rings: Rings,
    /// A store splits a large page of a slot that logs.
    pub(crate) splits_lazily: AtomicBool,
}

/// The position of the search for cold tables ([`budget`](crate::budget)).
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Address space and frame where the search continues. The holder reclaims; other threads wait, then search again.
    pub(crate) hand: Mutex<(usize, Gfn)>,
    /// Number of subtrees reclaimed so far.
    pub(crate) reclaimed: AtomicU64,
}

/// Builds a [`Vm`].
///
/// ```
/// # use slat::{*, table::{NoMemory, formats::Npt4}};
/// # fn build<H: Host>(host: H) -> Result<Vm<Npt4, H>, NoMemory> {
/// let builder = Vm::<Npt4, _>::builder(host).vcpus(8).address_bits(40);
/// builder.dirty_log(DirtyLog::bitmap()).table_budget(64 << 20).build()
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder<F, H> {
    host: H,
    _format: PhantomData<F>,
    policy: Policy,
    limits: Limits,
    spaces: u8,
    table_budget: u64,
    pub(crate) oracle: oracle::Setup,
}

impl<F: Format, H: Host> Builder<F, H> {
    /// Sets the maximum number of vCPUs. Default: 1. Each costs 256 bytes.
    pub fn vcpus(mut self, vcpus: u32) -> Self {
        self.policy.vcpus = vcpus;
        self
    }

    /// Sets the largest page size to map. Default: 1 GiB. The host may choose smaller pages.
    pub fn max_page(mut self, level: Level) -> Self {
        self.policy.max_page = level.clamp(Level::K4, Level::G1);
        self
    }

    /// Maps large pages without execute permission, which some processors need for protection from their guests. A
    /// fetch splits the page down to 4 KiB ([`huge`](crate::huge)). Default: off.
    pub fn nx_huge_pages(mut self, on: bool) -> Self {
        self.policy.nx_huge_pages = on;
        self
    }

    /// Makes the VM do as KVM did before, for measurements. Default: nothing.
    #[cfg(feature = "baselines")]
    pub fn baseline(mut self, baseline: Baseline) -> Self {
        self.policy.baseline = baseline;
        self
    }

    /// Sets how writes are logged. Default: [`DirtyLog::bitmap`]. Logging costs nothing until a memslot asks for it
    /// ([`Slot::log_dirty`](crate::Slot::log_dirty)). [`Vm::set_dirty_log`] changes some of the settings later.
    pub fn dirty_log(mut self, dirty: DirtyLog) -> Self {
        self.policy.dirty = dirty;
        self
    }

    /// Sets the upper bound of memslot ids, exclusive. Default: 32,764, KVM's number on x86. Unused ids cost nothing,
    /// and ids may be sparse.
    pub fn max_slots(mut self, ids: u32) -> Self {
        self.limits.ids = ids;
        self
    }

    /// Sets the number of address spaces, each with its own memslots and tables. Default and minimum: 1. x86 with
    /// system management mode has 2.
    pub fn address_spaces(mut self, spaces: u8) -> Self {
        self.spaces = spaces.max(1);
        self
    }

    /// Sets the number of bits of a guest-physical address. Default and maximum: as many as the format translates.
    /// Memslots beyond them are refused.
    pub fn address_bits(mut self, bits: u32) -> Self {
        let frame_bits = bits.saturating_sub(PAGE_SHIFT).min(F::FRAME_BITS);
        self.limits.frames = 1 << frame_bits;
        self
    }

    /// Sets where the host addresses of memslots may lie, for example the user half. Default: anywhere.
    pub fn host_addresses(mut self, hvas: Span<Hva>) -> Self {
        self.limits.hvas = hvas;
        self
    }

    /// Sets the limit of table pages in use, in bytes. Default: none. A VM that reaches the limit reclaims its coldest
    /// tables; [`Vm::set_table_budget`] changes the limit later.
    pub fn table_budget(mut self, bytes: u64) -> Self {
        self.table_budget = bytes;
        self
    }

    /// Builds the VM, with no memslots and one root table for each address space. Fails if memory is missing.
    pub fn build(self) -> Result<Vm<F, H>, NoMemory> {
        let Self { host, policy, limits, spaces, table_budget, oracle, .. } = self;
        let barrier = Barrier::detect();
        let mut vm = Vm {
            spaces: Box::default(),
            pool: Pool::new(F::ROOT_PAGES),
            host: oracle::attach::<F, H>(host, oracle, &policy),
            policy,
            lock: Lock::new(policy.baseline),
            reads: ReadSide::new(policy.vcpus as usize + 1 + OTHER_SEATS, barrier),
            active: Active::new(),
            grace: Grace::default(),
            large_pages: Padded(AtomicBool::new(false)),
            clock: Clock::default(),
            tlb: Tlb::new(policy.vcpus as usize),
            waits: Waits::default(),
            holds: Holds::new(),
            nested: <Nested as NestedState>::OfVm::default(),
            rings: Rings::default(),
            splits_lazily: AtomicBool::new(policy.dirty.splitting == Splitting::Lazy),
        };
        // From here on an error drops the partial VM, which returns its memory to the host.
        let space = |id| Space::new(SpaceId(id), limits, policy.dirty.initially_set, vm.tables(), &vm.pool);
        vm.spaces = (0..spaces).map(space).collect::<Result<_, _>>()?;
        if let Some(size) = policy.dirty.ring {
            vm.rings.make(size, policy.vcpus)?;
        }
        vm.pool.set_budget(table_budget);
        Ok(vm)
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Starts building a VM on `host`. A format whose constants violate the rules of [`Format`] does not compile.
    pub fn builder(host: H) -> Builder<F, H> {
        const { assert_format::<F>() };
        Builder {
            host,
            _format: PhantomData,
            policy: Policy {
                vcpus: 1,
                max_page: Level::G1,
                nx_huge_pages: false,
                baseline: Baseline::default(),
                has_two_stages: true,
                dirty: DirtyLog::bitmap(),
            },
            limits: Limits {
                frames: 1 << F::FRAME_BITS,
                write_back_only: F::MEMORY.is_none(),
                ..Limits::default()
            },
            spaces: 1,
            table_budget: u64::MAX,
            oracle: oracle::setup(),
        }
    }

    /// Returns how often the lock of a baseline was not free, and the nanoseconds that all threads waited for it; zero
    /// nanoseconds without `std`, which has the clock.
    #[cfg(feature = "baselines")]
    pub fn lock_waits(&self) -> (u64, u64) {
        self.lock.waits()
    }

    /// The host of the VM.
    pub fn host(&self) -> &H {
        oracle::host_of(&self.host)
    }

    /// The memory of its tables: see [`Host::tables`]. For a walk of the tables in software.
    #[inline(always)]
    pub fn tables(&self) -> &impl TableMemory {
        tables_of(&self.host)
    }

    /// Waits for a grace period, then frees the pages of all unhooked tables and uncounts their leaves. The VM also
    /// does so by itself in small steps, when many tables wait or pages run short. No thread waits for those steps.
    pub fn collect(&self, _idle: &mut Idle) {
        self.dead_tables().collect();
    }

    /// Returns table memory to the host: [collects](Self::collect), and then returns every chunk whose pages are all
    /// free. Returns the number of bytes by which the VM's memory shrank. Waits for a grace period; may sleep in
    /// [`TableMemory::take_back`].
    ///
    /// Without this call the VM keeps some free chunks, and returns the others when it takes tables apart. No page
    /// moves: a chunk with one table in it stays ([`compact`](Self::compact) reclaims such tables). Each vCPU also
    /// keeps spare pages, at most four more than the format has levels. They return when the [`Vcpu`](crate::Vcpu) is
    /// dropped, or by [`Vcpu::give_tables_back`](crate::Vcpu::give_tables_back).
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    /// #         Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    /// #     }
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// let guest = Span::new(Gfn(0), Gfn(200 * 512)); // 400 MiB
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), guest.start, guest.len(), Hva(1 << 40))))?;
    /// vm.vcpu(VcpuId(0)).unwrap().prefault(&mut idle, guest, Prefault::OLD)?;
    /// let large = vm.stats().lent_bytes;
    /// // The guest returns all but its first 2 MiB.
    /// vm.change(&mut idle, Span::new(Hva(1 << 40) + (2 << 20), Hva(1 << 41)), Why::Unmap, |_| {});
    /// assert_eq!(vm.shrink(&mut idle), large - vm.stats().lent_bytes);
    /// assert_eq!(vm.stats().lent_bytes, 64 * PAGE_SIZE); // one chunk
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink(&self, idle: &mut Idle) -> u64 {
        let before = self.pool.lent();
        self.collect(idle);
        self.pool.shrink(self.tables());
        before.saturating_sub(self.pool.lent()) * PAGE_SIZE
    }

    /// Whether a leaf larger than 4 KiB may exist. A stale `false` makes a thread zap such a leaf instead of splitting
    /// it.
    pub(crate) fn maps_large_pages(&self) -> bool {
        self.large_pages.load(Relaxed)
    }

    /// Records that a leaf larger than 4 KiB is about to be mapped.
    #[inline(never)]
    pub(crate) fn will_map_a_large_page(&self) {
        if !self.maps_large_pages() {
            self.large_pages.store(true, Relaxed);
        }
    }

    /// Whether a nested guest has ever run.
    #[inline(always)]
    pub(crate) fn runs_nested(&self) -> bool {
        Nested::has_run(self)
    }

    /// Whether the log is read from the Dirty bits of the tables. Faults then log nothing.
    #[inline(always)]
    pub(crate) fn logs_by_bits(&self) -> bool {
        self.policy.dirty.by_bits::<F>()
    }

    /// Counts and reports a retry of a fault.
    pub(crate) fn counts_retry(&self, vcpu: VcpuId, gfn: Gfn, cause: RetryCause) {
        self.tlb.vcpu(vcpu).attempts.add(cause);
        self.host.observe(TraceEvent::Retry { vcpu, gfn, cause });
    }
}

impl<F: Format, H: Host> Pay for Vm<F, H> {
    fn pay(&self, mut owed: Owed, cause: Cause, may_collect: bool) {
        if owed.waits_for_uses() {
            return self.pay_held(owed, cause, may_collect);
        }
        self.flush(&mut owed, (cause, may_collect), false);
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Pays a debt with frames taken from their holders. Waits for the uses of these frames first.
    #[cold]
    #[inline(never)]
    fn pay_held(&self, mut owed: Owed, cause: Cause, may_collect: bool) {
        self.holds.outlast(self.reads.barrier);
        let needs_kicks = owed.has_waited_for_uses();
        if !owed.is_nothing() {
            self.flush(&mut owed, (cause, may_collect), needs_kicks);
        }
    }

    /// Flushes once, by broadcast if the host can.
    #[inline(always)]
    fn flush(&self, owed: &mut Owed, (cause, may_collect): (Cause, bool), needs_kicks: bool) {
        self.tlb.by_cause.paid(cause, owed.edits(), owed.pages);
        let unlinked = core::mem::take(&mut owed.unlinked);
        let kicks = Kicks::new(&self.host);
        // A harvest does not record in its debt which entries of L2 it armed.
        let logs = cause == Cause::DirtyLog && self.runs_nested();
        let both = (owed.gfns, owed.is_nested() || logs);
        let flushed = if !needs_kicks && !both.1 && self.tlb.is_broadcast(|| kicks.broadcast(owed.gfns)) {
            unlinked.flushed()
        } else {
            self.tlb.shoot_down_both(both, unlinked, |vcpu| kicks.kick(vcpu))
        };
        let many = self.grace.defer(flushed);
        let (gfns, edits, pages) = (owed.gfns, owed.edits(), owed.pages);
        kicks.report(TraceEvent::Flush { gfns, cause, edits, pages });
        kicks.end();
        if many && may_collect {
            self.collect_some();
        }
    }
}

impl<F: Format, H: Host> core::fmt::Debug for Vm<F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vm").field("format", &F::NAME).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Drop for Vm<F, H> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` means that no vCPU, walk or debt is left, so no thread reaches a table page.
        unsafe { self.pool.release(tables_of(&self.host)) };
        // After the release: a report may panic.
        oracle::ends(&self.host);
    }
}
