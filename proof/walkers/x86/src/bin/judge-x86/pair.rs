//! Two processors and one VM: the second is the vCPU, the first is its host.
//!
//! ```text
//! second  the guest sweeps over its pages: it checks each page's number in the first word, and counts in the second word
//! first   moves pages: invalidate, flush, copy, spoil the old frame, go on; zaps everything, protects from writes, ages
//! ```
//! Any use of a translation that outlives its flush is detected: a load finds a spoiled word, and a store is lost with
//! the frame, so that at the end a page's count is below the guest's. The guest leaves only for faults and kicks, so
//! its TLB keeps its translations without a flush. If the engine leaves flushes out, the same program does find a
//! spoiled word.
//!
//! A kick is a word in the guest's memory, which the guest reads after each sweep.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use slat::{
    Access, Emulate, Fault, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Next, PAGE_SHIFT, Pfn, Reason,
    Slot, SlotId, Span, Translations, VcpuId, Vm,
};
use slat_judge::{Ram, Verdict};
use slat_walker_x86::processor::{Exit, Processor, Registers};
use slat_walker_x86::window::Guest;
use slat_walker_x86::{exit, println, smp};

/// Number of pages of a sweep; each has two frames, one of which is in use.
const PAGES: u64 = 64;
/// First frame of these pages.
const FIRST: Gfn = Gfn(0x8_0000);
/// First word of an unused frame.
const SPOILED: u64 = u64::MAX;
/// Host addresses of the guest's pages, and of its own frames.
const MOVING: Hva = Hva(1 << 32);
const FIXED: Hva = Hva(1 << 33);

core::arch::global_asm!(
    ".section .text.sweep, \"ax\"",
    ".global sweep_start, sweep_end",
    "sweep_start:",
    "1: mov rsi, rbx",
    "xor edx, edx",
    "2: cmp [rsi], rdx",
    "jne 3f",
    "inc qword ptr [rsi + 8]",
    "add rsi, 0x1000",
    "inc edx",
    "cmp edx, ecx",
    "jne 2b",
    "inc qword ptr [rdi + 8]",
    "cmp qword ptr [rdi], 0",
    "je 1b",
    "xor eax, eax",
    "call r8",
    "jmp 1b",
    "3: mov eax, 1",
    "call r8",
    "jmp 1b",
    "sweep_end:",
);

unsafe extern "C" {
    static sweep_start: u8;
    static sweep_end: u8;
}

/// Words that guest and host share, in one of the guest's own pages.
#[repr(C)]
struct Mail {
    kick: AtomicU64,
    sweeps: AtomicU64,
}

/// Host memory in which pages move.
struct Moving {
    first: Pfn,
    /// The frame in use of each page.
    side: [AtomicU64; PAGES as usize],
    mail: &'static Mail,
    flushes: bool,
}

impl Moving {
    fn frame(&self, page: u64, side: u64) -> Pfn {
        self.first + page * 2 + side
    }

    fn page(&self, hva: Hva) -> HostPage {
        let pfn = if hva >= FIXED {
            Pfn((hva.0 - FIXED.0) >> PAGE_SHIFT)
        } else {
            let page = (hva.0 - MOVING.0) >> PAGE_SHIFT;
            self.frame(page, self.side[page as usize].load(Acquire))
        };
        HostPage { pfn, ..HostPage::PLAIN }
    }

    /// Returns the first two words of a frame: the page's number, and the guest's count.
    fn words(&self, page: u64, side: u64) -> &[AtomicU64; 2] {
        let address = self.frame(page, side).address();
        // SAFETY: memory lent to the judge, mapped one to one; the guest reaches it by the same words.
        unsafe { &*(address as *const [AtomicU64; 2]) }
    }
}

impl Host for Moving {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(self.page(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(self.page(hva))
    }

    fn kick(&self, _: VcpuId) {
        self.mail.kick.store(1, Release);
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        // Negative control: says that it is done, and does nothing.
        !self.flushes
    }
}

/// Shared state of the two processors for one run.
struct Shared<'g, F: Format> {
    vm: Vm<F, Moving>,
    guest: &'g Guest,
    stop: AtomicBool,
    /// The first error; 0 until then.
    wrong: AtomicU64,
    done: AtomicBool,
}

/// Kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Wrong {
    /// The guest has met a word that is not its page's number.
    Spoiled = 1,
    /// The engine did not handle a fault.
    Fault,
    /// The guest left for some other reason.
    Exit,
    /// A page's count is not the guest's: a store was lost.
    Lost,
}

impl<F: Format> Shared<'_, F> {
    fn is_wrong(&self, wrong: Wrong) {
        self.wrong.store(wrong as u64, Release);
    }

    fn wrong(&self) -> Option<Wrong> {
        let met = self.wrong.load(Acquire);
        [Wrong::Spoiled, Wrong::Fault, Wrong::Exit, Wrong::Lost]
            .into_iter()
            .find(|wrong| *wrong as u64 == met)
    }
}

/// The next run of the second processor.
static NEXT: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// Whether there are no more runs.
static OVER: AtomicBool = AtomicBool::new(false);

/// The second processor: makes a vCPU for each run. Its guest's processor is made once.
fn second<P: Processor, F: Format>() -> ! {
    let mut processor = None;
    while !OVER.load(Relaxed) {
        // ORDER(pair): Acquire; pairs with the Release in `run`.
        let shared = NEXT.swap(null_mut(), Acquire).cast::<Shared<F>>();
        // SAFETY: the processor that put it there put a `Shared<F>`, and keeps it until `done`.
        if let Some(shared) = unsafe { shared.as_ref() } {
            let processor = processor.get_or_insert_with(|| P::new(&shared.guest.start()));
            vcpu::<P, F>(shared, processor);
            // ORDER(pair): Release; pairs with the Acquire in `run`.
            shared.done.store(true, Release);
        }
        core::hint::spin_loop();
    }
    exit::halt()
}

struct Tlb<'p, P>(&'p mut P);

impl<P: Processor> Translations for Tlb<'_, P> {
    fn flush_all(&mut self) {
        self.0.flush();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }
}

/// Runs the guest until it must stop, at the end of a sweep, or an error.
fn vcpu<P: Processor, F: Format>(shared: &Shared<'_, F>, processor: &mut P) {
    // SAFETY: this processor's only token: nothing else of the engine runs on it.
    let mut idle = unsafe { Idle::assume() };
    let Some(mut vcpu) = shared.vm.vcpu(VcpuId(0)) else { return shared.is_wrong(Wrong::Exit) };
    processor.set_rip(Guest::PROGRAM);
    // The cached translations are those of the previous VM.
    processor.flush();
    let mut registers = Registers {
        rbx: Guest::PAGES,
        rcx: PAGES,
        rdi: Guest::MAIL,
        r8: Guest::CALL,
        ..Registers::default()
    };
    let mail = shared.vm.host().mail;
    loop {
        // ORDER(kick-word): cleared before the vCPU enters, so that a kick that finds it in the guest is not lost.
        mail.kick.swap(0, AcqRel);
        let stop = shared.stop.load(Acquire);
        if stop {
            mail.kick.store(1, Relaxed);
        }
        let ready = vcpu.enter(&mut idle, &mut Tlb(&mut *processor));
        processor.set_root::<F>(ready.root());
        // The kick is a word that the guest polls.
        let guest = ready.poll();
        let exit = processor.run(&mut registers);
        drop(guest);
        match exit {
            Exit::Call if registers.rax != 0 => return shared.is_wrong(Wrong::Spoiled),
            Exit::Call if stop => return,
            Exit::Call => {}
            Exit::Memory(fault) => {
                let done = vcpu.fault(&mut idle, Fault { gpa: fault.gpa, access: fault.access });
                if !done
                    .is_ok_and(|done| !matches!(done, Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)))
                {
                    return shared.is_wrong(Wrong::Fault);
                }
            }
            _ => return shared.is_wrong(Wrong::Exit),
        }
    }
}

/// Result of a run.
struct Outcome {
    sweeps: u64,
    moves: u64,
    zaps: u64,
    wrong: Option<Wrong>,
}

/// Runs up to `rounds` rounds of a host beside a guest that sweeps; fewer after an error.
fn run<F: Format>(guest: &Guest, ram: Ram, rounds: u64, flushes: bool) -> Outcome {
    // SAFETY: a page of the guest's own, which is never taken away; both sides use it by atomic words only.
    let mail = unsafe { &*(guest.mail() as *const Mail) };
    mail.sweeps.store(0, Relaxed);
    let host = Moving {
        first: ram.pattern.start,
        side: [const { AtomicU64::new(0) }; PAGES as usize],
        mail,
        flushes,
    };
    for page in 0..PAGES {
        let [[number, count], [spoiled, _]] = [host.words(page, 0), host.words(page, 1)];
        number.store(page, Relaxed);
        count.store(0, Relaxed);
        spoiled.store(SPOILED, Relaxed);
    }
    let builder = Vm::<F, _>::builder(host).vcpus(1);
    let vm = builder.build().expect("memory for a VM");
    let (stop, wrong, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    let shared = Shared::<F> { vm, guest, stop, wrong, done };
    // SAFETY: this processor's only token while this function runs.
    let mut idle = unsafe { Idle::assume() };
    let fixed = guest.fixed();
    let slots = [
        Slot::new(SlotId(0), FIRST, PAGES, MOVING),
        Slot::new(SlotId(1), fixed.gfn, fixed.pages, FIXED + fixed.pfn.address()),
    ];
    let created =
        shared.vm.memory().commit(&mut idle, |tx| slots.into_iter().try_for_each(|slot| tx.create(slot)));
    created.expect("two slots that do not overlap");
    // ORDER(pair): Release; pairs with the Acquire in `second`.
    NEXT.store((&raw const shared).cast_mut().cast(), Release);
    let outcome = host_side(&shared, &mut idle, rounds);
    shared.stop.store(true, Release);
    mail.kick.store(1, Release);
    // ORDER(pair): Acquire; pairs with the Release in `second`. `shared` is not used by the other one from here on.
    while !shared.done.load(Acquire) {
        core::hint::spin_loop();
    }
    let (host, sweeps) = (shared.vm.host(), mail.sweeps.load(Acquire));
    let count = |page: u64| {
        let [_, count] = host.words(page, host.side[page as usize].load(Relaxed));
        count.load(Relaxed)
    };
    let lost = (0..PAGES).any(|page| count(page) != sweeps);
    let wrong = shared.wrong().or(lost.then_some(Wrong::Lost));
    Outcome { sweeps, wrong, ..outcome }
}

/// The host's side, until all rounds are done, or an error.
fn host_side<F: Format>(shared: &Shared<'_, F>, idle: &mut Idle, rounds: u64) -> Outcome {
    let vm = &shared.vm;
    let mut outcome = Outcome { sweeps: 0, moves: 0, zaps: 0, wrong: None };
    for round in 0..rounds {
        // In each round the guest has its pages in its TLB, because it has swept once since the last round.
        let swept = vm.host().mail.sweeps.load(Acquire);
        while vm.host().mail.sweeps.load(Acquire) == swept && shared.wrong().is_none() {
            core::hint::spin_loop();
        }
        if shared.wrong().is_some() {
            break;
        }
        let page = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (PAGES - 1);
        match round % 16 {
            13 => {
                let _ = vm.memory().write_protect(idle, Span::sized(FIRST + page / 2, PAGES / 2)).settle();
            }
            14 => vm.memory().lockless(idle).age(Span::sized(FIRST, PAGES), |_| ()),
            15 => {
                vm.zap_all(idle).expect("memory for a root");
                outcome.zaps += 1;
            }
            _ => {
                move_page(vm, idle, page);
                outcome.moves += 1;
            }
        }
    }
    outcome
}

/// Moves a page to its other frame as a host does: the old frame is unused when it is spoiled.
fn move_page<F: Format>(vm: &Vm<F, Moving>, idle: &mut Idle, page: u64) {
    let host = vm.host();
    let from = host.side[page as usize].load(Relaxed);
    let ([old, old_count], [new, new_count]) = (host.words(page, from), host.words(page, 1 - from));
    let change = vm
        .invalidate(Span::sized(MOVING + (page << PAGE_SHIFT), 1 << PAGE_SHIFT), Reason::Migrate)
        .apply(idle)
        .settle();
    new_count.store(old_count.load(Acquire), Relaxed);
    new.store(page, Relaxed);
    old.store(SPOILED, Release);
    host.side[page as usize].store(1 - from, Release);
    drop(change);
}

/// Runs the pair, and its negative control, if there is a second processor. Prints `PAIR …`.
pub fn judge<P: Processor, F: Format>(name: &str, ram: Ram, rounds: u64) -> Option<Verdict> {
    const CONTROLS: u64 = 8;
    /// Only moves: no operation that would free table pages while the guest still walks them.
    const CONTROL_ROUNDS: u64 = 13;
    if !smp::start_second(second::<P, F>) {
        return None;
    }
    let mut guest = Guest::new();
    let (start, end) = (&raw const sweep_start, &raw const sweep_end);
    // SAFETY: the assembly above, from its first byte to the one past its last.
    guest.load(unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) });
    (0..PAGES).for_each(|page| guest.map(page, (FIRST + page).gpa()));
    // Leaked: the second processor's guest for good.
    let guest = Box::leak(guest);
    let Outcome { sweeps, moves, zaps, wrong } = run::<F>(guest, ram, rounds, true);
    let seen = (0..CONTROLS)
        .filter(|_| run::<F>(guest, ram, CONTROL_ROUNDS, false).wrong == Some(Wrong::Spoiled))
        .count() as u64;
    OVER.store(true, Relaxed);
    let differences = u64::from(wrong.is_some()) + CONTROLS - seen;
    if let Some(wrong) = wrong {
        println!("DIFF {} {name}: the pair: {wrong:?}", F::NAME);
    }
    println!(
        "PAIR {} {name}: {sweeps} sweeps over {PAGES} pages beside {moves} moves and {zaps} zaps of everything, \
         {differences} differences; without flushes seen {seen} of {CONTROLS}",
        F::NAME
    );
    Some(Verdict { lookups: sweeps * PAGES, differences, ..Verdict::default() })
}
