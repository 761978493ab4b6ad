//! The guests, and the processors that they run on. A processor walks the tables in memory, and keeps translations
//! until a flush.

use std::alloc::{Layout, alloc};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;
/// Accesses to pages that have been touched, after each new page.
const AGAIN: u64 = 64;
/// Accesses in one turn.
const TURN: u64 = 8;

/// The guests' work.
pub struct Workload {
    pub vcpus: usize,
    pub pages: u64,
    /// Whether they take turns.
    pub by_turns: bool,
}

impl Workload {
    /// Returns the number of pages of its own that each vCPU stores to.
    fn share(&self) -> u64 {
        self.pages / self.vcpus as u64
    }
}

/// The order of vCPUs that take turns, as if each had its own processor, all equally fast, whatever the machine's load.
/// The counts are then the same in each run; the times include the hand-over between threads.
pub struct Turns {
    /// The vCPU that runs, and which vCPUs have finished. `None` where the operating system schedules all of them.
    now: Option<Mutex<(usize, Vec<bool>)>>,
    changed: Condvar,
}

impl Turns {
    pub fn new(workload: &Workload) -> Self {
        let now = workload.by_turns.then(|| Mutex::new((0, vec![false; workload.vcpus])));
        Self { now, changed: Condvar::new() }
    }

    /// Waits for a vCPU's first turn.
    fn wait(&self, vcpu: usize) {
        if let Some(now) = &self.now {
            let now = now.lock().expect("no panic");
            drop(self.changed.wait_while(now, |now| now.0 != vcpu).expect("no panic"));
        }
    }

    /// Lets the others run, until it is this vCPU's turn again.
    pub fn pass(&self, vcpu: usize) {
        self.hand_over(vcpu, false);
        self.wait(vcpu);
        if self.now.is_none() {
            std::thread::yield_now();
        }
    }

    fn hand_over(&self, vcpu: usize, ends: bool) {
        if let Some(now) = &self.now {
            let (turn, ended) = &mut *now.lock().expect("no panic");
            ended[vcpu] = ends;
            let others = (1..=ended.len()).map(|step| (vcpu + step) % ended.len());
            *turn = { others }.find(|&other| !ended[other]).unwrap_or(vcpu);
            self.changed.notify_all();
        }
    }
}

#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub exits: u64,
    pub faults: u64,
    pub flushes: u64,
    /// From the first vCPU's first access to the last one's last.
    pub time: Duration,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.exits += other.exits;
        self.faults += other.faults;
        self.flushes += other.flushes;
    }
}

fn layout() -> Layout {
    Layout::from_size_align(PAGE, PAGE).expect("a page")
}

/// The free frames, and the frames in use. A frame's virtual address is its physical one.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Makes this many frames free and zeroed, and touches them, so that no guest waits for the host's page faults.
pub fn prepare(frames: u64) {
    let mut free = FREE.lock().expect("no panic");
    free.append(&mut TAKEN.lock().expect("no panic"));
    while free.len() < frames as usize {
        // SAFETY: not of size zero.
        let page = unsafe { alloc(layout()) };
        assert!(!page.is_null());
        free.push(page.expose_provenance());
    }
    for &page in &*free {
        // SAFETY: free: nothing uses it.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(page).write_bytes(0, PAGE) };
    }
}

/// Takes a frame of zeroes. It stays in use until the next call of `prepare`.
pub fn frame() -> u64 {
    let page = FREE.lock().expect("no panic").pop().expect("enough are prepared");
    TAKEN.lock().expect("no panic").push(page);
    page as u64
}

pub fn word<'a>(address: u64) -> &'a AtomicU64 {
    let word = std::ptr::with_exposed_provenance::<AtomicU64>(address as usize);
    // SAFETY: in a frame, or a table's page, which stays while a guest runs.
    unsafe { &*word }
}

/// The frame of a page in tables of AMD's NPT, of pages of 4 KiB.
pub fn walk(root: u64, page: u64) -> Option<u64> {
    let mut table = root;
    for level in (0..4).rev() {
        let entry = word(table + (page >> (9 * level) & 511) * 8).load(std::sync::atomic::Ordering::Acquire);
        if entry & 1 == 0 {
            return None;
        }
        table = entry & 0xf_ffff_ffff_f000;
    }
    Some(table)
}

/// A processor with a guest. The guest exits for a fault or a kick.
pub struct Cpu<'w> {
    workload: &'w Workload,
    turns: &'w Turns,
    vcpu: usize,
    /// The frame of each page, and the value of `number` at its look-up.
    tlb: Vec<(u64, u64)>,
    /// The number of flushes: an entry with an older number is invalid.
    number: u64,
    /// The number of pages that the guest has stored to.
    done: u64,
    /// Accesses still to make, to such pages.
    again: u64,
    steps: u64,
    random: u64,
    pub counts: Counts,
}

/// The reason of an exit.
pub enum Exit {
    Fault(u64),
    Kicked,
    Done,
}

impl<'w> Cpu<'w> {
    pub fn new(workload: &'w Workload, turns: &'w Turns, vcpu: usize) -> Self {
        let tlb = vec![(0, 0); workload.pages as usize];
        Self {
            workload,
            turns,
            vcpu,
            tlb,
            number: 1,
            done: 0,
            again: 0,
            steps: 0,
            random: 1 + vcpu as u64,
            counts: Counts::default(),
        }
    }

    fn page(&self, nth: u64) -> u64 {
        nth + self.workload.share() * self.vcpu as u64
    }

    pub fn flush(&mut self) {
        self.counts.flushes += 1;
        self.number += 1;
    }

    /// Runs the guest from where it was.
    pub fn run(&mut self, root: u64, kicked: impl Fn() -> bool) -> Exit {
        let exit = loop {
            self.steps += 1;
            if self.steps.is_multiple_of(TURN) && self.turns.now.is_some() {
                self.turns.pass(self.vcpu);
            }
            if kicked() {
                break Exit::Kicked;
            }
            if self.again == 0 && self.done == self.workload.share() {
                break Exit::Done;
            }
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let nth = if self.again > 0 { (self.random >> 33) % self.done } else { self.done };
            let page = self.page(nth);
            let cached = &mut self.tlb[page as usize];
            if cached.1 != self.number {
                let Some(frame) = walk(root, page) else { break Exit::Fault(page) };
                *cached = (frame, self.number);
            }
            let frame = cached.0;
            let word = word(frame + 8 * self.vcpu as u64);
            if self.again > 0 {
                word.load(Relaxed);
                self.again -= 1;
            } else {
                word.store(page + 1, Relaxed);
                self.done += 1;
                self.again = AGAIN;
            }
        };
        self.counts.exits += u64::from(!matches!(exit, Exit::Done));
        self.counts.faults += u64::from(matches!(exit, Exit::Fault(_)));
        exit
    }
}

/// Whether memory has every store of the guests.
pub fn is_whole(workload: &Workload, root: u64) -> bool {
    (0..workload.share() * workload.vcpus as u64).all(|page| {
        let vcpu = page / workload.share();
        walk(root, page).is_some_and(|frame| word(frame + 8 * vcpu).load(Relaxed) == page + 1)
    })
}

/// Lets one vCPU fault on page 0, stores there, and lets another one fault. Returns whether the store is still there.
pub fn stores_between([first, second]: [u32; 2], fault: impl Fn(u32), root: u64) -> bool {
    let at = || word(walk(root, 0).expect("mapped by now"));
    fault(first);
    at().store(7, Relaxed);
    fault(second);
    at().load(Relaxed) == 7
}

/// Runs one thread for each vCPU, from the same moment on.
pub fn threads(workload: &Workload, turns: &Turns, vcpu: impl Fn(usize) -> Counts + Sync) -> Counts {
    let go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (go, vcpu) = (&go, &vcpu);
        let threads: Vec<_> = (0..workload.vcpus)
            .map(|nth| {
                scope.spawn(move || {
                    while !go.load(Relaxed) {
                        std::thread::yield_now();
                    }
                    turns.wait(nth);
                    let counts = vcpu(nth);
                    turns.hand_over(nth, true);
                    counts
                })
            })
            .collect();
        let began = Instant::now();
        go.store(true, Relaxed);
        let mut all = Counts::default();
        for thread in threads {
            all += thread.join().expect("a vCPU");
        }
        Counts { time: began.elapsed(), ..all }
    })
}
