//! The command line.

use slat_cli::size::size;
use std::path::PathBuf;

/// Boot a Linux kernel on KVM while slat moves, pages out, merges and logs its memory
///
/// The guest has processors, memory, a clock, and a serial port, which is this terminal. It ends when the kernel restarts
/// (`reboot -f` in the guest): this command prints the changes of the guest's memory, and its exit status is 0. It is 2
/// where the guest cannot be started or has failed.
#[derive(Debug, clap::Parser)]
#[command(
    name = "slat vmm",
    version,
    after_help = "Example:\n  slat vmm --kernel /boot/vmlinuz --initrd initrd --memory 512M --frames 128M --churn move,page-out"
)]
pub struct Arguments {
    /// The kernel, a bzImage for 64 bits
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// The initial file system
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Further arguments for the kernel's command line
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    pub append: String,
    /// Guest memory: 32M to 3G
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub memory: u64,
    /// Host memory for the guest; the rest of the guest's memory is in compressed swap [default: as --memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub frames: Option<u64>,
    /// Processors: 1 to 8
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub cpus: u8,
    /// Changes that the host makes to guest memory while the guest runs
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    pub churn: Vec<Churn>,
    /// Pages per second that are moved, and pages per second that are paged out, 64 at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
}

/// A change of guest memory by the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Churn {
    /// Pages go to other frames
    Move,
    /// Pages go to compressed swap
    PageOut,
    /// Pages with equal contents become one
    Merge,
    /// Stores are logged, and the log is harvested after each 16 pieces
    LogDirty,
}

impl Arguments {
    pub fn churns(&self, kind: Churn) -> bool {
        self.churn.contains(&kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_kernel_and_some_processors_are_needed() {
        for bad in [
            "vmm",
            "vmm --kernel k --cpus 0",
            "vmm --kernel k --cpus 9",
            "vmm --kernel k --memory much",
            "vmm --kernel k --churn all",
        ] {
            assert!(Arguments::try_parse_from(bad.split(' ')).is_err(), "{bad}");
        }
        let good =
            Arguments::try_parse_from("vmm --kernel k --churn move,merge --append -x".split(' ')).unwrap();
        assert_eq!((good.churn, good.memory), (vec![Churn::Move, Churn::Merge], 256 << 20));
        assert_eq!(good.append, "-x");
    }
}
