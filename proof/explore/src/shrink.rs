//! Shrinks a failing plan to few CPUs and operations that fail in the same way.
//!
//! The search is greedy: it removes whole CPUs, then halves of programs, quarters and single operations, until
//! nothing more can be removed. Removing an operation shifts everything after it in time, so each smaller plan is
//! tried under a few schedules.

use crate::plan::{Plan, Role};
use crate::world::run;
use std::cell::Cell;

/// Schedules per smaller plan.
const TURNS: u64 = 12;
/// Maximum number of runs.
const RUNS: usize = 6000;

/// Returns the smallest plan found that fails in the same way as `plan`, which failed with `what`.
pub fn shrink(plan: &Plan, what: &'static str) -> Plan {
    let runs = Cell::new(0);
    // Makes the smaller plan the best one if it fails in the same way under any of a few schedules.
    let try_out = |best: &mut Plan, smaller: Plan| {
        // A VM without a vCPU may still fail; a world without a CPU cannot.
        if smaller.cpus.is_empty() {
            return;
        }
        for turn in std::iter::once(best.turn).chain(0..TURNS).take(RUNS - runs.get()) {
            runs.set(runs.get() + 1);
            let candidate = Plan { turn, ..smaller.clone() };
            if run(&candidate, false).wrong.is_some_and(|wrong| wrong.what == what) {
                *best = candidate;
                return;
            }
        }
    };
    let mut best = plan.clone();
    loop {
        let before = (best.cpus.len(), best.ops());
        for cpu in (0..best.cpus.len()).rev() {
            let mut smaller = best.clone();
            smaller.cpus.remove(cpu);
            try_out(&mut best, smaller);
        }
        let mut part = best.cpus.iter().map(|cpu| cpu.ops.len()).max().unwrap_or(0);
        while part > 0 {
            for cpu in 0..best.cpus.len() {
                let mut end = best.cpus[cpu].ops.len();
                while end > 0 {
                    let mut smaller = best.clone();
                    smaller.cpus[cpu].ops.drain(end.saturating_sub(part)..end);
                    try_out(&mut best, smaller);
                    end = end.saturating_sub(part).min(best.cpus[cpu].ops.len());
                }
            }
            part /= 2;
        }
        if before == (best.cpus.len(), best.ops()) || runs.get() >= RUNS {
            return best;
        }
    }
}

/// The CPUs and operations of a drawn plan that are kept: `2:1,4+0:3` means operations 1 and 4 of CPU 2, and 3 of CPU
/// 0.
pub fn kept(plan: &Plan) -> String {
    let cpu = |cpu: &crate::plan::Cpu| {
        let numbers: Vec<String> = cpu.ops.iter().map(|(number, _)| number.to_string()).collect();
        format!("{}:{}", cpu.number, numbers.join(","))
    };
    plan.cpus.iter().map(cpu).collect::<Vec<_>>().join("+")
}

/// Reduces the plan to what [`kept`] lists.
pub fn keep(plan: &Plan, kept: &str) -> Result<Plan, String> {
    let mut smaller = Plan { cpus: Vec::new(), ..plan.clone() };
    for part in kept.split('+') {
        let (cpu, ops) = part.split_once(':').ok_or(format!("--only {part}: CPU:OP,OP"))?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("--only {text}: a number"));
        let cpu = number(cpu)?;
        let found = plan.cpus.iter().find(|drawn| drawn.number == cpu);
        let mut found = found.ok_or(format!("--only {cpu}: there is no such CPU"))?.clone();
        let ops = ops.split(',').filter(|op| !op.is_empty()).map(number).collect::<Result<Vec<_>, _>>()?;
        found.ops.retain(|(number, _)| ops.contains(number));
        smaller.cpus.push(found);
    }
    Ok(smaller)
}

/// Number of vCPUs, threads and operations.
pub fn size(plan: &Plan) -> String {
    let vcpus = plan.cpus.iter().filter(|cpu| matches!(cpu.role, Role::Vcpu(_))).count();
    format!("{vcpus} vCPUs, {} threads, {} operations", plan.cpus.len() - vcpus, plan.ops())
}
