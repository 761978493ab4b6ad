//! vCPUs have their memory mapped before their guest runs, 2 MiB a request: as KVM's `pre_fault_memory_test`.
//!
//! Each vCPU's thread asks for its part of the memory, one request after the other. The host finds and zeroes each page, and
//! the engine maps it. No guest runs, so nothing is left or entered: what remains of a fault is the host's work and the engine's.

use crate::scenarios::prelude::*;

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "pre-fault",
    asks: "Many vCPUs have their memory mapped before their guest runs, with each MMU lock (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated {
        unused: &[NO_AGER, (&["guest_ns", "exit_ns", "host_first"], "runs no guest")],
        ..Simulated::of(run_once, MMU_LOCKS)
    },
    #[cfg(not(virtual_time))]
    measured: Measured {
        takes: ["2 s", "60 MiB"],
        ci: &["-v 1,2"],
        quick: &["--runs 3"],
        full: &[""],
        ..Measured::of::<ColumnFlags>()
    },
};

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let parts = Parts::new(setting, setting.pages_per_vcpu());
    let pages = parts.all().len();
    let host = SimHost::new(pages, &setting.work);
    let vm = &sim_vm(host, setting, pages)?;
    let work = |idle: &mut Idle, number, part: Span<Gfn>| {
        let mut vcpu = vcpu(vm, number)?;
        let firsts = (part.start.0..part.end.0).step_by(Level::M2.pages() as usize);
        let requests = firsts.map(|first| Span::sized(Gfn(first), Level::M2.pages().min(part.end.0 - first)));
        // A failure is not counted, and so found by the checks.
        Ok::<u64, String>(requests.map(|span| vcpu.prefault(idle, span, Prefault::OLD).unwrap_or(0)).sum())
    };
    let (stats, mapped) = each_vcpu(setting.costs, parts.each(), work, None)?;
    let all = parts.pages * u64::from(setting.vcpus);
    let figures = vec![
        Figure::new("ns per page", stats.wall_ns as f64 / parts.pages as f64, "ns"),
        Figure::new("time", stats.wall_ns as f64 / 1e6, "ms"),
    ];
    Ok(Point {
        operations: all,
        checks: vec![
            Check::all("every page was mapped by its request", mapped.iter().sum(), all),
            Check::all("every page is mapped to its frame", right(vm, parts.each())?, all),
        ],
        ..Point::of(setting, figures, stats)
    })
}
