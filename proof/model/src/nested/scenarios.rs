//! The scenarios of nested guests: a set for every run, and a larger one.

use super::program::{Nested, Op};
use super::shadow::entry::{ACCESSED, DIRTY, FRAME, PRESENT, WRITE};
use crate::scenario::Family;

/// T: frame 0 or 1, stores allowed, accessed and dirty.
const OLD: u8 = PRESENT | WRITE | ACCESSED | DIRTY;
const NEW: u8 = OLD | FRAME;
/// The same with Dirty cleared.
const CLEAN: u8 = PRESENT | WRITE | ACCESSED;
/// Frame 0, no stores.
const READ: u8 = PRESENT | ACCESSED;
/// The same with Accessed cleared.
const IDLE: u8 = PRESENT;

const LOAD: Op = Op::Access { write: false };
const STORE: Op = Op::Access { write: true };
const ENTER: Op = Op::Enter { key: 0 };

const fn t(t: u8) -> Op {
    Op::Store { key: 0, t }
}

const fn zap(hva: u8) -> Op {
    Op::Host { hva, protect: false }
}

const fn protect(hva: u8) -> Op {
    Op::Host { hva, protect: true }
}

/// Faults of L2 beside the host and its memslots.
fn faults() -> Vec<Nested> {
    vec![
        Nested::new("fault on nothing | zap 0", &[&[STORE], &[zap(0)]]),
        Nested::new("fault on nothing | another | zap 0", &[&[STORE], &[LOAD], &[zap(0)]]).two_vcpus(),
        Nested::new("fault | another | zap 0", &[&[STORE], &[LOAD], &[zap(0)]]).two_vcpus().tables(),
        Nested::new("fault | zap 0 | zap 0", &[&[LOAD, STORE], &[zap(0)], &[zap(0)]]).tables(),
        Nested::new("leaf, fault | protect 0 | zap 0", &[&[LOAD], &[protect(0)], &[zap(0)]]).composed(),
        Nested::new("leaf, canonical too, fault | zap 0", &[&[LOAD], &[zap(0)]]).composed().canonical(),
        Nested::new("leaf, out of L2 and back | zap 0", &[&[Op::Leave, ENTER, LOAD], &[zap(0)]]).composed(),
        Nested::new("leaf of 1, fault | zap 1", &[&[LOAD], &[zap(1)]]).t(NEW).composed().canonical(),
        Nested::new("clean leaf, store | protect 0 | zap 0", &[&[STORE], &[protect(0)], &[zap(0)]])
            .t(CLEAN)
            .composed(),
        Nested::new("fault | 0 to page 1 | zap 1", &[&[LOAD], &[Op::Move { g1: 0, hva: 1 }], &[zap(1)]])
            .tables(),
        Nested::new(
            "leaf, fault | 0 to page 1 | zap 0",
            &[&[LOAD], &[Op::Move { g1: 0, hva: 1 }], &[zap(0)]],
        )
        .composed(),
        Nested::new("leaf, fault | slot of T moves", &[&[LOAD], &[Op::MoveTables { t: NEW }]]).composed(),
        Nested::new("fault | slot of T moves | zap 0", &[&[LOAD], &[Op::MoveTables { t: NEW }], &[zap(0)]])
            .tables(),
    ]
}

/// L1 writes its table, and flushes.
fn flushes() -> Vec<Nested> {
    let change = [t(NEW), Op::Flush, ENTER, LOAD];
    let clean = [t(CLEAN), Op::Flush, ENTER, STORE];
    vec![
        Nested::new("leaf, T to 1, flush | fault", &[&change, &[LOAD]]).two_vcpus().composed(),
        Nested::new("T to 1, flush | fault", &[&change, &[STORE]]).two_vcpus().tables(),
        Nested::new("leaf, T to 1, flush, fault | zap 0", &[&change, &[zap(0)]]).composed(),
        Nested::new("leaf, T to 1, flush, fault | zap 1", &[&change, &[zap(1)]]).composed(),
        Nested::new("leaf, T to 1, fault | zap 0 | zap 0", &[&[t(NEW), LOAD], &[zap(0)], &[zap(0)]])
            .composed(),
        Nested::new(
            "leaf, T to 1 and back, faults | zap 0 | zap 1",
            &[&[t(NEW), LOAD, t(OLD), LOAD], &[zap(0)], &[zap(1)]],
        )
        .composed(),
        Nested::new("leaf, D taken, flush, store", &[&clean]).composed(),
        Nested::new("clean leaf, D taken, flush, store | store", &[&clean, &[STORE]])
            .two_vcpus()
            .t(CLEAN)
            .composed(),
        Nested::new("leaf, D taken, flush, load, store", &[&[t(CLEAN), Op::Flush, ENTER, LOAD, STORE]])
            .composed(),
        Nested::new(
            "leaf, D taken, flush | store | zap 0",
            &[&[t(CLEAN), Op::Flush, ENTER], &[STORE], &[zap(0)]],
        )
        .two_vcpus()
        .composed(),
        Nested::new("leaf without write, A taken, flush, load", &[&[t(IDLE), Op::Flush, ENTER, LOAD]])
            .t(READ)
            .composed(),
        Nested::new("T to 1, flush | fault on nothing", &[&change, &[LOAD]]).two_vcpus(),
        Nested::new("T to 1, fault | fault | zap 0", &[&[t(NEW), LOAD], &[LOAD], &[zap(0)]])
            .two_vcpus()
            .tables(),
        Nested::new("T to 1, fault | fault | zap 1", &[&[t(NEW), LOAD], &[LOAD], &[zap(1)]])
            .two_vcpus()
            .tables(),
        Nested::new("leaf without write, store refused, T to 1, load", &[&[STORE, t(NEW), ENTER, LOAD]])
            .t(READ)
            .composed(),
        Nested::new(
            "leaf without write, store refused, T to 1, load | zap 0",
            &[&[STORE, t(NEW), ENTER, LOAD], &[zap(0)]],
        )
        .t(READ)
        .composed(),
        Nested::new(
            "leaf without write, store refused, T to 1, load | load",
            &[&[STORE, t(NEW), ENTER, LOAD], &[LOAD]],
        )
        .two_vcpus()
        .t(READ)
        .composed(),
        Nested::new("leaf, T to 1 | first entry", &[&[LOAD], &[t(NEW), ENTER, LOAD]])
            .two_vcpus()
            .composed()
            .newcomers(1),
        Nested::new("leaf, flush | T to 1, flush", &[&[Op::Flush, ENTER, LOAD], &change])
            .two_vcpus()
            .composed(),
        Nested::new(
            "leaf, flush | T to 1, flush of both",
            &[&[Op::Flush, ENTER], &[t(NEW), Op::Flush, ENTER, LOAD]],
        )
        .two_vcpus()
        .composed(),
        Nested::new(
            "leaf, T to 1, broadcast | faults",
            &[&[t(NEW), Op::Broadcast, ENTER, LOAD], &[LOAD, LOAD]],
        )
        .two_vcpus()
        .composed(),
        Nested::new(
            "T to 1, broadcast | faults | zap 0",
            &[&[t(NEW), Op::Broadcast], &[LOAD, LOAD], &[zap(0)]],
        )
        .two_vcpus(),
        Nested::new(
            "another root and back",
            &[&[Op::Leave, Op::Enter { key: 1 }, LOAD, Op::Leave, ENTER, LOAD]],
        )
        .composed(),
    ]
}

/// Several flushes, by one vCPU or by both.
fn more_flushes() -> Vec<Nested> {
    vec![
        Nested::new(
            "T to 1, flush, back, flush | fault",
            &[&[t(NEW), Op::Flush, ENTER, LOAD, t(OLD), Op::Flush, ENTER, LOAD], &[LOAD]],
        )
        .two_vcpus()
        .tables(),
        Nested::new(
            "leaf of 1, T to 0, flush, back, flush | fault",
            &[&[t(OLD), Op::Flush, ENTER, t(NEW), Op::Flush, ENTER, LOAD], &[LOAD]],
        )
        .two_vcpus()
        .t(NEW)
        .composed(),
        Nested::new(
            "leaf, T to 1, broadcast | broadcast, back",
            &[&[t(NEW), Op::Broadcast], &[Op::Leave, Op::Broadcast, ENTER, LOAD]],
        )
        .two_vcpus()
        .composed(),
    ]
}

/// Logs of L1's frames, which L2 writes.
fn logs() -> Vec<Nested> {
    let harvests = [Op::Harvest, Op::Harvest];
    vec![
        Nested::new("logged: store, store | harvest twice", &[&[STORE, STORE], &harvests]).tables().logs(),
        Nested::new("logged: load, store | harvest", &[&[LOAD, STORE], &[Op::Harvest]]).composed().logs(),
        Nested::new("logged: store | store | harvest", &[&[STORE], &[STORE], &[Op::Harvest]])
            .two_vcpus()
            .tables()
            .logs(),
        Nested::new(
            "logged: store, D taken, flush, store | harvest",
            &[&[STORE, t(CLEAN), Op::Flush, ENTER, STORE], &[Op::Harvest]],
        )
        .composed()
        .logs(),
        Nested::new(
            "logged: leaf, D taken, flush, store | harvest",
            &[&[STORE, Op::Flush, ENTER, t(CLEAN), Op::Flush, ENTER, STORE], &[Op::Harvest]],
        )
        .tables()
        .logs(),
        Nested::new("logged: store | zap 0 | harvest", &[&[STORE, STORE], &[zap(0)], &[Op::Harvest]])
            .composed()
            .logs(),
        Nested::new("logged: store | protect 0 | harvest", &[&[STORE, STORE], &[protect(0)], &[Op::Harvest]])
            .composed()
            .logs(),
        Nested::new(
            "logged: store, D taken, flush, store | zap 0 | harvest",
            &[&[STORE, t(CLEAN), Op::Flush, ENTER, STORE], &[zap(0)], &[Op::Harvest]],
        )
        .composed()
        .logs(),
        Nested::new("log begins | store", &[&[STORE, STORE], &[Op::BeginLog]]).composed(),
        Nested::new("log begins | store to nothing", &[&[STORE], &[Op::BeginLog]]),
    ]
}

/// Table memory is short.
fn reclaims() -> Vec<Nested> {
    let near = Op::Near { write: false };
    let gone = [Op::Reclaim];
    let change = [t(NEW), Op::Flush, ENTER, LOAD];
    let refused = [STORE, t(NEW), ENTER, LOAD];
    vec![
        Nested::new("leaf, load | store | its table goes", &[&[LOAD], &[STORE], &gone])
            .two_vcpus()
            .composed(),
        Nested::new("faults on nothing | its table goes", &[&[LOAD], &[STORE], &gone]).two_vcpus(),
        Nested::new("leaf, fault | zap 0 | its table goes", &[&[LOAD], &[zap(0)], &gone]).composed(),
        Nested::new("fault | zap 0 | its table goes", &[&[LOAD, STORE], &[zap(0)], &gone]).tables(),
        Nested::new(
            "leaf, fault | 0 to page 1 | its table goes",
            &[&[LOAD], &[Op::Move { g1: 0, hva: 1 }], &gone],
        )
        .composed(),
        Nested::new(
            "faults near the last | zap 0 | its table goes",
            &[&[LOAD, near, near], &[zap(0)], &gone],
        )
        .tables(),
        Nested::new("leaf, T to 1, flush, load | its table goes", &[&change, &gone]).composed(),
        Nested::new("T to 1, flush, load | load | its table goes", &[&change, &[LOAD], &gone])
            .two_vcpus()
            .tables(),
        Nested::new("leaf, T to 1, flush, load | load | its table goes", &[&change, &[LOAD], &gone])
            .two_vcpus()
            .composed(),
        Nested::new(
            "leaf, T to 1, broadcast | load | its table goes",
            &[&[t(NEW), Op::Broadcast, ENTER, LOAD], &[LOAD], &gone],
        )
        .two_vcpus()
        .composed(),
        Nested::new("leaf without write, store refused, T to 1, load | its table goes", &[&refused, &gone])
            .t(READ)
            .composed(),
        Nested::new(
            "leaf without write, store refused, T to 1, load | load | its table goes",
            &[&refused, &[LOAD], &gone],
        )
        .two_vcpus()
        .t(READ)
        .composed(),
        Nested::new("leaf, T to 1 | first entry | its table goes", &[&[LOAD], &[t(NEW), ENTER, LOAD], &gone])
            .two_vcpus()
            .composed()
            .newcomers(1),
        Nested::new(
            "logged: store, store | harvest | its table goes",
            &[&[STORE, STORE], &[Op::Harvest], &gone],
        )
        .composed()
        .logs(),
        Nested::new("log begins | store | its table goes", &[&[STORE, STORE], &[Op::BeginLog], &gone])
            .composed(),
    ]
}

/// The same with flushes that drop the tree.
fn drops(scenarios: Vec<Nested>) -> Vec<Nested> {
    let count = |nested: &Nested, what: fn(&Op) -> bool| {
        nested.programs.iter().flatten().filter(|op| what(op)).count()
    };
    // There are two trees, so there is one flush, and no entry makes another.
    let one = |nested: &Nested| {
        let flushes = count(nested, |op| matches!(op, Op::Flush | Op::Broadcast));
        let broadcasts = count(nested, |op| *op == Op::Broadcast);
        let enters = count(nested, |op| matches!(op, Op::Enter { .. }));
        flushes == 1 && (enters == 1 || broadcasts == 1)
    };
    scenarios.into_iter().filter(one).map(Nested::drops).collect()
}

/// The same with invalidations that leave leaves of other frames.
fn spares(scenarios: Vec<Nested>) -> Vec<Nested> {
    scenarios.into_iter().map(Nested::spares).collect()
}

/// The same in the design as built.
fn fresh(scenarios: Vec<Nested>) -> Vec<Nested> {
    scenarios.into_iter().map(Nested::fresh).collect()
}

/// Returns the scenarios of every run.
pub fn families() -> Vec<Family<Nested>> {
    let family = |name, scenarios| Family { name, scenarios };
    vec![
        family("nested faults", faults()),
        family("nested flushes", flushes()),
        family("nested flushes, more", more_flushes()),
        family("nested flushes that drop", drops(flushes())),
        family("nested flushes, strangers spared", spares(flushes())),
        family("nested logs", logs()),
        family("nested faults, as built", fresh(faults())),
        family("nested flushes, as built", fresh(flushes())),
        family("nested flushes, more, as built", fresh(more_flushes())),
        family("nested logs, as built", fresh(logs())),
        family("nested reclaim, as built", fresh(reclaims())),
    ]
}

/// Returns further scenarios for longer runs.
pub fn large_families() -> Vec<Family<Nested>> {
    let change = [t(NEW), Op::Flush, ENTER, LOAD];
    let three = vec![
        Nested::new("large: T to 1, flush | store | zap 0", &[&change, &[STORE], &[zap(0)]]).two_vcpus(),
        Nested::new("large: T to 1, flush | store | zap 1", &[&change, &[STORE], &[zap(1)]]).two_vcpus(),
        Nested::new("large: leaf, T to 1, flush | store | zap 0", &[&change, &[STORE], &[zap(0)]])
            .two_vcpus()
            .composed(),
        Nested::new(
            "large: leaf, T to 1, flush | zap 0, zap 1 | zap 0",
            &[&change, &[zap(0), zap(1)], &[zap(0)]],
        )
        .composed(),
        Nested::new(
            "large: D taken, flush, store | store | protect 0",
            &[&[t(CLEAN), Op::Flush, ENTER, STORE], &[STORE], &[protect(0)]],
        )
        .two_vcpus()
        .composed(),
        Nested::new(
            "large: T to 1, flush | store | 0 to page 1",
            &[&change, &[STORE], &[Op::Move { g1: 0, hva: 1 }]],
        )
        .two_vcpus(),
        Nested::new(
            "large: T to 1, flush, store | store | log begins, harvest",
            &[&[t(NEW), Op::Flush, ENTER, STORE], &[STORE], &[Op::BeginLog, Op::Harvest]],
        )
        .two_vcpus(),
    ];
    let (dropped, spared, built) = (drops(three.clone()), spares(three.clone()), fresh(three.clone()));
    vec![
        Family { name: "nested, large", scenarios: three },
        Family { name: "nested, large, that drop", scenarios: dropped },
        Family { name: "nested, large, strangers spared", scenarios: spared },
        Family { name: "nested, large, as built", scenarios: built },
    ]
}
