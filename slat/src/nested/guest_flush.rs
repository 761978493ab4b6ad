//! Guests whose own page tables are shadowed, for lack of a second stage: its vCPUs, and its flushes by instruction.
//!
//! | the guest's instruction | call |
//! |---|---|
//! | `INVLPG`; `INVPCID` of an address | [`GuestFlush::Address`], [`GuestFlush::AddressOf`] |
//! | `MOV` to `CR3` with bit 63 clear; `INVPCID` of a PCID | [`GuestFlush::Pcid`], of the PCID that is named; 0 without `CR4.PCIDE` |
//! | `MOV` to `CR3` with bit 63 set, under `CR4.PCIDE` | none |
//! | `INVPCID` of all; writes that change `CR0.PG`, `CR4.PGE`, `PSE`, `PAE`, `LA57`, set `SMEP` or clear `PCIDE` | [`GuestFlush::All`] |
//! | writes to `CR0.WP`, `CR4.SMAP`, `EFER.NXE`, `EFLAGS.AC`; a change of privilege; what fills an entry that was not present | none |
//!
//! **Global pages** are not distinguished: a write to `CR3` also drops those that the guest's table no longer maps, as
//! a processor may at any time. `INVLPG` goes to all tables that the vCPU has run on, since each may map a global page.
//!
//! **INVLPG flushes the whole page**, whatever its size. If the host's pages are smaller than the guest's, a shadow
//! holds the page in parts. In a shadow where that has happened, INVLPG goes over the largest possible page: 2 MiB, 4
//! MiB with 32-bit paging, or 1 GiB if the guest is offered such pages. It keeps the leaves that the guest's tables
//! still confirm. In other shadows it reads one entry.
//!
//! A guest's page fault drops its translations of the address under the current PCID, at any privilege; so do shadows.

use super::{GuestTable, L2, NestedError};
use crate::{Format, Gva, Host, Idle, PAGE_SHIFT, Vcpu};

/// A flush that a guest requests on one of its vCPUs: see [`Vcpu::guest_flushes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GuestFlush {
    /// `INVLPG`: the page around the address, under any PCID.
    Address(Gva),
    /// `INVPCID`, type 0: the page under this PCID.
    AddressOf(u16, Gva),
    /// Everything under this PCID.
    Pcid(u16),
    /// Everything.
    All,
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    /// Runs the vCPU on a shadow of the guest's own page table, in a VM that is built [without two
    /// stages](crate::Builder::without_two_stages). Call it again when the guest changes `CR3`, another register of the
    /// key, or its privilege: each is a table of its own ([`GuestTable::new`]). While paging is off, linear addresses
    /// are guest-physical ones, and the vCPU itself [enters](Self::enter) and [handles faults](Self::fault).
    ///
    /// Here L1 is the guest's kernel, which owns the table. L2 is all code that runs on it, the kernel included. An
    /// address of L2 is a [linear one](GuestTable::access). Inject [`L2Next::ForL1`](super::L2Next::ForL1) as a page
    /// fault.
    ///
    /// ```
    /// use slat::{nested::*, table::{Word, formats::X64}, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::{AcqRel, Acquire, Release}};
    ///
    /// /// The guest's memory: eight pages at host address 0x10_0000, in the host's frames from 0x100 on.
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
    /// struct Tlb;
    /// impl Translations for Tlb {
    ///     fn flush_all(&mut self) {}
    ///     fn flush(&mut self, _: Span<Gfn>) {}
    /// }
    ///
    /// // The guest's table, in long mode: page 0 links 1, 1 links 2, 2 links 3, whose entry 5 maps its frame 7 for its kernel.
    /// let mut words = vec![0_u64; 8 * 512];
    /// words[511] = 1 << 12 | 0b111;
    /// for table in 1..3 { words[table * 512] = (table as u64 + 1) << 12 | 0b111; }
    /// words[3 * 512 + 5] = 7 << 12 | 0b011;
    /// let ram = Ram(words.into_iter().map(AtomicU64::new).collect());
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<X64, _>::builder(ram).without_two_stages().build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0x10_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    ///
    /// let offered = GuestPaging { physical_bits: 46, large_1g: false, reserves_global: false };
    /// let mut registers = GuestRegisters { pat: 0x0007_0406_0007_0406, ..GuestRegisters::default() };
    /// // Before the guest turns paging on: a direct map.
    /// assert_eq!(GuestTable::new(&registers, offered, Privilege::Supervisor), Err(NoTable::PagingOff));
    /// assert_eq!(vcpu.fault(&mut idle, Fault { gpa: Gpa(0x7000), access: Access::Read })?, Next::Resume(Resume::Mapped(Level::K4)));
    ///
    /// // PG and WP; PAE; LMA and NXE; CR3 is 0.
    /// (registers.cr0, registers.cr4, registers.efer) = (1 << 31 | 1 << 16, 1 << 5, 1 << 10 | 1 << 11);
    /// vcpu.guest_flushes(GuestFlush::All); // of CR0.PG
    /// let kernel = GuestTable::new(&registers, offered, Privilege::Supervisor)?;
    /// let mut guest = vcpu.guest_paging(&mut idle, kernel)?;
    /// let at = Gva(0xffff_ff80_0000_5123);
    /// let store = kernel.access(at, Access::Write).expect("the address is canonical");
    /// assert_eq!(guest.fault(&mut idle, store)?, L2Next::Handled { next: Next::Resume(Resume::Mapped(Level::K4)), gpa: Gpa(0x7123) });
    /// assert_eq!(guest.translate(store.gpa).unwrap().pfn, Pfn(0x107));
    /// let inside = guest.enter(&mut idle, &mut Tlb).poll(); // on `inside.root()`
    /// drop(inside); // out of the guest, by the next fault, or an instruction that is intercepted
    /// drop(guest);
    ///
    /// // Its user may not access that page: a page fault, with P and U in the error code.
    /// let user = GuestTable::new(&registers, offered, Privilege::User)?;
    /// let mut guest = vcpu.guest_paging(&mut idle, user)?;
    /// let load = user.access(at, Access::Read).unwrap();
    /// let L2Next::ForL1(fault) = guest.fault(&mut idle, load)? else { panic!() };
    /// assert_eq!(user.injection(&fault), PageFault { address: at, code: 0b00101 });
    ///
    /// // The kernel unmaps the page, and flushes it: INVLPG.
    /// vm.host().0[3 * 512 + 5].store(0, Release);
    /// vcpu.guest_flushes(GuestFlush::Address(at));
    /// let mut guest = vcpu.guest_paging(&mut idle, kernel)?;
    /// assert_eq!(guest.translate(store.gpa), None);
    ///
    /// // This VM has no second stage for a guest of the guest.
    /// let ept = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap();
    /// assert_eq!(vcpu.nested(&mut idle, ept).err(), Some(NestedError::OneStage));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn guest_paging<'v>(
        &'v mut self,
        idle: &mut Idle,
        table: GuestTable,
    ) -> Result<L2<'v, 'vm, F, H, GuestTable>, NestedError> {
        if self.vm.policy.has_two_stages {
            return Err(NestedError::TwoStages);
        }
        let (guest, format) = (table.address_bits(), F::FRAME_BITS + PAGE_SHIFT);
        if guest > format {
            return Err(NestedError::TooWide { guest, format });
        }
        self.runs_on(idle, table).map_err(NestedError::from)
    }

    /// Flushes this vCPU's translations of the guest's page tables: see [`guest_paging`](Self::guest_paging), which has
    /// an example. Flushes an address now, more when the vCPU next runs on a table that is covered. Never sleeps.
    pub fn guest_flushes(&mut self, flush: GuestFlush) {
        match flush {
            GuestFlush::Address(address) => self.flush_address(address, |_| true),
            GuestFlush::AddressOf(pcid, address) => self.flush_address(address, |table| table.pcid() == pcid),
            GuestFlush::Pcid(pcid) => self.l1_flushes(|table: &GuestTable| table.pcid() == pcid),
            GuestFlush::All => self.l1_flushes(|_: &GuestTable| true),
        }
    }

    fn flush_address(&mut self, address: Gva, covers: impl Fn(&GuestTable) -> bool) {
        self.l1_flushes_frames(|table: &GuestTable| covers(table).then(|| table.block(address)).flatten());
    }
}
