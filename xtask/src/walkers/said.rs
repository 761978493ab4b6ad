//! What a judge has said, line by line (`walkers/judge` prints it), and whether that is good.

use std::fmt;

#[derive(Default)]
pub struct Said<'a> {
    /// Lines worth showing: one for each format and check.
    lines: Vec<&'a str>,
    lookups: u64,
    differences: u64,
    passed: bool,
    failed: bool,
}

/// The fewest look-ups that count as a judgement.
const FEWEST: u64 = 10_000;

impl<'a> Said<'a> {
    /// Reads all that a program said.
    pub fn of(text: &'a str) -> Self {
        let mut said = Self::default();
        for line in text.lines().map(str::trim_end) {
            let kind = line.split(' ').next().unwrap_or_default();
            match kind {
                "WALK" => {
                    said.lookups += number_before(line, "look-ups");
                    said.differences += number_before(line, "differences");
                }
                "DIFF" => said.differences += 1,
                _ => {}
            }
            if ["WALK", "DIFF", "PAIR", "STALE", "MUTATED", "SKIP"].contains(&kind) {
                said.lines.push(line);
            }
            said.passed |= line == "JUDGE PASSED";
            said.failed |= line == "JUDGE FAILED";
        }
        said
    }

    /// Whether it is good; else why not.
    pub fn judge(&self) -> Result<(), String> {
        if self.failed {
            Err(String::from("the judge says so"))
        } else if !self.passed {
            Err(String::from("the judge did not come to an end"))
        } else if self.differences > 0 {
            Err(format!("{} differences", self.differences))
        } else if self.lookups < FEWEST {
            Err(format!("{} look-ups are too few", self.lookups))
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "   {line}"))
    }
}

/// The number that stands before `word`; 0 where none does.
fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split_once(word).and_then(|(before, _)| before.split_whitespace().next_back());
    before.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_judgement_is_good_with_every_look_up_and_no_difference() {
        let good = "WALK npt4 QEMU seed 1: 10032 look-ups, 0 differences; the emulator's own: a ×2\r\n\
            MUTATE npt4 QEMU link bits 3-3 other: not noticed\r\nJUDGE PASSED\r\n";
        let said = Said::of(good);
        assert_eq!((said.lookups, said.differences, said.lines.len()), (10_032, 0, 1));
        assert_eq!(said.judge(), Ok(()));
        let bad = [
            good.replace("0 differences", "1 differences"),
            good.replace("PASSED", "FAILED"),
            good.replace("10032", "9999"),
            good.replace("JUDGE PASSED", ""),
            format!("DIFF npt4\n{good}"),
            String::new(),
        ];
        for text in bad {
            assert!(Said::of(&text).judge().is_err(), "{text}");
        }
    }
}
