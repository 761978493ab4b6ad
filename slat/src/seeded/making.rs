//! Making a mistake: on one thread, or in a process of its own.

use super::{Bug, Tool};
use core::cell::Cell;
use std::process::Command;
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

std::thread_local! {
    static MADE: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Whether `bug` is being made.
pub fn is(bug: Bug) -> bool {
    MADE.get() == Some(bug) || everywhere() == Some(bug)
}

/// The mistake that the whole process makes.
fn everywhere() -> Option<Bug> {
    static EVERYWHERE: OnceLock<Option<Bug>> = OnceLock::new();
    if !cfg!(seeded) {
        return None;
    }
    *EVERYWHERE.get_or_init(|| {
        let name: String = std::env::var("SLAT_SEEDED").ok()?;
        let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
        Some(*bug.unwrap_or_else(|| panic!("SLAT_SEEDED={name}: there is no such mistake")))
    })
}

/// Runs `work` on this thread with the mistake made, until `work` ends in whatever way.
pub fn with<R>(bug: Bug, work: impl FnOnce() -> R) -> R {
    struct Undo(Option<Bug>);
    impl Drop for Undo {
        fn drop(&mut self) {
            MADE.set(self.0);
        }
    }
    let _undo = Undo(MADE.replace(Some(bug)));
    work()
}

/// The words of a test about the first of its worlds that is wrong; the world's number and a full stop follow.
pub const WRONG: &str = "wrong in world ";

/// Makes each mistake of `tool` in a process of its own: this very program, asked for the one test that `guard` names, which
/// must fail. A test of several worlds must say [`WRONG`] of one.
///
/// # Panics
/// Where a test passes all the same.
pub fn each_fails_in_a_process(tool: Tool, guard: impl Fn(Bug) -> &'static str, of_worlds: bool) {
    let fails = |bug: Bug| {
        let mut test = Command::new(std::env::current_exe().expect("this program"));
        let child = test.args(["--exact", "--nocapture", guard(bug)]).env("SLAT_SEEDED", bug.name()).output();
        let child = child.expect("it starts");
        let said = String::from_utf8_lossy(&child.stderr);
        let world = said.split(WRONG).nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        let world = if of_worlds { world } else { said.contains("panicked at").then_some(1) };
        world.filter(|_| !child.status.success()).map(|world| found(bug, world)).is_some()
    };
    let missed: Vec<Bug> =
        Bug::ALL.iter().copied().filter(|&bug| bug.tool() == tool && !fails(bug)).collect();
    assert!(missed.is_empty(), "nothing wrong was seen with {missed:?}");
}

/// Says that `bug` was found, in the words that `cargo xtask verify` reads; the last of `executions` showed it.
pub fn found(bug: Bug, executions: u64) {
    std::println!("SEEDED {} {:?} {executions}", bug.name(), bug.tool());
}
