//! Errors, and the end of a run.

use alloc::boxed::Box;
use slat_walker_x86::exit::{Verdict, exit};
use slat_walker_x86::println;

/// An error of one line.
pub type Error = Box<dyn core::error::Error>;

/// Ends the machine, from any processor.
pub fn finish(result: Result<(), Error>) -> ! {
    match result {
        Ok(()) => exit(Verdict::Passed),
        Err(error) => {
            println!("hypervisor: {error}");
            exit(Verdict::Failed)
        }
    }
}
