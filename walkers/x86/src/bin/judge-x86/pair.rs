//! Two processors and one VM: the second is the vCPU, the first is its host.
//!
//! ```text
//! second  the guest sweeps over its pages: is each page's number in its first word? counts in the second word
//! first   moves pages: invalidate, flush, copy, spoil the old frame, go on; zaps everything, protects from writes, ages
//! ```
//! A translation that outlives its flush is seen whichever way it is used: a load finds a spoiled word, and a store is
//! lost with the frame, so that in the end a page's count is behind the guest's. The guest leaves for nothing but faults
//! and kicks, so its TLB keeps what it has, as long as nobody flushes: with the engine told to leave flushes out, the
//! same program does see a spoiled word.
//!
//! A kick is a word in the guest's memory that it looks at after each sweep.

use crate::guest::Guest;
use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use slat::table::formats::Npt4;
use slat::{
    Access, Done, Fault, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, Pfn, Slot,
    SlotId, Span, TableMemory, Translations, VcpuId, Vm, Why,
};
use slat_judge::{Ram, Verdict};
use slat_walker_x86::guest::{Exit, Processor, Registers};
use slat_walker_x86::svm::Svm;
use slat_walker_x86::{println, smp};

/// Pages that the guest sweeps over; of two frames each, one is in use.
const PAGES: u64 = 64;
/// The first of them.
const FIRST: Gfn = Gfn(0x8_0000);
/// What is in the first word of a frame that is not in use.
const SPOILED: u64 = u64::MAX;
/// The host's addresses: page p of the guest, and the guest's own frames.
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
    "vmmcall",
    "jmp 1b",
    "3: mov eax, 1",
    "vmmcall",
    "jmp 1b",
    "sweep_end:",
);

unsafe extern "C" {
    static sweep_start: u8;
    static sweep_end: u8;
}

/// What the guest and the host both look at, in a page of the guest's own.
#[repr(C)]
struct Mail {
    kick: AtomicU64,
    sweeps: AtomicU64,
}

/// Host memory in which pages move.
struct Moving {
    first: Pfn,
    /// For each page, which of its two frames is in use.
    side: [AtomicU64; PAGES as usize],
    mail: &'static Mail,
}

// SAFETY: the defaults keep the contract; memory is mapped one to one.
unsafe impl TableMemory for Moving {}

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
        HostPage { pfn, level: Level::K4, writable: true }
    }

    /// The first two words of a frame: the page's number, and how often the guest has been there.
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
}

/// What the two processors share for one run.
struct Shared {
    vm: Vm<Npt4, Moving>,
    guest: Box<Guest>,
    stop: AtomicBool,
    /// The guest has met a word that should not be there, or something else that is not right.
    wrong: AtomicBool,
    done: AtomicBool,
}

/// For the second processor: what to run next.
static NEXT: AtomicPtr<Shared> = AtomicPtr::new(null_mut());

/// The second processor: a vCPU for each run that it is given.
fn second() -> ! {
    loop {
        // ORDER(pair): Acquire; pairs with the Release in `run`.
        let shared = NEXT.swap(null_mut(), Acquire);
        // SAFETY: whoever put it there keeps it until `done`.
        if let Some(shared) = unsafe { shared.as_ref() } {
            vcpu(shared);
            // ORDER(pair): Release; pairs with the Acquire in `run`.
            shared.done.store(true, Release);
        }
        core::hint::spin_loop();
    }
}

struct Tlb<'p>(&'p mut Svm);

impl Translations for Tlb<'_> {
    fn flush_all(&mut self) {
        self.0.flush();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }
}

/// Runs the guest until it is told to stop, or something is wrong.
fn vcpu(shared: &Shared) {
    // SAFETY: this processor's only token: nothing else of the engine runs on it.
    let mut idle = unsafe { Idle::assume() };
    let Some(mut vcpu) = shared.vm.vcpu(VcpuId(0)) else { return shared.wrong.store(true, Release) };
    let mut processor = Svm::new(&shared.guest.start());
    processor.set_rip(Guest::PROGRAM);
    let rbx = Guest::PAGES;
    let mut registers = Registers { rbx, rcx: PAGES, rdi: Guest::MAIL, ..Registers::default() };
    let mail = shared.vm.host().mail;
    loop {
        // ORDER(kick-word): cleared before the vCPU enters, so that a kick that finds it in the guest is not lost.
        mail.kick.swap(0, AcqRel);
        if shared.stop.load(Acquire) {
            return;
        }
        let guest = vcpu.enter(&mut idle, &mut Tlb(&mut processor));
        processor.set_root::<Npt4>(guest.root());
        let exit = processor.run(&mut registers);
        drop(guest);
        let right = match exit {
            Exit::Call => registers.rax == 0,
            Exit::Memory(fault) => vcpu
                .fault(&mut idle, Fault { gpa: fault.gpa, access: fault.access })
                .is_ok_and(|done| done != Done::Mmio),
            _ => false,
        };
        if !right {
            return shared.wrong.store(true, Release);
        }
    }
}

/// What came of a run.
struct Outcome {
    sweeps: u64,
    moves: u64,
    zaps: u64,
    /// The guest met something that should not be there, or a page's count is not the guest's.
    wrong: bool,
}

/// Up to `rounds` rounds of a host beside a guest that sweeps; fewer where the guest has met something wrong.
fn run(ram: Ram, rounds: u64, flushes: bool) -> Outcome {
    let mut guest = Guest::new();
    let (start, end) = (&raw const sweep_start, &raw const sweep_end);
    // SAFETY: the assembly above, from its first byte to the one past its last.
    guest.load(unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) });
    (0..PAGES).for_each(|page| guest.map(page, (FIRST + page).gpa()));
    // SAFETY: a page of the guest's own, which lives as long as it; both sides use it by atomic words only.
    let mail = unsafe { &*(guest.mail() as *const Mail) };
    let host = Moving { first: ram.pattern.start, side: [const { AtomicU64::new(0) }; PAGES as usize], mail };
    for page in 0..PAGES {
        let [[number, count], [spoiled, _]] = [host.words(page, 0), host.words(page, 1)];
        number.store(page, Relaxed);
        count.store(0, Relaxed);
        spoiled.store(SPOILED, Relaxed);
    }
    let builder = Vm::<Npt4, _>::builder(host).vcpus(1);
    let builder = if flushes { builder } else { builder.sabotage_flushes() };
    let vm = builder.build().expect("memory for a VM");
    let (stop, wrong, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let shared = Shared { vm, guest, stop, wrong, done };
    // SAFETY: this processor's only token while this function runs.
    let mut idle = unsafe { Idle::assume() };
    let fixed = shared.guest.fixed();
    let slots = [
        Slot::new(SlotId(0), FIRST, PAGES, MOVING),
        Slot::new(SlotId(1), fixed.gfn, fixed.pages, FIXED + fixed.pfn.address()),
    ];
    let created =
        shared.vm.slots().commit(&mut idle, |tx| slots.into_iter().try_for_each(|slot| tx.create(slot)));
    created.expect("two slots that do not overlap");
    // ORDER(pair): Release; pairs with the Acquire in `second`.
    NEXT.store((&raw const shared).cast_mut(), Release);
    let outcome = host_side(&shared, &mut idle, rounds);
    shared.stop.store(true, Release);
    mail.kick.store(1, Release);
    // ORDER(pair): Acquire; pairs with the Release in `second`. `shared` is used by nobody else from here on.
    while !shared.done.load(Acquire) {
        core::hint::spin_loop();
    }
    let (host, sweeps) = (shared.vm.host(), mail.sweeps.load(Acquire));
    let count = |page: u64| {
        let [_, count] = host.words(page, host.side[page as usize].load(Relaxed));
        count.load(Relaxed)
    };
    let wrong = shared.wrong.load(Acquire) || (0..PAGES).any(|page| count(page) != sweeps);
    Outcome { sweeps, wrong, ..outcome }
}

/// What the host does, until it has done enough or the guest has met something wrong.
fn host_side(shared: &Shared, idle: &mut Idle, rounds: u64) -> Outcome {
    let Shared { vm, wrong, .. } = shared;
    let mut outcome = Outcome { sweeps: 0, moves: 0, zaps: 0, wrong: false };
    for round in 0..rounds {
        // Each round finds the guest with its pages in its TLB: it has swept once since the last.
        let swept = vm.host().mail.sweeps.load(Acquire);
        while vm.host().mail.sweeps.load(Acquire) == swept && !wrong.load(Acquire) {
            core::hint::spin_loop();
        }
        if wrong.load(Acquire) {
            break;
        }
        let page = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (PAGES - 1);
        match round % 16 {
            13 => {
                let _ = vm.write_protect(idle, Span::sized(FIRST + page / 2, PAGES / 2)).settle();
            }
            14 => vm.lockless(idle).age(Span::sized(FIRST, PAGES), |_| ()),
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

/// A page goes to its other frame, as a host would have it: nobody uses the old one any more when it is spoiled.
fn move_page(vm: &Vm<Npt4, Moving>, idle: &mut Idle, page: u64) {
    let host = vm.host();
    let from = host.side[page as usize].load(Relaxed);
    let ([old, old_count], [new, new_count]) = (host.words(page, from), host.words(page, 1 - from));
    let mut change = vm.invalidate(Span::sized(MOVING + (page << PAGE_SHIFT), 1 << PAGE_SHIFT), Why::Migrate);
    change.apply(idle).settle();
    new_count.store(old_count.load(Acquire), Relaxed);
    new.store(page, Relaxed);
    old.store(SPOILED, Release);
    host.side[page as usize].store(1 - from, Release);
    drop(change);
}

/// Runs the pair, and its negative control; nothing where there is no second processor. Prints `PAIR …`.
pub fn judge(ram: Ram, rounds: u64) -> Option<Verdict> {
    const CONTROLS: u64 = 8;
    /// Moves only: nothing that would give table pages away while the guest still walks them.
    const CONTROL_ROUNDS: u64 = 13;
    if !smp::start_second(second) {
        return None;
    }
    let Outcome { sweeps, moves, zaps, wrong } = run(ram, rounds, true);
    let seen = (0..CONTROLS).filter(|_| run(ram, CONTROL_ROUNDS, false).wrong).count() as u64;
    let differences = u64::from(wrong) + CONTROLS - seen;
    println!(
        "PAIR {} {}: {sweeps} sweeps over {PAGES} pages beside {moves} moves and {zaps} zaps of everything, \
         {differences} differences; without flushes seen {seen} of {CONTROLS}",
        Npt4::NAME,
        Svm::NAME
    );
    Some(Verdict { lookups: sweeps * PAGES, differences, ..Verdict::default() })
}
