//! The command `cargo xtask explore`.

use slat::seeded::Bug;
use slat_explore::hunt::Hunt;
use slat_explore::plan::{Plan, draw};
use slat_explore::shrink;
use slat_explore::world::{Wrong, run};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cargo xtask explore [OPTION…]
  --seeds N       worlds to run; 20000 unless said otherwise
  --first S       the first seed; 1 unless said otherwise
  --minutes M     no longer than that
  --cpus N        so many simulated CPUs in each world, whatever its seed says
  --seeded NAME   make this mistake, which must be found; `all`: each that an explorer can find, and how soon
  --trace         tell the story of the world that fails, or of the only one
  --only LIST     of one world only these operations, as a shrunk plan is printed
  --turn T        of one world another schedule, as a shrunk plan is printed
  --whole         do not shrink";

/// The arguments.
struct Request {
    hunt: Hunt,
    every_bug: bool,
    only: Option<String>,
    turn: u64,
    trace: bool,
    whole: bool,
}

fn request() -> Result<Request, String> {
    let hunt = Hunt { first: 1, seeds: 20_000, at_most: None, cpus: None, bug: None };
    let mut request = Request { hunt, every_bug: false, only: None, turn: 0, trace: false, whole: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg}: a value is missing"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{arg} {text}: a number"));
        match arg.as_str() {
            "--seeds" => request.hunt.seeds = number(value()?)?,
            "--first" => request.hunt.first = number(value()?)?,
            "--minutes" => request.hunt.at_most = Some(Duration::from_secs(60 * number(value()?)?)),
            "--cpus" => request.hunt.cpus = Some(number(value()?)?),
            "--turn" => request.turn = number(value()?)?,
            "--only" => request.only = Some(value()?),
            "--trace" => request.trace = true,
            "--whole" => request.whole = true,
            "--seeded" => match value()?.as_str() {
                "all" => request.every_bug = true,
                name => {
                    let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
                    request.hunt.bug =
                        Some(*bug.ok_or(format!("--seeded {name}: no mistake has that name"))?);
                }
            },
            _ => return Err(format!("{arg}: no such option")),
        }
    }
    Ok(request)
}

fn main() -> ExitCode {
    let request = request().map_err(|problem| format!("{problem}\n{USAGE}"));
    request.and_then(|request| explore(&request)).unwrap_or_else(|problem| {
        eprintln!("{problem}");
        ExitCode::from(2)
    })
}

fn explore(request: &Request) -> Result<ExitCode, String> {
    if request.every_bug {
        return Ok(find_all(request));
    }
    if request.only.is_some() || request.hunt.seeds == 1 {
        return one(request);
    }
    let began = Instant::now();
    let found = request.hunt.go();
    let rate = found.worlds as f64 / began.elapsed().as_secs_f64();
    println!("{} worlds, {} accesses, {rate:.0} worlds a second", found.worlds, found.steps);
    let Some((seed, wrong)) = found.failing else {
        println!("EXECUTIONS Explore worlds {}", found.worlds);
        return Ok(verdict(request, None));
    };
    let mut plan = draw(seed, request.hunt.cpus);
    println!("seed {seed}: {}: {}", wrong.what, wrong.how);
    println!("  {}\n  {}", shrink::size(&plan), request.hunt.command(&plan));
    if !request.whole {
        plan = shrink::shrink(&plan, request.hunt.bug, wrong.what);
        println!("shrunk: {}\n  {}", shrink::size(&plan), request.hunt.command(&plan));
    }
    if request.trace {
        tell(&plan, request);
    }
    Ok(verdict(request, Some(&wrong)))
}

/// Fails if a world without a mistake fails, or if a mistake is not found.
fn verdict(request: &Request, wrong: Option<&Wrong>) -> ExitCode {
    match (request.hunt.bug, wrong) {
        (None, None) | (Some(_), Some(_)) => ExitCode::SUCCESS,
        (None, Some(_)) => ExitCode::FAILURE,
        (Some(bug), None) => {
            println!("not found: {}", bug.what());
            ExitCode::FAILURE
        }
    }
}

fn one(request: &Request) -> Result<ExitCode, String> {
    let mut plan = Plan { turn: request.turn, ..draw(request.hunt.first, request.hunt.cpus) };
    if let Some(only) = &request.only {
        plan = shrink::keep(&plan, only)?;
    }
    println!("seed {}: {}", plan.seed, shrink::size(&plan));
    let outcome = run(&plan, request.hunt.bug, false);
    if request.trace {
        tell(&plan, request);
    }
    println!("{} accesses, trace {:016x}", outcome.steps, outcome.hash);
    match &outcome.wrong {
        Some(wrong) => println!("{}: {}", wrong.what, wrong.how),
        None => println!("nothing is wrong"),
    }
    Ok(verdict(request, outcome.wrong.as_ref()))
}

/// Prints the plan, then what each CPU did, by number of accesses.
fn tell(plan: &Plan, request: &Request) {
    println!("{plan:#?}");
    for line in run(plan, request.hunt.bug, true).story {
        println!("{line}");
    }
}

/// The mistakes that an explorer can find: mistakes of steps. A mistake of memory orderings has no effect where
/// memory is sequentially consistent. `slat-slots` is built without mistakes here.
fn find_all(request: &Request) -> ExitCode {
    use slat::seeded::Tool::{Fuzz, History, Shuttle, Worlds};
    let mut missed = 0;
    for &bug in Bug::ALL
        .iter()
        .filter(|bug| matches!(bug.tool(), Shuttle | History | Worlds | Fuzz) && **bug != Bug::OverlapBelow)
    {
        let hunt = Hunt { bug: Some(bug), ..request.hunt.clone() };
        let found = hunt.go();
        if let Some((seed, wrong)) = found.failing {
            let (tool, worlds) = (bug.tool(), seed - hunt.first + 1);
            println!("found {tool:?} {} after {worlds} worlds: {}", bug.name(), wrong.what);
        } else {
            missed += 1;
            println!("missed {:?} {} in {} worlds", bug.tool(), bug.name(), found.worlds);
        }
    }
    println!("{missed} missed");
    ExitCode::SUCCESS
}
