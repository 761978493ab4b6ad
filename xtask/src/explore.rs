//! `explore`: whole worlds of the engine on simulated CPUs, by seed (`sim/explore`).
//!
//! ```text
//! cargo xtask explore [--seeds N] [--first S] [--minutes M] [--cpus N]   until a world fails
//! cargo xtask explore --first S --seeds 1 --trace                        one world, and its story
//! cargo xtask explore --seeded NAME                                      with a mistake made, which must be found
//! ```
//! Built as the fuzzer is: quickly, and with the checks of a debug build.

use crate::Outcome;
use std::path::Path;
use std::process::Command;

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--package", "slat-explore", "--profile", "fuzz", "--locked", "--quiet", "--"])
        .args(args)
        .current_dir(root)
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("slat-explore: {status}").into()) }
}
