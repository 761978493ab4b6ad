//! The judge at EL2: stage 2 of arm64, as QEMU's `virt` board walks it.
//!
//! The emulator's command line may have `seed=<number>` and `lookups=<number>`. The last line and the exit status, 0 or
//! 1, give the verdict.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod console;
mod control;
mod el1_machine;
mod guest_access;
mod semihosting;
mod stage2;
mod vectors;

use alloc::vec;
use el1_machine::El1;
use slat::Idle;
use slat::table::Format;
use slat::table::formats::{Arm64L39, Arm64L40, Arm64L48, Arm64NoAd};
use slat_judge::{LOOKUPS, SEED, Verdict, conclude, judge, mutate, stale};
use stage2::Stage2;

/// Options of a run.
struct Plan {
    seed: u64,
    lookups: u64,
}

impl Plan {
    fn read(line: &str) -> Self {
        let number = |name| {
            let mut words = line.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        Self { seed: number("seed=").unwrap_or(SEED), lookups: number("lookups=").unwrap_or(LOOKUPS) }
    }

    /// Runs all checks of tables of format `F`.
    fn run<F: Format>(&self, idle: &mut Idle) -> [Verdict; 3] {
        let mut machine = machine::<F>(true);
        let mut walked = judge::<F, _>(&mut machine, idle, self.seed, self.lookups);
        walked.differences += machine.tell_disagreements();
        // `AT` walks again, so it is not asked in checks of the TLB, or of damaged tables.
        let mut machine = self::machine::<F>(false);
        let stale = stale::<F, _>(&mut machine, idle, self.seed);
        [walked, stale, mutate::<F, _>(&mut machine, idle)]
    }
}

/// Makes a guest whose stage 2 walks tables of format `F`.
fn machine<F: Format>(asks_twice: bool) -> El1 {
    let stage2 = Stage2::of::<F>();
    if let Some(what) = stage2.lacks() {
        panic!("{}: this processor {what}", F::NAME);
    }
    El1::new(stage2, asks_twice)
}

/// The entry point of Rust: [`boot`] calls it by this name.
#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    if !boot::begin() {
        semihosting::exit(1);
    }
    vectors::install();
    // SAFETY: this is the only processor, and this the only token.
    let mut idle = unsafe { Idle::assume() };
    let plan = Plan::read(semihosting::command_line(&mut [0; 256]));
    let mut controlled = machine::<Arm64L39>(true);
    let mut verdicts = vec![control::second_answer_can_differ(&mut controlled)];
    verdicts.extend(plan.run::<Arm64L39>(&mut idle));
    verdicts.extend(plan.run::<Arm64L40>(&mut idle));
    verdicts.extend(plan.run::<Arm64L48>(&mut idle));
    verdicts.extend(plan.run::<Arm64NoAd>(&mut idle));
    let passed = conclude(&mut controlled, &verdicts);
    semihosting::exit(u64::from(!passed))
}
