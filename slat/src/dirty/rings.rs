//! Asking the rings of a running VM: one by one, or all of them by way of the bitmaps.
//!
//! ```text
//! one vCPU's     sort what it pushed, merge it into words     arm those pages     one flush
//! all            mark what they pushed in the slots' bitmaps, and harvest those
//! ```
//! So a page that several rings have, or a device wrote too, is told once, in order; and a harvest that is given back
//! waits in the bitmap, not in a ring that may be full again.

use super::DirtyError;
use super::harvest::{Harvest, Taken, Told};
use super::ring::{Pushed, Ring, merge};
use super::take::{LogId, current};
use crate::addr::{Gfn, Span};
use crate::host::{Host, VcpuId};
use crate::slots::bitmap::WORD;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::readside::{ReadSide, Seat};
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::vm::Vm;
use crate::walk::Walk;

/// Words armed in one section: some ten microseconds, where they lie apart.
const STRETCH: usize = 256;

impl<F: Format, H: Host> Vm<F, H> {
    /// Takes what one vCPU has written since its ring was last harvested: those pages are clean from now on, and the next
    /// store to each, by whichever vCPU, is logged again. The vCPU has room again. What was stored before is in memory when
    /// this returns, so the pages can be copied. Waits for vCPUs to answer one flush, unless nothing was written.
    ///
    /// Marks of devices are in no ring, nor is what was given back: both wait for
    /// [`harvest_all`](crate::memslots::Memslots::harvest_all). KVM's `RESET_DIRTY_RINGS`, of one vCPU.
    ///
    /// ```
    /// # use slat::{*, table::{TableMemory, formats::Npt4}};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// let rings = DirtyLog::ring(RingSize::new(4096)?); // 256 stores, of which 64 are a reserve
    /// let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(rings).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let mut store = |idle: &mut _, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    /// for gfn in 0..192 {
    ///     assert_eq!(store(&mut idle, gfn)?, Done::Mapped(Level::K4));
    /// }
    /// assert_eq!(store(&mut idle, 192)?, Done::RingFull, "nothing was done");
    ///
    /// let harvest = vm.harvest_ring(&mut idle, VcpuId(0))?;
    /// assert_eq!((harvest.pages(), harvest.words().count()), (192, 3), "neighbours are told together");
    /// harvest.commit();
    /// assert_eq!(store(&mut idle, 192)?, Done::Mapped(Level::K4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harvest_ring(&self, idle: &mut Idle, vcpu: VcpuId) -> Result<Harvest<'_, F, H>, DirtyError> {
        if self.rings.is_empty() {
            return Err(DirtyError::NoRing);
        }
        let ring = self.rings.get(vcpu.0 as usize).ok_or(DirtyError::NoSuchVcpu(vcpu))?;
        let mut all = ring.take_all()?;
        all.sort_unstable();
        let (mut harvest, mut owed, mut result) = (Harvest::new(self), Owed::default(), Ok(()));
        for pages in all.chunk_by(Pushed::shares_log) {
            result = result.and_then(|()| self.take_pushed(idle, pages, &mut harvest, &mut owed));
            if result.is_err() {
                // Neither told nor lost.
                self.mark_pushed(pages.iter().copied());
            }
        }
        result?;
        self.flush_armed(owed);
        Ok(harvest)
    }

    /// Takes sorted pages of one log into `harvest`, arms them, and owes their flush. An error does nothing.
    fn take_pushed<'vm>(
        &'vm self,
        idle: &mut Idle,
        pages: &[Pushed],
        harvest: &mut Harvest<'vm, F, H>,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        let Some((space, id)) = self.space(pages[0].space()).zip(Some(pages[0].slot())) else {
            return Ok(());
        };
        harvest.reserve()?;
        let mut told = Told::default();
        if injected!(Alloc) || told.words.try_reserve_exact(merge(pages).count()).is_err() {
            return Err(DirtyError::NoMemory);
        }
        told.words.extend(merge(pages));

        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let version = space.memslots.read(&self.reads, walk.seat).version;
        let log = version.log(id).filter(|log| pages[0].is_of(log));
        let Some(log) = log.map(|log| LogId { slot: id, serial: log.serial() }) else { return Ok(()) };
        let mut taken = None;
        for stretch in told.words.chunks(STRETCH) {
            // A log that has ended wants to know nothing.
            let Some((slot, _)) = current(&walk, log) else { return Ok(()) };
            for &(word, bits) in stretch {
                if !seeded!(RingUnarmed) {
                    walk.arm_words(&slot, word, &[bits], |_, _| ());
                }
            }
            let count = stretch.iter().map(|(_, bits)| u64::from(bits.count_ones())).sum();
            told.pages += count;
            let (first, last) = (stretch[0].0 * WORD, (stretch[stretch.len() - 1].0 + 1) * WORD);
            owed.owe_pages(
                Span::new(slot.gfns.start + first, slot.gfns.start + last).clamp(&slot.gfns),
                count,
            );
            taken = Some(slot);
            walk.rest();
        }
        if let Some(slot) = taken {
            harvest.add(Taken { space: space.id, slot, serial: log.serial, told });
        }
        Ok(())
    }

    /// Marks all that any vCPU has pushed in the bitmaps, where a harvest of those finds it.
    pub(super) fn empty_rings(&self, _idle: &mut Idle) {
        for ring in &self.rings {
            self.mark_pushed(ring.take());
        }
    }

    /// Marks pages in the bitmaps of their logs, as far as those go on.
    fn mark_pushed(&self, pages: impl Iterator<Item = Pushed>) {
        let seat = self.borrow_seat();
        for pushed in pages {
            let Some(space) = self.space(pushed.space()) else { continue };
            let reading = space.memslots.read(&self.reads, seat.seat());
            if let Some(log) = reading.version.log(pushed.slot()).filter(|log| pushed.is_of(log)) {
                log.mark(pushed.page());
            }
        }
    }
}

impl<F: Format> Space<F> {
    /// Logs a store of a vCPU to `gfn`, where its slot logs: into its ring, where it has one. After the store has been made
    /// possible, as [`SlotSets::log_writes`].
    ///
    /// [`SlotSets::log_writes`]: crate::slots::publish::SlotSets::log_writes
    #[inline]
    pub(crate) fn log_store(&self, reads: &ReadSide, seat: &Seat, gfn: Gfn, ring: Option<&Ring>) {
        match ring {
            None => self.memslots.log_writes(reads, seat, Span::sized(gfn, 1)),
            Some(ring) => self.push_store(reads, seat, gfn, ring),
        }
    }

    fn push_store(&self, reads: &ReadSide, seat: &Seat, gfn: Gfn, ring: &Ring) {
        let version = self.memslots.read(reads, seat).version;
        let slot = version.find(gfn).filter(|slot| slot.log_dirty);
        if let Some((slot, log)) = slot.and_then(|slot| Some((slot, version.log(slot.id)?))) {
            let page = gfn.0 - slot.gfns.start.0;
            if !ring.push(Pushed::new(self.id, slot.id, log, page)) {
                log.mark(page);
            }
        }
    }
}
