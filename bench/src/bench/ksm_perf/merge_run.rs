//! One sample: the machine built anew on the same frames, its stages run through, and what that took.
//!
//! ```text
//! one arena, one KSM     a frame may be shared by as many entries as there are, as the test sets it
//! ├── space, VM 0        each VM one vCPU; the entrant is a way
//! ├── space, VM 1
//! └── …
//! a thread               scans, and merges pages together, or one by one
//! a thread or more       runs the vCPUs, one after another, each for a slice
//!
//! stage:  fill │ line │ scan until all is merged │ guests write some of it again │ scan until all is merged │ line
//!                       guests read all over it, all the while ─────────────────────────────────────────▶
//! ```
//! Guests that rest read only while they write. Every page merges once in a stage, and once more where it was written again: so there
//! are equally many merges, whichever thread is faster. A vCPU that is not in the guest needs not be waited for, so there are no more
//! threads than CPUs.

use super::notified_vm::{Counted, Guest, Watched, scans};
use super::page_contents::{Counts, Size, Stage};
use super::reading_guest::{Again, Seen, Worker};
use crate::bench::harness::Line;
use crate::bench::machine::pin;
use slat::table::formats::Npt4;
use slat::{Access, Event, Fault, Gfn, Hva, Idle, PAGE_SIZE, SecondaryMmu, Slot, SlotId, Span, VcpuId, Why};
use slat_cli::error::Error;
use slat_cli::thread::{joined, window};
use slat_mm::{AddressSpace, Advice, Arena, Backing, HostView, Ksm, Place, Prot};
use slat_vcpu::{Cpu, Exit};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::Instant;

/// Where guest memory lies in each address space.
const BASE: Hva = Hva(0x1000_0000_0000);
/// Reads of one vCPU before the next one's turn.
const SLICE: u64 = 256;
/// Every so many pages one is written again.
const AGAIN: u64 = 8;
/// Passes in which all that can be merged is, with guests that write nothing.
const PASSES: u64 = 100;

/// The pages of each VM that are written again, in each stage.
pub fn written_again(size: Size) -> u64 {
    Again::every(AGAIN, size.pages_per_vm).left()
}

/// An entrant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The VMs heed the reasons.
    pub contexts: bool,
    /// Pages that are merged together at most.
    pub together: u32,
    /// The host backs the guests with pages of 2 MiB, of which small pages are merged.
    pub huge: bool,
    /// Guests rest while nothing is to be written.
    pub rests: bool,
}

/// What one sample yields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Time in MMU code: notifications by the scanner.
    pub notified_ns: f64,
    /// And all faults of the guests, less the host's own change where they break a share.
    pub fault_ns: f64,
    pub faults: u64,
    /// Shootdowns.
    pub flushes: u64,
    /// Changes of an entry.
    pub changes: u64,
    /// By the scanner.
    pub notifications: u64,
    /// Of all scanning, in nanoseconds.
    pub scan_ns: f64,
    pub merges: u64,
    /// Shares broken by guests.
    pub breaks: u64,
    pub guest: Seen,
    /// Stages whose counts were right in the end, of all.
    pub stages: [u64; 2],
    /// Pages that held what they had to at the end of each.
    pub contents: [u64; 2],
    /// Frames in use then, tables excepted; and how many it takes.
    pub frames: [u64; 2],
}

impl Sample {
    /// What is compared.
    pub fn mmu_ns(&self) -> f64 {
        self.notified_ns + self.fault_ns
    }
}

/// What the threads tell each other.
struct Control {
    line: Line,
    /// The scanner has merged all: guests write some of it again.
    merged: AtomicBool,
    /// And all that: the stage is over.
    over: AtomicBool,
    /// Guests that have yet to write all that they write again.
    writing: AtomicU64,
    /// A guest could not go on.
    failed: AtomicBool,
}

/// The machine.
struct Machine {
    size: Size,
    rests: bool,
    arena: Arc<Arena>,
    ksm: Arc<Ksm>,
    spaces: Vec<Arc<AddressSpace>>,
    vms: Vec<Arc<Watched>>,
}

/// Table pages that one VM of this size loses, and makes again, where all of its memory is invalidated for this reason.
pub fn tables(arena: &Arc<Arena>, size: Size, why: Why, way: Way) -> Result<[u64; 2], Error> {
    let machine = Machine::new(arena, Size { vms: 1, ..size }, way)?;
    let (mut idle, vm) = (idle(), machine.vms[0].vm());
    let mut vcpu = vm.vcpu(VcpuId(0)).expect("no other thread runs it");
    let mut fill = |idle: &mut Idle| {
        for gfn in (0..size.pages_per_vm).map(Gfn) {
            let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write });
            done.map_err(|error| Error::Machine(error.to_string()))?;
        }
        Ok::<u64, Error>(vm.table_pages(idle).reachable)
    };
    let full = fill(&mut idle)?;
    let memory = Span::sized(BASE, size.pages_per_vm * PAGE_SIZE);
    let told = vm.around(&mut idle, Event::new(memory, why), &mut |idle, told| {
        // A reason page by page has edited nothing before this, any other one all.
        told.changed(idle, memory, None);
    });
    debug_assert!(told.is_ok(), "it may block");
    let left = vm.table_pages(&mut idle).reachable;
    Ok([full - left, fill(&mut idle)? - left])
}

/// What a guest thread brings back.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    fault_ns: f64,
    faults: u64,
    seen: Seen,
}

/// Frames for a machine of this size: the same for all samples, so that after the first round they are warm.
pub fn arena(size: Size) -> Result<Arc<Arena>, Error> {
    // Besides the pages: copies before their shares are pruned, and tables.
    let limit = 2 * size.pages() * PAGE_SIZE + u64::from(size.vms) * (4 << 20) + (16 << 20);
    Ok(Arena::builder().limit(limit).build()?)
}

/// One sample, its guests on so many threads.
pub fn sample(arena: &Arc<Arena>, size: Size, threads: usize, way: Way) -> Result<Sample, Error> {
    let machine = &Machine::new(arena, size, way)?;
    let control = &Control {
        line: Line::new(threads + 1),
        merged: AtomicBool::new(false),
        over: AtomicBool::new(false),
        writing: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let (mut sample, runs) = thread::scope(|scope| {
        let guests = (0..threads).map(|number| {
            slat_cli::thread::start(scope, move || machine.run_guests(control, number, threads))
        });
        let guests: Vec<_> = guests.collect();
        let scanner = slat_cli::thread::start(scope, || machine.scan(control));
        (joined(scanner.join()), guests.into_iter().map(|guest| joined(guest.join())).collect::<Vec<Ran>>())
    });
    if control.failed.load(Acquire) {
        return Err(Error::Machine("a guest could not go on: no memory, or none where it has some".into()));
    }
    for ran in runs {
        sample.fault_ns += ran.fault_ns;
        sample.faults += ran.faults;
        sample.guest.add(ran.seen);
    }
    Ok(sample)
}

impl Machine {
    fn new(arena: &Arc<Arena>, size: Size, way: Way) -> Result<Self, Error> {
        let mut idle = idle();
        let bytes = size.pages_per_vm * PAGE_SIZE;
        let ksm = Ksm::builder(arena).max_page_sharing(1 << 24).merge_together(way.together).build()?;
        let (mut spaces, mut vms) = (Vec::new(), Vec::new());
        for _ in 0..size.vms {
            let space = AddressSpace::builder(arena).thp(way.huge).build()?;
            let memory = space.mmap(Place::Fixed(BASE), bytes, Prot::ReadWrite, Backing::Anonymous)?;
            space.madvise(&mut idle, memory, Advice::Mergeable)?;
            ksm.add(&space)?;
            let builder = Guest::builder(HostView::new(&space)).contexts(way.contexts);
            let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
            let watched = Watched::new(&vm, BASE, size.pages_per_vm);
            space.register(&watched);
            let slot = Slot::new(SlotId(0), Gfn(0), size.pages_per_vm, BASE);
            vm.slots().commit(&mut idle, |tx| tx.create(slot))?;
            vms.push(watched);
            spaces.push(space);
        }
        Ok(Self { size, rests: way.rests, arena: arena.clone(), ksm, spaces, vms })
    }

    /// The scanner's side of all stages.
    fn scan(&self, control: &Control) -> Sample {
        pin(0);
        scans();
        let mut idle = idle();
        let mut sample = Sample::default();
        let flushes = || self.vms.iter().map(|vm| vm.vm().stats().flushes.paid).sum::<u64>();
        control.line.cross();
        let before = flushes();
        for stage in Stage::ALL {
            control.merged.store(false, Relaxed);
            control.over.store(false, Relaxed);
            control.writing.store(self.vms.len() as u64, Relaxed);
            control.line.cross();
            // Guests fill their memory.
            control.line.cross();
            let began = Instant::now();
            self.until_merged(&mut idle, control, stage, || false);
            control.merged.store(true, Release);
            // ORDER(again): Acquire: what guests have written again is counted after this; pairs with their Release.
            self.until_merged(&mut idle, control, stage, || control.writing.load(Acquire) > 0);
            sample.scan_ns += began.elapsed().as_nanos() as f64;
            control.over.store(true, Release);
            control.line.cross();
            sample.flushes = flushes() - before;
            self.look(&mut idle, stage, &mut sample);
        }
        let sum = |what| self.vms.iter().map(|vm| vm.counted(what)).sum::<u64>();
        sample.notified_ns = sum(Counted::NotifiedNs) as f64;
        sample.fault_ns = -(sum(Counted::HostInFaultsNs) as f64);
        sample.changes = sum(Counted::Changes);
        sample.notifications = sum(Counted::Notifications);
        sample.merges = self.ksm.stats().merges;
        sample.breaks = self.spaces.iter().map(|space| space.stats().cow_breaks).sum();
        sample
    }

    /// Scans until the stage's counts are reached, and no guest is writing any more. Gives up where they are not, in time.
    fn until_merged(&self, idle: &mut Idle, control: &Control, stage: Stage, writing: impl Fn() -> bool) {
        let mut passes = 0;
        while passes < PASSES && !control.failed.load(Relaxed) {
            let quiet = !writing();
            self.ksm.scan(idle, u64::MAX);
            if quiet {
                passes += 1;
                if self.reached(stage) {
                    return;
                }
            }
        }
    }

    fn reached(&self, stage: Stage) -> bool {
        Counts::from(self.ksm.stats()) == stage.expected(self.size)
    }

    /// Counts what is as it has to be at the end of a stage.
    fn look(&self, idle: &mut Idle, stage: Stage, sample: &mut Sample) {
        sample.stages[0] += u64::from(self.reached(stage));
        sample.stages[1] += 1;
        let mut found = [0; PAGE_SIZE as usize];
        for (space, vm) in self.spaces.iter().zip(0..) {
            for gfn in (0..self.size.pages_per_vm).map(Gfn) {
                let read = space.read(idle, BASE + gfn.gpa().0, &mut found);
                let right = read.is_ok() && found == stage.page(self.size, vm, gfn);
                sample.contents[0] += u64::from(right);
                sample.contents[1] += 1;
            }
        }
        let stats = self.arena.stats();
        let Counts { shared, unshared, .. } = stage.expected(self.size);
        sample.frames[0] += stats.in_use - stats.tables;
        sample.frames[1] += shared + unshared;
    }

    /// The guests' side: this thread's vCPUs, one after another.
    fn run_guests(&self, control: &Control, number: usize, threads: usize) -> Ran {
        pin(number + 1);
        let mut idle = idle();
        let mut mine = Vec::new();
        for (vm, watched) in (0..).zip(&self.vms).skip(number).step_by(threads) {
            let vcpu = watched.vm().vcpu(VcpuId(0)).expect("no other thread runs it");
            let worker = Worker::new(watched, self.size, vm);
            mine.push(Runner { cpu: Cpu::new(vcpu, window(&self.arena)), worker, again: Again::nothing() });
        }
        let ok = |exit| {
            if exit != Exit::Stopped {
                control.failed.store(true, Release);
            }
        };
        for runner in &mut mine {
            ok(runner.fill(&mut idle, Stage(0), self.size));
            runner.cpu.fault_ns.reset();
            runner.worker.filled = true;
        }
        control.line.cross();
        for stage in Stage::ALL {
            control.line.cross();
            for runner in &mut mine {
                ok(runner.fill(&mut idle, stage, self.size));
            }
            control.line.cross();
            let mut asked = false;
            while !control.over.load(Acquire) {
                if !asked && control.merged.load(Acquire) {
                    asked = true;
                    let again = Again::every(AGAIN, self.size.pages_per_vm);
                    for runner in &mut mine {
                        runner.again = again;
                    }
                }
                for runner in &mut mine {
                    let left = runner.again.left();
                    if self.rests && left == 0 {
                        thread::yield_now();
                        continue;
                    }
                    ok(runner.cpu.run(&mut idle, &mut runner.worker.roam(SLICE, &mut runner.again)));
                    if left > 0 && runner.again.left() == 0 {
                        // ORDER(again): Release: what was written comes before; pairs with the scanner's Acquire.
                        control.writing.fetch_sub(1, Release);
                    }
                }
            }
            control.line.cross();
        }
        let mut ran = Ran::default();
        for Runner { cpu, worker, .. } in &mine {
            ran.fault_ns += cpu.fault_ns.mean() * cpu.fault_ns.len() as f64;
            ran.faults += cpu.fault_ns.len();
            ran.seen.add(worker.seen);
        }
        ran
    }
}

/// A vCPU, and what runs on it.
struct Runner<'a> {
    cpu: Cpu<'a, Npt4, HostView>,
    worker: Worker<'a>,
    again: Again,
}

impl Runner<'_> {
    fn fill(&mut self, idle: &mut Idle, stage: Stage, size: Size) -> Exit {
        self.worker.stage = stage;
        self.cpu.run(idle, &mut self.worker.fill(Span::sized(Gfn(0), size.pages_per_vm)))
    }
}

/// For a thread that has just begun, or has taken none.
fn idle() -> Idle {
    Idle::take().expect("each thread takes one, once")
}
