//! The judge on x86-64, for the nested walker of the emulated processor: AMD-V or VT-x.
//!
//! | processor | formats |
//! |---|---|
//! | AMD's | `npt4`; `npt5` where long mode can have five levels; `pae`, from a host that leaves long mode for it |
//! | Intel's | `ept4`, `ept4-noad`; `ept5` where there is EPT of five levels |
//!
//! With a second processor, also a guest on it while its host moves pages: `pair`.
#![no_std]
#![no_main]

extern crate alloc;

mod nested_walker;
mod pair;

use alloc::vec::Vec;
use nested_walker::{Emulator, Walker};
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::{Format, Idle};
use slat_judge::{LOOKUPS, Machine, Verdict, conclude, everything, judge};
use slat_walker_x86::boot::Boot;
use slat_walker_x86::cpu::{self, Vendor};
use slat_walker_x86::exit::{self, exit};
use slat_walker_x86::processor::Processor;
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmx::Vmx;
use slat_walker_x86::{entry, paging, println};

entry!(main);

fn main(boot: Boot) -> ! {
    // Of the emulators here, only QEMU is a loader.
    let emulator = if boot.has_firmware() { Emulator::Qemu } else { Emulator::Bochs };
    println!("{emulator:?}: {:?}, {} bits of physical address", cpu::vendor(), cpu::physical_bits());
    let passed = match cpu::vendor() {
        Vendor::Amd => amd(Session::new(boot), emulator),
        Vendor::Intel => intel(Session::new(boot), emulator),
        Vendor::Other => panic!("neither AMD's nor Intel's: no nested paging that we know"),
    };
    exit(if passed { exit::Verdict::Passed } else { exit::Verdict::Failed })
}

/// The verdicts so far.
struct Session {
    idle: Idle,
    verdicts: Vec<Verdict>,
    /// From the command line, to repeat a difference: `seed=7 lookups=40000`. Then only look-ups are made.
    again: Option<(u64, u64)>,
}

impl Session {
    fn new(boot: Boot) -> Self {
        let asked = |name: &str| {
            let mut words = boot.command_line().split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let again = asked("seed").map(|seed| (seed, asked("lookups").unwrap_or(LOOKUPS)));
        // SAFETY: called once, and this processor has no other token.
        Self { idle: unsafe { Idle::assume() }, verdicts: Vec::new(), again }
    }

    /// Judges tables of one format, and returns the walker for the next one.
    fn walk<P: Processor, F: Format>(&mut self, mut walker: Walker<P, F>) -> Walker<P, F> {
        match self.again {
            Some((seed, lookups)) => {
                self.verdicts.push(judge::<F, _>(&mut walker, &mut self.idle, seed, lookups));
            }
            None => self.verdicts.extend(everything::<F, _>(&mut walker, &mut self.idle)),
        }
        walker
    }

    /// Judges a guest on the second processor beside a host on this one.
    fn pair<P: Processor, F: Format>(&mut self, here: &impl Machine) {
        if self.again.is_some() {
            return;
        }
        match pair::judge::<P, F>(here.name(), here.ram(), ROUNDS) {
            Some(verdict) => self.verdicts.push(verdict),
            None => println!("one processor: no pair"),
        }
    }

    fn conclude(&self, machine: &mut impl Machine) -> bool {
        conclude(machine, &self.verdicts)
    }
}

/// Rounds of a host beside a guest on the other processor.
const ROUNDS: u64 = LOOKUPS / 40;

fn amd(mut session: Session, emulator: Emulator) -> bool {
    let mut walker = session.walk(Walker::<Svm, Npt4>::new(emulator));
    walker = session.walk(walker.of::<Pae>()).of();
    if paging::has_five_levels() {
        walker = session.walk(walker.of::<Npt5>()).of();
    } else {
        println!("{} is not judged: long mode has four levels here", Npt5::NAME);
    }
    session.pair::<Svm, Npt4>(&walker);
    session.conclude(&mut walker)
}

fn intel(mut session: Session, emulator: Emulator) -> bool {
    let mut walker = session.walk(Walker::<Vmx, Ept4>::new(emulator));
    walker = session.walk(walker.of::<Ept4NoAd>()).of();
    if walker.processor().features().five_levels {
        walker = session.walk(walker.of::<Ept5>()).of();
    } else {
        println!("{} is not judged: EPT has four levels here", Ept5::NAME);
    }
    session.pair::<Vmx, Ept4>(&walker);
    session.conclude(&mut walker)
}
