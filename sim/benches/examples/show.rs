use slat_sim::benches::{by_name, Setting, Work};
use slat_sim::world::Costs;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let bench = by_name(&args[1]).unwrap();
    let quick = args.get(3).is_some_and(|a| a == "quick");
    let lines = args.get(4).is_some();
    for v in args[2].split(',') {
        for &policy in bench.policies() {
            let began = std::time::Instant::now();
            let s = Setting { costs: &Costs::SERVER, vcpus: v.parse().unwrap(), policy, quick, seed: 1, work: Work::default() };
            let p = bench.run(&s).unwrap();
            let host = began.elapsed();
            print!("{v:>4} {:22} ", policy.name());
            for f in &p.figures { print!("{}={:.1}  ", f.name, f.value); }
            println!("| ops {} wait {:.3} flushes {} kicks {} events {} wall {:.2} ms, host {:.2} s ({:.0} ns/event)", p.operations, p.waiting, p.flushes, p.kicks, p.told.events, p.told.wall_ns as f64/1e6, host.as_secs_f64(), host.as_nanos() as f64/p.told.events.max(1) as f64);
            for c in p.checks { if !c.ok { println!("   FALSE {}: {}", c.name, c.detail); } }
            if lines { for l in p.told.lines.iter().take(5) { println!("      {l:?}"); } }
        }
    }
}
