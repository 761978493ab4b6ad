//! KVM's para-virtual clock: the guest reads the time from a page of its own memory, which the hypervisor writes before each entry.
//!
//! ```text
//! WRMSR: my clock is at this address ─▶ GuestSpace::hold(its frame, to write)
//! each entry ─▶ Held::write ─▶ Some(page): version, ticks, nanoseconds, scale, by the frame's number; drop: marked dirty
//!                           ─▶ None: the host has moved or taken the page ─▶ Held::refresh, and again
//! each turn of the chores ─▶ the page must have the last written clock, or the run ends with an error
//! ```
//! If the page is [late](crate::late), the hypervisor does not wait: the guest enters with the old clock, which still
//! advances.
//!
//! A vCPU on another processor may store here while this one compares or takes sums. So it stores and ends its use
//! (which marks the page dirty) under the clocks' lock. A move waits for uses to end under the host's lock, so no use
//! takes that lock.

use crate::Error;
use crate::options::{Mistake, Options};
use crate::primary_mmu::Machine;
use alloc::format;
use core::array::from_fn;
use core::sync::atomic::{Ordering::Release, compiler_fence};
use slat::{Access, Format, Gfn, Gpa, Held, HoldError, Hva, Idle, PAGE_SIZE, Pfn, Vm};
use slat_walker_x86::cpu::{inb, outb, ticks};
use slat_walker_x86::interrupts::ticks_in;
use slat_walker_x86::println;
use spin::{Mutex, MutexGuard};

/// MSR with the address of the wall clock, which is written once; and that of the vCPU's clock.
const WALL_REGISTER: u32 = 0x4b56_4d00;
const CLOCK_REGISTER: u32 = 0x4b56_4d01;
/// The clock is consistent across all vCPUs.
const STABLE: u64 = 1;
/// Nanoseconds of the measurement of the scale.
const MEASURED: u32 = 10_000_000;
/// Words of a clock, and bytes.
const WORDS: usize = 4;
const BYTES: u64 = 8 * WORDS as u64;
/// The machine's calendar: two ports, and its registers from seconds to years, in BCD.
const CALENDAR: (u16, u16) = (0x70, 0x71);
const CALENDAR_REGISTERS: [u8; 6] = [0, 2, 4, 7, 8, 9];

/// State that the clocks of all vCPUs share.
#[derive(Debug)]
pub struct Clocks {
    /// Ticks at the start of time.
    start: u64,
    scale: Scale,
    mistake: Option<Mistake>,
    told: Mutex<Told>,
}

/// Clocks written for the vCPUs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Told {
    /// Address of each clock, and its last value.
    last: [Option<(Gpa, [u64; WORDS])>; 2],
    /// vCPUs that have had a clock, a bit each.
    had: u32,
    /// Number of clocks written, of frames found taken back, and of those that came late.
    counts: [u64; 3],
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
    fn now(&self, version: u32) -> [u64; WORDS] {
        let (now, Scale { shift, times }) = (ticks(), self.scale);
        let time = self.scale.nanoseconds(now - self.start);
        let scale = u64::from(times) | u64::from(shift as u8) << 32 | STABLE << 40;
        [version.into(), now, time, scale]
    }

    /// Writes the time of day at the start: version, seconds since 1970, nanoseconds, of 32 bits each.
    fn write_wall(&self, pfn: Pfn, at: Gpa) {
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

    /// Fails if a clock in the guest's memory differs from its last written value.
    pub fn compare(&self, host: &Machine) -> Result<(), Error> {
        let (frames, told) = (host.frames.lock(), self.lock());
        for (last, vcpu) in told.last.iter().zip(0..) {
            let Some((at, wrote)) = *last else { continue };
            let first = (at.0 % PAGE_SIZE / 8) as usize;
            let found: [u64; WORDS] =
                host.contents(&frames, Hva(at.0), |words| from_fn(|word| words[first + word]));
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

/// A vCPU's clock.
pub struct Clock<'g, F: Format> {
    vcpu: usize,
    version: u32,
    /// Its address, the held frame, and the first frame number.
    page: Option<(Gpa, Held<'g, F, Machine>, Option<Pfn>)>,
}

impl<'g, F: Format> Clock<'g, F> {
    /// Makes a vCPU without a clock.
    pub fn new(vcpu: u32) -> Self {
        Self { vcpu: vcpu as usize, version: 0, page: None }
    }

    /// Handles the guest's write to a register of its hypervisor's. Returns false if the named page is pending: then
    /// the guest must write again.
    pub fn set(
        &mut self,
        vm: &'g Vm<F, Machine>,
        idle: &mut Idle,
        register: u32,
        value: u64,
    ) -> Result<bool, Error> {
        let (at, is_clock, clocks) = (Gpa(value & !1), register == CLOCK_REGISTER, &vm.host().clocks);
        if is_clock {
            self.page = None;
            clocks.lock().last[self.vcpu] = None;
        }
        if is_clock && value & 1 == 0 {
            return Ok(true);
        }
        if !is_clock && register != WALL_REGISTER {
            return Err(format!("register {register:x} was not offered").into());
        }
        if !at.0.is_multiple_of(BYTES) {
            return Err(format!("no multiple of {BYTES}: a clock at {at:x?}").into());
        }
        let mut held = match vm.memory().hold(idle, at.gfn(), Access::Write) {
            Ok(held) => held,
            Err(HoldError::Pending(_)) => return Ok(false),
            Err(error) => return Err(format!("no clock at {at:x?}: {error}").into()),
        };
        if is_clock {
            clocks.lock().had |= 1 << self.vcpu;
            self.page = Some((at, held, None));
        } else if let Some(page) = held.write(idle) {
            clocks.write_wall(page.pfn(), at);
            vm.host().note_own_store(at.gfn());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Writes the current time before each entry.
    pub fn write(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let (clocks, vcpu) = (&vm.host().clocks, self.vcpu);
        let Some((at, held, first)) = &mut self.page else { return Ok(()) };
        loop {
            let is_marked = clocks.mistake != Some(Mistake::UnmarkedClock);
            if let Some(page) = if is_marked { held.write(idle) } else { held.read(idle) } {
                let mut told = clocks.lock();
                self.version = self.version.wrapping_add(2);
                let words = clocks.now(self.version);
                store(page.pfn(), *at, words);
                vm.host().note_own_store(at.gfn());
                let first = *first.get_or_insert(page.pfn());
                if clocks.mistake == Some(Mistake::StaleClock) && first != page.pfn() {
                    store(first, *at, words);
                }
                drop(page);
                told.last[vcpu] = Some((*at, words));
                told.counts[0] += 1;
                return Ok(());
            }
            clocks.lock().counts[1] += 1;
            if clocks.mistake == Some(Mistake::LostClock) {
                clocks.lock().last[vcpu] = Some((*at, clocks.now(self.version)));
                return Ok(());
            }
            match held.refresh(idle) {
                Ok(()) => {}
                Err(HoldError::Pending(_)) => {
                    clocks.lock().counts[2] += 1;
                    return Ok(());
                }
                Err(error) => return Err(format!("the frame of a clock is lost: {error}").into()),
            }
        }
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

/// Writes a clock at an address in this frame. A vCPU that reads it meanwhile finds an odd version, and reads again.
fn store(pfn: Pfn, at: Gpa, words: [u64; WORDS]) {
    let to = (pfn.address() + at.0 % PAGE_SIZE) as *mut u64;
    // SAFETY: a frame of RAM, mapped one to one, in which a clock has room; the guest's loads are the hardware's, which does not
    // reorder stores.
    unsafe {
        to.write_volatile(words[0] | 1);
        compiler_fence(Release);
        (1..WORDS).for_each(|word| to.add(word).write_volatile(words[word]));
        compiler_fence(Release);
        to.write_volatile(words[0]);
    }
}
