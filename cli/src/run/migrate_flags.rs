//! The flags of migration.

use super::address::Address;
use crate::error::Error;
use clap::Args;

#[derive(Debug, Args)]
pub struct Migrate {
    /// Migrate the running guest to the `slat run --migrate-from` at this address, HOST:PORT or the path of a Unix socket.
    /// Then this run ends
    #[arg(long, value_name = "ADDRESS", conflicts_with = "dirty_log")]
    pub migrate_to: Option<Address>,

    /// Begin after the vCPUs together have replayed N batches of 16384 accesses
    #[arg(long, value_name = "N", default_value_t = 0, requires = "migrate_to")]
    pub migrate_after: u64,

    /// Maximum downtime of the last round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30, requires = "migrate_to", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub downtime: u64,

    /// Wait at this address for a migrating guest and continue it. Both runs need the same traces, -v, -i and -m. At the
    /// end each page is compared with the guest's stores
    #[arg(long, value_name = "ADDRESS")]
    pub migrate_from: Option<Address>,

    /// Negative control: leave out the flush after a harvest. The receiving process must find wrong pages
    #[arg(long, hide = true, requires = "migrate_to")]
    pub sabotage_rearm: bool,
}

impl Migrate {
    /// Checks that a guest with these traces can migrate: both processes read the same traces.
    pub fn check(&self, traces: &[String]) -> Result<(), Error> {
        let moves = [("--migrate-to", &self.migrate_to), ("--migrate-from", &self.migrate_from)];
        match moves.into_iter().find(|(_, address)| address.is_some()) {
            Some((flag, _)) if traces.iter().any(|trace| trace == "-") => Err(Error::Usage(format!(
                "{flag}: the other side cannot read `--trace -`, which is standard input"
            ))),
            _ => Ok(()),
        }
    }
}
