//! The calls that the oracle sees: a host between the engine and the embedder's, and the hooks of the engine.

use super::checks::{Checks, Oracle};
use super::state::{LOOK, World};
use crate::addr::{Gfn, Hva, Pfn, Span};
use crate::dirty::harvest::TakenWords;
use crate::host::{Host, HostError, HostPage, Token, VcpuId};
use crate::lent::Lent;
use crate::notify::begun::{Range, Scope};
use crate::slots::SpaceId;
use crate::sync::idle::Idle;
use crate::sync::readside::BorrowedWithoutIdle;
use crate::table::entry::Word;
use crate::table::format::{Access, Format};
use crate::table::memory::{TableMemory, TablesOf};
use crate::trace::TraceEvent;
use crate::vm::{Builder, Policy, Vm};
use crate::why::Reason;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// Pages that a change looks at.
const LOOKS: usize = 16;

/// The oracle's part of a builder.
pub(crate) type Setup = Option<Checks>;

/// The host of a VM, with the oracle in between.
pub(crate) struct Checked<H> {
    host: H,
    oracle: Oracle,
}

/// The default: on where the feature `oracle-always` is. Hosts of tests often have one frame.
pub(crate) fn setup() -> Setup {
    cfg!(feature = "oracle-always").then(|| Checks::default().shared_frames())
}

pub(crate) fn attach<F: Format, H: Host>(host: H, setup: Setup, policy: &Policy) -> Checked<H> {
    // Elsewhere another vCPU may grant a store, and mark its page a moment later; or a ring has the page.
    let dirty = &policy.dirty;
    let logs = dirty.ring.is_none() && (policy.vcpus == 1 || dirty.by_bits::<F>());
    Checked { host, oracle: Oracle::new(setup, logs, F::pfn(Word(F::ADDRESS))) }
}

#[inline(always)]
pub(crate) fn host_of<H>(checked: &Checked<H>) -> &H {
    &checked.host
}

impl<F: Format, H: Host> Builder<F, H> {
    /// Switches the [oracle](crate::oracle) on: a broken rule of the contract is a panic.
    pub fn checked(self) -> Self {
        self.checked_with(Checks::default())
    }

    /// Switches the [oracle](crate::oracle) on, with settings.
    ///
    /// ```
    /// use slat::{oracle::{Checks, Rule}, table::formats::Npt4, *};
    /// use std::sync::{Arc, Mutex, atomic::{AtomicU64, Ordering::Relaxed}};
    ///
    /// /// A host with one page, whose frame may change.
    /// struct One(AtomicU64);
    /// impl Host for One {
    ///     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Ok(HostPage { pfn: Pfn(self.0.load(Relaxed)), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let checks = Checks::default().report({
    ///     let seen = seen.clone();
    ///     move |violation| seen.lock().unwrap().push(violation.rule)
    /// });
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(One(7.into())).checked_with(checks).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1, Hva(1 << 30))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let load = Fault { gpa: Gpa(0), access: Access::Read };
    /// vcpu.fault(&mut idle, load)?;
    /// vm.host().0.store(8, Relaxed); // without a change: the guest still uses frame 7
    /// vm.zap_all(&mut idle)?;
    /// vcpu.fault(&mut idle, load)?;
    /// assert_eq!(*seen.lock().unwrap(), [Rule::Moved]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checked_with(mut self, checks: Checks) -> Self {
        self.oracle = Some(checks);
        self
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// The VM's [oracle](crate::oracle).
    pub fn oracle(&self) -> &Oracle {
        &self.host.oracle
    }
}

impl<H> Checked<H> {
    pub(super) fn oracle(&self) -> &Oracle {
        &self.oracle
    }
}

/// A call of the host that has not returned.
struct Asked<'a>(&'a Oracle, usize);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.step(|world| world.asked(self.1));
    }
}

impl<H: Host> Checked<H> {
    /// Asks the host by `ask`, and checks what `answer` reads of the result.
    #[inline]
    fn asks<R>(
        &self,
        call: (&'static str, bool),
        (hva, access): (Hva, Access),
        ask: impl FnOnce() -> R,
        answer: impl FnOnce(&R) -> Option<Result<HostPage, HostError>>,
    ) -> R {
        let Some(number) = self.oracle.step(|world| world.asks(hva)) else { return ask() };
        let asked = Asked(&self.oracle, number);
        let result = ask();
        if let Some(answer) = answer(&result) {
            core::mem::forget(asked);
            self.oracle.step(|world| world.answered(number, call, (hva, access), answer));
        }
        result
    }
}

impl<H: Host> Host for Checked<H> {
    fn tables() -> impl TablesOf<Self> {
        Behind(H::tables())
    }

    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let ask = || self.host.lookup(hva, access);
        self.asks(("Host::lookup", false), (hva, access), ask, |page| page.map(Ok))
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let ask = || self.host.resolve(idle, hva, access);
        self.asks(("Host::resolve", true), (hva, access), ask, |answer| Some(*answer))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        self.host.read(hva)
    }

    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        self.host.read_all(hva, words)
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        self.host.compare_exchange(hva, current, new)
    }

    fn token(&self, hva: Hva) -> Token {
        self.host.token(hva)
    }

    fn kick(&self, vcpu: VcpuId) {
        #[cfg(feature = "std")]
        self.oracle.step(|world| {
            let kicked = &mut world.vcpus.entry(vcpu).or_default().kicked;
            kicked.get_or_insert_with(std::time::Instant::now);
        });
        self.host.kick(vcpu);
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        self.host.broadcast_flush(gfns)
    }

    #[inline(always)]
    fn observe(&self, event: TraceEvent) {
        self.host.observe(event);
    }
}

/// The tables of a checked host.
struct Behind<T>(#[allow(dead_code, reason = "its type counts")] T);

/// The memory of these tables.
#[repr(transparent)]
struct Lending<H, T>(Checked<H>, PhantomData<fn() -> T>);

// SAFETY: private, and made only of a checked host, which always has the same memory.
unsafe impl<H: Host, T: TablesOf<H>> TablesOf<Checked<H>> for Behind<T> {
    type Memory = Lending<H, T>;

    #[inline(always)]
    fn memory(host: &Checked<H>) -> &Lending<H, T> {
        // SAFETY: a transparent wrapper, with nothing else in it.
        unsafe { &*core::ptr::from_ref(host).cast() }
    }
}

// SAFETY: each function is that of the host's memory, which keeps the contract.
unsafe impl<H: Host, T: TablesOf<H>> TableMemory for Lending<H, T> {
    const SINGLE_PAGES: bool = <T::Memory as TableMemory>::SINGLE_PAGES;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let (memory, oracle) = (T::memory(&self.0.host), &self.0.oracle);
        let (first, pfn) = memory.lend(pages)?;
        if oracle.is_on() {
            let is_there = memory.at(pfn) == first;
            oracle.step(|world| world.lends((first.addr().get(), pfn), pages as u64, is_there));
        }
        Some((first, pfn))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.0.oracle.step(|world| world.takes_back(pfn));
        // SAFETY: the caller guarantees it.
        unsafe { T::memory(&self.0.host).take_back(first, pfn, pages) }
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        T::memory(&self.0.host).at(pfn)
    }
}

/// Looks at some of the host's pages, inside a section, if a seat is free.
fn look<F: Format, H: Host>(vm: &Vm<F, H>, pages: Option<Vec<(Hva, Pfn)>>, look: impl FnMut((Hva, Pfn))) {
    let pages = pages.unwrap_or_default();
    // A host that panics must not do so again while the panic unwinds.
    #[cfg(feature = "std")]
    if std::thread::panicking() {
        return;
    }
    if !pages.is_empty()
        && let Some(seat) = vm.try_borrow_seat().map(BorrowedWithoutIdle::new)
    {
        let _section = vm.reads.enter(&seat);
        pages.into_iter().for_each(look);
    }
}

/// An open invalidation of host addresses, or a transaction of memslots.
#[derive(Debug)]
pub(crate) struct Open<'vm> {
    oracle: Lent<'vm, Oracle>,
    /// Zero for an invalidation of frames.
    id: u64,
    /// Pages that are not known change.
    forgets: bool,
    why: Reason,
}

impl<'vm> Open<'vm> {
    pub(crate) fn begin<F: Format, H: Host>(vm: &'vm Vm<F, H>, range: Range, why: Reason) -> Self {
        let host = &vm.host;
        let id = if let Range::Hvas(hvas) = range {
            // The host must not have changed anything yet.
            look(vm, host.oracle.step(|world| world.standing(hvas, LOOKS)), |(hva, _)| {
                let look = || host.host.lookup(hva, Access::Read);
                host.asks((LOOK, false), (hva, Access::Read), look, |page| page.map(Ok));
            });
            host.oracle.step(|world| world.begins(hvas, why)).unwrap_or(0)
        } else {
            0
        };
        Self { oracle: Lent::new(&host.oracle), id, forgets: false, why }
    }

    /// The host announces a change by guest frames: of which pages is not known.
    pub(crate) fn is_the_hosts(&mut self) {
        self.forgets = true;
    }

    pub(crate) fn told(&mut self, hvas: Span<Hva>, to: Option<HostPage>) {
        self.oracle.step(|world| world.tells(self.id, hvas, to));
    }

    pub(super) fn edited(&mut self, scope: &Scope<'_>) {
        match scope {
            Scope::Whole if self.id != 0 => self.oracle.step(|world| world.applies(self.id)),
            Scope::Whole if self.forgets => self.oracle.step(World::forgets),
            // The host may change what is behind no memslot.
            Scope::Parts(parts) if self.why == Reason::Slot && !parts.is_empty() => {
                self.forgets = true;
                self.oracle.step(World::forgets)
            }
            _ => None,
        };
    }

    pub(crate) fn settled<F: Format, H: Host>(&mut self, vm: &Vm<F, H>) {
        let id = self.id;
        look(vm, self.oracle.step(|world| world.unchanged(id, LOOKS)), |page| {
            if let Some(now) = vm.host.host.lookup(page.0, Access::Read) {
                self.oracle.step(|world| world.looked(id, page, now));
            }
        });
        self.oracle.step(|world| world.settles(id));
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.oracle.step(|world| {
            world.ends(self.id);
            if self.forgets {
                world.forgets();
            }
        });
    }
}

pub(crate) fn ends<H: Host>(host: &Checked<H>) {
    host.oracle.step(World::ends_all);
}

/// From now on, stores of vCPUs are logged in rings.
pub(crate) fn logs_in_rings<H: Host>(host: &Checked<H>) {
    host.oracle.step(World::logs_in_rings);
}

/// Harvests that are being taken, or a transaction.
pub(crate) struct Harvesting<'vm>(&'vm Oracle, bool);

pub(crate) fn harvesting<H: Host>(host: &Checked<H>, clears: bool) -> Harvesting<'_> {
    host.oracle.step(World::begins_to_take);
    Harvesting(&host.oracle, clears)
}

impl Drop for Harvesting<'_> {
    fn drop(&mut self) {
        self.0.step(|world| world.ends_to_take(self.1));
    }
}

pub(crate) fn harvested<H: Host>(host: &Checked<H>, log: (SpaceId, Span<Gfn>), words: &TakenWords) {
    host.oracle.step(|world| world.harvests(log, words));
}
