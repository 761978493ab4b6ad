//! Calls on the rings of a running VM: one by one, or all of them through the bitmaps.
//!
//! ```text
//! one vCPU's                sort its pages, merge them into words, arm these pages, one flush
//! all                       mark their pages in the slots' bitmaps, and harvest those
//! one vCPU's, in two steps  report its pages, in order; later, for all vCPUs: arm the reported pages, one flush
//! ```
//! A page that several rings hold, or that a device wrote too, is thus reported once, in order. A harvest that is given
//! back waits in the bitmap, since the ring may be full again.

use super::harvest::{DirtyPage, Harvest, TakenFromSlot, TakenWords};
use super::state::LogId;
use super::state::taking_from_rings;
use super::take::current;
use super::{DirtyError, DirtyLog, Splitting};
use crate::dirty_log::ring::{Pushed, Ring, Taking, merge};
use crate::fallible;
use crate::oracle;
use crate::slots::bitmap::WORD;
use crate::sync::mode::Shared;
use crate::sync::prim::Relaxed;
use crate::tlb::debt::Owed;
use crate::{Format, GuestSpace, Host, Idle, PAGE_SHIFT, Span, VcpuId, Vm, Walk};
use alloc::vec::Vec;

/// Words armed in one section: some ten microseconds, if they lie apart.
const WORDS_A_SECTION: usize = 256;

impl<F: Format, H: Host> Vm<F, H> {
    /// Takes the pages that one vCPU has written since its ring was last harvested. They are clean from now on; the
    /// next store to each, by any vCPU, is logged again. The vCPU has room again. What was stored before is in memory
    /// on return, so the pages can be copied. Waits for vCPUs to answer one flush, unless nothing was written.
    ///
    /// Devices' marks and pages that were given back are in no ring:
    /// [`harvest_all`](crate::guest_space::GuestSpace::harvest_all) returns them. KVM's `RESET_DIRTY_RINGS`, of one vCPU.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// let rings = DirtyLog::ring(RingSize::new(4096)?); // 256 stores, of which 64 are a reserve
    /// let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(rings).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.memory().commit(&mut idle, |tx| tx.create(slot))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let mut store = |idle: &mut _, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    /// for gfn in 0..192 {
    ///     assert_eq!(store(&mut idle, gfn)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// }
    /// assert_eq!(store(&mut idle, 192)?, Next::Leave(Leave::RingFull), "nothing was done");
    ///
    /// let harvest = vm.harvest_ring(&mut idle, VcpuId(0))?;
    /// assert_eq!((harvest.pages(), harvest.words().count()), (192, 3), "neighbours are told together");
    /// harvest.commit();
    /// assert_eq!(store(&mut idle, 192)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harvest_ring(&self, idle: &mut Idle, vcpu: VcpuId) -> Result<Harvest<'_, F, H>, DirtyError> {
        let (mut harvest, mut owed) = (Harvest::new(self), Owed::default());
        let _taking = taking_from_rings(self.rings.takings());
        self.take_ring(idle, self.ring(vcpu)?.take(), &mut harvest, &mut owed)?;
        self.flush_armed(owed);
        Ok(harvest)
    }

    /// Reports the pages that one vCPU has written and that were not reported yet, in the order of its stores; a page
    /// may be reported more than once. Returns the number of pages. They stay dirty and keep their room in the ring,
    /// until [`reset_rings`](Self::reset_rings). Copy pages **after** the reset: until then stores to them go
    /// unnoticed.
    ///
    /// A page for which `tell` panics is reported again. `tell` may not call ring functions. Skips pages of slots that are deleted or no longer log. Like KVM's ring: the
    /// VMM collects entries, and `KVM_RESET_DIRTY_RINGS` makes them clean.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(DirtyLog::ring(RingSize::new(4096)?)).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.memory().commit(&mut idle, |tx| tx.create(slot))?;
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
        idle: &mut Idle,
        vcpu: VcpuId,
        mut tell: impl FnMut(DirtyPage),
    ) -> Result<u64, DirtyError> {
        let ring = self.ring(vcpu)?;
        let (seat, mut told) = (self.borrow_seat(idle), 0);
        let mut entries = ring.collect();
        while let Some(pushed) = entries.peek() {
            let page = self.space(pushed.space()).and_then(|GuestSpace { space, .. }| {
                let reading = space.memslots.read(&self.reads, &seat);
                let version = reading.version();
                version.log(pushed.slot()).filter(|log| pushed.is_of(log))?;
                let (slot, page) = (version.get(pushed.slot())?, pushed.page());
                let (gfn, hva) = (slot.gfns.start + page, slot.hva + (page << PAGE_SHIFT));
                Some(DirtyPage { space: space.id, slot: slot.id, page, gfn, hva })
            });
            let Some(page) = page else {
                entries.next();
                entries.strike_out();
                continue;
            };
            told += 1;
            tell(page);
            // Last: if `tell` panics, the page is told again.
            entries.next();
        }
        Ok(told)
    }

    /// Cleans all [collected](Self::collect_ring) pages, of every vCPU. The next store to each is logged again, the
    /// vCPUs have room again, and what was stored before is in memory on return. Waits for vCPUs to answer one flush,
    /// unless nothing was collected. Returns the number of entries removed.
    ///
    /// After an error, entries that were neither removed nor collected wait for
    /// [`harvest_all`](crate::guest_space::GuestSpace::harvest_all). KVM's `RESET_DIRTY_RINGS`.
    pub fn reset_rings(&self, idle: &mut Idle) -> Result<u64, DirtyError> {
        self.reset_rings_in_part(idle, |_| u64::MAX)
    }

    /// Like [`reset_rings`](Self::reset_rings), for the first `pages(vcpu)` collected pages of each vCPU. The others
    /// stay collected: writable, and in the ring. For a VMM that passes pages on to a reader, which says how many it
    /// has read. KVM's `RESET_DIRTY_RINGS`, which resets the flagged entries.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(DirtyLog::ring(RingSize::new(4096)?)).build()?;
    /// # let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000)).log_dirty();
    /// # vm.memory().commit(&mut idle, |tx| tx.create(slot))?;
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
        let _taking = taking_from_rings(self.rings.takings());
        for (id, ring) in (0..).map(VcpuId).zip(self.rings.all()) {
            gone += self.take_ring(idle, ring.take_told(pages(id)), &mut harvest, &mut owed)?;
        }
        self.flush_armed(owed);
        // The embedder has the pages.
        harvest.commit();
        Ok(gone)
    }

    /// Returns the number of entries of one vCPU that were [collected](Self::collect_ring) and not
    /// [reset](Self::reset_rings).
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

    /// Takes entries into `harvest`, arms their pages, and owes the flush. Returns the number of entries. On an error,
    /// entries stay in the ring, or become marks in the bitmaps.
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
                // Not in the harvest; the marks keep them.
                self.mark_pushed(idle, pages.iter().copied());
            }
        }
        result.map(|()| all.len() as u64)
    }

    /// Changes how a running VM logs writes, as KVM's capabilities do. What may change:
    ///
    /// | setting | when it may change | applies to |
    /// |---|---|---|
    /// | [`initially_set`](DirtyLog::initially_set) | always | logs that begin from now on |
    /// | [`splitting`](DirtyLog::splitting) | always | large pages that are split from now on |
    /// | rings, if there are none | while no thread holds a vCPU | stores from now on; earlier marks are in the bitmaps, for `harvest_all` |
    /// | rings of another size, or no rings any more | never | |
    /// | [`track`](DirtyLog::track), if the format has D bits | never | |
    ///
    /// Waits for transactions. An error changes nothing.
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Nothing;
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
            // While this holds all vCPU seats, no vCPU logs elsewhere.
            let seats = (0..self.policy.vcpus).map(|id| self.reads.claim(id as usize));
            let _seats: Vec<_> = seats.collect::<Option<_>>().ok_or(DirtyError::VcpuTaken)?;
            self.rings.make(size, self.policy.vcpus)?;
            oracle::logs_in_rings(&self.host);
        }
        for space in &self.spaces {
            space.memslots.writer.lock().map.set_logs_set(dirty.initially_set);
        }
        self.splits_lazily.store(dirty.splitting == Splitting::Lazy, Relaxed);
        Ok(())
    }

    /// Returns when large pages of slots that log are split.
    pub(super) fn splitting(&self) -> Splitting {
        if self.splits_lazily.load(Relaxed) { Splitting::Lazy } else { Splitting::Eager }
    }

    /// Takes sorted pages of one log into `harvest`, arms them, and owes their flush. An error changes nothing.
    fn take_pushed<'vm>(
        &'vm self,
        idle: &mut Idle,
        pages: &[Pushed],
        harvest: &mut Harvest<'vm, F, H>,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        let Some((GuestSpace { space, .. }, id)) = self.space(pages[0].space()).zip(Some(pages[0].slot()))
        else {
            return Ok(());
        };
        harvest.reserve()?;
        let mut told = TakenWords::default();
        fallible::reserve_exact(&mut told.words, merge(pages).count())?;
        told.words.extend(merge(pages));

        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let log = walk.slots().log(id).filter(|log| pages[0].is_of(log));
        let Some(log) = log.map(|log| LogId { slot: id, serial: log.serial() }) else { return Ok(()) };
        let mut taken = None;
        for stretch in told.words.chunks(WORDS_A_SECTION) {
            // The log has ended: its pages are not needed.
            let Some((slot, _)) = current(&walk, log) else { return Ok(()) };
            for &(word, bits) in stretch {
                walk.arm_words(&slot, word, &[bits], |_, _| ());
            }
            let count = stretch.iter().map(|(_, bits)| u64::from(bits.count_ones())).sum();
            told.pages += count;
            let (first, last) = (stretch[0].0 * WORD, (stretch[stretch.len() - 1].0 + 1) * WORD);
            owed.owe_pages(
                Span::new(slot.gfns.start + first, slot.gfns.start + last).clamp(&slot.gfns),
                count,
            );
            taken = Some(slot);
            walk.yield_section();
        }
        if let Some(slot) = taken {
            harvest.add(TakenFromSlot { space: space.id, slot, serial: log.serial, told });
        }
        Ok(())
    }

    /// Marks all pages in all rings in the bitmaps, for a harvest of those.
    pub(super) fn empty_rings(&self, idle: &mut Idle) {
        for ring in self.rings.all() {
            self.mark_pushed(idle, ring.take());
        }
    }

    /// Marks pages in the bitmaps of their logs; skips logs that have ended.
    fn mark_pushed(&self, idle: &Idle, pages: impl Iterator<Item = Pushed>) {
        let seat = self.borrow_seat(idle);
        for pushed in pages {
            let Some(GuestSpace { space, .. }) = self.space(pushed.space()) else { continue };
            let reading = space.memslots.read(&self.reads, &seat);
            if let Some(log) = reading.version().log(pushed.slot()).filter(|log| pushed.is_of(log)) {
                log.mark(pushed.page());
            }
        }
    }
}
