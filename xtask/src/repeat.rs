//! `repeat`: the whole suite again and again, to show that no test of it fails now and then. The first failure ends it,
//! with what the suite said. `--beside N` lets N threads spin meanwhile, as on a machine that others use too.

use crate::Outcome;
use std::hint::spin_loop;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    times: u32,
    beside: u32,
}

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let asked = Asked::of(args)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..asked.beside {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    spin_loop();
                }
            });
        }
        let outcome = (1..=asked.times).try_for_each(|time| {
            let began = Instant::now();
            let tests = suite(root)?;
            println!("{time} of {}: {tests} tests passed in {:.0?}", asked.times, began.elapsed());
            Ok(())
        });
        over.store(true, Relaxed);
        outcome
    })
}

/// Runs the suite once; how many tests passed.
fn suite(root: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let output =
        Command::new(env!("CARGO")).args(["test", "--workspace", "--locked"]).current_dir(root).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
        return Err(format!("the suite failed: {}", output.status).into());
    }
    Ok(passed(&said))
}

/// The sum over all of what cargo says: `test result: ok. 4 passed; 0 failed; …`.
fn passed(said: &str) -> u64 {
    let one = |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u64>().ok();
    said.lines().filter_map(one).sum()
}

impl Asked {
    fn of(args: &[String]) -> Result<Self, String> {
        let mut asked = Self { times: 20, beside: 0 };
        for pair in args.chunks(2) {
            let [flag, number] = pair else { return Err(format!("{}: how many?", pair[0])) };
            let number: u32 = number.parse().map_err(|_| format!("{flag} {number}: a number"))?;
            match flag.as_str() {
                "--times" => asked.times = number,
                "--beside" => asked.beside = number,
                _ => return Err(format!("usage: cargo xtask repeat [--times N] [--beside N], not {flag}")),
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_how_often_and_beside_what() {
        let of = |args: &[&str]| Asked::of(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[]), Ok(Asked { times: 20, beside: 0 }));
        assert_eq!(of(&["--beside", "2", "--times", "3"]), Ok(Asked { times: 3, beside: 2 }));
        for wrong in [&["--times"] as &[_], &["--times", "many"], &["--minutes", "3"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn tests_are_counted_over_all_of_them() {
        let said =
            "running 2 tests\ntest result: ok. 2 passed; 0 failed\n\ntest result: ok. 40 passed; 0 failed\n";
        assert_eq!(passed(said), 42);
    }
}
