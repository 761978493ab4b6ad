//! House chores, one command each: `cargo xtask --help` lists them.

mod boot;
mod chaos;
mod coverage;
mod emulator;
mod fuzz;
mod gate;
mod house;
mod links;
mod longer;
mod miri;
#[cfg(test)]
mod museum;
mod mutants;
mod outcome;
mod page;
mod process;
mod sanitize;
mod source;
mod verify;
mod walkers;

use clap::Parser;
use outcome::Outcome;
use verify::steps::Tier;

/// House chores of slat
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Chore {
    /// Check the house rules; changes nothing
    House(house::Args),
    /// Render the documentation of all packages, with the links between them
    Docs,
    /// Check the links of rendered pages: those of `mdbook build book` and `cargo xtask docs`
    Links(links::Args),
    /// Run the quick half of the checks that each change must pass: six minutes
    Check,
    /// Run the checks that each change must pass; print the explored executions and the found mistakes
    Verify(verify::Args),
    /// Run the checks that take hours (budget: four); write the verdict to proof/verdicts/nightly.md
    Nightly(verify::Args),
    /// Make each mistake of proof/mistakes/ in a copy of the sources, and run the test that must find it
    Mutants(mutants::Args),
    /// Run the tests under `AddressSanitizer`, and list the engine's lines that none runs; needs rustup's llvm-tools
    Coverage,
    /// Count instructions of the hot paths, against the baseline; needs valgrind
    Gate(gate::Args),
    /// Run everything at once: the engine, a host under load, dirty logs
    Soak(longer::Soak),
    /// Run every public operation at once under `AddressSanitizer`, with callbacks that panic
    Chaos(chaos::Args),
    /// Run the suite again and again, until it fails
    Repeat(longer::Repeat),
    /// Run the targets of libFuzzer
    Fuzz(fuzz::Args),
    /// Run whole worlds on simulated CPUs, by seed: --seeds N, --first S, --minutes M, --cpus N, --faulty-tlbs, --trace
    Explore(Words),
    /// Prove the protocol by induction, with z3 and cvc5: --mistakes, --seeds N, --seconds N, --only WORDS, --require
    Prove(Words),
    /// Run every simulated bench under many seeds
    Simulate(longer::Simulate),
    /// Run the soak under `ThreadSanitizer`
    Sanitize,
    /// Run small worlds and unit tests under Miri; installs it if it is missing
    Miri,
    /// Check tables by hardware walkers in emulators
    Walkers(walkers::Args),
    /// Run an unmodified foreign program on slat, by name; without a name, list them
    Clients(Words),
    /// Boot Debian's kernel plain and under slat, and compare
    Boot(boot::Args),
    /// Check the page of a report in headless Chromium, at 400, 800 and 1280 pixels, light and dark
    Page(page::Args),
}

/// Arguments for another program.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Chore {
    /// Runs the chore, in the repository's root.
    fn run(&self) -> Outcome {
        match self {
            Self::House(args) => house::run(args),
            Self::Docs => links::render(),
            Self::Links(args) => links::run(args),
            Self::Check => verify::run(Tier::Quick, &verify::Args::default()),
            Self::Verify(args) => verify::run(Tier::Push, args),
            Self::Nightly(args) => verify::run(Tier::Nightly, args),
            Self::Mutants(args) => mutants::run(args),
            Self::Coverage => coverage::run(),
            Self::Gate(args) => gate::run(args),
            Self::Soak(args) => longer::soak(args),
            Self::Chaos(args) => chaos::run(args),
            Self::Repeat(args) => longer::repeat(args),
            Self::Fuzz(args) => fuzz::run(args, mutants::fuzzer),
            Self::Explore(Words { words }) => longer::explore(words),
            Self::Prove(Words { words }) => longer::prove(words),
            Self::Simulate(args) => longer::simulate(args),
            Self::Sanitize => sanitize::thread(),
            Self::Miri => miri::run(),
            Self::Walkers(args) => walkers::run(args),
            Self::Clients(name) => process::succeed(process::bounded(3600, "clients/run").args(&name.words)),
            Self::Boot(args) => boot::run(args),
            Self::Page(args) => page::run(args),
        }
    }
}

fn main() {
    let chore = Chore::parse();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let Err(error) = std::env::set_current_dir(root).map_err(Into::into).and_then(|()| chore.run()) else {
        return;
    };
    if let Some(misuse) = error.downcast_ref::<clap::Error>() {
        misuse.exit();
    }
    eprintln!("{}: {error:#}", std::env::args().nth(1).unwrap_or_default());
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> bool {
        Chore::try_parse_from(line.split(' ')).is_err()
    }

    #[test]
    fn command_lines_of_ci_parse_and_wrong_ones_are_refused() {
        for line in verify::steps::STEPS.iter().flat_map(|step| step.lines) {
            let Some(words) = line.words.strip_prefix("cargo ") else { continue };
            assert!(!words.starts_with("xtask ") || !refused(words), "{words}");
        }
        for line in "soak --minutes 5|repeat --beside 2 --times 3|fuzz vm --mistakes|page target/a|docs|links|links target/book"
            .split('|')
        {
            assert!(!refused(&format!("xtask {line}")), "{line}");
        }
        let wrong = "house now|soak --minutes 0|soak --minutes NaN|repeat --times many|fuzz nothing|page a b\
            |fuzz --mistakes --keep|sanitize memory|walkers --only mips|gate --best";
        for line in wrong.split('|') {
            assert!(refused(&format!("xtask {line}")), "{line}");
        }
    }

    #[test]
    fn arguments_for_another_program_are_passed_unchanged() {
        let line = "--seeds 5 --trace";
        let chore = Chore::try_parse_from(format!("xtask explore {line}").split(' '));
        assert!(matches!(chore, Ok(Chore::Explore(Words { words })) if words.join(" ") == line));
    }
}
