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

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `test` in every execution.
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(test);
}

/// Whether `test` fails in any, saying `what`.
pub(crate) fn finds(what: &str, test: impl Fn() + Send + Sync + 'static) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| explore(test))) else { return false };
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or(panic.downcast_ref::<&str>().copied()).is_some_and(|said| said.contains(what))
}

/// What loom says of two accesses that nothing keeps apart.
pub(crate) const RACE: &str = "Causality violation";
