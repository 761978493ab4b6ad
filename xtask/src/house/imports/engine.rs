//! The order of the engine's modules.

use super::graph::Graph;

/// The engine's modules, the lowest first: each imports only modules before it in this list, except for [`UP`].
const ORDER: [&str; 37] = [
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

/// Imports in the other direction. The list may only shrink.
const UP: [&str; 3] = [
    "vm imports dirty::ring",
    "vm imports dirty::settings",
    "vm imports notify::active",
];

/// Returns what contradicts [`ORDER`] and [`UP`].
pub fn disorder(graph: &Graph) -> Vec<String> {
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let place = |module: &str| ORDER.iter().position(|name| *name == top(module));
    let modules = graph.files.keys().filter(|module| !module.is_empty() && !module.contains("::"));
    let missing = modules.filter(|module| place(module).is_none());
    let mut wrong: Vec<String> =
        missing.map(|module| format!("{module} has no place in the order")).collect();
    let up = graph.imports.keys().filter(|(from, to)| !from.is_empty() && place(from) < place(to));
    let up: Vec<String> = up.map(|(from, to)| format!("{from} imports {to}")).collect();
    wrong.extend(up.iter().filter(|up| !UP.contains(&up.as_str())).map(|up| format!("upwards: {up}")));
    let gone = UP.iter().filter(|listed| !up.iter().any(|up| up == *listed));
    wrong.extend(gone.map(|gone| format!("no longer true, take it off the list: {gone}")));
    wrong
}
