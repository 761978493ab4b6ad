//! Coroutines, and the result of a run.

use crate::costs::Costs;
use crate::cpu::{Machine, Paused};
use crate::prices::Ps;
use crate::schedule::Ended;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::collections::BTreeMap;
use std::panic::resume_unwind;

/// Bytes of stack per CPU. Pages that are not used are not allocated.
const STACK: usize = 512 << 10;
/// Maximum number of lines in a report.
const HOTTEST: usize = 16;

/// The work of one CPU.
pub struct Job<'j> {
    /// Kind of work: "vCPU", "ager".
    pub name: &'static str,
    /// The vCPU whose kicks this CPU takes.
    pub vcpu: Option<u32>,
    /// On threads: the CPU to pin the thread to, if it is not the one of the job's place. Simulated CPUs are alike.
    pub cpu: Option<usize>,
    /// The work.
    pub work: Box<dyn FnOnce() + Send + 'j>,
}

impl core::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("vcpu", &self.vcpu).finish_non_exhaustive()
    }
}

impl<'j> Job<'j> {
    /// A job that takes no kicks.
    pub fn new(name: &'static str, work: impl FnOnce() + Send + 'j) -> Self {
        Self { name, vcpu: None, cpu: None, work: Box::new(work) }
    }

    /// The job of vCPU number `vcpu`.
    pub fn vcpu(vcpu: u32, work: impl FnOnce() + Send + 'j) -> Self {
        Self { vcpu: Some(vcpu), ..Self::new("vCPU", work) }
    }
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulatedRun {
    /// Nanoseconds until the last job with the first job's name ended.
    pub wall_ns: u64,
    /// In the order of the jobs.
    pub jobs: Vec<JobStats>,
    /// The lines with the longest waits, longest first.
    pub lines: Vec<LineStats>,
    /// Kicks sent.
    pub kicks: u64,
    /// Shared operations.
    pub events: u64,
}

/// The figures of one CPU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct JobStats {
    /// See [`Job::name`].
    pub name: &'static str,
    /// Nanoseconds until the job ended.
    pub ns: u64,
    /// Of these, nanoseconds of waiting for locks and for lines in transfer to other CPUs.
    pub waiting_ns: u64,
    /// Of these, nanoseconds asleep.
    pub asleep_ns: u64,
    /// Cache lines transferred to this CPU.
    pub transfers: u64,
}

/// The cache lines that one place of the program used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineStats {
    /// The source file, from its `src/` on.
    pub file: String,
    /// The line of that file.
    pub line: u32,
    /// Number of cache lines.
    pub lines: u64,
    /// Number of transfers.
    pub transfers: u64,
    /// Nanoseconds that CPUs waited for other transfers of these lines.
    pub waited_ns: u64,
}

pub(crate) type Running = Coroutine<(), Paused, (), DefaultStack>;

/// Runs each job on its own CPU. All jobs begin together; the function returns when all have ended. CPUs are
/// numbered, and sockets filled, in the order of the jobs.
///
/// # Panics
/// When a job panics, and when all CPUs that have not ended wait for one another.
pub fn run(costs: &Costs, jobs: Vec<Job<'_>>) -> SimulatedRun {
    let names: Vec<&'static str> = jobs.iter().map(|job| job.name).collect();
    let machine = &Machine::new(costs, jobs.iter().map(|job| job.vcpu));
    let mut coroutines: Vec<Option<Running>> =
        jobs.into_iter().map(|job| Some(begin(machine, job))).collect();
    let mut ended: Vec<Ps> = vec![0; names.len()];
    let all = drive(machine, &mut coroutines, |cpu, clock| ended[cpu] = clock);
    assert!(all == Ended::All, "every CPU waits for another");
    stats_of(machine, &names, &ended)
}

/// Lets the coroutines run until all have ended or no coroutine can continue. Reports the end time of each.
pub(crate) fn drive(
    machine: &Machine,
    coroutines: &mut [Option<Running>],
    mut ended: impl FnMut(usize, Ps),
) -> Ended {
    machine.let_run(|| {
        let mut paused = None;
        for _ in 0..coroutines.len() {
            loop {
                let Some(cpu) = machine.next(paused) else { return Ended::Stuck };
                let coroutine = &mut coroutines[cpu as usize];
                let running = coroutine.as_mut().expect("a thread that has ended is in no queue");
                match running.resume(()) {
                    CoroutineResult::Yield(_) if machine.stopped.get() => return Ended::Stopped,
                    CoroutineResult::Yield(why) => paused = Some(why),
                    CoroutineResult::Return(()) => {
                        (paused, *coroutine) = (None, None);
                        ended(cpu as usize, machine.clock());
                        break;
                    }
                }
            }
        }
        Ended::All
    })
}

/// The panic payload where the system has no address space for the stack of a simulated CPU.
#[derive(Debug)]
pub struct NoStack(pub std::io::Error);

pub(crate) fn begin<'j>(machine: &'j Machine, job: Job<'j>) -> Running {
    let work: Box<dyn FnOnce() + Send + 'j> = job.work;
    // SAFETY: the coroutine ends or is dropped inside `run`, which borrows the work and the machine until then.
    let (machine, work) = unsafe {
        (
            core::mem::transmute::<&'j Machine, &'static Machine>(machine),
            core::mem::transmute::<Box<dyn FnOnce() + Send + 'j>, Box<dyn FnOnce() + Send + 'static>>(work),
        )
    };
    // `resume_unwind` prints no message, so the caller can print its own.
    let stack = DefaultStack::new(STACK).unwrap_or_else(|error| resume_unwind(Box::new(NoStack(error))));
    Coroutine::with_stack(stack, move |yielder, ()| {
        machine.begin(yielder);
        work();
    })
}

fn stats_of(machine: &Machine, names: &[&'static str], ended: &[Ps]) -> SimulatedRun {
    let ns = |time: Ps| time / 1000;
    let jobs = names.iter().zip(ended).zip(&machine.cpus).map(|((&name, &ended), cpu)| JobStats {
        name,
        ns: ns(ended),
        waiting_ns: ns(cpu.waiting.get()),
        asleep_ns: ns(cpu.asleep.get()),
        transfers: cpu.transfers.get(),
    });
    let jobs: Vec<JobStats> = jobs.collect();
    let first = jobs.first().map_or("", |job| job.name);
    SimulatedRun {
        wall_ns: jobs.iter().filter(|job| job.name == first).map(|job| job.ns).max().unwrap_or(0),
        lines: lines(machine),
        kicks: machine.kicks.get(),
        events: machine.events.get(),
        jobs,
    }
}

/// The contended lines, by place in the program.
fn lines(machine: &Machine) -> Vec<LineStats> {
    let lines = machine.lines.borrow();
    let mut places = BTreeMap::<(&str, u32), (u64, u64, Ps)>::new();
    for fought in lines.fought() {
        let place = places.entry((fought.site.file(), fought.site.line())).or_default();
        *place = (place.0 + 1, place.1 + fought.transfers, place.2 + fought.waited);
    }
    let stats = places.into_iter().map(|((file, line), (lines, transfers, waited))| LineStats {
        file: file.rsplit_once("src/").map_or(file, |(_, file)| file).to_owned(),
        line,
        lines,
        transfers,
        waited_ns: waited / 1000,
    });
    let mut stats: Vec<LineStats> = stats.collect();
    stats.sort_by_key(|line| core::cmp::Reverse((line.waited_ns, line.transfers)));
    stats.truncate(HOTTEST);
    stats
}
