//! `slat vmm` boots a Linux kernel on KVM. Guest memory is slat-mm's. While the guest runs, slat moves, pages out and
//! merges this memory, and logs stores to it.
//!
//! | file | contents |
//! |---|---|
//! | `arguments` | the command line |
//! | `boot` | memory contents at the kernel's start, by Linux's 64-bit boot protocol |
//! | `processors` | ACPI tables that describe the processors |
//! | `vcpu` | registers at the start; the loop that runs a vCPU |
//! | `console` | the serial port, and the terminal behind it |
//! | `churn` | changes of the guest's memory while it runs |
//! | `virtual_machine` | all of these together, from the kernel's start to its restart |

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod arguments;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod boot;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod churn;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod console;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod processors;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vcpu;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod virtual_machine;

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    use clap::Parser;
    match virtual_machine::run(&arguments::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slat vmm: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!("slat vmm: it needs the KVM of an x86-64 Linux");
    ExitCode::from(2)
}
