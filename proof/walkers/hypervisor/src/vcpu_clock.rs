//! A vCPU's clock: the guest reads it from a page of its own memory, and the hypervisor writes it before each entry.
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

use crate::clock::WORDS;
use crate::error::Error;
use crate::options::Mistake;
use crate::primary_mmu::Machine;
use alloc::format;
use core::sync::atomic::{Ordering::Release, compiler_fence};
use slat::{Access, Format, Gpa, Held, HoldError, Idle, PAGE_SIZE, Pfn, Vm};

/// MSR with the address of the wall clock, which is written once; and that of the vCPU's clock.
const WALL_REGISTER: u32 = 0x4b56_4d00;
const CLOCK_REGISTER: u32 = 0x4b56_4d01;
/// Bytes of a clock.
const BYTES: u64 = 8 * WORDS as u64;

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
