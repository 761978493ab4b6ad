//! Which program runs in which emulator.

use crate::emulator::{self, Program};
use std::error::Error;
use std::path::Path;

/// A program in an emulator.
pub struct Row {
    /// What `--only` calls it.
    pub only: &'static str,
    /// What is judged by whom.
    pub what: &'static str,
    program: Program,
    machine: Machine,
    /// Only in nightly runs.
    nightly: bool,
}

/// The emulator, and what to emulate.
enum Machine {
    /// QEMU takes the program as a kernel.
    Qemu { program: &'static str, package: &'static str, arguments: &'static [&'static str] },
}

/// A run may take so long, in seconds; a nightly one.
const SECONDS: [u32; 2] = [120, 1200];

const RISCV: Program =
    Program { package: "slat-walker-riscv", name: "judge-riscv", target: "riscv64imac-unknown-none-elf" };

/// Every row.
pub const ROWS: &[Row] = &[Row {
    only: "riscv",
    what: "Sv39x4, Sv48x4, Sv57x4 by QEMU's RISC-V",
    program: RISCV,
    machine: Machine::Qemu {
        program: "qemu-system-riscv64",
        package: "qemu-system-misc",
        arguments: &["-M", "virt", "-cpu", "rv64,h=true", "-m", "256", "-bios", "none"],
    },
    nightly: false,
}];

/// For every machine: one processor's instructions at a time, no screen, the serial line on our standard output.
const QEMU: [&str; 8] = ["-accel", "tcg", "-display", "none", "-monitor", "none", "-serial", "stdio"];

impl Row {
    /// The file that keeps what it says.
    pub fn log(&self) -> String {
        let name: String =
            self.what.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect();
        format!("{}-{}.txt", self.only, name.to_lowercase())
    }

    /// Builds the program and runs it; what it said.
    pub fn run(
        &self,
        root: &Path,
        _folder: &Path,
        environment: &[(&str, String)],
        nightly: bool,
    ) -> Result<String, Box<dyn Error>> {
        let seconds = SECONDS[usize::from(nightly)];
        if self.nightly && !nightly {
            return Ok(String::new());
        }
        match &self.machine {
            Machine::Qemu { program, package, arguments } => {
                let emulator = emulator::find(program, package)?;
                let kernel = self.program.build(root, environment)?;
                let kernel = kernel.to_str().ok_or("the repository's path is no UTF-8")?;
                let all: Vec<&str> = QEMU
                    .iter()
                    .chain(*arguments)
                    .chain(&["-no-reboot", "-kernel", kernel])
                    .copied()
                    .collect();
                emulator::run(&emulator, &all, seconds)
            }
        }
    }
}
