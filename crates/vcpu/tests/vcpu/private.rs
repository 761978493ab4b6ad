//! Guests make frames private and shared while they run. Other guests do the same, a vCPU maps ahead, and a
//! host moves the pages of both kinds of memory. A guest remembers what it stored in each kind, and must load
//! that.
//!
//! Negative controls: no flush reaches a vCPU; the VMM omits a conversion.

use slat::table::formats::Ept4;
use slat::*;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::oracle::{Oracle, Verdict};
use slat_vcpu::{Cpu, Exit, Window};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

const SHARED: Hva = Hva(1 << 40);
const PRIVATE: Hva = PrivateMemory(2).at(1 << 30);
const VCPUS: u32 = 3;
/// Pages of each vCPU.
const EACH: u64 = 16;
const PAGES: u64 = EACH * VCPUS as u64;
/// Conversions of each vCPU.
const CONVERSIONS: u64 = 1000;
/// The mean number of steps of a guest between two conversions.
const BETWEEN: u64 = 40;

/// Memory of both kinds. Each page is in one of two frames, and can move to the other.
struct BothMemories {
    memory: NonNull<u8>,
    /// The frames of the shared pages, then those of the private pages.
    frames: Vec<AtomicU64>,
    flushes: bool,
}

// SAFETY: the memory is reached only through frames. The test checks that each frame has one user at a time.
unsafe impl Send for BothMemories {}
// SAFETY: as above.
unsafe impl Sync for BothMemories {}

impl BothMemories {
    const FRAMES: u64 = 4 * PAGES;

    fn layout() -> Layout {
        Layout::from_size_align((Self::FRAMES * PAGE_SIZE) as usize, PAGE_SIZE as usize).unwrap()
    }

    fn new(flushes: bool) -> Self {
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(Self::layout()) }).unwrap();
        Self { memory, frames: (0..2 * PAGES).map(|page| (2 * page).into()).collect(), flushes }
    }

    fn page(hva: Hva) -> usize {
        let (first, start) = match hva.private_memory() {
            Some(_) => (PAGES, PRIVATE),
            None => (0, SHARED),
        };
        (first + ((hva.0 - start.0) >> PAGE_SHIFT)) as usize
    }

    /// Moves a page to its other frame, and poisons the old one.
    fn move_page<F: Format>(&self, vm: &Vm<F, &Self>, idle: &mut Idle, hva: Hva) {
        let _change = vm.invalidate(Span::sized(hva, PAGE_SIZE), Reason::Migrate).apply(idle).settle();
        let entry = &self.frames[Self::page(hva)];
        let (old, size) = (entry.load(SeqCst), PAGE_SIZE as usize);
        let at = |frame: u64| self.memory.as_ptr().wrapping_add((frame * PAGE_SIZE) as usize);
        // SAFETY: both frames are inside. No guest uses the page between the flush and the end of the
        // invalidation.
        unsafe {
            at(old).copy_to_nonoverlapping(at(old ^ 1), size);
            at(old).write_bytes(0xdd, size);
        }
        entry.store(old ^ 1, SeqCst);
    }
}

impl Drop for BothMemories {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout()) };
    }
}

/// A VM's view of the memory.
impl Host for BothMemories {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let pfn = Pfn(self.frames[BothMemories::page(hva)].load(SeqCst));
        Some(HostPage { pfn, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        // Negative control: says that it is done, and does nothing.
        !self.flushes
    }
}

#[derive(Clone, Copy)]
enum Op {
    Load(Gpa),
    Store(Gpa, u64),
    Convert(Gfn),
}

/// Loads, stores and converts its own pages at random.
struct Guest {
    own: Span<Gfn>,
    random: fastrand::Rng,
    /// Whether each of its pages is private, as the guest last converted it.
    private: [bool; EACH as usize],
    /// The bytes that the guest has stored in shared and in private memory.
    stored: [Oracle; 2],
    next: Option<Op>,
    /// The frame that the VMM must convert.
    asks: Option<Gfn>,
    verified: u64,
    corrupt: Option<Verdict>,
}

impl Guest {
    fn draw(&mut self) -> Op {
        let random = &mut self.random;
        let gfn = self.own.start + random.u64(..EACH);
        let gpa = Gpa(gfn.gpa().0 + 8 * random.u64(..PAGE_SIZE / 8));
        match random.u64(..BETWEEN) {
            0 => Op::Convert(gfn),
            1..10 => Op::Store(gpa, random.u64(..)),
            _ => Op::Load(gpa),
        }
    }

    fn kind(&self, gfn: Gfn) -> usize {
        usize::from(self.private[(gfn.0 - self.own.start.0) as usize])
    }
}

impl Program for Guest {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let op = self.next.take().unwrap_or_else(|| self.draw());
        // After a fault the same operation runs again.
        self.next = Some(op);
        match op {
            Op::Load(gpa) => {
                let mut bytes = [0; 8];
                core.load(gpa, &mut bytes)?;
                let kind = self.kind(gpa.gfn());
                let verdict = self.stored[kind].check(gpa, &bytes);
                self.verified += 1;
                if verdict != Verdict::Match {
                    self.corrupt = Some(verdict);
                    return Ok(Step::Stop);
                }
            }
            Op::Store(gpa, word) => {
                core.store(gpa, &word.to_ne_bytes())?;
                let kind = self.kind(gpa.gfn());
                self.stored[kind].wrote(gpa, &word.to_ne_bytes());
            }
            Op::Convert(gfn) => {
                self.next = None;
                self.asks = Some(gfn);
                return Ok(Step::Stop);
            }
        }
        self.next = None;
        Ok(Step::Next)
    }
}

/// The step that a world omits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    Nothing,
    Flushes,
    Conversion,
}

/// Guests convert their pages this many times, and load what they stored. Returns the number of compared loads,
/// or the wrong load.
fn run(seed: u64, mistake: Mistake) -> Result<u64, Verdict> {
    let memory = &BothMemories::new(mistake != Mistake::Flushes);
    let builder = Vm::<Ept4, _>::builder(memory).vcpus(VCPUS + 1);
    let vm = &builder.build().unwrap();
    let ram = Slot::new(SlotId(0), Gfn(0), PAGES, SHARED);
    let mut idle = Idle::take().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create_with_private(ram, PRIVATE)).unwrap();
    drop(idle);
    let at_work = &AtomicU64::new(VCPUS.into());
    thread::scope(|scope| {
        let guests: Vec<_> = (0..VCPUS)
            .map(|id| {
                scope.spawn(move || {
                    let mut idle = Idle::take().unwrap();
                    // SAFETY: the memory outlives the vCPU.
                    let window = unsafe { Window::new(memory.memory, BothMemories::FRAMES) };
                    let mut cpu = Cpu::new(vm.vcpu(VcpuId(id)).unwrap(), window);
                    let mut guest = Guest {
                        own: Span::sized(Gfn(u64::from(id) * EACH), EACH),
                        random: fastrand::Rng::with_seed(seed << 8 | u64::from(id)),
                        private: [false; EACH as usize],
                        stored: [Oracle::new(EACH as usize), Oracle::new(EACH as usize)],
                        next: None,
                        asks: None,
                        verified: 0,
                        corrupt: None,
                    };
                    let mut conversions = 0;
                    while conversions < CONVERSIONS && guest.corrupt.is_none() {
                        assert_eq!(cpu.run(&mut idle, &mut guest), Exit::Stopped);
                        if let Some(gfn) = guest.asks.take() {
                            let private = &mut guest.private[(gfn.0 - guest.own.start.0) as usize];
                            *private = !*private;
                            conversions += 1;
                            if mistake != Mistake::Conversion {
                                let slots = vm.memory();
                                slots.set_private(&mut idle, Span::sized(gfn, 1), *private).unwrap();
                            }
                        }
                    }
                    at_work.fetch_sub(1, SeqCst);
                    guest.corrupt.map_or(Ok(guest.verified), Err)
                })
            })
            .collect();
        scope.spawn(move || {
            let (mut idle, mut random) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed));
            while at_work.load(SeqCst) > 0 {
                let start = if random.bool() { PRIVATE } else { SHARED };
                memory.move_page(vm, &mut idle, start + random.u64(..PAGES) * PAGE_SIZE);
                thread::yield_now();
            }
        });
        scope.spawn(move || {
            let (mut idle, mut random) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed));
            let mut vcpu = vm.vcpu(VcpuId(VCPUS)).unwrap();
            while at_work.load(SeqCst) > 0 {
                let gfns = Span::sized(Gfn(random.u64(..PAGES)), random.u64(1..8));
                vcpu.prefault(&mut idle, gfns, Prefault::young(Access::Write)).unwrap();
            }
        });
        guests.into_iter().map(|guest| guest.join().unwrap()).sum()
    })
}

#[test]
fn memory_that_guests_convert_under_load_keeps_what_they_stored() {
    for seed in 1..=2 {
        let verified = run(seed, Mistake::Nothing).unwrap();
        assert!(verified > u64::from(VCPUS) * CONVERSIONS, "{verified} loads");
        println!("{verified} loads verified");
    }
}

#[test]
fn negative_control_without_flushes_memory_of_the_other_kind_is_read() {
    assert!((1..=20).any(|seed| run(seed, Mistake::Flushes).is_err()));
}

#[test]
fn negative_control_a_frame_that_was_not_converted_is_noticed() {
    assert!(run(1, Mistake::Conversion).is_err());
}
