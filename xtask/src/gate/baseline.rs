//! The baseline's file: remarks, the compiler, and then a path and its instructions on each line.

use std::fmt;

/// Instructions for one operation of each path, and the compiler that made them.
#[derive(Debug, PartialEq)]
pub struct Baseline {
    pub compiler: String,
    pub costs: Vec<(String, f64)>,
}

impl Baseline {
    /// Reads the file's text.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let compiler = lines.next().ok_or("the baseline names no compiler")?.to_owned();
        let cost = |line: &str| {
            let (path, cost) = line.split_once(char::is_whitespace)?;
            Some((path.to_owned(), cost.trim().parse().ok().filter(|&cost: &f64| cost > 0.0)?))
        };
        let costs =
            lines.map(|line| cost(line).ok_or_else(|| format!("not a path and its instructions: {line}")));
        Ok(Self { compiler, costs: costs.collect::<Result<_, _>>()? })
    }

    /// What a path costs.
    pub fn of(&self, path: &str) -> Option<f64> {
        self.costs.iter().find(|(name, _)| name == path).map(|&(_, cost)| cost)
    }

    /// Complaints about the paths that `other` does not have.
    pub fn missing(&self, other: &Self) -> Vec<String> {
        let gone = self.costs.iter().filter(|(path, _)| other.of(path).is_none());
        gone.map(|(path, _)| format!("{path}: there is no such path any more")).collect()
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions for one operation, by `cargo xtask gate --bless`.")?;
        writeln!(f, "{}", self.compiler)?;
        self.costs.iter().try_for_each(|(path, cost)| writeln!(f, "{path:<20} {cost:.1}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let costs =
            [("fault-install", 108.9), ("translate", 77.0)].map(|(path, cost)| (path.to_owned(), cost));
        let baseline = Baseline { compiler: "rustc 1.95.0 x86_64".to_owned(), costs: costs.into() };
        assert_eq!(Baseline::read(&baseline.to_string()).as_ref(), Ok(&baseline));
        assert_eq!((baseline.of("translate"), baseline.of("a")), (Some(77.0), None));
        let less = Baseline { costs: baseline.costs[..1].to_vec(), compiler: String::new() };
        assert_eq!((baseline.missing(&less).len(), less.missing(&baseline).len()), (1, 0));
    }

    #[test]
    fn what_is_no_baseline_is_refused() {
        for wrong in ["", "# only remarks", "rustc\nfault-install", "rustc\nfault-install many", "rustc\na 0"]
        {
            assert!(Baseline::read(wrong).is_err(), "{wrong}");
        }
    }
}
