//! How loom is run: `RUSTFLAGS="--cfg loom" cargo test -p slat --features baselines --release --lib loom_tests`.
//!
//! The tests lie in `loom_tests.rs` of each folder: the shipped code on loom's atomics, in every execution that the
//! memory model allows. Where those are too many, and with three threads, a test bounds the number of preemptions.
//! `SLAT_LOOM_PREEMPTIONS` bounds all of them: `cargo xtask mutants` looks for a mistake with few first.
//!
//! Without `--cfg loom` the same tests run on [real threads](stress).
//!
//! `sync/orderings.md` lists every named ordering of the engine with its main test, and what loom does not show.

#[cfg(loom)]
pub(crate) use explored::{RACE, UnsafeCell, explore, explore_within, finds, thread};
#[cfg(not(loom))]
mod stress;
#[cfg(not(loom))]
pub(crate) use stress::{RACE, UnsafeCell, explore, explore_within, finds, thread};

#[cfg(loom)]
mod explored {
    pub(crate) use loom::{cell::UnsafeCell, thread};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::{env, println};

    /// Maximum number of preemptions with which a mistake is looked for.
    const ENOUGH: usize = 3;

    /// Runs `test` in every execution.
    pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
        explored(None, test);
    }

    /// Runs `test` in every execution with at most `preemptions` preemptions.
    pub(crate) fn explore_within(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
        explored(Some(preemptions), test);
    }

    fn explored(preemptions: Option<usize>, test: impl Fn() + Send + Sync + 'static) {
        let told = Told::default();
        let most =
            env::var("SLAT_LOOM_PREEMPTIONS").ok().map(|most| most.parse().expect("a number of preemptions"));
        counted(most.into_iter().chain(preemptions).min(), test, &told.0);
    }

    /// Says how many executions a test took, or took until it failed.
    #[derive(Default)]
    struct Told(Arc<AtomicU64>);

    impl Drop for Told {
        fn drop(&mut self) {
            let name = std::thread::current().name().unwrap_or_default().replace("::loom_tests", "");
            println!("EXECUTIONS Loom {name} {}", self.0.load(Relaxed));
        }
    }

    fn counted(
        preemptions: Option<usize>,
        test: impl Fn() + Send + Sync + 'static,
        executions: &Arc<AtomicU64>,
    ) {
        let executions = executions.clone();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            executions.fetch_add(1, Relaxed);
            test();
        });
    }

    /// Whether `test`, a model of a caller that is wrong, fails in any execution with a message that contains `what`. Begins
    /// with few preemptions: most mistakes need no more.
    pub(crate) fn finds(what: &str, test: impl Fn() + Send + Sync + 'static) -> bool {
        let test = Arc::new(test);
        (1..=ENOUGH).any(|preemptions| {
            let test = test.clone();
            let explored = || counted(Some(preemptions), move || test(), &Arc::default());
            let Err(panic) = catch_unwind(AssertUnwindSafe(explored)) else { return false };
            let said = panic.downcast_ref::<String>().map(String::as_str);
            said.or(panic.downcast_ref::<&str>().copied()).is_some_and(|said| said.contains(what))
        })
    }

    /// loom's message for two unordered accesses.
    pub(crate) const RACE: &str = "Causality violation";
}
