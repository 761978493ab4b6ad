//! One run: VMs on slat-mm use their memory while KSM merges it.
//!
//! ```text
//! one arena, one KSM          a frame may be shared by any number of entries, as the test sets it
//! ├── address space, VM 0     vCPUs, each with a guest; the first one's writes
//! ├── address space, VM 1
//! └── …
//! scanner         │ scan until all is merged │                                  scan until all is merged again │
//! guests     fill │ read all over it, then all pages once │ write some of it again, and read, then all pages once │ next stage
//! ```
//! Every page is merged once in a stage, and once more where a guest has written it again. So the number of merges does not depend on
//! which thread is faster. Where there are fewer CPUs than vCPUs, one job runs several vCPUs, one after another: a flush does not
//! wait for a vCPU that is not in the guest. When the scanner is done guests read all pages once more: a guest that
//! lost a translation notices it.

use super::notified_vm::{COUNTED, Counted, NotifiedVm, as_scanner};
use super::reading_guest::{Memory, PAGE, ReadingGuest, Stage, WRITTEN_AGAIN, counts};
use crate::parts::guest_program::Cpu;
use crate::scenarios::prelude::*;
use core::sync::atomic::AtomicUsize;
use slat_mm::{Advice, ArenaBuilder, Ksm};

/// Accesses to a page in a row: a guest computes for as long before it uses the next page.
const ACCESSES: u64 = 32;
/// Pages that a guest uses before it leaves.
const SLICE: u64 = 64;
/// Of so many acts of a guest that reads and writes, one is a store.
const ACTS_PER_WRITE: u64 = 17;
/// A guest that rests runs this part of the time.
const RUNS: u64 = 5;
/// Passes in which KSM merges all that can be merged, beside guests that write nothing.
const PASSES: u64 = 100;
/// Nanoseconds after which neither the scanner nor guests wait for the other any more, which has failed.
const LIMIT_NS: u64 = 100_000_000_000;

/// An entrant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    /// VMs heed the reasons of notifications. Else each is one to unmap.
    pub heeds: bool,
    /// Pages that KSM merges together, at most.
    pub together: u32,
    /// The host backs guests with pages of 2 MiB, out of which KSM merges small pages.
    pub huge: bool,
    /// vCPUs are out of the guest four fifths of the time.
    pub rests: bool,
}

/// The plan of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'p> {
    /// The world, and how long guests and exits take. Its vCPUs are those of each VM.
    pub setting: &'p Setting<'p>,
    /// The memory of all VMs.
    pub memory: Memory,
    /// The content that guests fill it with.
    pub stages: &'p [Stage],
    /// CPUs for guests, at most.
    pub cpus: u32,
    /// An entrant.
    pub entrant: Entrant,
}

/// The result of one run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Of all VMs, after the first filling.
    pub counts: [u64; COUNTED],
    /// Shootdowns.
    pub flushes: u64,
    /// Nanoseconds of all scanning.
    pub scan_ns: u64,
    /// Pages that were merged.
    pub merges: u64,
    /// Shares that guests broke.
    pub breaks: u64,
    /// Nanoseconds in which vCPUs neither computed nor rested while the scanner ran.
    pub lost_ns: u64,
    /// The pages that guests used.
    pub seen: Seen,
    /// The last stage beside the scanner.
    pub stats: RunStats,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

impl Sample {
    /// How much was counted.
    pub fn of(&self, what: Counted) -> u64 {
        self.counts[what as usize]
    }

    /// Nanoseconds of all faults, less the host's own change where they break a share.
    pub fn fault_ns(&self) -> u64 {
        self.of(Counted::FaultNs).saturating_sub(self.of(Counted::HostInFaultsNs))
    }
}

/// Frames for this memory, its copies before their shares are pruned, tables, and what so many threads keep at hand.
pub fn arena(memory: Memory, threads: u32) -> ArenaBuilder {
    let pages = 2 * u64::from(memory.vms) * memory.pages * PAGE_SIZE;
    Arena::builder().limit(pages + (u64::from(memory.vms) << 22) + (u64::from(threads) << 20) + (16 << 20))
}

/// Address spaces under one KSM, and their VMs.
pub struct MergeRun<'p> {
    plan: Plan<'p>,
    arena: Arc<Arena>,
    ksm: Arc<Ksm>,
    vms: Vec<(Arc<AddressSpace>, Arc<NotifiedVm>)>,
    /// Jobs whose guests have yet to write.
    owing: AtomicUsize,
    /// The scanner has merged all, what they have written included.
    over: AtomicBool,
}

/// A vCPU and its guest. On lines of its own.
#[repr(align(128))]
struct Runner<'r> {
    cpu: Cpu<'r, HostView>,
    guest: ReadingGuest<'r>,
    /// Its guest writes.
    first: bool,
    lost_ns: u64,
}

impl<'p> MergeRun<'p> {
    /// A machine as planned, on this arena. Sabotaged, its flushes are left out.
    pub fn new(plan: Plan<'p>, arena: &Arc<Arena>, sabotaged: bool) -> Result<Self> {
        let ksm = Ksm::builder(arena).max_page_sharing(1 << 24).merge_together(plan.entrant.together);
        let ksm = ksm.build().map_err(|error| error.to_string())?;
        let made = (0..plan.memory.vms).map(|number| vm(plan, number, arena, &ksm, sabotaged));
        let vms = made.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let (owing, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { plan, arena: arena.clone(), ksm, vms, owing, over })
    }

    /// Runs it.
    pub fn run(&self) -> Result<Sample> {
        let mut cpus = self.runners()?;
        let flushes = || self.vms.iter().map(|(_, vm)| vm.vm.stats().flushes.paid).sum::<u64>();
        let (before, mut sample) = (flushes(), Sample::default());
        let Memory { pages, mergeable, .. } = self.plan.memory;
        for &stage in self.plan.stages {
            give(&mut cpus, stage, (pages, 1, 1));
            self.run_beside(&mut cpus, None, |idle, runners| fill(idle, runners, pages))?;
            for to_write in [0, mergeable] {
                give(&mut cpus, stage, (to_write, WRITTEN_AGAIN, ACTS_PER_WRITE));
                self.owing.store(cpus.len(), Relaxed);
                self.over.store(false, Relaxed);
                let scanner = Job::new("scanner", || sample.scan_ns += as_scanner(|| self.scan(stage)));
                let stats =
                    self.run_beside(&mut cpus, Some(scanner), |idle, runners| self.read(idle, runners))?;
                let kicks = sample.stats.kicks + stats.kicks;
                sample.stats = RunStats { kicks, ..if to_write == 0 { stats } else { sample.stats } };
            }
            sample.tally.extend(self.count(stage)?);
        }
        sample.flushes = flushes() - before;
        sample.merges = self.ksm.stats().merges;
        for (space, vm) in &self.vms {
            sample.breaks += space.stats().cow_breaks;
            sample.counts.iter_mut().zip(vm.take_counts()).for_each(|(sum, count)| *sum += count);
        }
        for Runner { cpu, lost_ns, .. } in cpus.iter().flatten() {
            sample.seen = sample.seen.and(&cpu.seen);
            sample.lost_ns += lost_ns;
        }
        let Seen { uses, stale, foreign, .. } = sample.seen;
        sample.tally.push(("guests read what they wrote", [uses - stale - foreign, uses]));
        Ok(sample)
    }

    /// The vCPUs of each CPU. Their guests have filled their memory, and have used each page: TLBs are warm.
    fn runners(&self) -> Result<Vec<Vec<Runner<'_>>>> {
        let Plan { setting, memory, .. } = self.plan;
        let all = self.vms.len() as u32 * setting.vcpus;
        let mut cpus: Vec<Vec<Runner<'_>>> = (0..self.plan.cpus.min(all)).map(|_| Vec::new()).collect();
        for number in 0..all {
            let (of, nth) = (number / setting.vcpus, number % setting.vcpus);
            let vm = &*self.vms[of as usize].1;
            let guest = ReadingGuest {
                vm: (vm, of),
                arena: &self.arena,
                memory,
                stage: Stage(0),
                way: PageOrder::new(setting, number, memory.pages),
                left: 0,
                writes: ((0..0).step_by(1), 1),
                stores: false,
            };
            let (cpu, at) = (Cpu::new(vcpu(&vm.vm, nth)?, Tlb::new()), number as usize % cpus.len());
            cpus[at].push(Runner { cpu, guest, first: nth == 0, lost_ns: 0 });
        }
        give(&mut cpus, Stage(0), (memory.pages, 1, 1));
        let mut idle = idle()?;
        for runners in &mut cpus {
            fill(&mut idle, runners, memory.pages)?;
        }
        for runner in cpus.iter_mut().flatten() {
            runner.read(&mut idle, memory.pages)?;
            (runner.cpu.seen, runner.lost_ns) = (Seen::default(), 0);
            runner.cpu.compute_ns = ACCESSES * setting.work.guest_ns;
            runner.cpu.exit_ns = setting.work.exit_ns;
        }
        for (_, vm) in &self.vms {
            vm.take_counts();
        }
        Ok(cpus)
    }

    /// A job for each CPU, which does `work` with its vCPUs, and another one.
    fn run_beside<'r>(
        &self,
        cpus: &mut [Vec<Runner<'r>>],
        scanner: Option<Job<'_>>,
        work: impl Fn(&mut Idle, &mut [Runner<'r>]) -> Result<()> + Copy + Send,
    ) -> Result<RunStats> {
        let work = move |idle: &mut Idle, _, runners: &mut Vec<Runner<'r>>| work(idle, runners);
        each_vcpu(self.plan.setting.costs, cpus, work, scanner).map(|(stats, _)| stats)
    }

    /// Guests read, and write what they have to, until the scanner is done; then they read each page once.
    fn read(&self, idle: &mut Idle, runners: &mut [Runner<'_>]) -> Result<()> {
        let rests = self.plan.entrant.rests;
        // Where a page takes long, one is enough.
        let slice = if rests && self.plan.setting.work.guest_ns > 0 { 1 } else { SLICE };
        let mut owes = true;
        while !self.over.load(Acquire) && now() < LIMIT_NS {
            for runner in &mut *runners {
                let began = now();
                runner.read(idle, slice)?;
                if rests {
                    rest((RUNS - 1) * (now() - began));
                }
            }
            if owes && runners.iter().all(|runner| runner.guest.writes.0.size_hint().0 == 0) {
                owes = false;
                // ORDER(again): Release: what was written comes before; pairs with the scanner's Acquire.
                self.owing.fetch_sub(1, Release);
            }
        }
        runners.iter_mut().try_for_each(|runner| runner.read(idle, self.plan.memory.pages))
    }

    /// Scans until the stage's counts are reached, and guests have written. Gives up where they are not, in time. How long it took.
    fn scan(&self, stage: Stage) -> u64 {
        let (mut idle, began, mut passes) = (Idle::take().expect("a CPU of its own"), now(), 0);
        while passes < PASSES && now() < LIMIT_NS {
            // ORDER(again): Acquire: what guests have written is counted after this; pairs with their Release.
            let written = self.owing.load(Acquire) == 0;
            self.ksm.scan(&mut idle, u64::MAX);
            if written && self.is_reached(stage) {
                break;
            }
            passes += u64::from(written);
        }
        let ns = now() - began;
        self.over.store(true, Release);
        ns
    }

    fn is_reached(&self, stage: Stage) -> bool {
        counts(self.ksm.stats()) == stage.expected(self.plan.memory)
    }

    /// The conditions at the end of a stage.
    fn count(&self, stage: Stage) -> Result<[Tally; 4]> {
        let (memory, mut idle) = (self.plan.memory, idle()?);
        let (mut right, mut mapped, mut found) = (0, 0, [0; PAGE]);
        for ((space, vm), number) in self.vms.iter().zip(0..) {
            for gfn in (0..memory.pages).map(Gfn) {
                let hva = BASE + gfn.gpa().0;
                let read = space.read(&mut idle, hva, &mut found);
                right += u64::from(read.is_ok() && found == stage.page(memory, number, gfn));
                let host = space.lookup(hva, Access::Read);
                let leaf = vm.vm.memory().translate(&mut idle, gfn).map(|found| found.leaf);
                mapped += u64::from(host.zip(leaf).is_some_and(|(host, leaf)| {
                    self.arena.is_merged(host.pfn)
                        && leaf.pfn == host.pfn
                        && !leaf.perms.allows(Access::Write)
                }));
            }
        }
        let [shared, sharing, unshared] = stage.expected(memory);
        let [all, apart] =
            [memory.pages, memory.pages - memory.mergeable].map(|one| u64::from(memory.vms) * one);
        let stats = self.arena.stats();
        Ok([
            ("stages whose counts are the test's in the end", [self.is_reached(stage).into(), 1]),
            ("pages that hold what they have to", [right, all]),
            ("frames that are used", [stats.in_use - stats.tables, shared + unshared + apart]),
            ("every page is merged in the end, and mapped so", [mapped, shared + sharing]),
        ])
    }
}

/// VM `number`, whose memory the KSM scans.
fn vm(
    plan: Plan<'_>,
    number: u32,
    arena: &Arc<Arena>,
    ksm: &Ksm,
    sabotaged: bool,
) -> Result<(Arc<AddressSpace>, Arc<NotifiedVm>), Box<dyn core::error::Error>> {
    let (Memory { pages, mergeable, .. }, vcpus) = (plan.memory, plan.setting.vcpus);
    let space = AddressSpace::builder(arena).thp(plan.entrant.huge).build()?;
    space.mmap(Place::Fixed(BASE), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous)?;
    space.madvise(&mut idle()?, Span::sized(BASE, mergeable * PAGE_SIZE), Advice::Mergeable)?;
    ksm.add(&space)?;
    // A job takes the kicks of its first vCPU: a simulated CPU has one.
    let host = HostView::new(&space).with_kick(move |vcpu| kick(number * vcpus + vcpu.0));
    let host = host.with_broadcast(move |_| sabotaged);
    let builder = Vm::builder(host).vcpus(vcpus).baseline(Baseline::NONE.contexts(plan.entrant.heeds));
    let vm = with_one_slot(builder, pages)?;
    let vm = Arc::new(NotifiedVm::new(vm, pages));
    space.register(&vm);
    Ok((space, vm))
}

/// The writes of the guests: of the stage's pages up to one of them, the first of so many, in one of so many acts. The first guest of
/// each VM does it.
fn give(cpus: &mut [Vec<Runner<'_>>], stage: Stage, (end, step, acts): (u64, u64, u64)) {
    for Runner { guest, first, .. } in cpus.iter_mut().flatten() {
        guest.stage = stage;
        guest.writes = ((0..if *first { end } else { 0 }).step_by(step as usize), acts);
    }
}

/// Guests write all of so many pages, which they have to.
fn fill(idle: &mut Idle, runners: &mut [Runner<'_>], pages: u64) -> Result<()> {
    runners.iter_mut().filter(|runner| runner.first).try_for_each(|Runner { cpu, guest, .. }| {
        guest.left = pages;
        cpu.run(idle, guest)
    })
}

impl Runner<'_> {
    /// Its guest does so many acts: it reads, and writes what it has to write.
    fn read(&mut self, idle: &mut Idle, acts: u64) -> Result<()> {
        let (began, uses) = (now(), self.cpu.seen.uses);
        self.guest.left = acts;
        self.cpu.run(idle, &mut self.guest)?;
        let computed = (self.cpu.seen.uses - uses) * self.cpu.compute_ns;
        self.lost_ns += (now() - began).saturating_sub(computed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::ksm::merging::HEEDED_BATCHED;

    /// Negative controls of what is counted, and of what guests notice.
    #[test]
    fn a_page_that_is_not_merged_and_a_frame_that_was_taken_are_noticed() {
        let setting = &setting(HEEDED_BATCHED);
        let memory = Memory { vms: 3, pages: 20, mergeable: 16 };
        let entrant = Entrant { heeds: true, together: 64, huge: false, rests: false };
        let plan = Plan { setting, memory, stages: &Stage::ALL, cpus: 1, entrant };
        let arena = arena(memory, 2).poison(POISON).build().unwrap();
        let machine = MergeRun::new(plan, &arena, false).unwrap();
        let space = &machine.vms[0].0;
        let frame = |gfn: Gfn| space.lookup(BASE + gfn.gpa().0, Access::Read).unwrap().pfn;
        // Page 0 stays where it is: the others come to share its frame.
        let (first, last) = (Gfn(1), Gfn(memory.pages - 1));

        let runners = machine.runners().unwrap();
        let old = frame(first);
        let judge = |pfn| runners[0][0].guest.judge(first, pfn);
        assert_eq!((judge(old), judge(frame(last))), (Use::Right, Use::Foreign));
        for (space, _) in &machine.vms {
            let zeroes = vec![0; (memory.mergeable * PAGE_SIZE) as usize];
            space.write(&mut idle().unwrap(), BASE, &zeroes).unwrap();
        }
        for _ in 0..3 {
            machine.ksm.scan(&mut idle().unwrap(), u64::MAX);
        }
        assert_eq!((judge(old), judge(frame(first))), (Use::Stale, Use::Foreign));
        drop(runners);

        for (what, [good, of]) in machine.run().unwrap().tally {
            assert_eq!(good, of, "{what}");
        }
        let count = || machine.count(Stage::LAST).unwrap().map(|(_, counts)| counts);
        assert_eq!(count(), [[1, 1], [60, 60], [14, 14], [47, 47]]);
        space.write(&mut idle().unwrap(), BASE, b"else").unwrap();
        assert_eq!(count(), [[0, 1], [59, 60], [15, 14], [46, 47]]);
    }
}
