//! The kinds of shadowed tables in a world of [`exact`](super::exact).

use super::exact::{G2S, Unique, Uses, root_of};
use slat::nested::{
    EptFeatures, EptTable, GuestFlush, GuestPaging, GuestRegisters, GuestTable, L1Format, NestedError,
    Privilege,
};
use slat::table::HostPaging;
use slat::*;
use slat_vcpu::Cpu;
use slat_vcpu::cpu::L2Exit;

/// The kind of shadowed tables.
pub trait Kind: Sized + 'static {
    /// The number of roots.
    const ROOTS: u64;
    /// The A and D bits in an entry.
    const ACCESSED: u64;
    const DIRTY: u64;
    /// The type of T.
    type Table: L1Format;
    /// T below a root. The access mode is drawn.
    fn table(root: u64, lot: &mut fastrand::Rng) -> Self::Table;
    /// An entry that maps a frame.
    fn leaf(g1: Gfn, stores: bool) -> u64;
    /// Runs the program on T.
    fn run<F: Format>(
        cpu: &mut Cpu<'_, F, Unique>,
        idle: &mut Idle,
        table: Self::Table,
        uses: &mut Uses<'_, F, Self>,
    ) -> Result<L2Exit, NestedError>;
    /// The vCPU makes a random flush. With `ignores`, the engine does not learn of it.
    fn flushes<F: Format>(cpu: &mut Cpu<'_, F, Unique>, lot: &mut fastrand::Rng, ignores: bool) -> Scope;
    /// L1 flushes on all vCPUs, if it can.
    fn broadcasts<F: Format>(vm: &Vm<F, Unique>, idle: &mut Idle, ignores: bool) -> bool;
}

/// A kind whose VM may have this format.
pub trait Builds<F: Format>: Kind {
    /// The builder of the VM.
    fn builder(host: Unique) -> Builder<F, Unique>;
}

/// The scope of a flush: a root or all roots, and a frame or all frames.
#[derive(Clone, Copy, Default)]
pub struct Scope {
    pub root: Option<u64>,
    pub g2: Option<Gfn>,
}

/// A hypervisor with one EPT.
pub enum Ept {}

impl Kind for Ept {
    const ROOTS: u64 = 1;
    const ACCESSED: u64 = 1 << 8;
    const DIRTY: u64 = 1 << 9;
    type Table = EptTable;

    fn table(_: u64, _: &mut fastrand::Rng) -> EptTable {
        let features = EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) };
        EptTable::new(root_of(0) << 12 | 1 << 6 | 3 << 3 | 6, features).unwrap()
    }

    fn leaf(g1: Gfn, stores: bool) -> u64 {
        g1.0 << 12 | 6 << 3 | 5 | u64::from(stores) << 1
    }

    fn run<F: Format>(
        cpu: &mut Cpu<'_, F, Unique>,
        idle: &mut Idle,
        table: EptTable,
        uses: &mut Uses<'_, F, Self>,
    ) -> Result<L2Exit, NestedError> {
        cpu.run_l2(idle, table, uses)
    }

    fn flushes<F: Format>(cpu: &mut Cpu<'_, F, Unique>, _: &mut fastrand::Rng, ignores: bool) -> Scope {
        if !ignores {
            cpu.l1_flushes(|_: &EptTable| true);
        }
        Scope::default()
    }

    fn broadcasts<F: Format>(vm: &Vm<F, Unique>, idle: &mut Idle, ignores: bool) -> bool {
        if !ignores {
            vm.l1_broadcasts(idle, SpaceId(0), G2S, |_: &EptTable| true);
        }
        true
    }
}

impl<F: Format> Builds<F> for Ept {
    fn builder(host: Unique) -> Builder<F, Unique> {
        Vm::builder(host)
    }
}

/// A guest without a second stage, in long mode. Its kernel flushes by INVLPG, INVPCID and writes to CR3. It
/// has two processes, with PCIDs 1 and 2. A vCPU switches between them, and between user and kernel mode.
pub enum Paging {}

fn pcid(root: u64) -> u16 {
    root as u16 + 1
}

impl Kind for Paging {
    const ROOTS: u64 = 2;
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;
    type Table = GuestTable;

    fn table(root: u64, lot: &mut fastrand::Rng) -> GuestTable {
        // PG and WP; PAE and PCIDE; LMA and NXE.
        let registers = GuestRegisters {
            cr0: 1 << 31 | 1 << 16,
            cr3: root_of(root) << 12 | u64::from(pcid(root)),
            cr4: 1 << 5 | 1 << 17,
            efer: 1 << 10 | 1 << 11,
            pat: 0x0007_0406_0007_0406,
            pdptes: [0; 4],
        };
        let offered = GuestPaging { physical_bits: 46, large_1g: false, reserves_global: false };
        let privilege = [Privilege::User, Privilege::Supervisor][lot.usize(..2)];
        GuestTable::new(&registers, offered, privilege).unwrap()
    }

    fn leaf(g1: Gfn, stores: bool) -> u64 {
        g1.0 << 12 | 5 | u64::from(stores) << 1
    }

    fn run<F: Format>(
        cpu: &mut Cpu<'_, F, Unique>,
        idle: &mut Idle,
        table: GuestTable,
        uses: &mut Uses<'_, F, Self>,
    ) -> Result<L2Exit, NestedError> {
        cpu.run_guest(idle, table, uses)
    }

    fn flushes<F: Format>(cpu: &mut Cpu<'_, F, Unique>, lot: &mut fastrand::Rng, ignores: bool) -> Scope {
        let (root, g2) = (lot.u64(..Self::ROOTS), G2S.start + lot.u64(..G2S.len()));
        let at = Gva(g2.gpa().0);
        let (flush, scope) = match lot.u8(..8) {
            0..3 => (GuestFlush::Address(at), Scope { root: None, g2: Some(g2) }),
            3..5 => (GuestFlush::AddressOf(pcid(root), at), Scope { root: Some(root), g2: Some(g2) }),
            5..7 => (GuestFlush::Pcid(pcid(root)), Scope { root: Some(root), g2: None }),
            _ => (GuestFlush::All, Scope::default()),
        };
        if !ignores {
            cpu.guest_flushes(flush);
        }
        scope
    }

    /// x86 has no broadcast: its kernel interrupts other processors, and each flushes its own TLB.
    fn broadcasts<F: Format>(_: &Vm<F, Unique>, _: &mut Idle, _: bool) -> bool {
        false
    }
}

impl<F: HostPaging> Builds<F> for Paging {
    fn builder(host: Unique) -> Builder<F, Unique> {
        Vm::builder(host).without_two_stages()
    }
}
