//! A zap beside timed threads, and the checks that must hold after it.

use crate::parts::concurrent_latency::{PhaseLatencies, TimedAction, beside};
use crate::parts::touch_pages::Touching;
use crate::scenarios::prelude::*;

/// Pages that are zapped: 256 MiB.
pub const RANGE: u64 = 1 << 16;
/// The range that is zapped before that, in another VM.
pub const REHEARSED: Span<Gfn> = Span { start: Gfn(0), end: Gfn(4 * Level::M2.pages()) };
/// Pages that a vCPU has to fault in.
pub const PART: u64 = 4096;
/// Nanoseconds before the zap, in which faults meet only each other.
pub const BEFORE_NS: u64 = 1_000_000;
/// All that four levels of tables map.
pub const ALL: Span<Gfn> = Span { start: Gfn(0), end: Gfn(1 << 36) };

/// Each leaf by itself, under the mutex.
pub const LEAF_BY_LEAF_EXCLUSIVE: Column = Column::locked("leaf by leaf, exclusive", MmuLock::Exclusive);
/// Each leaf by itself.
pub const LEAF_BY_LEAF: Column = Column::lockless("leaf by leaf");
/// A new root for the VM.
pub const NEW_ROOT: Column = Column::lockless("new root");
/// Whole tables, by one entry each.
pub const UNHOOK: Column = Column::lockless("unhook");

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let parts = Parts::new(setting, PART);
    let range = Span::sized(parts.all().end, if setting.quick { RANGE / 4 } else { RANGE });
    let vm_of = |Span::<Gfn> { end, .. }| sim_vm(SimHost::new(end.0, &setting.work), setting, end.0);
    let (vm, rehearsed) = (vm_of(range)?, vm_of(REHEARSED)?);
    let mut filled = Ok(());
    let fills = || filled = fill(&vm, range).and_then(|()| fill(&rehearsed, REHEARSED));
    // On the CPU that zaps.
    let cpu = Some(setting.vcpus as usize);
    run(setting.costs, vec![Job { cpu, ..Job::new("fill", fills) }]);
    filled?;
    let guests = parts.guests(&vm, &setting.work)?.into_iter();
    let mut guests: Vec<_> =
        guests.zip(parts.each()).map(|(guest, part)| Touching::new(guest, part)).collect();
    let fixture = Fixture {
        vm: &vm,
        frame: |gfn| first_page(gfn).pfn,
        range,
        mapped: range.len(),
        others: guests.len() as u64,
    };
    let way = match setting.column {
        NEW_ROOT => Way::All,
        UNHOOK => Way::Unhook,
        _ => Way::LeafByLeaf,
    };
    let mut warm = Ok(());
    let before = || {
        compute(BEFORE_NS);
        warm = warm_up(way, &rehearsed, (&vm, range));
    };
    let ZapRun { times, seen, flushes, stats, tally, .. } =
        ZapRun::run(&fixture, way, setting.costs, &mut guests, before, |_| 0)?;
    warm?;
    let mut checks: Vec<_> = tally.iter().map(Check::from).collect();
    checks.push(Check::all("every fault of the others mapped a page", seen.good[0], seen.good[1]));
    let ns = |name, value| Figure { name, value, unit: "ns" };
    let figures = vec![
        Figure::new("zap", times.total_ns as f64 / 1e3, "us"),
        ns("fault beside it", seen.beside.mean_ns()),
        ns("longest fault beside it", seen.beside.longest_ns as f64),
        ns("fault before it", seen.before.mean_ns()),
    ];
    Ok(Point { operations: seen.good[1], flushes, checks, ..Point::of(setting, figures, stats) })
}

/// Maps every page of `range`, at no cost.
pub fn fill(vm: &SimVm, range: Span<Gfn>) -> Result<()> {
    let (mut idle, vcpu) = (idle()?, vm.vcpu(VcpuId(0)));
    let mut vcpu = vcpu.ok_or("vCPU 0 is in use")?;
    for gfn in gfns(range) {
        vm.host().set(hva_of(gfn), Some(first_page(gfn)));
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        let _ = vcpu.fault(&mut idle, fault).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Has the code of a zap and every table of the range in this CPU's caches. A line that is not there costs a real CPU much, and a simulated
/// one nothing: a first zap of 64 MiB takes up to twice as long as a second one.
pub fn warm_up(way: Way, rehearsed: &SimVm, (vm, range): (&SimVm, Span<Gfn>)) -> Result<()> {
    let mut idle = idle()?;
    way.zap(rehearsed, REHEARSED, &mut idle)?;
    vm.memory().lockless(&mut idle).for_each(range, |_| ());
    Ok(())
}

/// How a range is zapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each leaf by itself; tables stay.
    LeafByLeaf,
    /// Whole tables, by one entry each.
    Unhook,
    /// A new root for the VM: everything else goes too.
    All,
}

/// How long a zap took, all accounting included, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// All of it.
    pub total_ns: u64,
    /// Its parts, where they can be told apart from outside: until no walk finds the range; until no TLB holds it; until
    /// every table page has come back and every leaf is booked.
    pub parts_ns: Option<[u64; 3]>,
}

impl Way {
    /// Zaps `range`.
    pub fn zap<F: Format, H: Host>(self, vm: &Vm<F, H>, range: Span<Gfn>, idle: &mut Idle) -> Result<Times> {
        let start = now();
        let why = match self {
            Self::LeafByLeaf => Reason::Clear,
            Self::Unhook => Reason::Unmap,
            Self::All => {
                vm.zap_all(idle).map_err(|error| error.to_string())?;
                return Ok(Times { total_ns: now() - start, parts_ns: None });
            }
        };
        let change = vm.invalidate(hvas_of(range), why);
        let debt = change.apply(idle);
        let walked = now();
        drop(debt.settle());
        let flushed = now();
        vm.collect(idle);
        let collected = now();
        let parts = [walked - start, flushed - walked, collected - flushed];
        Ok(Times { total_ns: collected - start, parts_ns: Some(parts) })
    }
}

/// The zapped range, and the memory beside it.
pub struct Fixture<'g, F: Format, H: Host> {
    /// The VM.
    pub vm: &'g Vm<F, H>,
    /// The host's frame behind each of the VM's.
    pub frame: fn(Gfn) -> Pfn,
    /// The zapped range.
    pub range: Span<Gfn>,
    /// Pages that are mapped in it.
    pub mapped: u64,
    /// Pages that are mapped beside it.
    pub others: u64,
}

/// A zap beside timed threads.
pub struct ZapRun {
    /// Of the zap.
    pub times: Times,
    /// The latencies that timed threads saw.
    pub seen: PhaseLatencies,
    /// Shootdowns.
    pub flushes: u64,
    /// Table pages that came back.
    pub freed: u64,
    stats: RunStats,
    /// The conditions under which it counts.
    pub tally: Vec<Tally>,
}

impl ZapRun {
    /// `timed` threads begin while `before` lasts, and go on after the zap for as long as `control_ns` says.
    pub fn run<F: Format, H: Host>(
        fixture: &Fixture<'_, F, H>,
        way: Way,
        costs: &Costs,
        timed: &mut [impl TimedAction],
        before: impl FnOnce() + Send,
        control_ns: impl FnOnce(&Times) -> u64 + Send,
    ) -> Result<Self> {
        let vm = fixture.vm;
        let filled = vm.stats();
        let zap = || way.zap(vm, fixture.range, &mut Idle::take().expect("a CPU of its own"));
        let (times, seen, stats) = beside(costs, timed, before, zap, control_ns)?;
        let after = vm.stats();
        let made = if timed.iter().any(|busy| busy.vcpu().is_some()) { seen.good[0] } else { 0 };
        let mut tally =
            vec![("the range was mapped before", [filled.leaves[0] - fixture.others, fixture.mapped])];
        tally.extend(fixture.tally(way, made)?);
        Ok(Self {
            times,
            seen,
            flushes: after.flushes.paid - filled.flushes.paid,
            freed: filled.table_bytes.saturating_sub(after.table_bytes) / PAGE_SIZE,
            stats,
            tally,
        })
    }
}

impl<F: Format, H: Host> Fixture<'_, F, H> {
    /// The conditions after a zap, where vCPUs faulted in so many pages.
    fn tally(&self, way: Way, made: u64) -> Result<Vec<Tally>> {
        let (mut left, mut right, mut all) = (0, 0, 0);
        self.vm.memory().lockless(&mut idle()?).for_each(ALL, |mapping| {
            let gfn = mapping.gfns.start;
            all += 1;
            if self.range.contains(gfn) {
                left += 1;
            } else {
                right += u64::from(mapping.leaf.pfn == (self.frame)(gfn));
            }
        });
        let booked = self.vm.stats().leaves == [all, 0, 0];
        let mut tally = vec![
            ("nothing of it is mapped after", [self.mapped - left, self.mapped]),
            ("the books say what the tables hold", [u64::from(booked), 1]),
        ];
        if way != Way::All {
            tally.push(("no page beside it was lost", [right, self.others + made]));
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_control_a_zap_of_too_little_and_one_of_too_much_are_found() {
        let setting = &setting(LEAF_BY_LEAF);
        let parts = Parts::new(setting, 8);
        let range = Span::sized(parts.all().end, 8);
        let host = SimHost::new(range.end.0, &setting.work);
        let vm = &sim_vm(host, setting, range.end.0).unwrap();
        fill(vm, range).unwrap();
        drop(parts.guests(vm, &setting.work).unwrap());
        let frame = |gfn| first_page(gfn).pfn;
        let fixture = Fixture { vm, frame, range, mapped: 8, others: 2 };
        let failed = || {
            let tally = fixture.tally(Way::LeafByLeaf, 0).unwrap();
            let checks = tally.iter().map(Check::from).filter(|check| !check.ok);
            checks.map(|check| format!("{}: {}", check.name, check.detail)).collect::<Vec<_>>()
        };
        let zap = |range| Way::LeafByLeaf.zap(vm, range, &mut idle().unwrap()).unwrap();
        zap(Span::sized(range.start, 3));
        assert_eq!(failed(), ["nothing of it is mapped after: 3 of 8"]);
        let last = parts.each().last().unwrap().start;
        zap(Span::new(Gfn(last.0 - 1), range.end));
        assert_eq!(failed(), ["no page beside it was lost: 1 of 2"]);
    }
}
