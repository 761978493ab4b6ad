//! House chores, one command each: `cargo xtask` lists them.

mod bochs;
mod boot;
mod compiler;
mod coverage;
mod emulator;
mod explore;
mod fuzz;
mod gate;
mod house;
mod page;
mod record;
mod repeat;
mod sanitize;
mod soak;
mod verify;
mod walkers;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// What a chore hands back: nothing, or why it failed.
type Outcome = Result<(), Box<dyn Error>>;

/// A chore: its name on the command line, what it is for, and how it is done in the repository's root.
struct Chore {
    name: &'static str,
    about: &'static str,
    run: Run,
}

/// How a chore is done.
enum Run {
    Plain(fn(&Path) -> Outcome),
    /// With what follows its name.
    With(fn(&Path, &[String]) -> Outcome),
}

const CHORES: &[Chore] = &[
    Chore { name: "house", about: "check the house rules; changes nothing", run: Run::Plain(house::run) },
    Chore {
        name: "check",
        about: "the quick half of what must hold before a change lands: five minutes",
        run: Run::Plain(verify::check),
    },
    Chore {
        name: "verify",
        about: "what must hold before a change lands, what was explored, and which mistakes were found; --only STEP",
        run: Run::With(verify::run),
    },
    Chore {
        name: "nightly",
        about: "every check, three hours at most; the verdict is kept in verification/nightly.md; --only STEP, --docs",
        run: Run::With(verify::nightly),
    },
    Chore {
        name: "seeded",
        about: "cargo with the mistakes that SLAT_SEEDED can name: test -p slat-vcpu --test dirty, for example",
        run: Run::With(compiler::seeded),
    },
    Chore {
        name: "coverage",
        about: "the tests under AddressSanitizer, the lines of the engine that they run, and why the others are not; needs rustup's llvm-tools",
        run: Run::Plain(coverage::run),
    },
    Chore {
        name: "gate",
        about: "instructions of the hot paths, against the baseline; needs valgrind; --bless takes it anew",
        run: Run::With(gate::run),
    },
    Chore {
        name: "soak",
        about: "everything at once: the direct MMU, a host under load, dirty logs; --minutes N, 10 unless said otherwise",
        run: Run::With(soak::run),
    },
    Chore {
        name: "repeat",
        about: "the suite again and again, until it fails: --times N, 20 unless said otherwise; --beside N busy threads",
        run: Run::With(repeat::run),
    },
    Chore {
        name: "fuzz",
        about: "any bytes, found by libFuzzer: [TARGET…], --seconds N, 60 unless said otherwise; --seeded also makes mistakes; --keep",
        run: Run::With(fuzz::run),
    },
    Chore {
        name: "explore",
        about: "whole worlds on simulated CPUs, by seed: --seeds N, --first S, --minutes M, --cpus N, --seeded NAME, --trace",
        run: Run::With(explore::run),
    },
    Chore {
        name: "sanitize",
        about: "the tests under AddressSanitizer, the soak under ThreadSanitizer: [address] [thread]",
        run: Run::With(sanitize::run),
    },
    Chore {
        name: "walkers",
        about: "tables judged by hardware walkers, in emulators: --only npt|ept|arm64|riscv, --nightly",
        run: Run::With(walkers::run),
    },
    Chore {
        name: "boot",
        about: "boot Debian's kernel plain and under slat, and compare; --npt or --ept, --pages 4k|2m, --around N, --zap, --log-dirty, --age",
        run: Run::With(boot::run),
    },
    Chore {
        name: "page",
        about: "a report in headless Chromium, at 400 and 1400 pixels, light and dark: [DIR], else a quick one is made",
        run: Run::With(page::run),
    },
    Chore {
        name: "record-traces",
        about: "record the bundled traces anew: [NAME…], all unless said otherwise; needs valgrind, gcc, sort, zstd, QEMU, ten minutes",
        run: Run::With(record::run),
    },
];

fn main() -> ExitCode {
    if let Some(compiler) = compiler::Compiler::called() {
        return compiler.run();
    }
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the repository's root");
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let chore = asked.first().map(|name| (name, CHORES.iter().find(|chore| chore.name == name)));
    let done = |chore: &Chore| match (&chore.run, &asked[1..]) {
        (Run::Plain(run), []) => run(root),
        (Run::Plain(_), [extra, ..]) => Err(format!("it takes no {extra}").into()),
        (Run::With(run), rest) => run(root, rest),
    };
    match chore {
        Some((_, Some(chore))) => match done(chore) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", chore.name);
                ExitCode::FAILURE
            }
        },
        Some((name, None)) => usage(&format!("no chore is called {name}")),
        None => {
            println!("usage: cargo xtask CHORE\n");
            for Chore { name, about, .. } in CHORES {
                println!("  {name:14} {about}");
            }
            ExitCode::SUCCESS
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}; `cargo xtask` lists the chores");
    ExitCode::from(2)
}
