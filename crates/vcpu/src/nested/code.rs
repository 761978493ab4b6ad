//! L1's own code: its hypervisor's loads and stores, instruction by instruction, through the vCPU's TLB and the
//! engine's tables.

use crate::cpu::{Core, Program, Step};
use crate::{Cpu, Exit};
use slat::{Fault, Format, Gfn, Gpa, Host, Idle, PAGE_SIZE, Span};

type Page = [u8; PAGE_SIZE as usize];

/// The services that L1's hypervisor needs from its machine.
pub trait Platform {
    /// Why it cannot continue.
    type Error;

    /// Handles an exit of a vCPU before the vCPU continues.
    fn exit(&mut self, idle: &mut Idle, exit: Exit) -> Result<(), Self::Error>;

    /// Returns more memory for L1: at least 2 MiB of frames never stored to, aligned to 2 MiB.
    fn memory(&mut self, idle: &mut Idle) -> Result<Span<Gfn>, Self::Error>;

    /// Returns the error that there is no memory for shadows.
    fn no_memory(&mut self) -> Self::Error;
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Load(Gpa),
    Exchange(Gpa, u64, u64),
    ReadPage(Gfn),
    WritePage(Gfn),
}

/// One action, and its result.
struct Code {
    act: Act,
    word: Result<u64, u64>,
    page: Box<Page>,
}

impl Program for Code {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        match self.act {
            Act::Load(gpa) => self.word = Ok(core.load_word(gpa)?),
            Act::Exchange(gpa, old, new) => self.word = core.exchange_word(gpa, old, new)?,
            Act::ReadPage(gfn) => core.load(gfn.gpa(), &mut self.page[..])?,
            Act::WritePage(gfn) => core.store(gfn.gpa(), &self.page[..])?,
        }
        Ok(Step::Stop)
    }
}

/// L1's hypervisor, running on one of its vCPUs.
pub(super) struct L1Code<'c, 'vm, F: Format, H: Host, P> {
    pub(super) cpu: &'c mut Cpu<'vm, F, H>,
    pub(super) idle: &'c mut Idle,
    pub(super) platform: &'c mut P,
    code: Code,
}

impl<'c, 'vm, F: Format, H: Host, P: Platform> L1Code<'c, 'vm, F, H, P> {
    pub(super) fn new(cpu: &'c mut Cpu<'vm, F, H>, idle: &'c mut Idle, platform: &'c mut P) -> Self {
        let code = Code { act: Act::Load(Gpa(0)), word: Ok(0), page: Box::new([0; PAGE_SIZE as usize]) };
        Self { cpu, idle, platform, code }
    }

    fn run(&mut self, act: Act) -> Result<(), P::Error> {
        self.code.act = act;
        loop {
            match self.cpu.run(self.idle, &mut self.code) {
                Exit::Stopped => return Ok(()),
                exit => self.platform.exit(self.idle, exit)?,
            }
        }
    }

    /// Loads an entry.
    pub(super) fn load(&mut self, at: Gpa) -> Result<u64, P::Error> {
        self.run(Act::Load(at))?;
        Ok(self.code.word.unwrap_or_default())
    }

    /// Changes an entry atomically, since hardware may set A and D there. Returns the old and the new value.
    pub(super) fn change(&mut self, at: Gpa, change: impl Fn(u64) -> u64) -> Result<(u64, u64), P::Error> {
        let mut old = self.load(at)?;
        loop {
            let new = change(old);
            self.run(Act::Exchange(at, old, new))?;
            match self.code.word {
                Ok(_) => return Ok((old, new)),
                Err(found) => old = found,
            }
        }
    }

    /// Returns the contents of a page.
    pub(super) fn page(&mut self, gfn: Gfn) -> Result<&Page, P::Error> {
        self.run(Act::ReadPage(gfn))?;
        Ok(&self.code.page)
    }

    /// Returns a checksum of a page.
    pub(super) fn sum(&mut self, gfn: Gfn) -> Result<u64, P::Error> {
        let page = self.page(gfn)?;
        let words = page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        Ok(words.fold(0, |sum: u64, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)))
    }

    pub(super) fn copy(&mut self, from: Gfn, to: Gfn) -> Result<(), P::Error> {
        self.page(from)?;
        self.run(Act::WritePage(to))
    }

    pub(super) fn fill(&mut self, gfn: Gfn, byte: u8) -> Result<(), P::Error> {
        self.code.page.fill(byte);
        self.run(Act::WritePage(gfn))
    }

    pub(super) fn write(&mut self, gfn: Gfn, page: &Page) -> Result<(), P::Error> {
        self.code.page.copy_from_slice(page);
        self.run(Act::WritePage(gfn))
    }
}
