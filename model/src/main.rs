//! `slat-model [clean|bugs|all] [NAME]`: checks the scenarios of every run, the mistakes, or the large set.

use slat_model::{Bug, Scenario, library};
use std::process::ExitCode;
use std::time::Instant;

fn clean(scenarios: &[Scenario]) -> bool {
    let began = Instant::now();
    let (mut states, mut good) = (0, true);
    for scenario in scenarios {
        let now = Instant::now();
        let verdict = scenario.check();
        states += verdict.states;
        let seconds = now.elapsed().as_secs_f64();
        println!("{:>9} states {seconds:>6.2} s  {}", verdict.states, scenario.name);
        if let Some((bad, actions)) = verdict.found {
            good = false;
            println!("  {bad:?} after {} steps:", actions.len());
            for action in actions {
                println!("    {action:?}");
            }
        } else if !verdict.ends {
            good = false;
            println!("  it cannot end");
        }
    }
    println!("{} scenarios, {states} states, {:.1} s", scenarios.len(), began.elapsed().as_secs_f64());
    good
}

fn bugs(only: Option<&str>) -> bool {
    println!("| mistake | found as | steps | states | seconds | scenario |\n|---|---|---|---|---|---|");
    let mut good = true;
    for &(bug, what) in Bug::ALL {
        if only.is_some_and(|only| only != format!("{bug:?}")) {
            continue;
        }
        let began = Instant::now();
        let found = library::find(bug);
        let seconds = began.elapsed().as_secs_f64();
        let Some((name, states, (bad, actions))) = found else {
            good = false;
            println!("| {what} | **not found** | | | {seconds:.2} | |");
            continue;
        };
        println!("| {what} | {bad:?} | {} | {states} | {seconds:.2} | {name} |", actions.len());
        if only.is_some() {
            for action in actions {
                println!("    {action:?}");
            }
        }
    }
    good
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.get(1).map(String::as_str);
    let named = |all: Vec<Scenario>| -> Vec<Scenario> {
        all.into_iter().filter(|scenario| name.is_none_or(|name| scenario.name.contains(name))).collect()
    };
    let good = match arguments.first().map(String::as_str) {
        Some("bugs") => bugs(name),
        Some("all") => clean(&named(library::at_leisure())),
        _ => clean(&named(library::every_run())),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
