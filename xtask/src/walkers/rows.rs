//! Which program runs in which emulator.

use crate::emulator::Bochs;
use crate::emulator::{Program, find, qemu, run};
use std::error::Error;
use std::path::Path;

pub struct Row {
    /// What `--only` calls it.
    pub only: &'static str,
    pub what: &'static str,
    program: Program,
    machine: Machine,
    pub nightly: bool,
}

/// The emulator, and what to emulate.
enum Machine {
    /// QEMU takes the program as a kernel. No argument has a space in it.
    Qemu { program: &'static str, package: &'static str, arguments: &'static str },
    /// Bochs is told a model of a processor, and takes the program in a ROM.
    Bochs { model: &'static str },
}

/// A run may take so long, in seconds; a nightly one.
const SECONDS: [u32; 2] = [300, 1800];

const ARM64: Program =
    Program { package: "slat-walker-arm64", name: "judge-arm64", target: "aarch64-unknown-none-softfloat" };
const RISCV: Program =
    Program { package: "slat-walker-riscv", name: "judge-riscv", target: "riscv64imac-unknown-none-elf" };
const X86: Program = Program { package: "slat-walker-x86", name: "judge-x86", target: "x86_64-unknown-none" };

const fn qemu_row(only: &'static str, what: &'static str, program: Program, machine: Machine) -> Row {
    Row { only, what, program, machine, nightly: false }
}

/// Bochs with two processors.
const fn bochs(only: &'static str, what: &'static str, model: &'static str) -> Row {
    Row { only, what, program: X86, machine: Machine::Bochs { model }, nightly: false }
}

pub const ROWS: &[Row] = &[
    qemu_row(
        "npt",
        "npt4, npt5, pae by QEMU's AMD-V",
        X86,
        // A PC with nothing but processors, memory, a serial port and a port to end it by.
        Machine::Qemu {
            program: "qemu-system-x86_64",
            package: "qemu-system-x86",
            arguments: "-cpu max,phys-bits=52 -smp 2 -m 512 -nodefaults -device isa-debug-exit,iobase=0xf4,iosize=4",
        },
    ),
    bochs("npt", "npt4, pae by Bochs's Ryzen", "ryzen"),
    bochs("ept", "ept4, ept4-noad by Bochs's Skylake", "corei7_skylake_x"),
    Row { nightly: true, ..bochs("ept", "ept4, ept4-noad by Bochs's Haswell", "corei7_haswell_4770") },
    Row { nightly: true, ..bochs("ept", "ept4, ept4-noad by Bochs's Tiger Lake", "tigerlake") },
    qemu_row(
        "arm64",
        "arm64 stage 2 with 39, 40 and 48 bits by QEMU's EL2, with and without hardware's A and D",
        ARM64,
        Machine::Qemu {
            program: "qemu-system-aarch64",
            package: "qemu-system-arm",
            arguments: "-M virt,virtualization=on -cpu max -m 1024 -semihosting",
        },
    ),
    qemu_row(
        "riscv",
        "Sv39x4, Sv48x4, Sv57x4 by QEMU's RISC-V",
        RISCV,
        Machine::Qemu {
            program: "qemu-system-riscv64",
            package: "qemu-system-misc",
            arguments: "-M virt -cpu rv64,h=true -m 256 -bios none",
        },
    ),
];

impl Row {
    /// The file that keeps what it says.
    pub fn log(&self) -> String {
        let name = self.what.replace(|char: char| !char.is_ascii_alphanumeric(), "-");
        format!("{}-{}.txt", self.only, name.to_lowercase())
    }

    /// Builds the program and runs it; what it said.
    pub fn run(
        &self,
        folder: &Path,
        environment: &[(&str, String)],
        nightly: bool,
    ) -> Result<String, Box<dyn Error>> {
        let seconds = SECONDS[usize::from(nightly)];
        let command = match self.machine {
            Machine::Qemu { program, package, arguments } => {
                let mut qemu = qemu(&find(program, package)?, seconds);
                qemu.args(arguments.split(' ')).arg("-kernel").arg(self.program.build(environment)?);
                qemu
            }
            Machine::Bochs { model } => {
                find("bochs", "bochs")?;
                let (program, folder) = (self.program.build(environment)?, folder.join(model));
                Bochs { model, processors: 2, program: &program, disk: None, folder: &folder }
                    .command(seconds)?
            }
        };
        Ok(run(command, |_| {})?.0)
    }
}
