//! How loom is run: `RUSTFLAGS="--cfg loom" cargo test -p slat --release --lib loom_tests`.
//!
//! The tests lie beside what they test, in `loom_tests.rs` of that room: the shipped code, on loom's atomics, thread
//! against thread, every execution that the memory model allows, up to a number of preemptions
//! (`LOOM_MAX_PREEMPTIONS`, else 3). Each goes with at least one mistake, the same test with one ordering or one step
//! less, that loom must find: a test that finds nothing is no test.
//!
//! | group | where |
//! |---|---|
//! | `grace`, `grace-end`, `rest`, `asymmetric` | `sync/readside/loom_tests.rs` |
//! | `stamp`, `begin`, `active`, `adopt`, `upgrade`, `link` | `notify/active/loom_tests.rs` |
//! | `flush`, `flush-answer`, `flush-range`, `kick` | `tlb/shootdown/loom_tests.rs` |
//! | `bitmap`, `bitmap-all`, `keep` | `dirty/loom_tests.rs` |
//! | `publish` | `slots/publish/loom_tests.rs` |
//! | `ring`, `ring-room` | `dirty/ring/loom_tests.rs` |

use crate::seeded::{self, Bug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{println, thread};

/// Runs `test` in every execution.
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(AtomicU64::new(0));
    counted(test, &executions);
    let name = thread::current().name().unwrap_or_default().replace("::loom_tests", "");
    println!("EXECUTIONS Loom {name} {}", executions.load(Relaxed));
}

fn counted(test: impl Fn() + Send + Sync + 'static, executions: &Arc<AtomicU64>) {
    let executions = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(move || {
        executions.fetch_add(1, Relaxed);
        test();
    });
}

/// Whether `test` fails in any, saying `what`.
pub(crate) fn finds(what: &str, test: impl Fn() + Send + Sync + 'static) -> bool {
    finds_after(what, test).is_some()
}

/// Demands that `test` fails, saying `what`, where the shipped code makes the mistake `bug`.
pub(crate) fn finds_seeded(bug: Bug, what: &str, test: impl Fn() + Send + Sync + 'static) {
    let executions = seeded::with(bug, || finds_after(what, test));
    seeded::found(bug, executions.unwrap_or_else(|| panic!("not found: {}", bug.what())));
}

/// After how many executions it fails.
fn finds_after(what: &str, test: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let executions = Arc::new(AtomicU64::new(0));
    let panic = catch_unwind(AssertUnwindSafe(|| counted(test, &executions))).err()?;
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or(panic.downcast_ref::<&str>().copied())?;
    said.contains(what).then(|| executions.load(Relaxed))
}

/// What loom says of two accesses that nothing keeps apart.
pub(crate) const RACE: &str = "Causality violation";
