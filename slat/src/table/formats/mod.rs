//! The page-table formats, one small file each.
//!
//! | name | bits of address | levels | pages of the root | largest page | W | A | D | A in links | host's answer |
//! |---|---|---|---|---|---|---|---|---|---|
//! | `ept4` | 48 | 4 | 1 | 1G | 1 | 8 | 9 | yes | 53 |
//! | `ept5` | 57 | 5 | 1 | 1G | 1 | 8 | 9 | yes | 53 |
//! | `ept4-noad` | 48 | 4 | 1 | 1G | 1 | - | - | no | 53 |
//! | `npt4` | 48 | 4 | 1 | 1G | 1 | 5 | 6 | yes | 53 |
//! | `npt5` | 57 | 5 | 1 | 1G | 1 | 5 | 6 | yes | 53 |
//! | `pae` | 32 | 3 | 1 | 2M | 1 | 5 | 6 | yes | 9 |
//! | `arm64-39` | 39 | 3 | 1 | 2M | 51 | 10 | 7, 56 | no | 55 |
//! | `arm64-40` | 40 | 3 | 2 | 2M | 51 | 10 | 7, 56 | no | 55 |
//! | `arm64` | 48 | 4 | 1 | 1G | 51 | 10 | 7, 56 | no | 55 |
//! | `arm64-noad` | 48 | 4 | 1 | 1G | 7 | - | - | no | 55 |
//! | `sv39x4` | 41 | 3 | 4 | 2M | 2 | 6 | 7 | no | 8 |
//! | `sv48x4` | 50 | 4 | 4 | 1G | 2 | 6 | 7 | no | 8 |
//! | `sv57x4` | 59 | 5 | 4 | 1G | 2 | 6 | 7 | no | 8 |
//! | `sv39x4-noad` | 41 | 3 | 4 | 2M | 2 | - | - | no | 8 |
//! | `ept4-td` | 47 | 4 | 1 | 1G | 1 | 8 | 9 | yes | 53 |
//! | `npt4-c` | 48 | 4 | 1 | 1G | 1 | 5 | 6 | yes | 53 |
//!
//! `ept4`, `ept5`: Intel SDM volume 3, EPT. `npt4`, `npt5`, `pae` (of a 32-bit host): AMD APM volume 2, nested paging.
//! `x64`, the host's own: the same, long mode. `arm64…`: Arm ARM, stage 2, for 39, 40 and 48 bits of guest-physical
//! address. `sv…x4`: RISC-V privileged manual, hypervisor extension. `…-td`: [`Ept`] with its shared bit, for a trust
//! domain's shared memory. `…-c`: [`Npt`] with its C-bit, on a host that encrypts its memory. In formats that end in
//! `noad` hardware sets no A and D; faults supply them ([`Format::HARDWARE_AD`]). Each file's header shows its entries.
//!
//! The guest's own paging mode (long mode, PAE, 32-bit, "nonpaging") does not matter. These tables map guest-physical
//! addresses, the result of the guest's own translation.
//!
//! **Memory types**, the narrowest last. The host's PAT is as Linux sets it:
//!
//! | [`MemoryType`](crate::MemoryType) | EPT | NPT, PAE | Arm stage 2 | RISC-V (`Svpbmt`) |
//! |---|---|---|---|---|
//! | `WriteBack` | 6 | PAT 0: WB | Normal, write-back | PMA |
//! | `WriteCombining` | 1 | PAT 1: WC | Normal, non-cacheable | NC |
//! | `Uncached` | 0 | PAT 2: UC- | Device-GRE | IO |
//! | `Device` | 0, IPAT | PAT 3: UC | Device-nGnRE | IO |
//!
//! **Roots wider than a page.** RISC-V's root has 2048 entries, Arm's up to 8192. The engine treats such a root as
//! several ordinary tables side by side; a walk selects one by the highest bits of the frame. Their pages are lent and
//! returned together. For a format with one root page, the selection compiles to nothing.
//!
//! **A Dirty bit that is a permission.** Arm has no Dirty bit: hardware sets the write permission of an entry that has
//! DBM. The engine therefore treats DBM as the permission to write, and the write permission as the Dirty bit. A leaf
//! that loses DBM loses the write permission with it, and a software bit records that it was dirty.

pub(crate) mod arm64;
pub(crate) mod ept;
mod npt;
mod pae;
pub(crate) mod riscv;
#[cfg(test)]
mod tests;
pub(crate) mod x86;

pub use arm64::{Arm64, Arm64L39, Arm64L40, Arm64L48, Arm64NoAd};
pub use ept::{Ept, Ept4, Ept4NoAd, Ept5};
pub use npt::{Npt, Npt4, Npt5, X64};
pub use pae::Pae;
pub use riscv::{RiscV, Sv39x4, Sv39x4NoAd, Sv48x4, Sv57x4};

use super::entry::Word;
use super::format::{Format, Leaf, Perms};

/// `bit` if `on`.
#[inline(always)]
const fn when(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}

/// Encodes a leaf of which `bits` are in this format only. Without A and D, a leaf that is not accessed is withdrawn.
#[inline(always)]
fn leaf<F: Format>(leaf: &Leaf, bits: u64) -> Word {
    if !F::HARDWARE_AD && !leaf.accessed {
        return Word::withdrawn(leaf);
    }
    Word(bits | F::memory_bits(leaf.memory) | when(leaf.host_writable, F::HOST_WRITE))
}

/// Decodes a leaf with permissions `perms`. Without A and D, a leaf is accessed, and a writable one is dirty.
#[inline(always)]
fn read_leaf<F: Format>(word: Word, perms: Perms) -> Leaf {
    let has = |bits| word.0 & bits != 0;
    Leaf {
        pfn: F::pfn(word),
        perms,
        memory: F::memory_type(word),
        host_writable: has(F::HOST_WRITE),
        accessed: !F::HARDWARE_AD || has(F::ACCESSED),
        dirty: has(if F::HARDWARE_AD { F::DIRTY } else { F::WRITE }),
    }
}
