//! The judge at EL2: stage 2 of arm64, as QEMU's `virt` board walks it.
//!
//! The emulator's command line may say `seed=<number>` and `lookups=<number>`. What is printed last says whether all was
//! well; so does the exit status, 0 or 1.
#![no_std]
#![no_main]

mod boot;
mod console;
mod guest;
mod machine;
mod semihosting;
mod stage2;
mod vectors;

use machine::El1;
use slat::Idle;
use slat::table::Format;
use slat::table::formats::{Arm64L39, Arm64L40, Arm64L48, Arm64NoAd};
use slat_judge::{LOOKUPS, SEED, Verdict, conclude, judge, mutate, stale};
use stage2::Stage2;

/// What a run does, where the command line says nothing else.
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

    /// Everything that tables of format `F` are put to.
    fn run<F: Format>(&self, idle: &mut Idle) -> [Verdict; 3] {
        let stage2 = Stage2::of::<F>();
        if let Some(what) = stage2.lacks() {
            panic!("{}: this processor {what}", F::NAME);
        }
        let mut machine = El1::new(stage2, true);
        let mut walked = judge::<F, _>(&mut machine, idle, self.seed, self.lookups);
        walked.differences += machine.disagreements();
        // `AT` walks again: it is not asked where the TLB is to answer, and has no say on tables that are damaged.
        let mut machine = El1::new(stage2, false);
        let stale = stale::<F, _>(&mut machine, idle, self.seed);
        [walked, stale, mutate::<F, _>(&mut machine, idle)]
    }
}

/// Where [`boot`] goes on in Rust.
extern "C" fn main() -> ! {
    vectors::install();
    if !boot::begin() {
        semihosting::exit(1);
    }
    // SAFETY: this is the only processor, and this the only token.
    let mut idle = unsafe { Idle::assume() };
    let plan = Plan::read(semihosting::command_line(&mut [0; 256]));
    let verdicts = [
        plan.run::<Arm64L39>(&mut idle),
        plan.run::<Arm64L40>(&mut idle),
        plan.run::<Arm64L48>(&mut idle),
        plan.run::<Arm64NoAd>(&mut idle),
    ];
    let mut machine = El1::new(Stage2::of::<Arm64L48>(), false);
    let passed = conclude(&mut machine, verdicts.as_flattened());
    semihosting::exit(u64::from(!passed))
}
