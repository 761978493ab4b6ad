//! Demand paging by AxVisor 0.8.2's parts, and by slat, with the same guests on the same software processor.
//!
//! AxVisor 0.8 maps pages on demand on x86 and RISC-V. Each fault goes through `AxVM::with_resources_mut`, which closes
//! a gate, interrupts each processor, and waits until every guest of the VM has exited; each vCPU flushes when it
//! enters again. The gate is axvm 0.8.5's file, the address space axaddrspace 0.6.0, and the table page-table-generic
//! 0.9.1, all unchanged from the registry. The code around them is written here after axvm, which does not build alone.

mod ours;
mod software_guest;
mod theirs;

use software_guest::{Counts, Workload};
use std::time::Duration;

/// The number of runs of each; the result is their median.
const RUNS: usize = 5;

type Run = fn(&Workload) -> (Counts, bool);

/// The median time of each, and whether memory had all stores.
fn measure(runs: [Run; 2], workload: &Workload) -> [(Duration, bool); 2] {
    let mut all = [const { Vec::new() }; 2];
    for _ in 0..RUNS {
        for (which, run) in runs.iter().enumerate() {
            let (counts, is_whole) = run(workload);
            all[which].push((counts.time, is_whole));
        }
    }
    all.map(|mut runs| {
        runs.sort();
        (runs[RUNS / 2].0, runs.iter().all(|run| run.1))
    })
}

fn main() {
    let mut wrong = false;
    println!("each vCPU stores to pages of its own, which are mapped on demand: AxVisor 0.8's gate -> slat");
    println!(
        "vCPUs   exits a page     flushes a page   us a page, on this machine's processors, median of {RUNS} interleaved runs"
    );
    for vcpus in [1, 2, 4, 8] {
        let workload = |by_turns, pages| Workload { vcpus, pages, by_turns };
        let (exact, free) = (workload(true, 512), workload(false, 4096));
        let ([theirs, ours], timed) =
            ([theirs::run(&exact), ours::run(&exact)], measure([theirs::run, ours::run], &free));
        let each = |count: u64| count as f64 / exact.pages as f64;
        let time = |time: Duration| time.as_secs_f64() * 1e6 / free.pages as f64;
        println!(
            "{vcpus:>5}   {:>4.2} -> {:>4.2}     {:>4.2} -> {:>4.2}     {:>5.1} -> {:>5.1}",
            each(theirs.0.exits),
            each(ours.0.exits),
            each(theirs.0.flushes),
            each(ours.0.flushes),
            time(timed[0].0),
            time(timed[1].0)
        );
        // The host takes no page from a guest. So on slat a vCPU exits for its own faults only, and none flushes.
        wrong |= !(theirs.1 && ours.1 && timed[0].1 && timed[1].1);
        wrong |= ours.0.flushes > 0 || ours.0.exits != exact.pages;
        wrong |= vcpus > 1 && theirs.0.exits <= exact.pages;
    }
    let [theirs, ours] = [theirs::two_faults_keep_a_store(), ours::two_faults_keep_a_store()];
    let said = |kept| if kept { "keep" } else { "LOSE" };
    println!(
        "two vCPUs' faults on one page, a store in between: AxVisor 0.8's {} it, slat's {} it",
        said(theirs),
        said(ours)
    );
    if wrong || !ours {
        println!("gate: WRONG");
        std::process::exit(1);
    }
}
