//! vCPUs have their memory mapped before their guest runs, 2 MiB a request: as KVM's `pre_fault_memory_test`.
//!
//! Each vCPU's thread asks for its part of the memory, one request after the other. The host finds and zeroes each page, and
//! the engine maps it. No guest runs, so nothing is left or entered: what remains of a fault is the host's work and the engine's.

use crate::scenarios::prelude::*;
use core::sync::atomic::AtomicU64;

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
fn run_once(setting: &Setting<'_>) -> Result<Point, String> {
    let parts = Parts::new(setting, setting.pages_per_vcpu());
    let pages = parts.all().len();
    let host = SimHost::new(pages, &setting.work);
    let vm = &with_one_slot(builder(host, setting, setting.column.lock), pages)?;
    // Not the world's: what a check counts takes no time.
    let mapped = &AtomicU64::new(0);
    let job = |(number, part): (u32, Span<Gfn>)| {
        Job::vcpu(number, move || {
            let mut idle = Idle::take().expect("each CPU has one vCPU");
            let mut vcpu = vm.vcpu(VcpuId(number)).expect("each vCPU has one CPU");
            for first in (part.start.0..part.end.0).step_by(Level::M2.pages() as usize) {
                let request = Span::sized(Gfn(first), Level::M2.pages().min(part.end.0 - first));
                // A failure is not counted, and so found by the checks.
                mapped.fetch_add(vcpu.prefault(&mut idle, request, Prefault::OLD).unwrap_or(0), Relaxed);
            }
        })
    };
    let stats = run(setting.costs, (0..).zip(parts.each()).map(job).collect());
    let all = parts.pages * u64::from(setting.vcpus);
    let figures = vec![
        Figure::new("ns per page", stats.wall_ns as f64 / parts.pages as f64, "ns"),
        Figure::new("time", stats.wall_ns as f64 / 1e6, "ms"),
    ];
    Ok(Point {
        operations: all,
        checks: vec![
            Check::all("every page was mapped by its request", mapped.load(Relaxed), all),
            Check::all("every page is mapped to its frame", right(vm, parts.each())?, all),
        ],
        ..Point::of(setting, figures, stats)
    })
}
