//! vCPUs: caches, and flushes.

use super::pages::{PAGES, Span};
use super::table::Leaf;

/// Caches of one vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Caches {
    /// The loaded root.
    pub root: u8,
    /// Links, each a set of nodes: to the table of links, to the leaf tables of either region.
    pub links: [u8; 3],
    /// Frames per page whose translation allows loads.
    pub loads: [u16; PAGES as usize],
    /// Frames per page whose translation allows stores.
    pub stores: [u16; PAGES as usize],
    /// Pages of region 0, a bit each, whose translation allows stores without a change of an entry, because Dirty was
    /// set when it was loaded. Only in scenarios that need it.
    pub dirty: u8,
}

impl Caches {
    pub(crate) fn learn(&mut self, gfn: u8, leaf: Leaf, by_bits: bool) {
        self.loads[gfn as usize] |= 1 << leaf.pfn;
        self.stores[gfn as usize] |= u16::from(leaf.write) << leaf.pfn;
        self.dirty |= u8::from(by_bits && leaf.write && leaf.dirty) << gfn;
    }
}

/// The next step of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs, reason = "named after functions, and the lines of `catch_up`")]
pub enum VcpuPc {
    /// In the guest.
    #[default]
    Guest,
    Enter,
    CatchUp,
    Generation,
    Flush,
    Seen,
    EnterAgain,
    ReloadRoot,
    Current,
    Hold,
    Go,
}

/// How a vCPU's processor treats an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Interrupts {
    /// The hypervisor takes it.
    #[default]
    Taken,
    /// It waits: in the guest, and just before.
    Held,
    /// An interrupt has come, and waits.
    Pending,
}

/// `VcpuTlb`, and the next step of its vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VcpuTlb {
    pub(crate) pc: VcpuPc,
    pub(crate) in_guest: bool,
    pub(crate) kicked: bool,
    pub(crate) interrupts: Interrupts,
    /// The last generation carried out; the one under way.
    pub(crate) seen: u8,
    pub(crate) now: u8,
    /// The vCPU is entering the guest.
    pub(crate) entering: bool,
    /// The frame that hardware uses beside the tables.
    pub(crate) held: Option<u8>,
    /// Number of remaining leaves.
    pub(crate) leaves: u8,
}

/// The flush side of the VM. The ring has one place, so a late reader meets another flush's range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tlb {
    /// Whether vCPUs enter and leave.
    pub(crate) kicks: bool,
    /// Whether kicks are interrupts.
    pub(crate) interrupts: bool,
    /// Whether hardware broadcasts; and the number of new roots that not all vCPUs have loaded yet.
    pub(crate) broadcasts: bool,
    pub(crate) flips: u8,
    pub(crate) generation: u8,
    /// The number of the range in the ring; none while it is being written.
    pub(crate) ring_number: Option<u8>,
    pub(crate) ring_gfns: Span,
    pub(crate) vcpus: [VcpuTlb; 2],
}

impl Tlb {
    /// vCPUs are in the guest, and leave it `leaves` times each.
    pub(crate) fn entered(leaves: u8) -> Self {
        let vcpu = VcpuTlb { in_guest: true, interrupts: Interrupts::Held, leaves, ..VcpuTlb::default() };
        Self { kicks: true, vcpus: [vcpu; 2], ring_number: Some(0), ..Self::default() }
    }

    /// The same on hardware.
    pub(crate) fn interrupted(leaves: u8) -> Self {
        Self { interrupts: true, ..Self::entered(leaves) }
    }

    /// Returns whether the vCPU uses its caches.
    pub(crate) fn runs(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].pc == VcpuPc::Guest
    }

    pub(crate) fn behind(&self, vcpu: u8, generation: u8) -> bool {
        let vcpu = &self.vcpus[vcpu as usize];
        vcpu.in_guest && vcpu.seen < generation
    }
}

impl VcpuTlb {
    /// A step of `VcpuTlb::kick`: the interrupt, or the word.
    pub(crate) fn kick(&mut self, interrupt: bool) {
        self.kicked |= !interrupt;
        if interrupt && self.interrupts == Interrupts::Held {
            self.interrupts = Interrupts::Pending;
        }
    }

    /// `Tlb::leave`; also stops holding interrupts.
    pub(crate) fn leave(&mut self) {
        (self.in_guest, self.interrupts, self.pc) = (false, Interrupts::Taken, VcpuPc::Enter);
        (self.entering, self.held) = (false, None);
    }
}
