//! Two boots side by side.

use super::machine::Run;
use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

/// A table for people, headed by what was booted. An error where the two guests did not read the same from their memory.
pub fn compare(what: &str, plain: &Run, under: &Run) -> Result<String, Box<dyn Error>> {
    if plain.sum() != under.sum() {
        return Err("under slat the guest has read something else from its memory than without".into());
    }
    let mut text = format!("{what}\n");
    writeln!(text, "{:<24}{:>10}{:>12}{:>8}", "", "plain", "under slat", "ratio")?;
    let shells = [plain, under].map(|run| run.shell.unwrap_or_default());
    let (ends, works) = ([plain.end, under.end], [plain.work, under.work]);
    for (what, [plain, under]) in
        [("to the shell", shells), ("to power-off", ends), ("processor time", works)]
    {
        let ratio = under.as_secs_f64() / plain.as_secs_f64();
        writeln!(text, "{what:<24}{:>10}{:>12}{ratio:>7.2}x", seconds(plain), seconds(under))?;
    }
    for (number, what) in under.report().filter(|(number, _)| *number > 0) {
        writeln!(text, "{what:<24}{number:>10}")?;
        if what == "dirty pages" {
            writeln!(text, "{:<24}{:>10.0}", "… per second", number as f64 / under.end.as_secs_f64())?;
        }
    }
    Ok(text)
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_told_and_what_did_not_is_not() {
        let [plain, mut under] = ["", "report: 5 faults\nreport: 0 zaps\nreport: 40 dirty pages\n"]
            .map(|report| Run::judged(&format!("slat: shell\nslat: sum 1\n{report}"), true));
        under.end *= 2;
        let text = compare("linux on QEMU", &plain, &under).unwrap();
        for told in ["linux on QEMU", "1.00x", "2.00x", "faults", "… per second                    20"] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert!(!text.contains("zaps"));
    }

    #[test]
    fn guests_that_read_different_things_are_an_error() {
        let [one, other] = ["1", "2"].map(|sum| Run::judged(&format!("slat: sum {sum}"), true));
        assert!(compare("linux", &one, &other).is_err());
    }
}
