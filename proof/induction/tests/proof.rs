//! Checks without a solver: the rules are well formed, and random walks of the actions keep every clause.

use slat_proof::{Action, Code, Kind, Step, Structure, System, parse, systems};
use std::collections::BTreeSet;

/// A small generator of numbers: the multiplier is Knuth's.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// An initial state of two elements of each sort, and `numbers` of the ordered one. Static symbols are drawn until they
/// satisfy the axioms, one after the other.
fn initial(system: &System, random: &mut Random, numbers: usize) -> Structure {
    let sizes: Vec<_> = system.sorts.iter().map(|sort| if sort.ordered { numbers } else { 2 }).collect();
    let axioms: Vec<_> = system.axioms.iter().map(|axiom| Code::new(&axiom.formula)).collect();
    for _ in 0..1_000_000 {
        let mut state = Structure::new(system, &sizes, |symbol, most| {
            // Numbers begin at the lowest.
            if system.symbols[symbol].sort.is_some_and(|sort| system.sorts[sort].ordered) {
                0
            } else {
                random.below(most)
            }
        });
        if axioms.iter().all(|axiom| state.holds(axiom)) {
            state.begin(system);
            return state;
        }
    }
    panic!("{}: no initial state was found", system.name);
}

fn arguments(action: &Action, state: &Structure, random: &mut Random) -> Vec<usize> {
    action.parameters.iter().map(|(_, sort)| random.below(state.sizes[*sort])).collect()
}

/// Takes random actions, and returns the clause that breaks, and the actions that happened.
fn walk(
    system: &System,
    first: &Structure,
    actions: &[Action],
    random: &mut Random,
    steps: u32,
) -> (Option<String>, BTreeSet<String>) {
    let mut happened = BTreeSet::new();
    let mut state = first.clone();
    let clauses: Vec<_> = system.clauses.iter().map(|clause| Code::new(&clause.formula)).collect();
    let ready: Vec<_> = actions.iter().map(Step::new).collect();
    for _ in 0..steps {
        let at = random.below(actions.len());
        let arguments = arguments(&actions[at], &state, random);
        let Ok(changed) = state.take(&ready[at], &arguments) else { continue };
        happened.insert(actions[at].name.clone());
        // Clauses whose symbols the action leaves alone hold still.
        let is_touched = |code: &Code| code.reads().iter().any(|symbol| changed.contains(symbol));
        if let Some(broken) = clauses.iter().position(|code| is_touched(code) && !state.holds(code)) {
            return (Some(system.clauses[broken].name.clone()), happened);
        }
    }
    (None, happened)
}

#[test]
fn random_walks_keep_every_clause() {
    for system in systems() {
        let mut random = Random(7);
        let first: Vec<_> = (0..8).map(|_| initial(&system, &mut random, 7)).collect();
        let mut happened = BTreeSet::new();
        for time in 0..40 {
            let (broken, actions) = walk(&system, &first[time % 8], &system.actions, &mut random, 4000);
            assert_eq!(broken, None, "{}", system.name);
            happened.extend(actions);
        }
        let rare = system.actions.iter().filter(|action| !happened.contains(&action.name)).count();
        assert!(rare * 2 < system.actions.len(), "{}: {rare} actions never happened", system.name);
    }
}

/// The negative control: some mistakes are found without a solver.
#[test]
fn random_walks_find_mistakes() {
    let mut found = BTreeSet::new();
    for system in systems() {
        let mut random = Random(11);
        let first: Vec<_> = (0..4).map(|_| initial(&system, &mut random, 7)).collect();
        for mistake in &system.mistakes {
            let mut actions = system.actions.clone();
            for (index, action) in &mistake.actions {
                actions[*index] = action.clone();
            }
            if first.iter().any(|first| walk(&system, first, &actions, &mut random, 1500).0.is_some()) {
                found.insert(mistake.name.clone());
            }
        }
    }
    assert!(found.len() >= 10, "{found:?}");
}

#[test]
fn names_are_unique_and_every_action_and_clause_says_why() {
    for system in systems() {
        let unique = |names: &mut dyn Iterator<Item = &String>| {
            let mut known = BTreeSet::new();
            names.for_each(|name| assert!(known.insert(name.clone()), "{}: {name}", system.name));
        };
        unique(&mut system.symbols.iter().map(|symbol| &symbol.name));
        unique(&mut system.clauses.iter().map(|clause| &clause.name));
        unique(&mut system.actions.iter().map(|action| &action.name));
        unique(&mut system.mistakes.iter().map(|mistake| &mistake.name));
        for clause in &system.clauses {
            assert!(clause.kind == Kind::Order || !clause.text.is_empty(), "{}", clause.name);
        }
        for action in &system.actions {
            assert!(!action.text.is_empty(), "{}", action.name);
        }
        assert!(system.clauses.iter().any(|clause| clause.kind == Kind::Promise), "{}", system.name);
        assert!(system.mistakes.iter().all(|mistake| !mistake.actions.is_empty()));
    }
}

#[test]
fn wrong_rules_are_refused() {
    let good = "sort thread t s\n state holds(thread)\n action lock(t) require !holds(s) set holds(t) := true\n\
                promise one: holds(t) & holds(s) -> s = t\n mistake two \"no look\" lock set holds(t) := true";
    assert!(parse("lock", &[("lock", good)]).is_ok());
    for (from, to, why) in [
        ("holds(s)", "hold(s)", "hold is not declared"),
        ("state", "static", "a static symbol is changed"),
        ("holds(t) := true\npromise", "holds(t) := holds(s)\npromise", "s is not bound"),
        ("lock set", "lock without look set", "lock has no part look"),
        ("lock set", "unlock set", "no action has the name unlock"),
        ("holds(thread)", "holds(threads)", "no sort has the name threads"),
    ] {
        let wrong = good.replace(from, to);
        let said = parse("lock", &[("lock", &wrong)]).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}
