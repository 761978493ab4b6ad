//! The order of the engine's modules.

use super::graph::Graph;

/// The engine's modules, the lowest first: each imports only modules before it in this list.
const ORDER: [&str; 39] = [
    "inject",
    "callbacks",
    "lent",
    "why",
    "fallible",
    "sync",
    "version",
    "slots",
    "table",
    "trace",
    "host",
    "space",
    "age",
    "map",
    "active",
    "dirty_log",
    "tlb",
    "loaded",
    "waits",
    "vm",
    "walk",
    "notify",
    "guest_space",
    "huge",
    "dirty",
    "memslots",
    "writes",
    "guest_memory",
    "memo",
    "vcpu",
    "stats",
    "shadows",
    "hooks",
    "fault",
    "held",
    "nested",
    "owned",
    "budget",
    "oracle",
];

/// Returns what contradicts [`ORDER`].
pub fn disorder(graph: &Graph) -> Vec<String> {
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let place = |module: &str| ORDER.iter().position(|name| *name == top(module));
    let modules = graph.files.keys().filter(|module| !module.is_empty() && !module.contains("::"));
    let missing = modules.filter(|module| place(module).is_none());
    let mut wrong: Vec<String> =
        missing.map(|module| format!("{module} has no place in the order")).collect();
    let up = graph.imports.keys().filter(|(from, to)| !from.is_empty() && place(from) < place(to));
    wrong.extend(up.map(|(from, to)| format!("upwards: {from} imports {to}")));
    wrong
}
