//! `soak`: the tests that do everything at once (`slat/tests/soak`; a primary MMU under load, `mm/tests/load`; dirty logs
//! under fire, `vcpu/tests/dirty`), optimized, for as long as is asked, all together.

use crate::Outcome;
use std::path::Path;
use std::process::Command;

const MINUTES: f64 = 10.0;

/// Package, test, and the function in it.
const SOAKS: [[&str; 3]; 3] = [
    ["slat", "soak", "everything_at_once"],
    ["slat-mm", "load", "no_guest_reads_what_is_not_its_own"],
    ["slat-vcpu", "dirty", "the_shadow_is_what_was_written"],
];

/// The chore: `--minutes N` says how long.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let seconds = 60.0 * minutes(args)? / SOAKS.len() as f64;
    for [package, test, function] in SOAKS {
        let status = Command::new(env!("CARGO"))
            .args(["test", "--package", package, "--release", "--locked", "--test", test])
            .args(["--", "--exact", "--nocapture", function])
            .env("SLAT_SOAK_SECONDS", seconds.to_string())
            .current_dir(root)
            .status()?;
        if !status.success() {
            return Err(format!("cargo test: {status}").into());
        }
    }
    Ok(())
}

fn minutes(args: &[String]) -> Result<f64, String> {
    match args {
        [] => Ok(MINUTES),
        [flag, number] if flag == "--minutes" => match number.parse() {
            // A year: beyond it is a slip of the finger.
            Ok(minutes) if minutes > 0.0 && minutes < 525_600.0 => Ok(minutes),
            _ => Err(format!("--minutes {number}: a number of minutes, above 0")),
        },
        _ => Err(format!("usage: cargo xtask soak [--minutes N], not {}", args.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_a_number_above_zero() {
        let of = |args: &[&str]| minutes(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[]), Ok(MINUTES));
        assert_eq!(of(&["--minutes", "0.5"]), Ok(0.5));
        for wrong in
            [&["--minutes"] as &[_], &["--minutes", "0"], &["--minutes", "NaN"], &["--hours", "1"], &["5"]]
        {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
