//! The loom tests on real threads: `cargo test -p slat --features baselines --lib loom_tests`.
//!
//! Each body runs [`EXECUTIONS`] times, ten times as often with `SLAT_THOROUGH`, or `SLAT_TRIES` times, with the
//! assertions that it has under loom. Its threads start together: none runs before the body has spawned the last one.
//! Then each spins for a random time. The number of an execution seeds its random numbers; the schedule remains the
//! system's.
//!
//! This reaches executions with more preemptions than loom's bounds, the compiler's reorderings, membarrier, and the
//! shipped sizes of rings and sets. It explores by chance, so a passed run proves nothing, and no test of a mistake
//! runs here: [`finds`] leaves it to loom.
//!
//! # Mistakes that real threads can show
//!
//! * **A logical mistake**, a step that is missing or too early: on each processor, if both threads run at once.
//! * **A missing fence between a store and a later load**: on x86-64 too, which reorders these two. The pairs with a
//!   `fence!` are in `sync/orderings.md`, "What real threads show".
//! * **A weak ordering of any other pair**: only on a processor with a weak order, such as Arm, or if the compiler
//!   uses it. On x86-64, loom, Miri and the thread sanitizer show it.
//!
//! The tests below are the controls: the harness shows a mistake of each of the first two kinds.

use crate::tries::tries;
use std::cell::{Cell, RefCell};
use std::hint::{black_box, spin_loop};
use std::println;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Executions of each body, without `SLAT_TRIES`.
const EXECUTIONS: u64 = 500;

/// The message of [`UnsafeCell`] for two accesses at the same time; loom has one for two unordered accesses.
pub(crate) const RACE: &str = "Causality violation";

/// Runs `test` on real threads.
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    let name = std::thread::current().name().unwrap_or_default().replace("::loom_tests", "");
    let mut ran = Ran { name, executions: 0 };
    let is_night = std::env::var_os("SLAT_THOROUGH").is_some();
    repeat(tries(if is_night { 10 * EXECUTIONS } else { EXECUTIONS }), || {
        ran.executions += 1;
        test();
        false
    });
}

/// As [`explore`]: the system preempts as often as it likes.
pub(crate) fn explore_within(_: usize, test: impl Fn() + Send + Sync + 'static) {
    explore(test);
}

/// Leaves a mistake to loom. It says so: real threads show a mistake by chance, which no test may depend on.
pub(crate) fn finds(what: &str, _: impl Fn() + Send + Sync + 'static) -> bool {
    println!("LOOM ONLY a mistake: \"{what}\"");
    true
}

/// Says how many executions a test took, or took until it failed.
struct Ran {
    name: std::string::String,
    executions: u64,
}

impl Drop for Ran {
    fn drop(&mut self) {
        println!("STRESSED {} {}", self.name, self.executions);
    }
}

/// Runs `execution` up to `most` times, until it returns true. Returns whether it did.
fn repeat(most: u64, mut execution: impl FnMut() -> bool) -> bool {
    THREADS.set(0);
    (0..most).any(|nth| {
        fastrand::seed(nth);
        let start = Arc::new(Start::new(THREADS.get()));
        THREADS.set(0);
        START.set(Some(start.clone()));
        let _opened = Opened(start);
        execution()
    })
}

std::thread_local! {
    /// The start of the execution whose body this thread runs.
    static START: RefCell<Option<Arc<Start>>> = const { RefCell::new(None) };
    /// Threads that the body has spawned.
    static THREADS: Cell<u64> = const { Cell::new(0) };
}

/// Holds the threads of one execution back until the last one is spawned.
struct Start {
    /// The number of threads in the execution before.
    expected: u64,
    /// Each thread counts itself when it runs, and once more when it has seen that all do: then it is on a processor.
    ready: AtomicU64,
    all_run: AtomicBool,
    open: AtomicBool,
}

impl Start {
    fn new(expected: u64) -> Self {
        let [all_run, open] = [(); 2].map(|()| AtomicBool::new(false));
        Self { expected, ready: AtomicU64::new(0), all_run, open }
    }
}

/// Lets the threads go at the end of an execution, also if its body panics.
struct Opened(Arc<Start>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open.store(true, Relaxed);
    }
}

/// Waits until `done`, and leaves the processor to another thread if that takes long.
fn wait(done: impl Fn() -> bool) {
    for looks in 0_u32.. {
        if done() {
            return;
        }
        if looks < 200 { spin_loop() } else { std::thread::yield_now() }
    }
}

/// Spins for a random time: short ones are as frequent as long ones.
fn spin(most_bits: u32) {
    for step in 0..fastrand::u32(0..1 << fastrand::u32(0..=most_bits)) {
        black_box(step);
    }
}

/// The functions of `loom::thread` that the tests use.
pub(crate) mod thread {
    use super::{Arc, Relaxed, START, Start, THREADS, spin, wait};
    pub(crate) use std::thread::yield_now;

    /// Bits of the longest spin before a thread's first step.
    const SPIN: u32 = 9;

    pub(crate) struct JoinHandle<T>(std::thread::JoinHandle<T>, Arc<Start>);

    impl<T> JoinHandle<T> {
        pub(crate) fn join(self) -> std::thread::Result<T> {
            // The body has spawned fewer threads than the time before.
            self.1.open.store(true, Relaxed);
            self.0.join()
        }
    }

    pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let start = START.with_borrow(Clone::clone).expect("a body spawns it");
        let (theirs, seed) = (start.clone(), fastrand::u64(..));
        let thread = std::thread::spawn(move || {
            fastrand::seed(seed);
            let is_open = || theirs.open.load(Relaxed);
            theirs.ready.fetch_add(1, Relaxed);
            wait(|| theirs.all_run.load(Relaxed) || is_open());
            theirs.ready.fetch_add(1, Relaxed);
            wait(is_open);
            spin(SPIN);
            run()
        });
        THREADS.set(THREADS.get() + 1);
        if THREADS.get() >= start.expected {
            wait(|| start.ready.load(Relaxed) >= THREADS.get());
            start.all_run.store(true, Relaxed);
            wait(|| start.ready.load(Relaxed) >= 2 * THREADS.get());
            start.open.store(true, Relaxed);
            spin(SPIN);
        }
        JoinHandle(thread, start)
    }
}

/// `loom::cell::UnsafeCell`, which panics if two threads access it at the same time and one of them writes.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T> {
    /// Readers, and [`WRITER`] for each writer. Relaxed, since only what is tested may order the accesses.
    users: AtomicU64,
    value: std::cell::UnsafeCell<T>,
}

const WRITER: u64 = 1 << 32;
/// Bits of the longest spin inside an access.
const INSIDE: u32 = 5;

// SAFETY: an access that another one may conflict with panics first.
unsafe impl<T: Send + Sync> Sync for UnsafeCell<T> {}

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { users: AtomicU64::new(0), value: std::cell::UnsafeCell::new(value) }
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        assert!(self.users.fetch_add(1, Relaxed) < WRITER, "{RACE}: read while another thread writes");
        spin(INSIDE);
        let result = read(self.value.get());
        self.users.fetch_sub(1, Relaxed);
        result
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        assert_eq!(
            self.users.fetch_add(WRITER, Relaxed),
            0,
            "{RACE}: written while another thread accesses it"
        );
        spin(INSIDE);
        let result = write(self.value.get());
        self.users.fetch_sub(WRITER, Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, AtomicU64, EXECUTIONS, RACE, Relaxed, UnsafeCell, println, repeat, thread, tries};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{Ordering::SeqCst, fence};

    /// Executions in which a mistake must show. Most show within a hundred.
    const ENOUGH: u64 = 1_000_000;

    /// Whether two threads can run at once.
    fn is_parallel() -> bool {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if processors == 1 {
            println!("not run: one processor shows no mistake between two threads");
        }
        processors > 1
    }

    /// Dekker's pattern, the smallest copy of the pairs with a `fence!`: returns whether both loads miss the other store.
    fn both_miss(fenced: bool) -> bool {
        let cells = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let misses = move |cells: &[AtomicU64; 2], own: usize| {
            cells[own].store(1, Relaxed);
            if fenced {
                fence(SeqCst);
            }
            cells[1 - own].load(Relaxed) == 0
        };
        let theirs = cells.clone();
        let other = thread::spawn(move || misses(&theirs, 1));
        let own = misses(&cells, 0);
        other.join().expect("it ends") && own
    }

    #[test]
    fn a_missing_fence_between_a_store_and_a_load_shows() {
        assert!(!is_parallel() || repeat(ENOUGH, || both_miss(false)), "the harness misses a missing fence");
        assert!(!repeat(tries(EXECUTIONS), || both_miss(true)), "a fence on both sides orders too little");
    }

    /// Two threads add by a load and a store: returns whether an addition is lost.
    fn loses() -> bool {
        let count = Arc::new(AtomicU64::new(0));
        let add = |count: &AtomicU64| count.store(count.load(Relaxed) + 1, Relaxed);
        let theirs = count.clone();
        let other = thread::spawn(move || add(&theirs));
        add(&count);
        other.join().expect("it ends");
        count.load(Relaxed) == 1
    }

    #[test]
    fn a_lost_update_shows() {
        assert!(!is_parallel() || repeat(ENOUGH, loses), "the harness misses a lost update");
    }

    /// Two threads write a cell that nothing protects.
    fn write_at_once() {
        let cell = Arc::new(UnsafeCell::new(0_u64));
        // SAFETY: the cell panics before a second thread writes.
        let write = |cell: &UnsafeCell<u64>| cell.with_mut(|value| unsafe { *value += 1 });
        let theirs = cell.clone();
        let other = thread::spawn(move || write(&theirs));
        write(&cell);
        other.join().expect(RACE);
    }

    #[test]
    fn two_accesses_at_once_show() {
        let shows = || catch_unwind(AssertUnwindSafe(write_at_once)).is_err();
        assert!(!is_parallel() || repeat(ENOUGH, shows), "the harness misses two accesses at once");
    }

    /// Tests of this program are the main test of each pair. All of them run on real threads but those of a mistake.
    #[test]
    fn each_pair_has_a_test_here() {
        let program = std::env::current_exe().expect("a path");
        let listed =
            std::process::Command::new(program).args(["--list", "loom_tests"]).output().expect("it runs");
        let listed = std::string::String::from_utf8(listed.stdout).expect("names");
        let tests: std::vec::Vec<_> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        let rows = include_str!("../sync/orderings.md").lines().filter(|line| line.starts_with("| `"));
        let mut pairs = 0;
        for row in rows {
            let mut cells = row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
            let [pair, room, test] = [(); 3].map(|()| cells.next().expect("three cells"));
            if cfg!(feature = "nested") || !["nested", "shadows"].contains(&room) {
                let name = std::format!("{}::loom_tests::{test}", room.replace('/', "::"));
                assert!(tests.contains(&&*name), "{pair}: no test {name}");
                pairs += 1;
            }
        }
        let mistakes = tests.iter().filter(|test| test.contains("::mistake_")).count();
        println!("STRESSED {pairs} pairs; {mistakes} of {} tests are mistakes, for loom only", tests.len());
        assert!(pairs > 30, "{pairs} rows in the table");
    }
}
