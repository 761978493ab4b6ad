//! `Vm` and its builder: the only wiring. Policies are snapshotted here, for the life of the VM.

use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span};
use crate::dirty::ring::Rings;
use crate::dirty::{DirtyLog, Splitting};
use crate::host::{Host, Kicks, VcpuId};
use crate::notify::active::Active;
use crate::slots::holds::Holds;
use crate::slots::publish::Name;
use crate::slots::{Limits, SpaceId};
use crate::space::Space;
use crate::sync::barrier::Barrier;
use crate::sync::gate::{Lock, MmuLock};
use crate::sync::idle::Idle;
use crate::sync::prim::{AtomicBool, AtomicU64, Mutex, Padded, Relaxed};
use crate::sync::readside::{Borrowed, ReadSide};
use crate::sync::tally::RetryCause;
use crate::table::format::{Format, assert_format};
use crate::table::pool::{NoMemory, Pool};
use crate::table::retire::Grace;
use crate::tlb::Cause;
use crate::tlb::debt::{Owed, Pay};
use crate::tlb::shootdown::Tlb;
use crate::trace::TraceEvent;
use crate::waits::Waits;
use alloc::boxed::Box;
use core::marker::PhantomData;

/// Seats for threads that are no vCPU: how many of them can be inside the engine at once before there are made more.
const OTHER_SEATS: usize = if cfg!(shuttle) { 4 } else { 32 };

/// What a VM is built with, and keeps.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(crate) struct Policy {
    pub(crate) vcpus: u32,
    pub(crate) max_page: Level,
    pub(crate) nx_huge_pages: bool,
    pub(crate) contexts: bool,
    pub(crate) lockless_aging: bool,
    /// Hardware translates by the guest's tables, and then by the VM's.
    pub(crate) has_two_stages: bool,
    pub(crate) dirty: DirtyLog,
    /// A mistake: what was made of frames for nested guests is not looked for.
    pub(crate) shadows_sabotaged: bool,
}

/// A virtual machine's second level of address translation: gfn → frame, in page-table format `F`, on host `H`.
///
/// Everything takes `&self`: share it by reference or in an `Arc`.
///
#[doc = include_str!("vm.md")]
pub struct Vm<F: Format, H: Host> {
    pub(crate) host: H,
    /// No other VM of the process has it, nor had.
    pub(crate) name: Name,
    pub(crate) policy: Policy,
    pub(crate) lock: Lock,
    pub(crate) reads: ReadSide,
    pub(crate) active: Active,
    /// By number; at least one.
    pub(crate) spaces: Box<[Space<F>]>,
    pub(crate) pool: Pool,
    pub(crate) grace: Grace,
    /// A page larger than 4 KiB has been mapped once. On a line of its own: faults read it, and what lies beside it is written.
    large_pages: Padded<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) tlb: Tlb,
    pub(crate) waits: Waits,
    pub(crate) holds: Holds,
    /// An address space has shadows. On a line that is read anyway.
    pub(crate) nested: AtomicBool,
    /// One for each vCPU, or none at all.
    pub(crate) rings: Rings,
    /// Large pages of slots that log are split by stores.
    pub(crate) splits_lazily: AtomicBool,
}

/// Where cold tables are looked for next ([`budget`](crate::budget)).
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Address space and frame to go on at. Who holds it takes back; others wait, and then look again.
    pub(crate) hand: Mutex<(usize, Gfn)>,
    /// Subtrees taken back so far.
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
    lock: MmuLock,
    table_budget: u64,
    sabotage: bool,
}

impl<F: Format, H: Host> Builder<F, H> {
    /// How many vCPUs the VM can have; 1 unless said otherwise. Each costs 256 bytes.
    pub fn vcpus(mut self, vcpus: u32) -> Self {
        self.policy.vcpus = vcpus;
        self
    }

    /// What guards the tables; [`MmuLock::None`] unless said otherwise.
    pub fn mmu_lock(mut self, lock: MmuLock) -> Self {
        self.lock = lock;
        self
    }

    /// The largest page to map; 1 GiB unless said otherwise. The host decides within this.
    pub fn max_page(mut self, level: Level) -> Self {
        self.policy.max_page = level.clamp(Level::K4, Level::G1);
        self
    }

    /// Whether large pages do not execute, as some processors need it to be safe from their guests: a fetch splits its
    /// page down to 4 KiB ([`huge`](crate::huge)). Off unless said otherwise.
    pub fn nx_huge_pages(mut self, on: bool) -> Self {
        self.policy.nx_huge_pages = on;
        self
    }

    /// Whether the VM heeds the reasons that its host gives; it does unless said otherwise. Else each is an unmap of the
    /// whole range when it begins, as KVM takes it: before the NUMA protection and change-pte series.
    pub fn contexts(mut self, on: bool) -> Self {
        self.policy.contexts = on;
        self
    }

    /// Whether aging passes take no lock under a baseline policy either, as the MGLRU aging series has it; they do not unless said
    /// otherwise. Without it each takes the MMU lock alone, as before. Under [`MmuLock::None`] there is none to take.
    pub fn lockless_aging(mut self, on: bool) -> Self {
        self.policy.lockless_aging = on;
        self
    }

    /// The host's processor has no second stage of translation (no EPT, no NPT): what vCPUs run on translates the guest's own addresses.
    /// While the guest's paging is on that is a shadow of its page table ([`Vcpu::guest_paging`](crate::Vcpu::guest_paging)); else it is the
    /// VM's own table, a direct map. Nested guests are refused. The format is the host's own paging: [`X64`](crate::table::formats::X64).
    pub fn without_two_stages(mut self) -> Self {
        self.policy.has_two_stages = false;
        self
    }

    /// How writes are logged; [`DirtyLog::bitmap`] unless said otherwise. Nothing is logged, and nothing is spent on it,
    /// before a memslot says so ([`Slot::log_dirty`](crate::Slot::log_dirty)). [`Vm::set_dirty_log`] changes some of it later.
    pub fn dirty_log(mut self, dirty: DirtyLog) -> Self {
        self.policy.dirty = dirty;
        self
    }

    /// Memslot ids are below this; 32,764 unless said otherwise (KVM's number on x86). Ids cost nothing until they
    /// are used, and may be as sparse as you like.
    pub fn max_slots(mut self, ids: u32) -> Self {
        self.limits.ids = ids;
        self
    }

    /// How many address spaces there are, each with memslots and tables of its own; 1 unless said otherwise, and
    /// at least one. x86 with system management mode has 2.
    pub fn address_spaces(mut self, spaces: u8) -> Self {
        self.spaces = spaces.max(1);
        self
    }

    /// How many bits a guest-physical address has; as many as the format translates unless said otherwise, and
    /// no more. Memslots beyond are refused.
    pub fn address_bits(mut self, bits: u32) -> Self {
        let frame_bits = bits.saturating_sub(PAGE_SHIFT).min(F::FRAME_BITS);
        self.limits.frames = 1 << frame_bits;
        self
    }

    /// Where the host addresses of memslots may lie: the user half of an address space, for instance. Anywhere
    /// unless said otherwise.
    pub fn host_addresses(mut self, hvas: Span<Hva>) -> Self {
        self.limits.hvas = hvas;
        self
    }

    /// How many bytes of table pages may be in use; as many as the host gives unless said otherwise. Reaching it takes
    /// back the coldest tables; see [`Vm::set_table_budget`], which changes it later.
    pub fn table_budget(mut self, bytes: u64) -> Self {
        self.table_budget = bytes;
        self
    }

    /// Negative control: shootdowns pretend. Whatever proves that flushes matter must fail under this.
    #[doc(hidden)]
    pub fn sabotage_flushes(mut self) -> Self {
        self.sabotage = true;
        self
    }

    /// Negative control: what a harvest arms is not flushed.
    #[doc(hidden)]
    pub fn sabotage_rearm(mut self) -> Self {
        self.policy.dirty.sabotaged = true;
        self
    }

    /// Negative control: invalidations do not look for what was made of their frames for nested guests.
    #[doc(hidden)]
    pub fn sabotage_reverse_map(mut self) -> Self {
        self.policy.shadows_sabotaged = true;
        self
    }

    /// The VM, empty: no memslots, one table page for each address space.
    pub fn build(self) -> Result<Vm<F, H>, NoMemory> {
        let Self { host, policy, limits, spaces, lock, table_budget, sabotage, .. } = self;
        let barrier = Barrier::detect();
        let mut vm = Vm {
            spaces: Box::default(),
            pool: Pool::new(F::ROOT_PAGES),
            host,
            name: Name::next(),
            policy,
            lock: Lock::new(lock),
            reads: ReadSide::new(policy.vcpus as usize + 1 + OTHER_SEATS, barrier),
            active: Active::new(),
            grace: Grace::default(),
            large_pages: Padded(AtomicBool::new(false)),
            clock: Clock::default(),
            tlb: Tlb::new(policy.vcpus as usize, sabotage),
            waits: Waits::default(),
            holds: Holds::new(),
            nested: AtomicBool::new(false),
            rings: Rings::default(),
            splits_lazily: AtomicBool::new(policy.dirty.splitting == Splitting::Lazy),
        };
        // From here on an error drops what there is of the VM, and the host has its memory back.
        let space = |id| Space::new(SpaceId(id), limits, policy.dirty.initially_set, &vm.host, &vm.pool);
        vm.spaces = (0..spaces).map(space).collect::<Result<_, _>>()?;
        if let Some(size) = policy.dirty.ring {
            vm.rings.make(size, policy.vcpus)?;
        }
        vm.pool.set_budget(table_budget);
        Ok(vm)
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Starts building a VM on `host`. Does not compile for a format whose constants break what [`Format`] demands.
    pub fn builder(host: H) -> Builder<F, H> {
        const { assert_format::<F>() };
        Builder {
            host,
            _format: PhantomData,
            policy: Policy {
                vcpus: 1,
                max_page: Level::G1,
                nx_huge_pages: false,
                contexts: true,
                lockless_aging: true,
                has_two_stages: true,
                dirty: DirtyLog::bitmap(),
                shadows_sabotaged: false,
            },
            limits: Limits {
                frames: 1 << F::FRAME_BITS,
                write_back_only: F::MEMORY.is_none(),
                ..Limits::default()
            },
            spaces: 1,
            lock: MmuLock::None,
            table_budget: u64::MAX,
            sabotage: false,
        }
    }

    /// The host under it.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Where the tables of address space 0 begin at this moment. A vCPU loads [`InGuest::root`](crate::InGuest::root),
    /// which changes when it is told to.
    pub fn root(&self) -> Pfn {
        self.spaces[0].radix.root_word().pfn()
    }

    /// Takes unhooked tables apart now, after a grace period: their leaves are counted off, their pages are free. Little
    /// by little it happens by itself, when many wait or when pages run short. No thread waits for it.
    pub fn collect(&self, _idle: &mut Idle) {
        self.dead_tables().collect();
    }

    /// Gives table memory back to the host: [collects](Self::collect), and then gives back every chunk whose pages are all
    /// free. Returns by how many bytes the VM holds less than before. Waits for a grace period; may sleep in [`TableMemory::free_chunk`](crate::TableMemory).
    ///
    /// Without this call the VM keeps some free chunks, and gives the rest back when tables are taken apart. No page is moved:
    /// a chunk with one table in it stays ([`compact`](Self::compact) takes such tables back). So do the pages that a vCPU has
    /// at hand, up to four more than the format has levels: they go back when the [`Vcpu`](crate::Vcpu) is dropped, or by
    /// [`Vcpu::give_tables_back`](crate::Vcpu::give_tables_back).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity; unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    /// #         Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    /// #     }
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// let guest = Span::new(Gfn(0), Gfn(200 * 512)); // 400 MiB
    /// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), guest.start, guest.len(), Hva(1 << 40))))?;
    /// vm.vcpu(VcpuId(0)).unwrap().prefault(&mut idle, guest)?;
    /// let large = vm.stats().lent_bytes;
    /// // The guest gives all but its first 2 MiB back.
    /// vm.invalidate_gfns(Span::new(Gfn(512), guest.end), Why::Unmap).apply(&mut idle).settle();
    /// assert_eq!(vm.shrink(&mut idle), large - vm.stats().lent_bytes);
    /// assert_eq!(vm.stats().lent_bytes, 64 * PAGE_SIZE); // one chunk
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink(&self, idle: &mut Idle) -> u64 {
        if seeded!(ShrinkUnwaited)
            && let Some(taken) = self.grace.take_flushed()
        {
            self.grace.bury(taken);
        }
        let before = self.pool.lent();
        self.collect(idle);
        self.pool.shrink(&self.host);
        before.saturating_sub(self.pool.lent()) * PAGE_SIZE
    }

    /// The address space `id`, if the VM was built with so many.
    pub(crate) fn space(&self, id: SpaceId) -> Option<&Space<F>> {
        self.spaces.get(usize::from(id.0))
    }

    /// Whether there may be a leaf larger than 4 KiB. A thread that is told too late zaps such a leaf where it could split it.
    pub(crate) fn maps_large_pages(&self) -> bool {
        self.large_pages.load(Relaxed)
    }

    /// A leaf larger than 4 KiB is about to be mapped.
    #[inline(never)]
    pub(crate) fn will_map_a_large_page(&self) {
        if !self.maps_large_pages() {
            self.large_pages.store(true, Relaxed);
        }
    }

    /// Whether a nested guest was ever run.
    #[inline(always)]
    pub(crate) fn runs_nested(&self) -> bool {
        // Set before the shadows can be found, so before the first hint: as that, it is seen by an invalidation that a fault with such a
        // hint does not see.
        self.nested.load(Relaxed)
    }

    /// Whether writes are found in the tables: faults then have nothing to log.
    #[inline(always)]
    pub(crate) fn logs_by_bits(&self) -> bool {
        self.policy.dirty.by_bits::<F>()
    }

    /// An attempt at a fault is made again.
    pub(crate) fn counts_retry(&self, vcpu: VcpuId, gfn: Gfn, cause: RetryCause) {
        self.tlb.vcpu(vcpu).attempts.add(cause);
        self.host.observe(TraceEvent::Retry { vcpu, gfn, cause });
    }

    /// A seat for a thread that is no vCPU. Where all are taken there will be more; it waits where there is no memory for them.
    pub(crate) fn borrow_seat(&self) -> Borrowed<'_> {
        self.reads.borrow(self.policy.vcpus as usize + 1)
    }

    /// A seat for an event that may not block: the one that is kept for such events, or any other that is free.
    pub(crate) fn try_borrow_seat(&self) -> Option<Borrowed<'_>> {
        self.reads.try_borrow(self.policy.vcpus as usize)
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
    /// Frames were taken from their holders: uses of them are waited for first.
    #[cold]
    #[inline(never)]
    fn pay_held(&self, mut owed: Owed, cause: Cause, may_collect: bool) {
        self.holds.outlast(self.reads.barrier);
        let needs_kicks = owed.has_waited_for_uses();
        if !owed.is_nothing() {
            self.flush(&mut owed, (cause, may_collect), needs_kicks);
        }
    }

    /// One flush, which is broadcast where that does.
    #[inline(always)]
    fn flush(&self, owed: &mut Owed, (cause, may_collect): (Cause, bool), needs_kicks: bool) {
        self.tlb.by_cause.paid(cause, owed.edits(), owed.pages);
        let unlinked = core::mem::take(&mut owed.unlinked);
        let kicks = Kicks::new(&self.host);
        // What a harvest arms of L2 is not told to its debt, entry by entry.
        let logs = cause == Cause::DirtyLog && self.runs_nested();
        let both = (owed.gfns, owed.is_nested() || logs);
        let flushed = if !needs_kicks && !both.1 && self.tlb.is_broadcast(|| kicks.broadcast(owed.gfns)) {
            unlinked.flushed()
        } else {
            self.tlb.shoot_down_both(both, unlinked, |vcpu| kicks.kick(vcpu))
        };
        let many = self.grace.defer(flushed);
        // Where a kick has panicked, too. A panic of the observer finds nothing undone.
        let (gfns, edits, pages) = (owed.gfns, owed.edits(), owed.pages);
        self.host.observe(TraceEvent::Flush { gfns, cause, edits, pages });
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
        // SAFETY: `&mut self`: no vCPU, walk or debt is left, so no thread reaches a table page.
        unsafe { self.pool.release(&self.host) };
    }
}
