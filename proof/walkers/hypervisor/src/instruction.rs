//! Decodes the only instructions that the hypervisor emulates: a store of 32 bits from a register (`89 /r`) or of a
//! number (`c7 /0`), a load of 32 bits (`8b /r`), and both with EAX and an address (`a1`, `a3`), in 64-bit code, also
//! with an address of 32 bits (prefix `67`).
//!
//! The fault has the address, so only the length of the address bytes matters. The decoder finds the instruction's
//! bytes through the guest's own page tables, in the host's current frames.

use crate::primary_mmu::Machine;
use alloc::vec::Vec;
use slat::{Gpa, Hva, PAGE_SIZE};
use slat_walker_x86::processor::Registers;

/// Kind of a move.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Stores this value.
    Store(u32),
    /// Loads into this register.
    Load(Register),
}

/// A general register, by its number in instructions; not the stack pointer.
#[derive(Clone, Copy, Debug)]
pub struct Register(u8);

/// A decoded move.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Its kind.
    pub kind: Kind,
    /// Address of the next instruction.
    pub next: u64,
}

impl Move {
    /// Decodes the next instruction of `code`. `None` for any other instruction.
    pub fn of(mut code: Code<'_>, registers: &Registers) -> Option<Self> {
        const WIDE: u8 = 8;
        const NO_BASE: u8 = 5;
        const NARROW: u8 = 0x67;
        let (is_narrow, first) = match code.next()? {
            NARROW => (true, code.next()?),
            first => (false, first),
        };
        let (rex, opcode) = match first {
            rex @ 0x40..=0x4f => (rex, code.next()?),
            opcode => (0, opcode),
        };
        if matches!(opcode, 0xa1 | 0xa3) && rex & WIDE == 0 {
            let next = code.at + if is_narrow { 4 } else { 8 };
            let kind =
                if opcode == 0xa1 { Kind::Load(Register(0)) } else { Kind::Store(registers.rax as u32) };
            return Some(Self { kind, next });
        }
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
        let register = (register != STACK_POINTER).then_some(Register(register));
        let kind = match opcode {
            _ if rex & WIDE != 0 => return None,
            0x89 => Kind::Store(*register?.of(&mut { *registers }) as u32),
            0x8b => Kind::Load(register?),
            0xc7 => Kind::Store(u32::from_le_bytes([code.next()?, code.next()?, code.next()?, code.next()?])),
            _ => return None,
        };
        Some(Self { kind, next: code.at })
    }
}

const STACK_POINTER: u8 = 4;
/// Bytes of the longest instruction.
const LONGEST: usize = 15;

impl Register {
    fn of(self, all: &mut Registers) -> &mut u64 {
        match self.0 {
            0 => &mut all.rax,
            1 => &mut all.rcx,
            2 => &mut all.rdx,
            3 => &mut all.rbx,
            5 => &mut all.rbp,
            6 => &mut all.rsi,
            7 => &mut all.rdi,
            8 => &mut all.r8,
            9 => &mut all.r9,
            10 => &mut all.r10,
            11 => &mut all.r11,
            12 => &mut all.r12,
            13 => &mut all.r13,
            14 => &mut all.r14,
            _ => &mut all.r15,
        }
    }

    /// Sets the register.
    pub fn set(self, all: &mut Registers, value: u64) {
        *self.of(all) = value;
    }
}

/// Reads a guest's instructions byte by byte.
#[derive(Clone, Copy)]
pub struct Code<'h> {
    /// The host.
    pub host: &'h Machine,
    /// Root and number of levels of the guest's tables.
    pub tables: (Gpa, u8),
    /// Leads from an address of the guest's memory to one of L1's: the same, unless the guest is L2.
    pub in_l1: &'h dyn Fn(u64) -> Option<u64>,
    /// The next linear address.
    pub at: u64,
}

impl Code<'_> {
    /// Returns the bytes of the next instruction, for an error message; fewer if they are not there.
    pub fn bytes(mut self) -> Vec<u8> {
        core::iter::from_fn(|| self.next()).take(LONGEST).collect()
    }

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

    /// Returns the word at a guest-physical address, a multiple of 8, which is its host address. Only the guest's code
    /// and tables, which stay unchanged while it waits, can be trusted.
    fn word(&self, at: u64) -> Option<u64> {
        let at = (self.in_l1)(at)?;
        let word = (at % PAGE_SIZE / 8) as usize;
        let frames = self.host.frames.lock();
        (at < self.host.layout.ram_end()).then(|| self.host.contents(&frames, Hva(at), |words| words[word]))
    }
}
