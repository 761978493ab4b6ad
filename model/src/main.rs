//! `slat-model [small|full|mistakes] [NAME]` checks the small set of scenarios, that set and the large ones, or the
//! mistakes; with a name only those of that name. `push`: the small set, then every mistake. Without arguments: the
//! full set, then every mistake.
//!
//! `slat-model walk` walks through scenarios of six and more actors, at random.
//!
//! It prints the explored families (`EXECUTIONS Model <family> <states>`), the mistakes (`BUG <name> Model <what>`),
//! and the found ones (`SEEDED <name> Model <states>`).

use slat_model::check::side_by_side;
use slat_model::library::Family;
use slat_model::{Bug, Checked, fleet, library, nested, primary, walk};
use std::process::ExitCode;
use std::time::Instant;

/// Checks every scenario of `families`, and prints the results.
fn check<S: Checked>(families: Vec<Family<S>>, only: Option<&str>) -> bool {
    let began = Instant::now();
    let (mut states, mut good) = (0, true);
    for Family { name: family, mut scenarios } in families {
        scenarios.retain(|scenario| only.is_none_or(|only| family == only || scenario.name().contains(only)));
        let verdicts = side_by_side(&scenarios, S::check);
        let mut safe = 0;
        for (scenario, verdict) in scenarios.iter().zip(verdicts) {
            println!("{:>9} states  {}", verdict.states, scenario.name());
            if let Some((bad, actions)) = verdict.found {
                good = false;
                println!("  {bad:?} after {} steps:", actions.len());
                print(&actions);
            } else if !verdict.ends {
                good = false;
                println!("  it cannot end");
            } else {
                safe += verdict.states;
            }
        }
        if safe > 0 {
            println!("EXECUTIONS Model {family} {safe}");
        }
        states += safe;
    }
    println!("{states} states, {:.0} s", began.elapsed().as_secs_f64());
    good
}

/// Makes every mistake, and prints how each was found. With one mistake it prints the path.
fn mistakes(only: Option<&str>) -> bool {
    let mut bugs = Bug::ALL.to_vec();
    bugs.retain(|bug| only.is_none_or(|only| bug.name() == only));
    let mut good = true;
    for (bug, (scenario, verdict)) in bugs.iter().zip(side_by_side(&bugs, |&bug| library::find(bug))) {
        let name = bug.name();
        println!("BUG {name} Model {}", bug.what());
        let Some((bad, actions)) = verdict.found else {
            good = false;
            println!("  not found in: {scenario}");
            continue;
        };
        println!("SEEDED {name} Model {}", verdict.states);
        println!("  {bad:?} after {} steps of: {scenario}", actions.len());
        if only.is_some() {
            print(&actions);
        }
    }
    good
}

/// Prints the path to a bad state.
fn print(actions: &[String]) {
    for action in actions {
        println!("    {action}");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.get(1).map(String::as_str);
    let small = |name| {
        let own = check(library::families(), name) & check(nested::scenarios::families(), name);
        let own = own & check(primary::scenarios::families(), name);
        let own = own & check(nested::parts::families(), name);
        own & check(fleet::scenarios::families(), name)
    };
    let full = |name| {
        let more = check(library::large_families(), name) & check(nested::scenarios::large_families(), name);
        let more = more & check(fleet::scenarios::large_families(), name);
        small(name) & more
    };
    let good = match arguments.first().map(String::as_str) {
        Some("small") => small(name),
        Some("full") => full(name),
        Some("mistakes") => mistakes(name),
        Some("push") => small(None) & mistakes(None),
        Some("walk") => walk::command::command(&arguments[1..]).unwrap_or_else(|problem| {
            eprintln!("{problem}");
            false
        }),
        Some("refine") => {
            let n = |i: usize, d: u64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(d);
            let bug = arguments.get(5).and_then(|name| Bug::ALL.iter().copied().find(|b| b.name() == *name));
            let began = Instant::now();
            let m = slat_model::refine::Refinement { seed: n(1, 1), actors: n(2, 5) as usize, steps: n(3, 10000), checks: n(4, 1), bug }.go();
            println!("{} steps {} states {} left {:?} {:.1} s", m.steps, m.states, m.left, m.actions, began.elapsed().as_secs_f64());
            if let Some((why, path)) = m.unmatched { println!("{why}"); print(&path); }
            true
        }
        None => full(None) & mistakes(None),
        Some(other) => {
            eprintln!(
                "{other}: slat-model [push], or slat-model small|full|mistakes [NAME], or {}",
                walk::command::USAGE
            );
            false
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
