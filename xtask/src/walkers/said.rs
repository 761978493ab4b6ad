//! What a judge has said, line by line (`walkers/judge` prints it), and whether that is good.

/// See the module's header.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Lines worth showing: one for each format and check.
    lines: Vec<String>,
    lookups: u64,
    differences: u64,
    passed: bool,
    failed: bool,
}

/// The fewest look-ups that count as a judgement.
const FEWEST: u64 = 10_000;

impl Said {
    /// Reads all that a program said.
    pub fn of(text: &str) -> Self {
        let mut said = Self::default();
        for line in text.lines().map(str::trim_end) {
            match line.split(' ').next() {
                Some("WALK") => {
                    said.lookups += number_before(line, "look-ups");
                    said.differences += number_before(line, "differences");
                    said.lines.push(line.to_owned());
                }
                Some("PAIR" | "STALE" | "MUTATED" | "SKIP") => said.lines.push(line.to_owned()),
                Some("DIFF") => {
                    said.differences += 1;
                    said.lines.push(line.to_owned());
                }
                _ => {}
            }
            said.passed |= line == "JUDGE PASSED";
            said.failed |= line == "JUDGE FAILED";
        }
        said
    }

    /// Shows it.
    pub fn print(&self) {
        self.lines.iter().for_each(|line| println!("   {line}"));
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

/// The number that stands before `word`; 0 where none does.
fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().filter(|before| before.len() < line.len());
    before.and_then(|before| before.split_whitespace().next_back()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "WALK npt4 QEMU seed 1: 10032 look-ups, 0 differences; the emulator's own: a ×2\r\n\
        MUTATE npt4 QEMU link bits 3-3 other: not noticed\r\nJUDGE PASSED\r\n";

    #[test]
    fn a_good_judgement_is_good() {
        let said = Said::of(GOOD);
        assert_eq!((said.lookups, said.differences, said.lines.len()), (10_032, 0, 1));
        assert_eq!(said.judge(), Ok(()));
    }

    #[test]
    fn everything_else_is_not() {
        let bad = [
            GOOD.replace("0 differences", "1 differences"),
            GOOD.replace("PASSED", "FAILED"),
            GOOD.replace("10032", "9999"),
            GOOD.replace("JUDGE PASSED", ""),
            format!("DIFF npt4\n{GOOD}"),
            String::new(),
        ];
        for text in bad {
            assert!(Said::of(&text).judge().is_err(), "{text}");
        }
    }
}
