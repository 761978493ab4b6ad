//! `slat-proof`: asks z3 and cvc5 every question of the induction, or shows what each mistake breaks.

use slat_proof::{Kind, Question, Solver, System, Verdict, counterexample, questions, systems};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const USAGE: &str = "slat-proof [--require] [--seeds N] [--seconds N] [--only WORDS]
slat-proof --mistakes [--require] [--only NAME]

  --require    fail where z3 or cvc5 is missing
  --seeds N    ask each question under N seeds (1)
  --seconds N  end a question after N seconds (20)
  --only WORDS questions, or mistakes, whose name has these words";

#[derive(Default)]
struct Options {
    mistakes: bool,
    require: bool,
    seeds: u32,
    seconds: u32,
    only: String,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seeds: 1, seconds: 20, ..Options::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse().ok()).filter(|number| *number > 0);
        match word.as_str() {
            "--mistakes" => options.mistakes = true,
            "--require" => options.require = true,
            "--seeds" => options.seeds = number().ok_or("--seeds: a number above 0")?,
            "--seconds" => options.seconds = number().ok_or("--seconds: a number above 0")?,
            "--only" => options.only = words.next().ok_or("--only: a part of a name")?,
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (here, missing): (Vec<_>, Vec<_>) = Solver::ALL.into_iter().partition(|solver| solver.is_here());
    for solver in &missing {
        println!("skipped: {0}; install it: apt-get install {0}", solver.name());
    }
    if options.require && !missing.is_empty() {
        return ExitCode::FAILURE;
    }
    let good = if !options.mistakes {
        prove(&options, &here)
    } else if here.contains(&Solver::Z3) {
        mistakes(&options)
    } else {
        true
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs `work` for each item, one on each processor at a time, and returns the results in order.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    done.lock().expect("no worker panics").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no worker panics");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Asks every question, and prints a line for each system and solver.
fn prove(options: &Options, solvers: &[Solver]) -> bool {
    let began = Instant::now();
    let (mut asked, mut wrong) = (0, 0);
    for system in systems() {
        let all: Vec<_> = questions(&system)
            .into_iter()
            .filter(|question| question.name(&system).contains(&options.only))
            .collect();
        for &solver in solvers {
            for seed in 1..=options.seeds {
                // Finite states are z3's.
                let mine =
                    |question: &&Question| solver == Solver::Z3 || !matches!(question, Question::Happens(_));
                let mine: Vec<_> = all.iter().filter(mine).copied().collect();
                let group = Instant::now();
                let answers = side_by_side(&mine, |question| {
                    let began = Instant::now();
                    (question.ask(&system, solver, seed, options.seconds), began.elapsed())
                });
                let slowest = answers.iter().map(|(_, time)| *time).max().unwrap_or(Duration::ZERO);
                let bad: Vec<_> = mine
                    .iter()
                    .zip(&answers)
                    .filter(|(_, (verdict, _))| !matches!(verdict, Verdict::Good))
                    .collect();
                println!(
                    "{}: {} questions, {}, seed {seed}: {} as they must be, {:.1?}, the slowest {slowest:.1?}",
                    system.name,
                    mine.len(),
                    solver.name(),
                    mine.len() - bad.len(),
                    group.elapsed(),
                );
                for (question, (verdict, time)) in &bad {
                    println!("  {}: {verdict:?} after {time:.1?}", question.name(&system));
                }
                (asked, wrong) = (asked + mine.len(), wrong + bad.len());
            }
        }
    }
    println!("PROOF {asked} questions, {} as they must be, {:.0?}", asked - wrong, began.elapsed());
    wrong == 0
}

/// Shows for each mistake which clause it breaks, and a state in which it does.
fn mistakes(options: &Options) -> bool {
    let systems = systems();
    let all = systems.iter().flat_map(|system| system.mistakes.iter().map(move |mistake| (system, mistake)));
    let all: Vec<_> = all.filter(|(_, mistake)| mistake.name.contains(&options.only)).collect();
    let told = side_by_side(&all, |(system, mistake)| {
        let mut text = String::new();
        for (_, action) in &mistake.actions {
            match refuted(system, action, options.seconds) {
                Ok(story) => return (true, story),
                Err(why) => writeln!(text, "    {}: {why}", action.name).expect("a string takes all"),
            }
        }
        (false, text)
    });
    let mut found = 0;
    for ((system, mistake), (good, story)) in all.iter().zip(&told) {
        let verdict = if *good { "REFUTED" } else { "NOT FOUND" };
        println!("{verdict} {}: {} ({})\n{story}", mistake.name, mistake.text, system.name);
        found += usize::from(*good);
    }
    println!("MISTAKES {} of {} refuted", found, all.len());
    found == all.len()
}

/// Searches a state in which a wrong action breaks a clause; clauses about the order of steps come last.
fn refuted(system: &System, action: &slat_proof::Action, seconds: u32) -> Result<String, String> {
    let mut clauses: Vec<_> = (0..system.clauses.len()).collect();
    clauses.retain(|&clause| action.touches(&system.clauses[clause].formula));
    clauses.sort_by_key(|&clause| system.clauses[clause].kind == Kind::Order);
    let mut why = "every clause is kept".to_owned();
    for clause in clauses {
        match counterexample(system, action, clause, seconds) {
            Ok(Some(example)) => return Ok(example.tell(system, action)),
            Ok(None) => {}
            Err(error) => why = format!("{}: {}", system.clauses[clause].name, error.trim()),
        }
    }
    Err(why)
}
