//! Asking the rings of a running VM: one by one, or all of them by way of the bitmaps.
//!
//! ```text
//! one vCPU's     sort what it pushed, merge it into words     arm those pages     one flush
//! all            mark what they pushed in the slots' bitmaps, and harvest those
//! one's, in two steps        tell what it pushed, in order; later, of all: arm what was told, one flush
//! ```
//! So a page that several rings have, or a device wrote too, is told once, in order; and a harvest that is given back
//! waits in the bitmap, not in a ring that may be full again.

use super::harvest::{DirtyPage, Harvest, TakenFromSlot, TakenWords};
use super::ring::{Pushed, Ring, Taking, merge};
use super::take::{LogId, current};
use super::{DirtyError, DirtyLog, Splitting};
use crate::addr::{Gfn, PAGE_SHIFT, Span};
use crate::host::{Host, VcpuId};
use crate::slots::bitmap::WORD;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::prim::Relaxed;
use crate::sync::readside::{ReadSide, Seat};
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::vm::Vm;
use crate::walk::Walk;
use alloc::vec::Vec;

/// Words armed in one section: some ten microseconds, where they lie apart.
const WORDS_A_SECTION: usize = 256;

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
        let (mut harvest, mut owed) = (Harvest::new(self), Owed::default());
        self.take_ring(idle, self.ring(vcpu)?.take(), &mut harvest, &mut owed)?;
        self.flush_armed(owed);
        Ok(harvest)
    }

    /// Tells the pages that one vCPU has written and that were not told yet, in the order of its stores; a page may come more
    /// than once. Returns how many. Nothing is clean by that, and the vCPU has no more room than before:
    /// [`reset_rings`](Self::reset_rings) is the second step. Copy pages **after** that one: until then stores to them go
    /// unnoticed. `tell` may not ask rings. Pages of slots that are gone, or do not log any more, are not told.
    ///
    /// As KVM's ring is read: entries are collected by the VMM, and `KVM_RESET_DIRTY_RINGS` makes them clean.
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
    /// # let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(DirtyLog::ring(RingSize::new(4096)?)).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # let mut store = |idle: &mut _, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    /// store(&mut idle, 7)?;
    /// store(&mut idle, 3)?;
    /// let mut told = Vec::new();
    /// vm.collect_ring(&mut idle, VcpuId(0), |page| told.push(page.gfn))?;
    /// assert_eq!(told, [Gfn(7), Gfn(3)]);
    /// store(&mut idle, 9)?; // between the steps: it waits for the next collection
    /// assert_eq!(vm.collected_not_reset(&mut idle, VcpuId(0))?, 2);
    /// assert_eq!(vm.reset_rings(&mut idle)?, 2);
    /// // … here pages 7 and 3 are copied …
    /// vm.collect_ring(&mut idle, VcpuId(0), |page| assert_eq!(page.gfn, Gfn(9)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn collect_ring(
        &self,
        _idle: &mut Idle,
        vcpu: VcpuId,
        mut tell: impl FnMut(DirtyPage),
    ) -> Result<u64, DirtyError> {
        let ring = self.ring(vcpu)?;
        let (seat, mut told) = (self.borrow_seat(), 0);
        let mut entries = ring.collect();
        while let Some(pushed) = entries.next() {
            let page = self.space(pushed.space()).and_then(|space| {
                let version = space.memslots.read(&self.reads, seat.seat()).version;
                version.log(pushed.slot()).filter(|log| pushed.is_of(log))?;
                let (slot, page) = (version.get(pushed.slot())?, pushed.page());
                let (gfn, hva) = (slot.gfns.start + page, slot.hva + (page << PAGE_SHIFT));
                Some(DirtyPage { space: space.id, slot: slot.id, page, gfn, hva })
            });
            match page {
                Some(page) => {
                    told += 1;
                    tell(page);
                }
                None => entries.strike_out(),
            }
        }
        Ok(told)
    }

    /// The second step: all that was [collected](Self::collect_ring), of every vCPU, is clean from now on. The next store to each
    /// page is logged again, the vCPUs have room again, and what was stored before is in memory when this returns. Waits for
    /// vCPUs to answer one flush, unless nothing was collected. Returns how many entries are gone. After an error those that
    /// are neither gone nor collected wait for [`harvest_all`](crate::memslots::Memslots::harvest_all). KVM's
    /// `RESET_DIRTY_RINGS`, where the VMM has read all that was published.
    pub fn reset_rings(&self, idle: &mut Idle) -> Result<u64, DirtyError> {
        self.reset_rings_in_part(idle, |_| u64::MAX)
    }

    /// The same of the pages of each vCPU that were told first: so many as `pages` says. The others stay told: they are written
    /// still, and take up room. For a VMM that publishes what it is told to another one, which says how much it has read. KVM's
    /// `RESET_DIRTY_RINGS`, which resets the entries that are flagged.
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
    /// # let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(DirtyLog::ring(RingSize::new(4096)?)).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// # let mut store = |idle: &mut _, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    /// let mut published = Vec::new();
    /// store(&mut idle, 7)?;
    /// store(&mut idle, 3)?;
    /// vm.collect_ring(&mut idle, VcpuId(0), |page| published.push(page.gfn))?;
    /// let flagged = |_: VcpuId| 1; // the reader has come to page 7
    /// assert_eq!(vm.reset_rings_in_part(&mut idle, flagged)?, 1);
    /// assert_eq!(vm.collected_not_reset(&mut idle, VcpuId(0))?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_rings_in_part(
        &self,
        idle: &mut Idle,
        mut pages: impl FnMut(VcpuId) -> u64,
    ) -> Result<u64, DirtyError> {
        self.ring(VcpuId(0))?;
        let (mut gone, mut harvest, mut owed) = (0, Harvest::new(self), Owed::default());
        for (id, ring) in (0..).map(VcpuId).zip(self.rings.all()) {
            gone += self.take_ring(idle, ring.take_told(pages(id)), &mut harvest, &mut owed)?;
        }
        self.flush_armed(owed);
        // The embedder has them.
        harvest.commit();
        Ok(gone)
    }

    /// How many entries of one vCPU were [collected](Self::collect_ring) and not [reset](Self::reset_rings): room that it is
    /// owed.
    pub fn collected_not_reset(&self, _idle: &mut Idle, vcpu: VcpuId) -> Result<u64, DirtyError> {
        Ok(self.ring(vcpu)?.waits_for_reset())
    }

    fn ring(&self, vcpu: VcpuId) -> Result<&Ring, DirtyError> {
        let rings = self.rings.all();
        if rings.is_empty() {
            return Err(DirtyError::NoRing);
        }
        rings.get(vcpu.0 as usize).ok_or(DirtyError::NoSuchVcpu(vcpu))
    }

    /// Takes entries into `harvest`, arms their pages, and owes the flush. Returns how many entries. An error takes nothing, or
    /// leaves what was taken in the bitmaps.
    fn take_ring<'vm>(
        &'vm self,
        idle: &mut Idle,
        taking: Taking<'_>,
        harvest: &mut Harvest<'vm, F, H>,
        owed: &mut Owed,
    ) -> Result<u64, DirtyError> {
        let (mut all, mut result) = (taking.list()?, Ok(()));
        all.sort_unstable();
        for pages in all.chunk_by(Pushed::shares_log) {
            result = result.and_then(|()| self.take_pushed(idle, pages, harvest, owed));
            if result.is_err() {
                // Neither told nor lost.
                self.mark_pushed(pages.iter().copied());
            }
        }
        result.map(|()| all.len() as u64)
    }

    /// Changes how writes are logged while the VM lives, as KVM's capabilities do. What changes:
    ///
    /// | setting | when it may change | what it holds for |
    /// |---|---|---|
    /// | [`initially_set`](DirtyLog::initially_set) | always | logs that begin from now on |
    /// | [`splitting`](DirtyLog::splitting) | always | large pages that are divided from now on |
    /// | rings, where there are none | while no thread has a vCPU | stores from now on; marks of before are in the bitmaps, where `harvest_all` finds them |
    /// | rings of another size, or none any more | never | |
    /// | [`track`](DirtyLog::track), where the format has D bits | never | |
    ///
    /// An error changes nothing. Waits for transactions.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Nothing;
    /// # unsafe impl slat::table::TableMemory for Nothing {}
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(Nothing).build()?;
    /// vm.set_dirty_log(&mut idle, DirtyLog::bitmap().initially_set())?; // KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2
    /// let ring = DirtyLog::ring(RingSize::new(4096)?); // KVM_CAP_DIRTY_LOG_RING
    /// let vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// assert_eq!(vm.set_dirty_log(&mut idle, ring), Err(DirtyError::VcpuTaken));
    /// drop(vcpu);
    /// vm.set_dirty_log(&mut idle, ring)?;
    /// assert_eq!(vm.set_dirty_log(&mut idle, DirtyLog::bitmap()), Err(DirtyError::Fixed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_dirty_log(&self, _idle: &mut Idle, dirty: DirtyLog) -> Result<(), DirtyError> {
        let size = self.rings.all().first().map(Ring::len);
        let fixed = size.is_some() && size != dirty.ring.map(|size| size.entries() as usize);
        if fixed || dirty.by_bits::<F>() != self.logs_by_bits() {
            return Err(DirtyError::Fixed);
        }
        if let (None, Some(size)) = (size, dirty.ring) {
            // While this has all of them, no vCPU logs elsewhere.
            let seats = (0..self.policy.vcpus).map(|id| self.reads.claim(id as usize));
            let _seats: Vec<_> = seats.collect::<Option<_>>().ok_or(DirtyError::VcpuTaken)?;
            self.rings.make(size, self.policy.vcpus).map_err(|_| DirtyError::NoMemory)?;
        }
        for space in &self.spaces {
            space.memslots.writer.lock().map.set_logs_set(dirty.initially_set);
        }
        self.splits_lazily.store(dirty.splitting == Splitting::Lazy, Relaxed);
        Ok(())
    }

    /// When large pages of slots that log become small ones.
    pub(super) fn splitting(&self) -> Splitting {
        if self.splits_lazily.load(Relaxed) { Splitting::Lazy } else { Splitting::Eager }
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
        let mut told = TakenWords::default();
        if injected!(Alloc) || told.words.try_reserve_exact(merge(pages).count()).is_err() {
            return Err(DirtyError::NoMemory);
        }
        told.words.extend(merge(pages));

        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let version = space.memslots.read(&self.reads, walk.seat).version;
        let log = version.log(id).filter(|log| pages[0].is_of(log));
        let Some(log) = log.map(|log| LogId { slot: id, serial: log.serial() }) else { return Ok(()) };
        let mut taken = None;
        for stretch in told.words.chunks(WORDS_A_SECTION) {
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
            harvest.add(TakenFromSlot { space: space.id, slot, serial: log.serial, told });
        }
        Ok(())
    }

    /// Marks all that any vCPU has pushed in the bitmaps, where a harvest of those finds it.
    pub(super) fn empty_rings(&self, _idle: &mut Idle) {
        for ring in self.rings.all() {
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
