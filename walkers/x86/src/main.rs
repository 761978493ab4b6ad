//! The judge on x86-64.
#![no_std]
#![no_main]

use slat_walker_x86::boot::Boot;
use slat_walker_x86::exit::{Verdict, exit};
use slat_walker_x86::{cpu, entry, println};

entry!(main);

fn main(boot: Boot) -> ! {
    println!("up: {:?}, {} processor(s), line '{}'", cpu::vendor(), cpu::processors(), boot.command_line());
    for range in boot.memory() {
        println!("{range:x?}");
    }
    exit(Verdict::Passed)
}
