//! L1: a hypervisor on bare metal with AMD-V, whose guest tests its nested page tables.
//!
//! ```text
//!  change an entry of T at random ─▶ flush, by another ASID or by TLB_CONTROL, or not ─▶ L2 loads, stores or fetches once
//!      ▲                                                                                        │
//!      └── the result must be that of T now, or of T at some moment since L1's last flush ◀─────┘
//! ```
//! Software walks T for the expected result ([`tables`]). The program compares the frame that L2 has reached,
//! #VMEXIT(NPF)'s two words, Accessed and Dirty in each entry on the path, and the contents of all frames. It is
//! independent of the machine below it: an emulated processor, or slat's thin hypervisor, whose host moves and takes
//! its pages meanwhile. Any Multiboot loader can load it; QEMU's `-kernel`, too.
//!
//! | file | contents |
//! |---|---|
//! | `tables` | T: makes, changes and walks it |
//! | `trial` | the frames that each L2 address may lead to, and one access compared with them |
//! | `block` | control blocks that VMRUN must refuse; the registers that VMLOAD and VMSAVE exchange |
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

/// Default number of turns.
const TURNS: u64 = 6_000;
/// Number of turns between two checks of all frames.
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

/// Returns the command line of a Multiboot loader: bit 2 of the table's first word says whether the fifth word is its
/// address.
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
