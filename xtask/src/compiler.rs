//! The compiler with more flags for the crates of this workspace, and for them alone: what they depend on is built once,
//! with the tests of every day, and used by all.
//!
//! Cargo calls a wrapper for such crates, and keeps what each wrapper built apart by the wrapper's path. So this program is
//! copied to a path for each set of flags, and is the compiler where that is how it was called.

use crate::Outcome;
use crate::process::cargo;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs, io};

/// What a copy of this program adds to the compiler's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compiler {
    name: &'static str,
    flags: &'static [&'static str],
}

/// Builds the mistakes in, for `SLAT_SEEDED` to name one.
const SEEDED: Compiler = Compiler { name: "rustc-seeded", flags: &["--cfg", "seeded"] };
/// Reports bad accesses and leaks, with the mistakes to try it with; and counts how often each line is run.
pub const ADDRESS: Compiler = Compiler {
    name: "rustc-address",
    flags: &["-Zsanitizer=address", "-Cinstrument-coverage", "--cfg", "seeded"],
};

/// The chore `seeded`: cargo, as it is told, with the mistakes built in.
pub fn seeded(words: &[String]) -> Outcome {
    let mut cargo = cargo([]);
    SEEDED.for_cargo(&mut cargo)?;
    // From here on we are cargo, and end as it does.
    Err(cargo.args(words).exec().into())
}

impl Compiler {
    /// Makes `cargo` use it.
    pub fn for_cargo(self, cargo: &mut Command) -> io::Result<()> {
        let folder = std::path::absolute("target/compilers")?;
        fs::create_dir_all(&folder)?;
        let copy = folder.join(self.name);
        let this = env::current_exe()?;
        // A new copy has a new date, and cargo builds everything again.
        if fs::read(&copy).ok() != Some(fs::read(&this)?) {
            fs::copy(this, &copy)?;
        }
        cargo.env("RUSTC_WORKSPACE_WRAPPER", copy);
        Ok(())
    }

    /// The one that this program was called as.
    pub fn called() -> Option<Self> {
        let program = env::args_os().next()?;
        Self::of(&program)
    }

    fn of(program: &OsString) -> Option<Self> {
        let name = Path::new(program).file_name()?;
        [SEEDED, ADDRESS].into_iter().find(|compiler| name == compiler.name)
    }

    /// The compiler, as cargo calls it: its path, and what it is told. Returns where it cannot be run.
    pub fn run(self) -> ExitCode {
        let mut words = env::args_os().skip(1);
        let Some(rustc) = words.next() else { return ExitCode::from(2) };
        // Some flags are not for everybody yet. Cargo must not know: build scripts that ask would be run again.
        let error = Command::new(rustc).args(words).args(self.flags).env("RUSTC_BOOTSTRAP", "1").exec();
        eprintln!("the compiler: {error}");
        ExitCode::from(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_known_by_its_name() {
        let of = |path: &str| Compiler::of(&path.into());
        assert_eq!(of("/r/target/compilers/rustc-seeded"), Some(SEEDED));
        assert_eq!(of("rustc-address"), Some(ADDRESS));
        assert_eq!([of("/r/target/debug/xtask"), of("rustc"), of("")], [None, None, None]);
    }
}
