//! Held frames: guest memory that the VMM or hardware uses beside the tables.
//!
//! A para-virtual clock page, a posted-interrupt descriptor, a virtual-APIC page, a page of descriptors, the pages that a
//! nested guest's control block names: each is a guest frame that is used by its frame number, not by way of the guest's page tables.
//! The host may move it all the same. So the frame is held: it is **valid or refused, never stale**, as KVM's `gfn_to_pfn_cache`.
//!
//! ```text
//! hold, refresh   slot ─▶ host ─▶ frame     `Host::resolve`, asked as a fault asks; may sleep
//! read, write     a use of the frame        None where an invalidation has taken it: refresh first
//! current         the frame for hardware    the same, between `Vcpu::enter` and `Ready::go`
//! ```
//! **What takes it back.** What would take a leaf of the same frame: an invalidation of its page or of its frame, by
//! address or page by page; a memslot transaction that takes the frame's memory away, moves it, or makes it read-only, private or shared;
//! and where the frame is held to write, write protection by the host ([`Why::Protect`](crate::Why::Protect) and those like it), and the
//! begin of [write tracking](Memslots::track_writes), under which no frame is held to write. One that
//! is called off takes nothing. A frame may be refused without need: where the engine zaps its tables for reasons of its own.
//! Dirty logs, aging and [`Vm::zap_all`] take nothing.
//!
//! **What is owed.** The debt of such an invalidation is not settled before uses that had begun have ended, and, of frames that
//! [hardware](HeldForHardware) uses, before each vCPU that was in the guest has left it or answered: also where no leaf maps the frame, and where
//! hardware broadcasts flushes. So when the invalidation has ended, nothing uses the page that the host takes back.
//!
//! **What may sleep.** [`Vm::hold`] and [`Held::refresh`]: the host may, and they wait for an invalidation that covers the frame to end.
//! A use may not: while it lasts, its thread has no [`Idle`] to give away, and invalidations of the frame wait for it. It must not
//! wait for the host, as an access to the page's host address may. So use the frame by a mapping of its own, and shortly.
//!
//! **What it costs.** A use: a store and a load of a cache line of its own, and the store that ends it. An invalidation in a
//! VM that holds nothing: one load. A fault: nothing.
//!
//! `slots/holds.rs` is what invalidations see of this, and says why one of the two sides always sees the other.

use crate::addr::{Gfn, Hva, Level, Pfn, Span};
use crate::host::{Host, HostError, Token};
use crate::memslots::Memslots;
use crate::notify::active::{Page, Stamp, Unconfirmed};
use crate::slots::Slot;
use crate::slots::holds::{HeldAs, HoldCell, Holds};
use crate::sync::idle::Idle;
use crate::sync::prim::Patience;
use crate::table::entry::Word;
use crate::table::format::{Access, Format};
use crate::vm::Vm;
use core::marker::PhantomData;

mod hardware;

pub use hardware::HeldForHardware;

/// Looks at who is active while an invalidation covers the frame, before it is asked for again.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// A guest frame that is held, to read or to write. See the module's header, and [`Vm::hold`].
///
/// One thread uses it at a time; where several use one frame, each holds it. Dropping it waits for nothing.
pub struct Held<'vm, F: Format, H: Host> {
    slots: Memslots<'vm, F, H>,
    cell: &'vm HoldCell,
    gfn: Gfn,
    access: Access,
    /// The host's frame, while the cell is valid.
    pfn: Pfn,
}

/// A use of a held frame. An invalidation that takes the frame back waits until this is dropped: keep it for a few accesses. One that
/// is leaked ends with the next call on its [`Held`].
#[must_use = "the frame may be used only while this lives"]
pub struct HeldUse<'h, F: Format, H: Host> {
    slots: &'h Memslots<'h, F, H>,
    cell: &'h HoldCell,
    gfn: Gfn,
    pfn: Pfn,
    writes: bool,
    /// The thread is not idle: nothing may sleep, and no invalidation may be settled by it.
    _idle: PhantomData<&'h mut Idle>,
}

/// Why a frame cannot be held, or not now. Nothing is held, or what is held stays refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldError {
    /// No memslot has the frame.
    NoMemslot,
    /// It is to be written, and its memslot is read-only.
    ReadOnly,
    /// It is to be written, and [stores to it are tracked](Memslots::track_writes), which a listener could not be told of here: make
    /// each by [`Memslots::emulate_store`], or hold it when the last tracker has gone.
    Tracked,
    /// The page is on its way to the host ([`HostError::Pending`]), which calls it so. Again when it is there.
    Pending(Token),
    /// The host has no page for it.
    Host(HostError),
    /// No memory to hold one more frame.
    NoMemory,
}

errors! { HoldError:
    Self::NoMemslot => "no memslot has the frame: create one first";
    Self::ReadOnly => "the memslot is read-only: hold the frame to read";
    Self::Tracked => "stores to the frame are tracked: emulate them, or hold it to read";
    Self::Pending(token) => "the host has the page later, as token {:#x}: hold it then", token.0;
    Self::Host(error) => "{error}";
    Self::NoMemory => "no memory to hold one more frame";
}

impl<F: Format, H: Host> Vm<F, H> {
    /// [`Memslots::hold`] in address space 0.
    pub fn hold(&self, idle: &mut Idle, gfn: Gfn, access: Access) -> Result<Held<'_, F, H>, HoldError> {
        self.slots().hold(idle, gfn, access)
    }
}

impl<'vm, F: Format, H: Host> Memslots<'vm, F, H> {
    /// Holds `gfn` of this address space: finds its memslot and asks the host for the page, for `access`. A frame that is held to write
    /// may be read, too. Nothing is mapped, and the guest may fault on the frame or not.
    ///
    /// Sleeps where the host does, and waits for an invalidation that covers the frame. Allocates a cell of 128 bytes, which the
    /// VM keeps. The module's header says what takes the frame back, and what that waits for.
    ///
    /// ```
    /// use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
    /// # let mut written = Vec::new();
    /// # let mut write_time_to = |pfn: Pfn| written.push(pfn);
    /// // The guest has said that frame 5 is its clock page (MSR_KVM_SYSTEM_TIME).
    /// let mut clock = vm.hold(&mut idle, Gfn(5), Access::Write)?;
    ///
    /// // Before each entry:
    /// loop {
    ///     if let Some(page) = clock.write(&mut idle) {
    ///         write_time_to(page.pfn()); // by the hypervisor's own mapping of that frame
    ///         break; // marked dirty; an invalidation that waits for the use goes on
    ///     }
    ///     clock.refresh(&mut idle)?; // the host has moved the page since
    /// }
    /// assert!(vm.slots().is_dirty(Gfn(5)));
    ///
    /// vm.invalidate_gfns(Span::sized(Gfn(5), 1), Why::Migrate).apply(&mut idle).settle();
    /// assert!(clock.write(&mut idle).is_none(), "refused, until it is refreshed");
    /// # assert_eq!(written, [Pfn(0x4_0005)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold(&self, idle: &mut Idle, gfn: Gfn, access: Access) -> Result<Held<'vm, F, H>, HoldError> {
        self.hold_as(idle, gfn, access, false)
    }

    fn hold_as(
        &self,
        idle: &mut Idle,
        gfn: Gfn,
        access: Access,
        hardware: bool,
    ) -> Result<Held<'vm, F, H>, HoldError> {
        let held = HeldAs { space: self.space.id, gfn, write: access == Access::Write, hardware };
        let cell = self.vm.holds.claim(held).ok_or(HoldError::NoMemory)?;
        let slots = Memslots { vm: self.vm, space: self.space };
        let mut held = Held { slots, cell, gfn, access, pfn: Pfn(0) };
        held.refresh(idle)?;
        Ok(held)
    }
}

impl<F: Format, H: Host> Held<'_, F, H> {
    /// The guest frame.
    pub fn gfn(&self) -> Gfn {
        self.gfn
    }

    /// Whether the frame may be used at this moment, as far as can be said without a use.
    pub fn is_valid(&self) -> bool {
        self.cell.is_valid()
    }

    /// Begins a use that reads. `None` where the frame has been taken back: [`refresh`](Self::refresh).
    #[inline]
    pub fn read<'h>(&'h mut self, _idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        self.used(false)
    }

    /// The same to write: when the use ends, the frame is dirty where its memslot logs. There is no use to
    /// write while stores to the frame [are tracked](crate::Vm::track_writes): it is refused then.
    ///
    /// # Panics
    /// Where the frame is not held to write.
    #[inline]
    pub fn write<'h>(&'h mut self, _idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        assert!(self.access == Access::Write, "{:?} is held for {:?}, not to write", self.gfn, self.access);
        self.used(true)
    }

    #[inline(always)]
    fn used(&mut self, writes: bool) -> Option<HeldUse<'_, F, H>> {
        let Self { slots, cell, gfn, pfn, .. } = self;
        let begun = cell.begin(slots.vm.reads.barrier);
        begun.then_some(HeldUse { slots, cell, gfn: *gfn, pfn: *pfn, writes, _idle: PhantomData })
    }

    /// Hardware has written the frame, or may have: it is dirty where its memslot logs. After the write.
    pub fn mark_dirty(&self) {
        self.slots.mark_dirty(Span::sized(self.gfn, 1));
    }

    /// Asks for the frame anew where it has been taken back; else does nothing. Sleeps and waits as [`Vm::hold`] does. After an error the
    /// frame stays refused, and may be asked for again.
    ///
    /// No hardware may use the frame meanwhile: the vCPU whose control block has it is out of the guest.
    pub fn refresh(&mut self, idle: &mut Idle) -> Result<(), HoldError> {
        self.cell.end();
        let mut patience = Patience::default();
        while !self.cell.is_valid() {
            let asked = self.ask(idle, &mut patience);
            if asked.is_err() {
                self.cell.refused();
            }
            asked?;
        }
        Ok(())
    }

    /// Asks once: as a fault asks whose host may sleep (rules 2 and 3 of [`crate::notify`]), with the cell in the place of an entry.
    fn ask(&mut self, idle: &mut Idle, patience: &mut Patience) -> Result<(), HoldError> {
        let vm = self.slots.vm;
        let epoch = vm.active.epoch();
        let slot = self.slots.find(idle, self.gfn).ok_or(HoldError::NoMemslot)?;
        if self.access == Access::Write && slot.readonly {
            return Err(HoldError::ReadOnly);
        }
        let hva = slot.hva_of(self.gfn);
        let listed = vm.active.listed_over(Some(hva));
        let stamp = || vm.active.stamp(epoch, Page::small(self.gfn, hva), Level::K4, Word::OLDEST);
        match asked((&vm.holds, self.cell), hva, stamp, || self.resolve(idle, &slot, hva))? {
            Asked::Valid(pfn) => self.pfn = pfn,
            Asked::Again => patience.wait(),
            // Rule 13.
            Asked::Covered => {
                for _ in 0..LOOKS {
                    patience.wait();
                    if vm.active.listed_over(Some(hva)) != listed {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn resolve(&self, idle: &mut Idle, slot: &Slot, hva: Hva) -> Result<Pfn, HoldError> {
        let (host, access) = (&self.slots.vm.host, self.access);
        // After the stamp, as a fault asks: a tracker that begins later invalidates the frame.
        if access == Access::Write && self.slots.tracks_writes(self.gfn) && !seeded!(HeldTracked) {
            return Err(HoldError::Tracked);
        }
        match host.resolve(idle, hva, access) {
            Ok(page) if page.allows(access) && (access != Access::Fetch || slot.execute) => Ok(page.pfn),
            Ok(_) => Err(HoldError::Host(HostError::Fault)),
            Err(HostError::Pending) => Err(HoldError::Pending(host.token(hva))),
            Err(error) => Err(HoldError::Host(error)),
        }
    }
}

/// What came of one question to the host.
enum Asked<T> {
    /// The cell is valid, and this is the frame.
    Valid(T),
    /// An invalidation covers the page.
    Covered,
    /// Memslots changed, or an invalidation took the page back meanwhile.
    Again,
}

/// The page of `cell` is the one at `hva`, as was looked up; the stamp; the host. In this order.
fn asked<T, E>(
    (holds, cell): (&Holds, &HoldCell),
    hva: Hva,
    stamp: impl FnOnce() -> Result<Stamp, Unconfirmed>,
    host: impl FnOnce() -> Result<T, E>,
) -> Result<Asked<T>, E> {
    holds.publish(cell, hva);
    match stamp() {
        Err(Unconfirmed::Covered) if !seeded!(HeldUnconfirmed) => return Ok(Asked::Covered),
        Err(Unconfirmed::Moved) if !seeded!(HeldUnconfirmed) => return Ok(Asked::Again),
        _ => {}
    }
    let found = host()?;
    Ok(if cell.confirm() { Asked::Valid(found) } else { Asked::Again })
}

impl<F: Format, H: Host> Drop for Held<'_, F, H> {
    fn drop(&mut self) {
        self.slots.vm.holds.give_back(self.cell);
    }
}

/// Whatever the host is.
impl<F: Format, H: Host> core::fmt::Debug for Held<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { cell, gfn, access, pfn, .. } = self;
        let pfn = cell.is_valid().then_some(pfn);
        f.debug_struct("Held")
            .field("gfn", gfn)
            .field("access", access)
            .field("pfn", &pfn)
            .finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> core::fmt::Debug for HeldUse<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HeldUse").field("gfn", &self.gfn).field("pfn", &self.pfn).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> HeldUse<'_, F, H> {
    /// The host's frame: valid until this is dropped.
    #[inline(always)]
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }
}

impl<F: Format, H: Host> Drop for HeldUse<'_, F, H> {
    #[inline]
    fn drop(&mut self) {
        if self.writes && !seeded!(HeldUnmarked) {
            // In the use still: the memslot and its log are those of the frame.
            self.slots.mark_dirty(Span::sized(self.gfn, 1));
        }
        self.cell.end();
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests;
