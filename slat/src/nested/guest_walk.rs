//! A walk of the guest's own page table by the VMM, which decodes an instruction or serves a debugger.
//!
//! The walk reads the table in guest memory, so it works in every VM: with two stages the hardware walks the same
//! table. It needs no shadow.

use super::{GuestTable, L1Format, L1Stop, PageFault};
use crate::{Access, Format, Gpa, GuestSpace, Gva, Host, Idle};

/// The reason why a guest-virtual address has no guest-physical one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GvaError {
    /// The address is not canonical, or has more than 32 bits in a guest without long mode: inject #GP, or #SS.
    NotCanonical,
    /// The guest's table refuses the access: inject the page fault.
    PageFault(PageFault),
    /// The walk could not read the table.
    Stopped(L1Stop),
}

errors! { GvaError:
    Self::NotCanonical => "the address is not canonical";
    Self::PageFault(PageFault { address, code }) =>
        "the guest's page table refuses the access to {address}: error code {code:#x}";
    Self::Stopped(stop) => "{stop}";
}

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Translates an access to a guest-virtual address through the guest's own page table, as its processor would:
    /// checks the rights, and sets A and D. The VM may have two stages or one. The result is a snapshot, since the guest
    /// may change its table at once.
    ///
    /// Sleeps in the host if a table page is absent. The host must implement [`Host::read`] and
    /// [`Host::compare_exchange`]. While the guest's paging is off, the address is a guest-physical one, and
    /// [`GuestTable::new`] says so.
    ///
    /// ```
    /// use slat::{nested::*, table::{Word, formats::Ept4}, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::{AcqRel, Acquire}};
    ///
    /// /// The guest's memory: eight pages at host address 0x10_0000.
    /// struct Ram(Vec<AtomicU64>);
    ///
    /// impl Ram {
    ///     fn word(&self, hva: Hva) -> &AtomicU64 {
    ///         &self.0[(hva.0 as usize - 0x10_0000) / 8]
    ///     }
    /// }
    ///
    /// impl Host for Ram {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
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
    /// let mut idle = Idle::take().unwrap();
    /// let ram = Ram((0..8 * 512).map(|_| AtomicU64::new(0)).collect());
    /// let vm = Vm::<Ept4, _>::builder(ram).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0x10_0000))))?;
    ///
    /// // The guest's table, in long mode: page 0 links 1, 1 links 2, 2 links 3, whose entry 5 maps page 7 for its kernel.
    /// for (entry, word) in [(0, 1 << 12 | 7), (512, 2 << 12 | 7), (1024, 3 << 12 | 7), (1541, 7 << 12 | 3_u64)] {
    ///     vm.memory().write_bytes(&mut idle, Gpa(entry * 8), &word.to_le_bytes())?;
    /// }
    ///
    /// // Its registers, as the exit reports them: PG and WP; PAE; LMA and NXE; CR3 is 0.
    /// let registers = GuestRegisters {
    ///     cr0: 1 << 31 | 1 << 16,
    ///     cr4: 1 << 5,
    ///     efer: 1 << 10 | 1 << 11,
    ///     ..GuestRegisters::default()
    /// };
    /// let offered = GuestPaging { physical_bits: 46, large_1g: false, reserves_global: false };
    /// let [kernel, user] = [Privilege::Supervisor, Privilege::User].map(|privilege| {
    ///     GuestTable::new(&registers, offered, privilege).expect("paging is on")
    /// });
    ///
    /// let slots = vm.memory();
    /// assert_eq!(slots.translate_gva(&mut idle, &kernel, Gva(0x5123), Access::Write), Ok(Gpa(0x7123)));
    /// let fault = PageFault { address: Gva(0x5123), code: 0b00101 };
    /// let refused = slots.translate_gva(&mut idle, &user, Gva(0x5123), Access::Read);
    /// assert_eq!(refused, Err(GvaError::PageFault(fault)));
    /// let bad = slots.translate_gva(&mut idle, &kernel, Gva(1 << 47), Access::Read);
    /// assert_eq!(bad, Err(GvaError::NotCanonical));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn translate_gva(
        &self,
        idle: &mut Idle,
        table: &GuestTable,
        address: Gva,
        access: Access,
    ) -> Result<Gpa, GvaError> {
        let access = table.access(address, access).ok_or(GvaError::NotCanonical)?;
        match self.walk_l1(idle, table, access) {
            Ok(leaf) => Ok(Gpa(leaf.gfn.gpa().0 | access.gpa.offset())),
            Err(L1Stop::Fault(fault)) => Err(GvaError::PageFault(table.injection(&fault))),
            Err(stop) => Err(GvaError::Stopped(stop)),
        }
    }
}
