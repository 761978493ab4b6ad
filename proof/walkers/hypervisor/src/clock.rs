//! KVM's para-virtual clock: the guest reads the time from a page of its own memory, which the hypervisor writes before each entry.
//!
//! Here are the time that the clocks of all vCPUs share, and the last written value of each. `vcpu_clock` writes them.

use crate::error::Error;
use crate::options::{Mistake, Options};
use alloc::format;
use slat::{Gfn, Gpa, PAGE_SIZE, Pfn};
use slat_walker_x86::cpu::{inb, outb, ticks};
use slat_walker_x86::interrupts::ticks_in;
use slat_walker_x86::println;
use spin::{Mutex, MutexGuard};

/// The clock is consistent across all vCPUs.
const STABLE: u64 = 1;
/// Nanoseconds of the measurement of the scale.
const MEASURED: u32 = 10_000_000;
/// Words of a clock.
pub const WORDS: usize = 4;
/// The machine's calendar: two ports, and its registers from seconds to years, in BCD.
const CALENDAR: (u16, u16) = (0x70, 0x71);
const CALENDAR_REGISTERS: [u8; 6] = [0, 2, 4, 7, 8, 9];

/// State that the clocks of all vCPUs share.
#[derive(Debug)]
pub struct Clocks {
    /// Ticks at the start of time.
    start: u64,
    scale: Scale,
    pub mistake: Option<Mistake>,
    told: Mutex<Told>,
}

/// Clocks written for the vCPUs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Told {
    /// Address of each clock, and its last value.
    pub last: [Option<(Gpa, [u64; WORDS])>; 2],
    /// vCPUs that have had a clock, a bit each.
    pub had: u32,
    /// Number of clocks written, of frames found taken back, and of those that came late.
    pub counts: [u64; 3],
}

/// Nanoseconds of a tick, as the guest computes them: a shift to the left, and a factor in units of 2^-32.
#[derive(Clone, Copy, Debug)]
struct Scale {
    shift: i8,
    times: u32,
}

impl Scale {
    /// Computes the scale of `nanoseconds` in `ticks`.
    fn of(nanoseconds: u64, ticks: u64) -> Self {
        let exact = (u128::from(nanoseconds) << 64) / u128::from(ticks.max(1));
        let over = 96 - exact.max(1).leading_zeros() as i8;
        let times = if over >= 0 { exact >> over } else { exact << -over };
        Self { shift: over - 32, times: times as u32 }
    }

    fn nanoseconds(self, ticks: u64) -> u64 {
        let product = u128::from(ticks) * u128::from(self.times);
        (product >> (32 - i32::from(self.shift))) as u64
    }
}

impl Clocks {
    /// Starts the time, for a guest that is offered clocks.
    pub fn new(options: &Options) -> Self {
        let (passed, nanoseconds) =
            if options.cpus > 1 && options.image.1 == 0 { ticks_in(MEASURED) } else { (1, 1) };
        let (scale, mistake) = (Scale::of(nanoseconds, passed), options.chores.mistake);
        Self { start: ticks(), scale, mistake, told: Mutex::default() }
    }

    /// Locks the clocks: no vCPU writes one meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock()
    }

    /// Returns the pages of the clocks.
    pub fn pages(&self) -> impl Iterator<Item = Gfn> {
        self.lock().last.into_iter().flatten().map(|(at, _)| at.gfn())
    }

    /// Returns the current clock with this version.
    pub fn now(&self, version: u32) -> [u64; WORDS] {
        let (now, Scale { shift, times }) = (ticks(), self.scale);
        let time = self.scale.nanoseconds(now - self.start);
        let scale = u64::from(times) | u64::from(shift as u8) << 32 | STABLE << 40;
        [version.into(), now, time, scale]
    }

    /// Writes the time of day at the start: version, seconds since 1970, nanoseconds, of 32 bits each.
    pub fn write_wall(&self, pfn: Pfn, at: Gpa) {
        const VERSION: u32 = 2;
        const SECOND: u64 = 1_000_000_000;
        let passed = self.scale.nanoseconds(ticks() - self.start);
        let began = seconds_since_1970() * SECOND - passed;
        let to = (pfn.address() + at.0 % PAGE_SIZE) as *mut u32;
        // SAFETY: a frame of RAM, mapped one to one, which is in use; the vCPU that reads it is out.
        unsafe {
            to.add(1).write_volatile((began / SECOND) as u32);
            to.add(2).write_volatile((began % SECOND) as u32);
            to.write_volatile(VERSION);
        }
    }

    /// Fails if a clock in the guest's memory differs from its last written value. `read` reads one there.
    pub fn compare(&self, read: impl Fn(Gpa) -> [u64; WORDS]) -> Result<(), Error> {
        for (last, vcpu) in self.lock().last.iter().zip(0..) {
            let Some((at, wrote)) = *last else { continue };
            let found = read(at);
            if found != wrote {
                let why = format!("vCPU {vcpu} finds {found:x?} in its memory, and was told {wrote:x?}");
                return Err(format!("a clock is stale: {why}").into());
            }
        }
        Ok(())
    }

    /// Prints the counts, in lines that begin with `report:`. Fails if one of `cpus` vCPUs has had no clock.
    pub fn report(&self, cpus: u32) -> Result<(), Error> {
        if cpus == 1 {
            return Ok(());
        }
        let Told { had, counts: [written, refused, late], .. } = *self.told.lock();
        if had.count_ones() < cpus {
            return Err(
                format!("a clock is missing: {} of {cpus} vCPUs have had one", had.count_ones()).into()
            );
        }
        println!("report: {written} clock stores");
        println!("report: {refused} found their frames taken");
        println!("report: {late} of these came late");
        Ok(())
    }
}

/// Reads the machine's calendar, for this century.
fn seconds_since_1970() -> u64 {
    const DAYS_TO_2000: u64 = 10_957;
    const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let [second, minute, hour, day, month, year] = CALENDAR_REGISTERS.map(|register| {
        // SAFETY: the guest chooses a register before each access, so this choice does not disturb it.
        let decimal = unsafe {
            outb(CALENDAR.0, register);
            inb(CALENDAR.1)
        };
        u64::from(decimal >> 4) * 10 + u64::from(decimal & 15)
    });
    let leap = u64::from(year.is_multiple_of(4) && month > 2);
    let days_of_year = DAYS_BEFORE[(month.clamp(1, 12) - 1) as usize] + leap + day - 1;
    let days = DAYS_TO_2000 + year * 365 + year.div_ceil(4) + days_of_year;
    ((days * 24 + hour) * 60 + minute) * 60 + second
}
