//! `slat-model [small|full|mistakes] [NAME]` checks the small set of scenarios, that set and the large ones, or the
//! mistakes; with a name only those of that name. `push`: the small set, then every mistake. Without arguments: the
//! full set, then every mistake.
//!
//! `slat-model walk` walks through scenarios of six and more actors, at random. `slat-model proof` takes steps of such
//! scenarios in the proof, too.
//!
//! It prints the explored families (`EXECUTIONS Model <family> <states>`), the mistakes (`BUG <name> Model <what>`),
//! and the found ones (`SEEDED <name> Model <states>`).

use slat_model::check::side_by_side;
use slat_model::{Bug, Checked, Family, daemon, fleet, library, nested, primary, refine, walk};
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

/// Prints a problem with the arguments.
fn said(outcome: Result<bool, String>) -> bool {
    outcome.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.get(1).map(String::as_str);
    let small = |name| {
        let own = check(library::families(), name) & check(nested::scenarios::families(), name);
        let own = own & check(primary::scenarios::families(), name);
        let own = own & check(nested::parts::families(), name);
        let own = own & check(fleet::scenarios::families(), name);
        own & check(daemon::scenarios::families(), name)
    };
    let full = |name| {
        let more = check(library::large_families(), name) & check(nested::scenarios::large_families(), name);
        let more = more & check(fleet::scenarios::large_families(), name);
        let more = more & check(daemon::scenarios::large_families(), name);
        small(name) & more
    };
    let good = match arguments.first().map(String::as_str) {
        Some("small") => small(name),
        Some("full") => full(name),
        Some("mistakes") => mistakes(name),
        Some("push") => small(None) & mistakes(None),
        Some("walk") => said(walk::command::command(&arguments[1..])),
        Some("proof") => said(refine::command::command(&arguments[1..])),
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
