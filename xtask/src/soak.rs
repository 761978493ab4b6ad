//! `soak`: the test that does everything at once (`slat/tests/soak`), in release, for as long as is asked.

use crate::Outcome;
use std::path::Path;
use std::process::Command;

const MINUTES: f64 = 10.0;

/// The chore: `--minutes N` says how long.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let seconds = 60.0 * minutes(args)?;
    let status = Command::new(env!("CARGO"))
        .args(["test", "--package", "slat", "--release", "--locked", "--test", "soak"])
        .args(["--", "--exact", "--nocapture", "everything_at_once"])
        .env("SLAT_SOAK_SECONDS", seconds.to_string())
        .current_dir(root)
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("cargo test: {status}").into()) }
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
