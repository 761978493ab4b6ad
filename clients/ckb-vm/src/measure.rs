//! Measures the cost of slat in an emulator: the same programs on each memory, in turns, so that other load on the
//! machine disturbs all equally.

use crate::checks::Program;
use crate::running_program::{End, Flat, Runs, Sparse};
use crate::slat_memory::SlatMemory;
use crate::snapshot::Snapshot;
use ckb_vm::memory::FLAG_DIRTY;
use ckb_vm::snapshot::make_snapshot;
use ckb_vm::{CoreMachine, Memory};
use slat::Idle;
use std::time::Instant;

const ROUNDS: usize = 15;

/// A median, and the lowest and highest value of the middle half.
struct Median(f64, f64, f64);

impl Median {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        Self(at(0.5), at(0.25), at(0.75))
    }
}

impl std::fmt::Display for Median {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.0, self.1, self.2)
    }
}

/// Milliseconds of processor time of this thread, which other load disturbs less than wall-clock time.
fn on_processor() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").map_err(|error| error.to_string())?;
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse::<f64>().ok());
    Ok(nanoseconds.ok_or("schedstat says no time")? / 1e6)
}

/// Milliseconds of processor time of the whole program, without loading it.
fn runs<M: Runs>(program: &Program) -> Result<f64, String> {
    let mut guest = program.load::<M>()?;
    let began = on_processor()?;
    let end = guest.run_until(u64::MAX);
    let took = on_processor()? - began;
    if matches!(end, End::Exited(_)) { Ok(took) } else { Err(format!("{end:?}")) }
}

/// Microseconds of a harvest of the pages that 2% of the program wrote, and of ckb-vm's snapshot of the same pages of
/// flat memory.
fn snapshots(program: &Program) -> Result<(u64, f64, f64), String> {
    let (half, more) = (program.cycles() / 2, program.cycles() / 2 + program.cycles() / 50);
    let mut guest = program.load::<SlatMemory>()?;
    let mut oracle = program.load::<Flat>()?;
    let (mut snapshot, mut idle) = (Snapshot::default(), None);
    let (mut pages, mut took) = (0, 0.);
    for cycles in [half, more] {
        guest.run_until(cycles);
        let token = idle.insert(Idle::take().ok_or("no token")?);
        let began = Instant::now();
        pages = snapshot.harvest(&guest.machine.memory().vm, token).map_err(|error| error.to_string())?;
        took = began.elapsed().as_secs_f64() * 1e6;
        idle = None;
    }
    oracle.run_until(half);
    for page in 0..oracle.machine.memory().memory_pages() as u64 {
        oracle.machine.memory_mut().clear_flag(page, FLAG_DIRTY).map_err(|error| error.to_string())?;
    }
    oracle.run_until(more);
    let began = Instant::now();
    let taken = make_snapshot(&mut oracle.machine).map_err(|error| error.to_string())?;
    let other = began.elapsed().as_secs_f64() * 1e6;
    if taken.pages.len() as u64 == pages { Ok((pages, took, other)) } else { Err("other pages".into()) }
}

/// Prints both tables.
pub fn all(programs: &[Program]) -> Result<(), String> {
    println!(
        "Time on a processor of whole runs, {ROUNDS} in turns: medians (middle half); others as multiples of flat in the same turn."
    );
    for program in programs {
        let (mut flat, mut sparse, mut slat) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let base = runs::<Flat>(program)?;
            flat.push(base);
            sparse.push(runs::<Sparse>(program)? / base);
            slat.push(runs::<SlatMemory>(program)? / base);
        }
        let [flat, sparse, slat] = [flat, sparse, slat].map(Median::of);
        println!("{:7} flat {flat} ms   sparse ×{sparse}   slat ×{slat}", program.name);
    }
    println!(
        "Pages that 2% of a program wrote: µs to harvest them, and for ckb-vm's snapshot of flat memory."
    );
    for program in programs {
        let taken = (0..ROUNDS).map(|_| snapshots(program)).collect::<Result<Vec<_>, _>>()?;
        let [harvest, flags] = [|t: &(u64, f64, f64)| t.1, |t: &(u64, f64, f64)| t.2]
            .map(|of| Median::of(taken.iter().map(of).collect()));
        println!("{:7} {:4} pages   harvest {harvest}   flags {flags}", program.name, taken[0].0);
    }
    Ok(())
}
