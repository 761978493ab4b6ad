//! Operations of a CPU besides accesses to lines: compute, sleep, kick, move pages. Free, and done at once, outside of a run,
//! but for [`pause`].

use crate::cpu::{Machine, Paused, with};
use crate::prices::Ps;
use core::sync::atomic::Ordering;

/// Nanoseconds since the run began.
pub fn now() -> u64 {
    with(|machine| machine.clock() / 1000).unwrap_or(0)
}

/// The CPU that runs is busy for so long.
pub fn compute(ns: u64) {
    with(|machine| machine.spend(ns * 1000));
}

/// It has nothing to do for so long.
pub fn rest(ns: u64) {
    with(|machine| machine.sleep(ns * 1000));
}

/// A guest computes for so long, or until a kick arrives that `kicked` confirms. How much is left.
pub fn guest(ns: u64, kicked: impl Fn() -> bool) -> u64 {
    let left = with(|machine| {
        let mut left = ns * 1000;
        while left > 0 && !kicked() {
            left = machine.sleep_in_guest(left);
        }
        left.div_ceil(1000)
    });
    left.unwrap_or(0)
}

/// One turn of a loop that waits for another CPU.
pub fn pause() {
    pauses(1);
}

/// One turn as long as so many.
pub fn pauses(many: u32) {
    let waited = with(|machine| {
        machine.spend(machine.prices.pause * Ps::from(many));
        machine.in_turn();
    });
    if waited.is_none() {
        core::hint::spin_loop();
    }
}

/// An interrupt for the CPU on which vCPU `vcpu` runs.
pub fn kick(vcpu: u32) {
    with(|machine| machine.kick(vcpu));
}

/// All CPUs of the process pass a full fence.
pub fn barrier() {
    with(|machine| {
        machine.spend(machine.prices.barrier);
        machine.in_turn();
    });
}

/// A fence. Only a full one takes time: processors that keep stores in order have the others for nothing.
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        with(|machine| machine.spend(machine.prices.fence));
    }
}

/// The host zeroes a page.
pub fn zero_page() {
    with(|machine| machine.use_memory(machine.prices.zero));
}

/// The host reads a page.
pub fn read_page() {
    with(|machine| machine.use_memory(machine.prices.read));
}

/// The CPU that runs begins a fault's full pipeline, or an invalidation.
pub fn full_path() {
    with(|machine| machine.spend(machine.prices.full_path));
}

/// The CPU that runs copies so many bytes, which no other CPU uses.
pub fn copy(bytes: usize) {
    with(|machine| machine.spend(machine.prices.copy * bytes.div_ceil(64) as Ps));
}

/// A thread that sleeps does `work` for this one, which sleeps meanwhile: one wakes the other, and is woken.
pub fn hand_over(work: impl FnOnce()) {
    with(|machine| {
        machine.spend(machine.prices.wake);
        machine.sleep(machine.prices.wake_arrives);
    });
    work();
    with(|machine| {
        machine.spend(machine.prices.wake);
        machine.sleep(machine.prices.wake_arrives);
    });
}

/// A moment in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(Ps);

impl Instant {
    /// Now, by a clock that takes a little while to read.
    #[must_use]
    pub fn now() -> Self {
        Self(clock())
    }

    /// How long that has been.
    #[must_use]
    pub fn elapsed(&self) -> core::time::Duration {
        core::time::Duration::from_nanos((clock() - self.0) / 1000)
    }
}

fn clock() -> Ps {
    with(|machine| {
        machine.spend(machine.prices.clock);
        machine.clock()
    })
    .unwrap_or(0)
}

impl Machine {
    fn sleep(&self, time: Ps) {
        self.cpu().asleep.set(self.cpu().asleep.get() + time);
        self.spend(time);
    }

    /// Until so long is over, or a kick arrives: what is left.
    fn sleep_in_guest(&self, time: Ps) -> Ps {
        // The time of an interrupt besides the exit: the answer came between the two.
        self.spend(self.cpu().enters.replace(0));
        let ends = self.clock() + time;
        if self.goes_on_until(ends) {
            self.spend(time);
            return 0;
        }
        self.cpu().interruptible.set(true);
        self.pause(Paused::Until(ends));
        self.cpu().interruptible.set(false);
        let left = ends.saturating_sub(self.clock());
        if left > 0 {
            self.spend(self.prices.kick_taken / 2);
            self.cpu().enters.set(self.prices.kick_taken / 2);
        }
        left
    }

    fn kick(&self, vcpu: u32) {
        self.in_turn();
        self.kicks.set(self.kicks.get() + 1);
        self.spend(self.prices.kick);
        let Some(cpu) = self.cpus.iter().position(|cpu| cpu.vcpu == Some(vcpu)) else { return };
        // A vCPU outside of the guest looks before it enters.
        if self.cpus[cpu].interruptible.replace(false) {
            self.wake(cpu as u32, self.clock() + self.prices.kick_arrives);
        }
    }

    /// The time of a word from the running CPU to `cpu`.
    pub(crate) fn between(&self, cpu: u32) -> Ps {
        let socket = |cpu: u32| cpu / self.prices.cpus_per_socket;
        if socket(cpu) == socket(self.me()) { self.prices.near } else { self.prices.far }
    }
}
