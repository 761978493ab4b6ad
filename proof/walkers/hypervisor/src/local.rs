//! A local interrupt controller for a vCPU that shares its processor, with the features that Linux uses.
//!
//! It has two bits for each vector, requested (IRR) and in service (ISR), a timer, and the register for commands to
//! other vCPUs. Interrupts of the machine come from the old controller (8259) past all this, as on a PC whose first
//! processor has it on its LINT0.

/// Offsets of the registers in bytes.
mod register {
    pub const ID: u64 = 0x20;
    pub const VERSION: u64 = 0x30;
    pub const PRIORITY: u64 = 0x80;
    pub const END: u64 = 0xb0;
    pub const LOGICAL: u64 = 0xd0;
    pub const SPURIOUS: u64 = 0xf0;
    pub const SERVED: u64 = 0x100;
    pub const ASKED: u64 = 0x200;
    pub const ERRORS: u64 = 0x280;
    pub const COMMAND: u64 = 0x300;
    pub const TIMER: u64 = 0x320;
    pub const COUNT: u64 = 0x380;
    pub const LEFT: u64 = 0x390;
    pub const DIVIDE: u64 = 0x3e0;
    /// Number of registers, one each 16 bytes.
    pub const WORDS: usize = 64;
}

/// Version 0x14, six entries of the local table.
const VERSION: u32 = 0x0005_0014;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
/// Ticks of the processor's clock for one undivided tick of the timer; Linux measures that.
const TICKS: u64 = 16;

/// Vectors.
type Vectors = [u32; 8];

/// A local interrupt controller.
#[derive(Debug)]
pub struct Local {
    /// Registers that only keep the written value, and ID.
    words: [u32; register::WORDS],
    asked: Vectors,
    served: Vectors,
    /// Time at which the timer fires.
    due: Option<u64>,
}

/// A command of a vCPU to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Take this vector.
    Take(u8),
    /// Begin at this page.
    Startup(u8),
    /// Any other: INIT, which STARTUP follows; NMIs, which are not supported.
    Other,
}

impl Local {
    /// Makes a controller in its state after reset.
    pub fn new(id: u32) -> Self {
        let mut words = [0; register::WORDS];
        words[index(register::ID)] = id << 24;
        words[index(register::SPURIOUS)] = 0xff;
        words[index(register::TIMER)] = MASKED;
        Self { words, asked: [0; 8], served: [0; 8], due: None }
    }

    /// Handles a load.
    pub fn read(&self, at: u64, now: u64) -> u32 {
        let vectors = |from: u64, of: &Vectors| of[((at - from) / 16) as usize];
        match at {
            register::VERSION => VERSION,
            register::SERVED..0x180 => vectors(register::SERVED, &self.served),
            register::ASKED..register::ERRORS => vectors(register::ASKED, &self.asked),
            register::ERRORS => 0,
            register::LEFT => self.due.map_or(0, |due| (due.saturating_sub(now) / self.ticks()) as u32),
            _ => self.words[index(at)],
        }
    }

    /// Handles a store. Returns its command, and the addressed vCPUs of two, a bit each.
    pub fn write(&mut self, at: u64, value: u32, now: u64, others: [u32; 2]) -> Option<(Command, u32)> {
        if at == register::END {
            if let Some(vector) = highest(&self.served) {
                self.served[usize::from(vector / 32)] &= !(1 << (vector % 32));
            }
            return None;
        }
        self.words[index(at)] = value;
        match at {
            register::COUNT => self.due = (value > 0).then(|| now + self.period()),
            register::COMMAND => return Some(self.command(value, others)),
            _ => {}
        }
        None
    }

    /// Returns its logical addresses.
    pub fn logical(&self) -> u32 {
        self.words[index(register::LOGICAL)] >> 24
    }

    fn command(&self, value: u32, logical: [u32; 2]) -> (Command, u32) {
        let own = self.words[index(register::ID)] >> 24;
        let to = self.words[index(register::COMMAND + 0x10)] >> 24;
        let is_logical = value >> 11 & 1 == 1;
        let meant =
            |id: u32| if is_logical { logical[id as usize] & to != 0 } else { to == id || to == 0xff };
        let targets = match value >> 18 & 3 {
            0 => (0..2).filter(|&id| meant(id)).fold(0, |all, id| all | 1 << id),
            1 => 1 << own,
            2 => 0b11,
            _ => 0b11 & !(1 << own),
        };
        let command = match value >> 8 & 7 {
            0 | 1 => Command::Take(value as u8),
            6 => Command::Startup(value as u8),
            _ => Command::Other,
        };
        (command, targets)
    }

    fn ticks(&self) -> u64 {
        let divide = self.words[index(register::DIVIDE)];
        let shift = ((divide & 3 | divide >> 1 & 4) + 1) & 7;
        TICKS << shift
    }

    fn period(&self) -> u64 {
        u64::from(self.words[index(register::COUNT)]) * self.ticks()
    }

    /// Fires the timer, if it is time.
    pub fn tick(&mut self, now: u64) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let entry = self.words[index(register::TIMER)];
        self.due = (entry & PERIODIC != 0).then(|| now + self.period());
        if entry & MASKED == 0 {
            self.ask(entry as u8);
        }
    }

    /// Requests an interrupt.
    pub fn ask(&mut self, vector: u8) {
        self.asked[usize::from(vector / 32)] |= 1 << (vector % 32);
    }

    /// Returns the next interrupt to take, if there is one.
    pub fn next(&self) -> Option<u8> {
        let served = highest(&self.served).unwrap_or(0);
        let over = u32::from(served).max(self.words[index(register::PRIORITY)] & 0xff) >> 4;
        highest(&self.asked).filter(|vector| u32::from(vector >> 4) > over)
    }

    /// Notes that an interrupt was taken.
    pub fn taken(&mut self, vector: u8) {
        self.asked[usize::from(vector / 32)] &= !(1 << (vector % 32));
        self.served[usize::from(vector / 32)] |= 1 << (vector % 32);
    }
}

fn index(at: u64) -> usize {
    (at / 16) as usize % register::WORDS
}

fn highest(of: &Vectors) -> Option<u8> {
    let word = of.iter().rposition(|&word| word != 0)?;
    Some((word * 32) as u8 + of[word].ilog2() as u8)
}
