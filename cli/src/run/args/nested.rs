//! The flags of nested guests.

use clap::Args;

/// The flags.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag that users type")]
pub struct NestedArgs {
    /// Replay the traces in L2, a guest of the guest. L1, its hypervisor, maps L2's memory by page tables of its own in the
    /// format's layout and changes them at random: it moves, protects and swaps out pages, clears A and D bits, moves
    /// tables, and flushes by every instruction that its processor has
    #[arg(long, conflicts_with_all = ["migrate_to", "migrate_from"])]
    pub nested: bool,

    /// Accesses of a vCPU between two changes by L1, on average; 0: L1 makes none [default: 5000]
    #[arg(long, value_name = "N", requires = "nested")]
    pub l1_edits: Option<u64>,

    /// Negative control: leave out the flushes that L1 asks for
    #[arg(long, hide = true, requires = "nested")]
    pub sabotage_l1_flushes: bool,

    /// Negative control: do not flush L2's TLB entries
    #[arg(long, hide = true, requires = "nested")]
    pub sabotage_l2_tag: bool,
}
