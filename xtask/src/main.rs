//! House chores, one command each: `cargo xtask` lists them.

mod house;
mod record;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// What a chore hands back: nothing, or why it failed.
type Outcome = Result<(), Box<dyn Error>>;

/// A chore: its name on the command line, what it is for, and how it is done in the repository's root.
struct Chore {
    name: &'static str,
    about: &'static str,
    run: fn(&Path) -> Outcome,
}

const CHORES: [Chore; 2] = [
    Chore { name: "house", about: "check the house rules; changes nothing", run: house::run },
    Chore {
        name: "record-traces",
        about: "record the bundled traces anew; needs valgrind, gcc, sort, zstd and ten minutes",
        run: record::run,
    },
];

fn main() -> ExitCode {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the repository's root");
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let chore = match asked.as_slice() {
        [] => None,
        [name] => CHORES.iter().find(|chore| chore.name == name),
        _ => return usage("one chore at a time"),
    };
    match (chore, asked.first()) {
        (Some(chore), _) => match (chore.run)(root) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", chore.name);
                ExitCode::FAILURE
            }
        },
        (None, Some(name)) => usage(&format!("no chore is called {name}")),
        (None, None) => {
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
