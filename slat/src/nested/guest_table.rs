//! A guest's own page table on x86, for a host processor without a second stage: 32-bit paging, PAE, four and five
//! levels (Intel SDM volume 3, "Paging"; AMD APM volume 2, "Page Translation and Protection").
//!
//! ```text
//!            root     levels  entries      root entries in registers
//! 32-bit     CR3      2       1024 × 4 B
//! PAE        PDPTEs   2       512 × 8 B    four, loaded by a write to CR3; reserved bits there refuse the write (#GP)
//! long mode  CR3      4, 5    512 × 8 B
//! ```
//! A linear address takes the place of L2's guest-physical one. [`GuestTable::access`] drops its sign bits, so that it
//! fits the table. The walk treats a page of 4 MiB as two of 2 MiB, and a table of 1,024 entries as two halves.
//!
//! **The privilege is part of the key.** A shadow entry has no bit for U. User and supervisor accesses have a shadow
//! each, and a vCPU switches shadows with its privilege. The hypervisor has to see that switch. PVM does, since it runs
//! the guest's kernel deprivileged, and so does an emulator; VMX and SVM with paging intercepted do not. A leaf of one
//! shadow never serves accesses of the other. `CR0.WP`, `CR4.SMEP`, `CR4.SMAP` with `EFLAGS.AC`, and `EFER.NXE` are
//! part of the key as far as they matter for that privilege, so their changes need no flush. The PCID is part of the
//! key, too: translations of one PCID serve no other.
//!
//! | | user | supervisor |
//! |---|---|---|
//! | loads | U in all entries | always; with SMAP, without AC: not where U is in all |
//! | stores | the same, and W in all | W in all, or WP clear; with SMAP as above |
//! | fetches | the same, and NX in none | NX in none; with SMEP: not where U is in all |
//!
//! **Costs.** A write to `CR3` without PCID, and each other whole flush, compares the shadow that the vCPU comes to with
//! the guest's tables. To take back a frame that more than four shadows map (a kernel's, in every process), slat walks
//! all of them.
//!
//! Not offered: protection keys, shadow stacks, linear-address masking. x86's formats cannot express execute-only
//! pages, which SMAP without SMEP makes of a user's pages: an access there is `Next::Emulate(Emulate::NoMemory)`.

use super::format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits, frame};
use super::x86_entry::{ACCESSED, DIRTY, EntryRules, X86Entry, error_code, pdpte, tells_fetch};
use crate::addr::INDEX_BITS;
use crate::{Access, Gfn, Gpa, Gva, Level, PAGE_SHIFT, Perms, Span, Word};

/// The registers of a vCPU that control its translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GuestRegisters {
    /// `CR0`: PG, WP.
    pub cr0: u64,
    /// `CR3`, without the bit that suppresses the flush.
    pub cr3: u64,
    /// `CR4`: PSE, PAE, LA57, PCIDE, SMEP, SMAP.
    pub cr4: u64,
    /// `EFER`: LMA, NXE.
    pub efer: u64,
    /// The `PAT` register.
    pub pat: u64,
    /// With PAE: the four entries that the last write to `CR3` loaded, or the write that began PAE paging. Later stores
    /// of the guest to that memory have no effect before the next such write.
    pub pdptes: [u64; 4],
}

/// Paging features that the guest's processor reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestPaging {
    /// Bits of a guest-physical address (MAXPHYADDR).
    pub physical_bits: u32,
    /// CPUID `8000_0001` EDX bit 26: entries may map 1 GiB. Slows `INVLPG`: see [`GuestFlush`](super::GuestFlush).
    pub large_1g: bool,
    /// Bit 8 of PML4Es and PML5Es is reserved, as on AMD; otherwise ignored, as on Intel.
    pub reserves_global: bool,
}

/// Privilege of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Privilege {
    /// Privilege level 3.
    User,
    /// Levels 0 to 2; and the processor's own accesses to its tables, such as the GDT, at any level.
    Supervisor,
    /// A supervisor with `EFLAGS.AC` set.
    SupervisorWithAc,
}

/// Why registers give no table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoTable {
    /// `CR0.PG` is clear: linear addresses are guest-physical ones. The VM's own table is a direct map:
    /// [`Vcpu::enter`](crate::Vcpu::enter), [`Vcpu::fault`](crate::Vcpu::fault).
    PagingOff,
    /// A reserved bit in `CR3`, or in a PDPTE: the processor refuses the write that would load it, by #GP.
    Reserved,
}

errors! { NoTable:
    Self::PagingOff => "the guest's paging is off: its vCPU runs on the VM's own table";
    Self::Reserved => "a reserved bit in CR3 or in a PDPTE: the write that loads it is refused by #GP";
}

/// A guest's page table, and the privilege of the accesses through it: see [`GuestTable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestTable {
    root: Root,
    pcid: u16,
    rules: EntryRules,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Root {
    /// Whether pages of 4 MiB are on.
    Short(Gpa, bool),
    Pae([Option<Gfn>; 4]),
    Long(Gpa, Level),
}

/// The privilege of accesses, and the register bits that matter for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of a register")]
struct Role {
    is_user: bool,
    /// CR0.WP, of a supervisor.
    write_protect: bool,
    /// CR4.SMEP, of a supervisor.
    no_user_fetch: bool,
    /// CR4.SMAP without AC, of a supervisor.
    no_user_data: bool,
    /// Whether a page fault's error code reports fetches.
    tells_fetch: bool,
}

/// A page fault, vector 14, that the guest has to handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageFault {
    /// Address for `CR2`.
    pub address: Gva,
    /// The error code: P, W, U, RSVD, I in bits 0 to 4.
    pub code: u32,
}

const WP: u64 = 1 << 16;
const PG: u64 = 1 << 31;
const PSE: u64 = 1 << 4;
const PAE: u64 = 1 << 5;
const LA57: u64 = 1 << 12;
const PCIDE: u64 = 1 << 17;
const SMEP: u64 = 1 << 20;
const SMAP: u64 = 1 << 21;
const LMA: u64 = 1 << 10;
const NXE: u64 = 1 << 11;

impl GuestTable {
    /// Returns the table through which a vCPU with these registers accesses memory at this privilege.
    pub fn new(
        registers: &GuestRegisters,
        paging: GuestPaging,
        privilege: Privilege,
    ) -> Result<Self, NoTable> {
        let &GuestRegisters { cr0, cr3, cr4, efer, pat, pdptes } = registers;
        let GuestPaging { physical_bits, large_1g, reserves_global } = paging;
        if cr0 & PG == 0 {
            return Err(NoTable::PagingOff);
        }
        let (is_wide, is_long) = (cr4 & PAE != 0, efer & LMA != 0);
        let root = match (is_wide, is_long) {
            (_, true) if cr3 & bits(physical_bits, 64) != 0 => return Err(NoTable::Reserved),
            (_, true) => {
                let four = Level::G1.up();
                Root::Long(frame(cr3).gpa(), if cr4 & LA57 != 0 { four.up() } else { four })
            }
            (true, false) => Root::Pae(links(pdptes, physical_bits)?),
            (false, false) => Root::Short(Gpa(cr3 & bits(PAGE_SHIFT, 32)), cr4 & PSE != 0),
        };
        let nx = is_wide && efer & NXE != 0;
        let is_user = privilege == Privilege::User;
        let of_supervisor = |on: bool| on && !is_user;
        Ok(Self {
            root,
            pcid: if is_long && cr4 & PCIDE != 0 { (cr3 & 0xfff) as u16 } else { 0 },
            rules: EntryRules {
                physical_bits,
                nx,
                pat,
                large_1g,
                is_pae: is_wide && !is_long,
                reserves_global: reserves_global && is_long,
            },
            role: Role {
                is_user,
                write_protect: of_supervisor(cr0 & WP != 0),
                no_user_fetch: of_supervisor(cr4 & SMEP != 0),
                no_user_data: of_supervisor(cr4 & SMAP != 0 && privilege == Privilege::Supervisor),
                tells_fetch: tells_fetch(nx, cr4 & SMEP != 0),
            },
        })
    }

    /// Returns the access to a linear address, for a fault. `None` if the address is not canonical, or has more than 32
    /// bits in a guest without long mode: the processor refuses it before it reads any table (#GP, #SS).
    pub fn access(&self, address: Gva, access: Access) -> Option<L1Access> {
        let gpa = Gpa(address.0 & bits(0, self.address_bits()));
        let is_good = self.address_of(gpa) == address;
        is_good.then(|| L1Access { user: self.role.is_user, ..L1Access::new(gpa, access) })
    }

    /// Returns the PCID of its translations: 0 if the guest has none.
    pub fn pcid(&self) -> u16 {
        self.pcid
    }

    /// Number of bits of a linear address.
    pub(super) fn address_bits(&self) -> u32 {
        match self.root {
            Root::Long(_, level) => level.up().shift() + PAGE_SHIFT,
            _ => 32,
        }
    }

    /// Returns the frame of the address, and the frames of the largest page that may contain it.
    pub(super) fn block(&self, address: Gva) -> Option<(Gfn, Span<Gfn>)> {
        let gfn = self.access(address, Access::Read)?.gpa.gfn();
        let pages = match self.root {
            Root::Short(..) => self.pages(Level::M2),
            Root::Long(..) if self.rules.large_1g => Level::G1.pages(),
            _ => Level::M2.pages(),
        };
        Some((gfn, Span::sized(Gfn(gfn.0 & !(pages - 1)), pages)))
    }

    /// Restores the sign bits.
    fn address_of(&self, gpa: Gpa) -> Gva {
        let unused = 64 - self.address_bits();
        let signed = ((gpa.0 << unused) as i64 >> unused) as u64;
        Gva(if matches!(self.root, Root::Long(..)) { signed } else { gpa.0 })
    }
}

/// Decodes PAE's root entries.
fn links(pdptes: [u64; 4], physical_bits: u32) -> Result<[Option<Gfn>; 4], NoTable> {
    let mut links = [None; 4];
    for (link, entry) in links.iter_mut().zip(pdptes) {
        *link = match pdpte(entry, physical_bits) {
            Ok(gfn) => Some(gfn),
            Err(Refusal::NotPresent) => None,
            Err(_) => return Err(NoTable::Reserved),
        };
    }
    Ok(links)
}

impl L1Format for GuestTable {
    type Injection = PageFault;

    const LEAF_FRAME: u64 = bits(PAGE_SHIFT, 52);
    const GOES_ON: bool = true;

    fn root(&self) -> (Gpa, Level) {
        match self.root {
            Root::Long(root, level) => (root, level),
            Root::Short(root, _) => (root, Level::M2),
            Root::Pae(links) => (links[0].unwrap_or_default().gpa(), Level::M2),
        }
    }

    fn start(&self, gpa: Gpa) -> (Gpa, Level) {
        match self.root {
            Root::Pae(links) => (links[(gpa.0 >> 30) as usize & 3].unwrap_or_default().gpa(), Level::M2),
            _ => self.root(),
        }
    }

    fn is_short(&self) -> bool {
        matches!(self.root, Root::Short(..))
    }

    fn pages(&self, level: Level) -> u64 {
        if self.is_short() && level == Level::M2 { 2 * level.pages() } else { level.pages() }
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        let is_there = gpa.0 >> self.address_bits() == 0
            && match self.root {
                Root::Pae(links) => links[(gpa.0 >> 30) as usize & 3].is_some(),
                _ => true,
            };
        (!is_there).then_some(Refusal::NotPresent)
    }

    fn index(&self, gpa: Gpa, level: Level) -> usize {
        let (shift, bits) = match (self.is_short(), level) {
            (false, level) => (level.shift(), INDEX_BITS),
            (true, Level::K4) => (0, 10),
            (true, _) => (10, 10),
        };
        (gpa.gfn().0 >> shift & ((1 << bits) - 1)) as usize
    }

    fn entry(&self, Word(entry): Word, level: Level) -> Result<L1Entry, Refusal> {
        let entry = match self.root {
            Root::Short(_, has_large) => self.rules.short(entry, level, has_large),
            _ => self.rules.entry(entry, level),
        };
        let X86Entry { gfn, is_leaf, memory, user, perms } = entry?;
        let rights = L1Rights { perms, user: if user { perms } else { Perms::NONE } };
        let touch_store = if is_leaf { DIRTY } else { 0 };
        Ok(L1Entry { gfn, is_leaf, rights, memory, touch: ACCESSED, touch_store })
    }

    fn grants(&self, path: L1Rights) -> L1Rights {
        let (role, L1Rights { perms, user }) = (self.role, path);
        if role.is_user {
            return L1Rights::plain(user);
        }
        let is_users = user.allows(Access::Read);
        let written = if role.write_protect { Perms::NONE } else { Perms::WRITE };
        let data = Perms::READ.with(Perms::WRITE);
        let no_data = if is_users && role.no_user_data { data } else { Perms::NONE };
        let no_fetch = if is_users && role.no_user_fetch { Perms::EXECUTE } else { Perms::NONE };
        L1Rights::plain(perms.with(written).without(no_data).without(no_fetch))
    }

    fn forgets_with(&self, other: &Self) -> bool {
        (self.root, self.pcid) == (other.root, other.pcid)
    }

    fn injection(&self, fault: &L1Fault) -> PageFault {
        let L1Access { gpa, access, .. } = fault.access;
        // An unmapped bus address reads as ones: an entry with reserved bits.
        let why = if fault.why == Refusal::NoMemory { Refusal::Reserved } else { fault.why };
        let Role { is_user, tells_fetch, .. } = self.role;
        PageFault { address: self.address_of(gpa), code: error_code(why, access, is_user, tells_fetch) }
    }
}
