//! The table of checks. What they run is what a person would type.

/// A check.
pub struct Step {
    /// For `--only`; steps of one name are run together.
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it must print `EXECUTIONS` or `SEEDED`: a test that was renamed would pass by not being there.
    pub explores: bool,
    /// Whether mistakes made on purpose must be found here.
    pub seeded: bool,
    pub full: &'static [Line],
    /// What of it belongs to the quick half.
    pub quick: &'static [Line],
}

/// A command line: no shell reads it, so its words have no spaces in them.
pub struct Line {
    pub environment: &'static [(&'static str, &'static str)],
    pub words: &'static str,
    /// Longer than this is too long.
    pub minutes: u32,
}

const fn line(minutes: u32, words: &'static str) -> Line {
    Line { environment: &[], words, minutes }
}

const fn with(
    environment: &'static [(&'static str, &'static str)],
    minutes: u32,
    words: &'static str,
) -> Line {
    Line { environment, words, minutes }
}

const LINT: &[Line] = &[
    line(2, "cargo fmt --all --check"),
    line(15, "cargo clippy --workspace --all-targets --locked -- -D warnings"),
    line(10, "cargo xtask house"),
];

const LOOM: &[Line] = &[with(
    &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom"), ("LOOM_MAX_PREEMPTIONS", "3")],
    20,
    "cargo test -p slat --release --locked --lib loom_tests -- --nocapture",
)];

/// The step that [`COUNTED`] makes superfluous: it runs the same tests, and counts the lines that they run.
pub const UNCOUNTED: &str = "engine-suite";
/// See [`UNCOUNTED`].
pub const COUNTED: &str = "coverage";

pub const STEPS: &[Step] = &[
    Step {
        name: "lint",
        about: "format, clippy, the house's own rules",
        explores: false,
        seeded: false,
        full: LINT,
        quick: LINT,
    },
    Step {
        name: "suite",
        about: "the tests that need only Rust",
        explores: false,
        seeded: false,
        full: &[
            line(20, "cargo test --workspace --exclude slat --exclude slat-mm --exclude slat-vcpu --locked"),
            line(10, "cargo test -p slat -p slat-mm -p slat-vcpu --locked --doc"),
        ],
        quick: &[line(10, "cargo test --workspace --locked --lib --bins")],
    },
    Step {
        name: UNCOUNTED,
        about: "those of the engine, its host and its guests, where `coverage` does not run them",
        explores: false,
        seeded: false,
        full: &[line(20, "cargo test -p slat -p slat-mm -p slat-vcpu --locked --tests")],
        quick: &[],
    },
    Step {
        name: "history",
        about: "every write of every table operation, looked at; the list of mistakes",
        explores: true,
        seeded: true,
        full: &[line(
            10,
            "cargo test -p slat --locked --lib -- --nocapture history_tests seeded:: slots::publish::tests",
        )],
        quick: &[],
    },
    Step {
        name: "loom",
        about: "every execution of a tiny scenario for each named ordering",
        explores: true,
        seeded: true,
        full: LOOM,
        quick: LOOM,
    },
    Step {
        name: "shuttle",
        about: "whole VMs with up to six vCPUs under tens of thousands of schedules",
        explores: true,
        seeded: true,
        full: &[with(
            &[
                ("RUSTFLAGS", "--cfg shuttle"),
                ("CARGO_TARGET_DIR", "target/shuttle"),
                ("SLAT_SHUTTLE_EXECUTIONS", "50000"),
            ],
            40,
            "cargo test -p slat --release --locked --lib shuttle_tests -- --nocapture",
        )],
        quick: &[],
    },
    Step {
        name: "model",
        about: "the protocol, every state",
        explores: true,
        seeded: true,
        full: &[line(20, "cargo run --release --locked -p slat-model")],
        quick: &[],
    },
    Step {
        name: "fuzz",
        about: "mistakes in ranges and counts, found by bounded runs from the corpora",
        explores: true,
        seeded: true,
        full: &[line(20, "cargo xtask fuzz --seeded")],
        quick: &[],
    },
    Step {
        name: "fuzz",
        about: "each target for a minute",
        explores: true,
        seeded: false,
        full: &[line(20, "cargo xtask fuzz --seconds 60")],
        quick: &[],
    },
    Step {
        name: "worlds",
        about: "guests that store while a log is taken, with mistakes in the engine",
        explores: true,
        seeded: true,
        full: &[with(
            &[("RUSTFLAGS", "--cfg seeded"), ("CARGO_TARGET_DIR", "target/seeded")],
            15,
            "cargo test -p slat-vcpu --locked --test dirty -- --nocapture seeded::",
        )],
        quick: &[],
    },
    Step {
        name: "load",
        about: "guests, a device and pins on slat-mm, with mistakes in the engine",
        explores: true,
        seeded: true,
        full: &[with(
            &[("RUSTFLAGS", "--cfg seeded"), ("CARGO_TARGET_DIR", "target/seeded")],
            15,
            "cargo test -p slat-mm --locked --test load -- --nocapture seeded::",
        )],
        quick: &[],
    },
    Step {
        name: "inject",
        about: "allocations, exchanges and hosts that fail; vCPUs that stop, or panic",
        explores: true,
        seeded: false,
        full: &[
            line(10, "cargo test -p slat --locked --lib -- --nocapture inject_tests"),
            line(10, "cargo test -p slat --locked --test inject"),
        ],
        quick: &[],
    },
    Step {
        name: "sanitize",
        about: "the suite under the address sanitizer, a soak under the thread sanitizer",
        explores: true,
        seeded: true,
        full: &[line(30, "cargo xtask sanitize address"), line(30, "cargo xtask sanitize thread")],
        quick: &[],
    },
    Step {
        name: COUNTED,
        about: "the tests of the engine, its host and its guests, and the lines that they run",
        explores: false,
        seeded: false,
        full: &[line(30, "cargo xtask coverage")],
        quick: &[],
    },
    Step {
        name: "gate",
        about: "instructions of the hot paths, against the baseline",
        explores: false,
        seeded: false,
        full: &[line(10, "cargo xtask gate")],
        quick: &[],
    },
];
