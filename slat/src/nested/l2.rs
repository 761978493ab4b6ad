//! A vCPU that runs L2.

use super::format::L1Format;
use super::outcome::Quick;
use super::revalidate::Revalidation;
use crate::loaded::Tag;
use crate::shadows::{Reach, Shadow, Shadows, SplitPages};
use crate::vcpu::entry::Ready;
use crate::{Format, Gfn, GuestSpace, Host, Idle, NoMemory, Slot, Span, Token, Translations, Vcpu, Vm};
use alloc::boxed::Box;
use core::fmt;

/// Why a vCPU cannot run on a guest's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NestedError {
    /// There is no memory for tables.
    NoMemory,
    /// The VM was built for a host without two stages
    /// ([`Builder::without_two_stages`](crate::Builder::without_two_stages)): it runs no nested guests.
    OneStage,
    /// The VM has two stages: the hardware walks the guest's own table.
    TwoStages,
    /// The guest's table translates more address bits than the VM's format.
    TooWide {
        /// Address bits of the guest's table.
        guest: u32,
        /// Address bits of the format.
        format: u32,
    },
}

errors! { NestedError:
    Self::NoMemory => "{NoMemory}";
    Self::OneStage => "the VM is built without two stages, so it runs no nested guests";
    Self::TwoStages => "the VM has two stages: build it without two stages to shadow its guest's own tables";
    Self::TooWide { guest, format } =>
        "the guest's table translates {guest} bits of address, and the VM's format {format}";
}

impl From<NoMemory> for NestedError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Maximum number of shadows at once. For nested guests: one for each vCPU, and as many unused ones. A guest's
    /// kernel has tables per process, each with one or two shadows.
    fn shadows(&self) -> usize {
        self.policy.vcpus as usize * if self.policy.has_two_stages { 2 } else { 16 }
    }
}

/// A vCPU that runs L2, the guest of its guest, on a table of L1. See [`Vcpu::nested`]. Dropping it is L2's exit to L1.
pub struct L2<'v, 'vm, F: Format, H: Host, T: L1Format> {
    pub(super) vcpu: &'v mut Vcpu<'vm, F, H>,
    pub(super) table: T,
    pub(super) shadows: &'vm Shadows<F>,
    pub(crate) shadow: &'vm Shadow<F>,
    pub(super) index: usize,
    /// The version of the slots, and the slot that a fault found last.
    pub(super) memo: Option<(u64, Slot)>,
    /// State for the short path of the next fault.
    pub(super) quick: Option<Quick<'vm>>,
}

impl<F: Format, H: Host, T: L1Format> fmt::Debug for L2<'_, '_, F, H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("L2")
            .field("vcpu", &self.vcpu.id())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    /// L1 enters L2 on this vCPU (`VMLAUNCH`, `VMRUN`, `ERET`, `SRET`), with `table` as its second-level table. Flushes
    /// by L1 on this vCPU since its last entry ([`l1_flushes`](Self::l1_flushes)) are carried out first.
    ///
    /// The first call allocates what nested guests need: about five table pages. A VM without such a call has none of
    /// it. May sleep in [`TableMemory`](crate::TableMemory), and waits for another vCPU's flush of the same shadow.
    ///
    /// # Errors
    /// [`NoMemory`](NestedError::NoMemory) without memory for tables; [`OneStage`](NestedError::OneStage) if the VM is
    /// built [without two stages](crate::Builder::without_two_stages).
    ///
    /// ```
    /// use slat::{nested::*, table::{Word, formats::Npt4}, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::{AcqRel, Acquire, Release}};
    ///
    /// /// L1's memory: eight pages at host address 0x10_0000, in the host's frames from 0x100 on.
    /// struct Ram(Vec<AtomicU64>);
    ///
    /// impl Ram {
    ///     fn word(&self, hva: Hva) -> &AtomicU64 {
    ///         &self.0[(hva.0 as usize - 0x10_0000) / 8]
    ///     }
    /// }
    ///
    /// impl Host for Ram {
    ///     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    ///         Some(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    ///     }
    ///     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Err(HostError::Fault)
    ///     }
    ///     fn read(&self, hva: Hva) -> Option<Word> {
    ///         Some(Word(self.word(hva).load(Acquire)))
    ///     }
    ///     fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
    ///         let done = self.word(hva).compare_exchange(old.0, new.0, AcqRel, Acquire);
    ///         Some(done.map(Word).map_err(Word))
    ///     }
    /// }
    ///
    /// struct Tlb(u32);
    /// impl Translations for Tlb {
    ///     fn flush_all(&mut self) { self.0 += 1 }
    ///     fn flush(&mut self, _: Span<Gfn>) {}
    /// }
    ///
    /// // L1's EPT: its page 0 links 1, 1 links 2, 2 links 3, whose entry 5 maps L1's frame 7 for L2's frame 5.
    /// let mut words = vec![0_u64; 8 * 512];
    /// for table in 0..3 { words[table * 512] = (table as u64 + 1) << 12 | 0b111; }
    /// words[3 * 512 + 5] = 7 << 12 | 6 << 3 | 0b111;
    /// let ram = Ram(words.into_iter().map(AtomicU64::new).collect());
    /// let ept = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).expect("a pointer that VM entry takes");
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(ram).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0x10_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    ///
    /// // L1 runs L2, which loads from its frame 5. L1's frame 7 is behind it, and behind that the host's frame 0x107.
    /// let mut l2 = vcpu.nested(&mut idle, ept)?;
    /// let load = L1Access::new(Gpa(0x5123), Access::Read);
    /// assert_eq!(l2.fault(&mut idle, load)?, L2Next::Handled { next: Next::Resume(Resume::Mapped(Level::K4)), gpa: Gpa(0x7123) });
    /// assert_eq!(l2.translate(load.gpa).unwrap().pfn, Pfn(0x107));
    /// let guest = l2.enter(&mut idle, &mut Tlb(0)).poll(); // on `guest.root()`
    /// drop(guest); // L2 exits with its next fault
    ///
    /// // It loads from frame 6, which T does not map: L1 gets a fault.
    /// let elsewhere = L1Access::new(Gpa(0x6000), Access::Read);
    /// let L2Next::ForL1(fault) = l2.fault(&mut idle, elsewhere)? else { panic!() };
    /// let exit = ept.injection(&fault);
    /// drop(l2);
    /// assert_eq!(exit, EptExit::Violation { gpa: Gpa(0x6000), qualification: 0b001 });
    ///
    /// // L1 maps it, and takes frame 5 from L2. For the latter it has to flush: INVEPT.
    /// vm.host().0[3 * 512 + 6].store(7 << 12 | 6 << 3 | 0b111, Release);
    /// vm.host().0[3 * 512 + 5].store(0, Release);
    /// vcpu.l1_flushes(|table: &EptTable| *table == ept);
    /// let mut l2 = vcpu.nested(&mut idle, ept)?;
    /// assert!(matches!(l2.fault(&mut idle, elsewhere)?, L2Next::Handled { .. }));
    /// assert!(matches!(l2.fault(&mut idle, load)?, L2Next::ForL1(_)));
    ///
    /// // The host takes the page behind L1's frame 7 away, without L1's knowledge: L2 loses it, too.
    /// let page = Span::sized(Hva(0x10_7000), 4096);
    /// vm.change(&mut idle, page, Why::Unmap, |_| { /* the host changes its own table */ });
    /// assert_eq!(l2.translate(elsewhere.gpa), None);
    ///
    /// // L2's first entry and L1's flush made one pass each over the shadow.
    /// let NestedStats { mapped_faults, refused_faults, flush_passes, shadows, .. } = vm.stats().nested;
    /// assert_eq!((mapped_faults, refused_faults, flush_passes, shadows), (2, 2, 2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nested<'v, T: L1Format>(
        &'v mut self,
        idle: &mut Idle,
        table: T,
    ) -> Result<L2<'v, 'vm, F, H, T>, NestedError> {
        if !self.vm.policy.has_two_stages {
            return Err(NestedError::OneStage);
        }
        self.runs_on(idle, table).map_err(NestedError::from)
    }

    /// Runs the vCPU on a table, whether L1's or the guest's own.
    pub(super) fn runs_on<'v, T: L1Format>(
        &'v mut self,
        idle: &mut Idle,
        table: T,
    ) -> Result<L2<'v, 'vm, F, H, T>, NoMemory> {
        self.comes_back();
        let seat = self.awake();
        let (vm, space) = (self.vm, self.space);
        let (memory, active) = (vm.tables(), &vm.active);
        let shadows = if let Some(shadows) = space.nested.get() {
            shadows
        } else {
            let fresh = Shadows::new(memory, &vm.pool, vm.shadows())?;
            space.nested.set_after(&vm.nested, fresh, |fresh| {
                // SAFETY: made by this call; another thread's was published first.
                unsafe { fresh.reverse.give_back(memory, &vm.pool) };
            })
        };
        let state = self.nested.get_or_insert_with(Box::default);
        let hold = if let Some(hold) = state.pins(table) {
            hold
        } else {
            let hold = || shadows.pin((memory, &vm.pool, active), table);
            let hold = match hold() {
                // Reclaim frees another shadow's root.
                Err(NoMemory) if vm.pool.in_use() >= vm.pool.budget() && vm.reclaim(idle) => hold()?,
                held => held?,
            };
            if let Some(before) = state.held.replace(hold) {
                shadows.let_go(before);
            }
            hold
        };
        // Held, so it exists.
        let shadow = shadows.shadow(hold.index).ok_or(NoMemory)?;
        if let Some(asked) = state.visits(hold, table, active.now()) {
            shadow.flush(active, asked, || {
                let slots = GuestSpace { vm, space };
                let all = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
                Revalidation { slots, shadows, shadow, table }.run(seat, &shadow.walks.enter(), all);
            });
            if shadows.drops.since(state.forgot) {
                // Before the TLB is flushed, which is when the vCPU enters the guest.
                state.forgot = active.now();
                self.loaded.forget_l2();
            }
            state.flushed(hold);
        }
        Ok(L2 { vcpu: self, table, shadows, shadow, index: hold.index, memo: None, quick: None })
    }

    /// Zaps what T has refused on this vCPU, so that no fault under way installs its older answer.
    pub(super) fn comes_back(&mut self) {
        let (Some(shadows), Some(state)) = (self.space.nested.get(), &mut self.nested) else { return };
        let (memory, active) = (self.vm.tables(), &self.vm.active);
        for (index, g2) in state.refused.drain(..) {
            if let Some((shadow, inside)) = shadows.visit(index) {
                // Nor by the short path.
                shadow.line.announce();
                let (taking, g2s) = (shadows.drops.taking(active), Span::sized(g2, 1));
                shadows.reach_in(
                    memory,
                    (shadow, &inside),
                    &taking,
                    ((g2s, g2s), Reach::Zap),
                    &mut SplitPages::none(),
                );
            }
        }
    }
}

impl<'vm, F: Format, H: Host, T: L1Format> L2<'_, 'vm, F, H, T> {
    /// The vCPU, as L1 has it.
    pub fn vcpu(&self) -> &Vcpu<'vm, F, H> {
        self.vcpu
    }

    /// Like [`Vcpu::take_ready`].
    pub fn take_ready(&mut self) -> Option<Token> {
        self.vcpu.take_ready()
    }

    /// Like [`Vcpu::enter`], on the shadow's root and under L2's tag ([`Translations::flush_nested`]).
    pub fn enter<'a>(&'a mut self, idle: &'a mut Idle, cache: &mut impl Translations) -> Ready<'a> {
        if T::GOES_ON {
            self.vcpu.comes_back();
        }
        self.vcpu.enter_under(idle, cache, Tag::L2, self.shadow.radix.root_word())
    }
}
