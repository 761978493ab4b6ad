//! A failing plan, with as few CPUs and operations as it takes to fail in the same way.
//!
//! Greedy: whole CPUs first, then halves of programs, quarters, single operations, over and over until nothing more can go.
//! Without an operation everything after it happens at other moments, so each smaller plan is tried under a few schedules.

use crate::plan::{Plan, Role};
use crate::world::{Outcome, run};
use slat::seeded::Bug;

/// Schedules tried for each smaller plan.
const TURNS: u64 = 12;
/// Runs that shrinking may take.
const RUNS: u64 = 6000;

struct Shrinker {
    bug: Option<Bug>,
    what: &'static str,
    runs: u64,
}

/// The smallest plan that was found to fail in the same way as `plan`, which failed as `what` says.
pub fn shrink(plan: &Plan, bug: Option<Bug>, what: &'static str) -> Plan {
    let mut shrinker = Shrinker { bug, what, runs: 0 };
    let mut best = plan.clone();
    loop {
        let before = (best.cpus.len(), best.ops());
        for cpu in (0..best.cpus.len()).rev() {
            let mut smaller = best.clone();
            smaller.cpus.remove(cpu);
            shrinker.keep(&mut best, &smaller);
        }
        let mut part = best.cpus.iter().map(|cpu| cpu.ops.len()).max().unwrap_or(0);
        while part > 0 {
            for cpu in 0..best.cpus.len() {
                let mut end = best.cpus[cpu].ops.len();
                while end > 0 {
                    let mut smaller = best.clone();
                    smaller.cpus[cpu].ops.drain(end.saturating_sub(part)..end);
                    shrinker.keep(&mut best, &smaller);
                    end = end.saturating_sub(part).min(best.cpus[cpu].ops.len());
                }
            }
            part /= 2;
        }
        if before == (best.cpus.len(), best.ops()) || shrinker.runs >= RUNS {
            return best;
        }
    }
}

impl Shrinker {
    /// The smaller plan is the best one now if it fails in the same way, under any of a few schedules.
    fn keep(&mut self, best: &mut Plan, smaller: &Plan) {
        // A VM without a vCPU may still be wrong; one without any CPU is not.
        if smaller.cpus.is_empty() {
            return;
        }
        for turn in std::iter::once(best.turn).chain(0..TURNS) {
            if self.runs >= RUNS {
                return;
            }
            self.runs += 1;
            let candidate = Plan { turn, ..smaller.clone() };
            let Outcome { wrong, .. } = run(&candidate, self.bug, false);
            if wrong.is_some_and(|wrong| wrong.what == self.what) {
                *best = candidate;
                return;
            }
        }
    }
}

/// Which CPUs and operations of a drawn plan are kept: `2:1,4+0:3` are operations 1 and 4 of CPU 2, and 3 of CPU 0.
pub fn kept(plan: &Plan) -> String {
    let cpu = |cpu: &crate::plan::Cpu| {
        let numbers: Vec<String> = cpu.ops.iter().map(|(number, _)| number.to_string()).collect();
        format!("{}:{}", cpu.number, numbers.join(","))
    };
    plan.cpus.iter().map(cpu).collect::<Vec<_>>().join("+")
}

/// The plan with only what [`kept`] says.
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

/// How many vCPUs and threads it has, and operations.
pub fn size(plan: &Plan) -> String {
    let vcpus = plan.cpus.iter().filter(|cpu| matches!(cpu.role, Role::Vcpu(_))).count();
    format!("{vcpus} vCPUs, {} threads, {} operations", plan.cpus.len() - vcpus, plan.ops())
}
