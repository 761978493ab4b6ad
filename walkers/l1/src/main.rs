//! L1: a hypervisor on bare metal whose guest tries what its nested page tables say, by AMD-V.
//!
//! ```text
//!  change an entry of T at random ─▶ flush, by another ASID or by TLB_CONTROL, or not ─▶ L2 loads, stores or fetches once
//!      ▲                                                                                        │
//!      └── what came of it must be what T says, or has said since L1's last flush ◀─────────────┘
//! ```
//! T is walked by software for what it says ([`tables`]). Compared are the frame that L2 has reached, #VMEXIT(NPF)'s two words, Accessed and Dirty
//! in each entry on the way, and the contents of all frames. It is told nothing of what is below it: an emulated processor, or slat's
//! thin hypervisor, whose host moves and takes its pages meanwhile. Any Multiboot loader can load it; QEMU's `-kernel`, too.
//!
//! | file | idea |
//! |---|---|
//! | `tables` | T: made, changed, walked |
//! | `trial` | what each L2 address may lead to, and one access compared with it |
//! | `block` | what VMRUN refuses; what VMLOAD and VMSAVE exchange |
#![no_std]
#![no_main]

extern crate alloc;

mod block;
mod tables;
mod trial;

use core::ffi::CStr;
use slat_judge::Random;
use slat_walker_x86::boot::Boot;
use slat_walker_x86::exit::{Verdict, exit};
use slat_walker_x86::{entry, println};
use trial::Trial;

core::arch::global_asm!(include_str!("multiboot.s"));

unsafe extern "C" {
    static multiboot_table: u64;
}

entry!(main);

/// Turns, where the command line says none.
const TURNS: u64 = 6_000;
/// So many pass between two looks at all frames.
const LOOK: u64 = 500;

fn main(boot: Boot) -> ! {
    let verdict = match all(boot) {
        Ok(()) => Verdict::Passed,
        Err(why) => {
            println!("l1: {why}");
            Verdict::Failed
        }
    };
    exit(verdict)
}

fn all(boot: Boot) -> Result<(), alloc::string::String> {
    let line = if boot.has_firmware() { boot.command_line() } else { multiboot_line() };
    let word = |name| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let (turns, seed) = (word("turns=").unwrap_or(TURNS), word("seed=").unwrap_or(1));
    let mut trial = Trial::new(Random::new(seed))?;
    for turn in 1..=turns {
        trial.turn().map_err(|why| alloc::format!("turn {turn} of seed {seed}: {why}"))?;
        if turn.is_multiple_of(LOOK) || turn == turns {
            trial.compare_frames()?;
        }
    }
    trial.report();
    println!("l1: passed");
    Ok(())
}

/// What a Multiboot loader has left for the program: bit 2 of the table's first word says whether its fifth is a line's address.
fn multiboot_line() -> &'static str {
    // SAFETY: the entry point has left the table's address there, or it is 0.
    let table = unsafe { (&raw const multiboot_table).read_volatile() } as *const u32;
    if table.is_null() {
        return "";
    }
    // SAFETY: the loader's table, of which nothing is overwritten; a line ends in zero.
    unsafe {
        if *table & 1 << 2 == 0 {
            ""
        } else {
            CStr::from_ptr(*table.add(4) as usize as *const _).to_str().unwrap_or("")
        }
    }
}
