//! The flags of threads that work ahead of faults.

use crate::size::within;
use clap::Args;
use slat::PAGE_SIZE;

/// The flags.
#[derive(Debug, Args)]
pub struct AheadArgs {
    /// Threads that evict cold pages before --limit is reached, so that faults need not reclaim; 0: faults reclaim themselves
    /// [default: 1]
    #[arg(long, value_name = "N", requires = "swap", value_parser = clap::value_parser!(u8).range(..=64))]
    pub evictors: Option<u8>,

    /// Free memory that a thread keeps zeroed while processors are idle; 0: faults zero their pages themselves
    /// [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = zero_ahead)]
    pub zero_ahead: Option<u64>,
}

fn zero_ahead(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { within(text, PAGE_SIZE, 1 << 40) }
}
