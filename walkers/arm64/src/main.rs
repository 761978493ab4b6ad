//! The judge at EL2: stage 2 of arm64, as QEMU's `virt` board walks it.
#![no_std]
#![no_main]

mod boot;
mod console;
mod guest;
mod machine;
mod semihosting;
mod stage2;
mod vectors;

/// Where [`boot`] goes on in Rust.
extern "C" fn main() -> ! {
    vectors::install();
    if !boot::begin() {
        semihosting::exit(1);
    }
    console::println!("JUDGE FAILED: nothing is judged yet");
    semihosting::exit(1)
}
