//! The one instruction that is ever looked at: a store of 32 bits, from a register (`89 /r`) or of a number (`c7 /0`), in
//! 64-bit code. Compilers have no other for a device's register.
//!
//! Where it stores to is known from the fault; so of its address only the length matters. Its bytes are found by the guest's
//! own page tables, in the frames that the host has behind them now.

use crate::memory::Machine;
use slat::{Gpa, Hva, PAGE_SIZE};
use slat_walker_x86::guest::Registers;

/// A store that has been understood.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// What is stored.
    pub value: u32,
    /// The instruction after it.
    pub next: u64,
}

impl Store {
    /// The instruction at `rip`, behind tables that begin at a root and have so many levels; nothing where it is another.
    pub fn at(rip: u64, tables: (Gpa, u8), host: &Machine, registers: &Registers) -> Option<Self> {
        const WIDE: u8 = 8;
        const NO_BASE: u8 = 5;
        let mut code = Code { host, tables, at: rip };
        let (rex, opcode) = match code.next()? {
            rex @ 0x40..=0x4f => (rex, code.next()?),
            opcode => (0, opcode),
        };
        let modrm = code.next()?;
        let (mode, register) = (modrm >> 6, modrm >> 3 & 7 | (rex & 4) << 1);
        let base = match modrm & 7 {
            4 if mode != 3 => code.next()? & 7,
            base => base,
        };
        code.at += match mode {
            0 if base == NO_BASE => 4,
            0 => 0,
            1 => 1,
            2 => 4,
            _ => return None,
        };
        let value = match opcode {
            _ if rex & WIDE != 0 => return None,
            0x89 => numbered(registers, register)? as u32,
            0xc7 => u32::from_le_bytes([code.next()?, code.next()?, code.next()?, code.next()?]),
            _ => return None,
        };
        Some(Self { value, next: code.at })
    }
}

/// A register by its number in instructions; nothing for the stack pointer.
fn numbered(of: &Registers, number: u8) -> Option<u64> {
    let registers = [of.rax, of.rcx, of.rdx, of.rbx, 0, of.rbp, of.rsi, of.rdi];
    let more = [of.r8, of.r9, of.r10, of.r11, of.r12, of.r13, of.r14, of.r15];
    let found = registers.into_iter().chain(more).nth(usize::from(number));
    found.filter(|_| number != 4)
}

/// The guest's instructions, byte by byte.
struct Code<'h> {
    host: &'h Machine,
    tables: (Gpa, u8),
    at: u64,
}

impl Code<'_> {
    fn next(&mut self) -> Option<u8> {
        const PRESENT: u64 = 1;
        const LARGE: u64 = 1 << 7;
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let (Gpa(root), levels) = self.tables;
        let mut entry = root | PRESENT;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * u32::from(level);
            entry = self.word((entry & ADDRESS) + (self.at >> shift & 511) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & LARGE != 0 {
                let offset = (1 << shift) - 1;
                let word = self.word((entry & ADDRESS & !offset) + (self.at & offset & !7))?;
                let byte = word.to_le_bytes()[(self.at & 7) as usize];
                self.at += 1;
                return Some(byte);
            }
        }
        None
    }

    /// The word at a guest-physical address, a multiple of 8, which is its host address. Beside the guest's code and
    /// tables, which stay as they are while it waits, nothing of it is believed.
    fn word(&self, at: u64) -> Option<u64> {
        let word = (at % PAGE_SIZE / 8) as usize;
        let frames = self.host.frames.lock();
        (at < self.host.layout.ram_end()).then(|| self.host.contents(&frames, Hva(at), |words| words[word]))
    }
}
