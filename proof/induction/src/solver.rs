//! Runs z3 and cvc5, each as a program that reads a query from standard input.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// An SMT solver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solver {
    /// `apt-get install z3`.
    Z3,
    /// `apt-get install cvc5`.
    Cvc5,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No state satisfies it.
    Unsat,
    /// A state does; the rest of the output.
    Sat(String),
    /// No answer in time, or an error.
    Unknown(String),
}

impl Solver {
    /// Both solvers.
    pub const ALL: [Self; 2] = [Self::Z3, Self::Cvc5];

    /// Returns the name of the program, which is the name of Debian's package.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Z3 => "z3",
            Self::Cvc5 => "cvc5",
        }
    }

    /// Returns whether the program runs here.
    pub fn is_here(self) -> bool {
        let mut command = Command::new(self.name());
        let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Asks whether a query can be satisfied, for at most `seconds`.
    pub fn ask(self, query: &str, seed: u32, seconds: u32) -> Answer {
        match self.output(query, seed, seconds) {
            Ok(output) => match output.trim_start().split_once('\n').unwrap_or((output.trim(), "")) {
                ("unsat", _) => Answer::Unsat,
                ("sat", rest) => Answer::Sat(rest.to_owned()),
                _ => Answer::Unknown(output),
            },
            Err(error) => Answer::Unknown(error.to_string()),
        }
    }

    fn output(self, query: &str, seed: u32, seconds: u32) -> std::io::Result<String> {
        let mut command = Command::new(self.name());
        match self {
            Self::Z3 => command.args(["-in", &format!("-T:{seconds}"), &format!("smt.random_seed={seed}")]),
            Self::Cvc5 => command.args([
                "--lang=smt2",
                &format!("--tlimit={}", 1000 * seconds),
                &format!("--seed={seed}"),
                "--enum-inst",
            ]),
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut input = child.stdin.take().expect("it is piped");
        // A solver reads all of its input before it answers more than a line.
        let written = input.write_all(query.as_bytes());
        drop(input);
        let output = child.wait_with_output()?;
        written?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
