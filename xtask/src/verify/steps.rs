//! The table of checks. Their commands are those that a person would type.

use std::time::Duration;

/// The tier of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// `cargo xtask check`: during work.
    Quick,
    /// `cargo xtask verify`, which `.ci/run` runs: before a change lands.
    Push,
    /// `cargo xtask nightly`: checks that take hours, and every mistake.
    Nightly,
}

/// A check.
pub struct Step {
    /// The name for `--only`.
    pub name: &'static str,
    pub about: &'static str,
    pub lines: &'static [Line],
}

/// A command line without a shell, so its words have no spaces.
pub struct Line {
    pub tiers: &'static [Tier],
    pub environment: &'static [(&'static str, &'static str)],
    /// The folder in which it runs, relative to the repository's root.
    pub folder: &'static str,
    pub words: &'static str,
    /// Tools that must print `EXECUTIONS` or `SEEDED` here, because a renamed test would otherwise pass unnoticed; all
    /// of their mistakes must be found.
    pub tools: &'static [&'static str],
    /// Budget in seconds on two cores. More is reported.
    pub budget: u32,
    /// Time limit in seconds, after which it has failed.
    pub bound: u32,
}

impl Step {
    /// Returns its lines in `tier`.
    pub fn of(&self, tier: Tier) -> impl Iterator<Item = &'static Line> {
        self.lines.iter().filter(move |line| line.tiers.contains(&tier))
    }

    /// Returns its budget in `tier`.
    pub fn budget(&self, tier: Tier) -> Duration {
        Duration::from_secs(self.of(tier).map(|line| u64::from(line.budget)).sum())
    }
}

impl Line {
    const fn new(tiers: &'static [Tier], budget: u32, bound: u32, words: &'static str) -> Self {
        Self { tiers, environment: &[], folder: "", words, tools: &[], budget, bound }
    }

    const fn with(mut self, environment: &'static [(&'static str, &'static str)]) -> Self {
        self.environment = environment;
        self
    }

    const fn within(mut self, folder: &'static str) -> Self {
        self.folder = folder;
        self
    }

    const fn hears(mut self, tools: &'static [&'static str]) -> Self {
        self.tools = tools;
        self
    }
}

const ALL: &[Tier] = &[Tier::Quick, Tier::Push, Tier::Nightly];
const QUICK: &[Tier] = &[Tier::Quick];
const QUICK_PUSH: &[Tier] = &[Tier::Quick, Tier::Push];
const PUSH: &[Tier] = &[Tier::Push];
const PUSH_NIGHTLY: &[Tier] = &[Tier::Push, Tier::Nightly];
const NIGHTLY: &[Tier] = &[Tier::Nightly];

const HALF: &str =
    "cargo test --workspace --exclude slat-virtual --exclude slat-explored --locked --lib --bins";
const HALF_WITHOUT_NESTED: &str = "cargo test -p slat --lib --no-default-features --features std --locked";
const LOOM: &str =
    "cargo test -p slat --features baselines --release --locked --lib loom_tests -- --nocapture";
const MUTANTS: &str = "cargo xtask mutants --tool Loom,Shuttle,History,Unit,Inject,Explore,Worlds,Shared,Load,Host,Pager,Kvm,Oracle";
const REPORT: &str = "cargo run --profile bench -p slat-bench --locked -- report -o target/report";
const VALIDATE: &str = "cargo run --profile bench -p slat-bench --locked -- sim validate --runs 5";
const SHUTTLE: &str =
    "cargo test -p slat --features baselines --release --locked --lib shuttle_tests -- --nocapture";
const SHUTTLE_CHECKED: &str = "cargo test -p slat --features oracle-always,baselines --release --locked --lib shuttle_tests -- --nocapture";
const BOOT: &[(&str, &str)] = &[("SLAT_REQUIRE_EMULATORS", "1")];

pub const STEPS: &[Step] = &[
    Step {
        name: "lint",
        about: "format, clippy, the house's own rules",
        lines: &[
            Line::new(QUICK_PUSH, 5, 20, "cargo fmt --all --check"),
            Line::new(QUICK_PUSH, 80, 400, "cargo clippy --workspace --all-targets --locked -- -D warnings"),
            // As a client gets it: the workspace has the feature `baselines` in every build.
            Line::new(QUICK_PUSH, 10, 200, "cargo clippy -p slat --locked -- -D warnings"),
            Line::new(
                QUICK_PUSH,
                10,
                200,
                "cargo clippy -p slat --no-default-features --locked -- -D warnings",
            ),
            Line::new(QUICK_PUSH, 5, 120, "cargo xtask house --lines"),
        ],
    },
    Step {
        name: "suite",
        about: "every test of the workspace, among them those that look at each write and fail each allocation",
        lines: &[
            Line::new(QUICK, 120, 600, HALF),
            Line::new(PUSH, 340, 1200, "cargo test --workspace --locked --no-fail-fast")
                .with(&[("RUST_TEST_NOCAPTURE", "1")])
                .hears(&["History", "Inject"]),
            Line::new(NIGHTLY, 90, 400, HALF_WITHOUT_NESTED),
            Line::new(NIGHTLY, 1200, 2400, "cargo test --workspace --locked --no-fail-fast")
                .with(&[("RUST_TEST_NOCAPTURE", "1"), ("SLAT_THOROUGH", "1")])
                .hears(&["History", "Inject"]),
        ],
    },
    Step {
        name: "loom",
        about: "every execution of a tiny scenario for each named ordering",
        lines: &[Line::new(ALL, 70, 300, LOOM)
            .with(&[
                ("RUSTFLAGS", "--cfg loom"),
                ("CARGO_TARGET_DIR", "target/loom"),
                ("LOOM_MAX_PREEMPTIONS", "3"),
            ])
            .hears(&["Loom"])],
    },
    Step {
        name: "shuttle",
        about: "whole VMs with up to six vCPUs: 1,500 schedules of each scenario, 50,000 at night",
        lines: &[
            Line::new(PUSH, 60, 400, SHUTTLE)
                .with(&[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")])
                .hears(&["Shuttle"]),
            Line::new(NIGHTLY, 1100, 1500, SHUTTLE)
                .with(&[
                    ("RUSTFLAGS", "--cfg shuttle"),
                    ("CARGO_TARGET_DIR", "target/shuttle"),
                    ("SLAT_SHUTTLE_EXECUTIONS", "50000"),
                ])
                .hears(&["Shuttle"]),
        ],
    },
    Step {
        name: "mutants",
        about: "each mistake of proof/mistakes/, in a copy of the sources, and the test that must find it",
        lines: &[Line::new(PUSH_NIGHTLY, 300, 1500, MUTANTS).hears(&[
            "Explore", "History", "Host", "Inject", "Kvm", "Load", "Loom", "Oracle", "Pager", "Shared",
            "Shuttle", "Unit", "Worlds",
        ])],
    },
    Step {
        name: "model",
        about: "the protocol, every state; at night the large scenarios, walks of six and more actors, and the proof beside it",
        lines: &[
            // As the suite has built it; `-p slat-model` would build its dependencies again, with other features.
            Line::new(PUSH_NIGHTLY, 10, 180, "cargo test --workspace --locked --no-run --test protocol"),
            Line::new(PUSH, 100, 400, "target/debug/slat-model push").hears(&["Model"]),
            Line::new(NIGHTLY, 150, 900, "target/debug/slat-model").hears(&["Model"]),
            Line::new(NIGHTLY, 130, 400, "target/debug/slat-model walk --walks 1000000 --minutes 2"),
            Line::new(
                NIGHTLY,
                130,
                400,
                "target/debug/slat-model walk --walks 1000000 --minutes 2 --actors 8 --seed 1000000000",
            ),
            Line::new(NIGHTLY, 150, 900, "target/debug/slat-model proof --steps 3000000 --checks 2000"),
        ],
    },
    Step {
        name: "proof",
        about: "the protocol by induction, for any number of actors; at night under three seeds, and its mistakes",
        lines: &[
            Line::new(PUSH, 60, 400, "cargo xtask prove --require"),
            Line::new(NIGHTLY, 180, 1200, "cargo xtask prove --require --seeds 3"),
            Line::new(NIGHTLY, 60, 600, "cargo xtask prove --mistakes --require"),
        ],
    },
    Step {
        name: "oracle",
        about: "embedders' misuse, each with a control; at night slat's own tests with every VM checked",
        lines: &[
            Line::new(PUSH, 60, 400, "cargo test -p slat --features oracle --locked --test oracle"),
            Line::new(
                PUSH,
                20,
                300,
                "cargo clippy -p slat --features oracle --tests --locked -- -D warnings",
            ),
            Line::new(NIGHTLY, 400, 1500, "cargo test -p slat --features oracle-always --locked"),
            Line::new(NIGHTLY, 80, 600, SHUTTLE_CHECKED)
                .with(&[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")])
                .hears(&["Shuttle"]),
        ],
    },
    Step {
        name: "fuzz",
        about: "mistakes in ranges and counts, found by bounded runs from the corpora; each target, 5,000 inputs, a minute at night",
        lines: &[
            Line::new(PUSH_NIGHTLY, 140, 480, "cargo xtask fuzz --mistakes --runs 5000").hears(&["Fuzz"]),
            Line::new(NIGHTLY, 360, 600, "cargo xtask fuzz --seconds 60").hears(&["Fuzz"]),
        ],
    },
    Step {
        name: "explore",
        about: "whole worlds on simulated CPUs, drawn from seeds",
        lines: &[
            Line::new(PUSH, 40, 400, "cargo xtask explore --seeds 2000").hears(&["Explore"]),
            Line::new(NIGHTLY, 700, 1500, "cargo xtask explore --seeds 10000000 --minutes 10")
                .hears(&["Explore"]),
        ],
    },
    Step {
        name: "chaos",
        about: "every public operation at once, with callbacks that panic, under the sanitizers",
        lines: &[
            Line::new(NIGHTLY, 1200, 3000, "cargo xtask chaos --seconds 1100").hears(&["Sanitizer"]),
            Line::new(NIGHTLY, 500, 1200, "cargo xtask chaos --threads --seconds 300").hears(&["Sanitizer"]),
            Line::new(NIGHTLY, 240, 1200, "cargo xtask chaos --mistakes --seconds 90").hears(&["Sanitizer"]),
            Line::new(PUSH, 130, 600, "cargo xtask chaos --seconds 60"),
        ],
    },
    Step {
        name: "gate",
        about: "instructions of the hot paths, against the baseline",
        lines: &[Line::new(PUSH, 45, 240, "cargo xtask gate")],
    },
    Step {
        name: "coverage",
        about: "the engine, its host and its guests under the address sanitizer, and the lines that their tests run",
        lines: &[Line::new(NIGHTLY, 450, 1200, "cargo xtask coverage").hears(&["Sanitizer"])],
    },
    Step {
        name: "threads",
        about: "the soak under the thread sanitizer",
        lines: &[
            Line::new(NIGHTLY, 110, 390, "cargo xtask sanitize").hears(&["Sanitizer"]),
            Line::new(NIGHTLY, 300, 1200, "cargo xtask mutants --tool Sanitizer").hears(&["Sanitizer"]),
        ],
    },
    Step {
        name: "miri",
        about: "small worlds under Miri: the memory model, the aliasing rules, leaks",
        lines: &[
            Line::new(NIGHTLY, 500, 1500, "cargo xtask miri").hears(&["Miri"]),
            Line::new(NIGHTLY, 120, 600, "cargo xtask mutants --tool Miri").hears(&["Miri"]),
        ],
    },
    Step {
        name: "walkers",
        about: "hardware walkers that others wrote, twenty times as often, with other tables every night",
        lines: &[Line::new(NIGHTLY, 850, 1500, "cargo xtask walkers --nightly").with(BOOT)],
    },
    Step {
        name: "boots",
        about: "Linux on slat in every way",
        lines: &[
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --npt --pages 2m").with(BOOT),
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --npt --pages 4k").with(BOOT),
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --npt --move --log-dirty --age").with(BOOT),
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --npt --cpus 2 --move --log-dirty").with(BOOT),
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --ept --pages 4k").with(BOOT),
            Line::new(NIGHTLY, 60, 150, "cargo xtask boot --l1 own --move --log-dirty -- turns=40000")
                .with(BOOT),
            Line::new(NIGHTLY, 60, 300, "cargo xtask boot --bochs --l1 own --move --zap").with(BOOT),
            Line::new(NIGHTLY, 120, 1800, "cargo xtask boot --l1 kvm --move --log-dirty").with(BOOT),
        ],
    },
    Step {
        name: "soak",
        about: "the engine, a host under load, dirty logs: a minute each; migrations under many seeds",
        lines: &[
            Line::new(NIGHTLY, 180, 420, "cargo xtask soak --minutes 2"),
            Line::new(NIGHTLY, 180, 600, "cargo test -p slat-migrate --locked --lib -- crash_tests")
                .with(&[("SLAT_MIGRATIONS", "30000")]),
        ],
    },
    Step {
        name: "pager",
        about: "the pager's lints and unit tests; at night many seeds, a bad store for minutes, and S3. `.ci/run` has its other tests",
        lines: &[
            Line::new(QUICK, 5, 20, "cargo fmt --check").within("pager"),
            Line::new(QUICK, 30, 300, "cargo clippy --all-targets --locked -- -D warnings").within("pager"),
            Line::new(QUICK, 30, 300, "cargo test --locked --lib").within("pager"),
            Line::new(NIGHTLY, 100, 400, "cargo test --locked --test pager -- fleet::hosts")
                .within("pager")
                .with(&[("SLAT_TRIES", "5000")]),
            Line::new(NIGHTLY, 230, 700, "cargo test --locked --test pager -- soak:: --nocapture")
                .within("pager")
                .with(&[
                    ("SLAT_PAGER_SOAK_SECONDS", "90"),
                    ("SLAT_PAGER_SOAK_MIB", "256"),
                    ("SLAT_PAGER_SOAK_GUESTS", "8"),
                ]),
            Line::new(NIGHTLY, 90, 400, "cargo test --locked --test pager -- burst:: turns:: --nocapture")
                .within("pager")
                .with(&[("SLAT_PAGER_SOAK_BURST", "4000"), ("SLAT_PAGER_SOAK_SEEDS", "20")]),
            // The server is moto's. If it is not installed, the tests print that.
            Line::new(NIGHTLY, 150, 600, "cargo test --features s3 --locked --test pager -- s3::")
                .within("pager"),
        ],
    },
    Step {
        name: "repeat",
        about: "the suite three times more, beside a busy thread",
        lines: &[Line::new(NIGHTLY, 480, 900, "cargo xtask repeat --times 3 --beside 1")],
    },
    Step {
        name: "simulate",
        about: "every simulated bench, whole, under twenty seeds",
        lines: &[Line::new(NIGHTLY, 400, 1200, "cargo xtask simulate --seeds 20")],
    },
    Step {
        name: "validate",
        about: "simulated time against this machine's threads",
        lines: &[Line::new(NIGHTLY, 180, 600, VALIDATE)],
    },
    Step {
        name: "packages",
        about: "what a registry would get of each package, built; foreign programs, unmodified",
        lines: &[
            Line::new(NIGHTLY, 150, 600, ".ci/packages"),
            Line::new(NIGHTLY, 120, 900, "cargo xtask clients rust-vmm"),
            Line::new(NIGHTLY, 330, 1700, "cargo xtask clients ckb-vm kvm vmm"),
            Line::new(NIGHTLY, 205, 1800, "cargo xtask clients kvm-selftests"),
            Line::new(NIGHTLY, 300, 1800, "cargo xtask clients axvisor").with(BOOT),
            Line::new(
                NIGHTLY,
                90,
                1000,
                "cargo xtask clients pager --vmm qemu --store folder --kill-pager 5",
            ),
            Line::new(NIGHTLY, 120, 1000, "cargo xtask clients pager --vmm qemu --store s3 --kill-pager 5"),
            Line::new(NIGHTLY, 140, 900, "cargo xtask clients firecracker --kills 200 --burst 48 --mib 96"),
        ],
    },
    Step {
        name: "report",
        about: "the full report, every check of every bench, and its page in a browser",
        lines: &[
            Line::new(NIGHTLY, 860, 1500, REPORT),
            Line::new(NIGHTLY, 30, 120, "cargo xtask page target/report")
                .with(&[("SLAT_REQUIRE_CHROMIUM", "1")]),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the budget of `tier` in seconds.
    fn budget(tier: Tier) -> u64 {
        STEPS.iter().map(|step| step.budget(tier).as_secs()).sum()
    }

    #[test]
    fn no_tier_should_take_longer_than_it_may() {
        // As in `.ci/run`, whose own steps have the rest.
        assert!(budget(Tier::Push) <= 1_600, "{} s", budget(Tier::Push));
        assert!(budget(Tier::Nightly) <= 4 * 3_600, "{} s", budget(Tier::Nightly));
        for line in STEPS.iter().flat_map(|step| step.lines) {
            assert!(line.budget < line.bound && !line.tiers.is_empty(), "{}", line.words);
        }
    }
}
