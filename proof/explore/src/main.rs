//! The command `cargo xtask explore`.

use slat_explore::hunt::Hunt;
use slat_explore::plan::Plan;
use slat_explore::shrink;
use slat_explore::world::{Wrong, run};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cargo xtask explore [OPTION…]
  --seeds N       worlds to run; 20000 unless said otherwise
  --first S       the first seed; 1 unless said otherwise
  --minutes M     no longer than that
  --cpus N        so many simulated CPUs in each world, whatever its seed says
  --rounds        only worlds in rounds: invalidations of a few pages overlap
  --faulty-tlbs   let TLBs ignore flushes, which must be found
  --trace         tell the story of the world that fails, or of the only one
  --only LIST     of one world only these operations, as a shrunk plan is printed
  --turn T        of one world another schedule, as a shrunk plan is printed
  --whole         do not shrink";

/// The arguments.
struct Request {
    hunt: Hunt,
    only: Option<String>,
    turn: u64,
    trace: bool,
    whole: bool,
}

fn request() -> Result<Request, String> {
    let hunt = Hunt { first: 1, seeds: 20_000, at_most: None, cpus: None, rounds: false, faulty_tlbs: false };
    let mut request = Request { hunt, only: None, turn: 0, trace: false, whole: false };
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
            "--rounds" => request.hunt.rounds = true,
            "--faulty-tlbs" => request.hunt.faulty_tlbs = true,
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
    let mut plan = request.hunt.plan(seed);
    println!("seed {seed}: {}: {}", wrong.what, wrong.how);
    println!("  {}\n  {}", shrink::size(&plan), request.hunt.command(&plan));
    if !request.whole {
        plan = shrink::shrink(&plan, wrong.what);
        println!("shrunk: {}\n  {}", shrink::size(&plan), request.hunt.command(&plan));
    }
    if request.trace {
        tell(&plan);
    }
    Ok(verdict(request, Some(&wrong)))
}

/// Fails if a world fails, or if faulty TLBs are not found.
fn verdict(request: &Request, wrong: Option<&Wrong>) -> ExitCode {
    if request.hunt.faulty_tlbs && wrong.is_none() {
        println!("not found: TLBs that ignore flushes");
    }
    if request.hunt.faulty_tlbs == wrong.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(request: &Request) -> Result<ExitCode, String> {
    let mut plan = Plan { turn: request.turn, ..request.hunt.plan(request.hunt.first) };
    if let Some(only) = &request.only {
        plan = shrink::keep(&plan, only)?;
    }
    println!("seed {}: {}", plan.seed, shrink::size(&plan));
    let outcome = run(&plan, false);
    if request.trace {
        tell(&plan);
    }
    println!("{} accesses, trace {:016x}", outcome.steps, outcome.hash);
    match &outcome.wrong {
        Some(wrong) => println!("{}: {}", wrong.what, wrong.how),
        None => println!("nothing is wrong"),
    }
    Ok(verdict(request, outcome.wrong.as_ref()))
}

/// Prints the plan, then what each CPU did, by number of accesses.
fn tell(plan: &Plan) {
    println!("{plan:#?}");
    for line in run(plan, true).story {
        println!("{line}");
    }
}
