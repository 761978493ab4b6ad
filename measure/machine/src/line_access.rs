//! Accesses of the running CPU to cache lines: the price of each, and the wait for a line that is elsewhere.

use crate::cpu::{Machine, Paused};
use crate::lines::line_of;
use crate::prices::Ps;
use crate::schedule::{Access, Act, Explorer};
use core::panic::Location;

impl Machine {
    /// The CPU that runs accesses a line, which costs what the access does, and the journey if the line is elsewhere.
    #[inline]
    pub fn access(&self, address: usize, access: Access, site: &'static Location<'static>) {
        self.events.set(self.events.get() + 1);
        if let Some(explorer) = self.explorer {
            return self.explored(explorer, Act { cpu: self.me(), address, access, site });
        }
        self.nearly_in_turn();
        let line = line_of(address);
        // Nearly always it is in its place, and has not left this CPU.
        if !self.lines.borrow().has_at_once(line, self.me(), access) {
            self.fetch(line, access, site);
        }
        self.spend(match access {
            Access::Load => self.prices.load,
            Access::Store => self.prices.store,
            Access::Rmw => self.prices.rmw,
        });
    }

    /// Gets a line to this CPU, unless it is there after all.
    #[inline(never)]
    fn fetch(&self, line: u64, access: Access, site: &'static Location<'static>) {
        let (there, waited) = self.ask_for(line, access, site);
        self.wait_for_lines(there, waited);
    }

    /// The CPU that runs accesses the lines of `addresses`. Their journeys begin together, and it waits for the last. The accesses
    /// themselves are free, and no schedule is explored between them: they are to plain data.
    pub fn access_at_once(
        &self,
        addresses: impl Iterator<Item = usize>,
        access: Access,
        site: &'static Location<'static>,
    ) {
        if self.explorer.is_some() {
            return;
        }
        self.events.set(self.events.get() + 1);
        self.nearly_in_turn();
        let mut last = (self.clock(), 0);
        for line in addresses.map(line_of) {
            if !self.lines.borrow().has_at_once(line, self.me(), access) {
                let (there, waited) = self.ask_for(line, access, site);
                last = (last.0.max(there), last.1.max(waited));
            }
        }
        self.wait_for_lines(last.0, last.1);
    }

    /// Starts a line's journey to this CPU, unless it is there after all: when it is there, how long it waits for others' journeys.
    fn ask_for(&self, line: u64, access: Access, site: &'static Location<'static>) -> (Ps, Ps) {
        let at = self.lines.borrow_mut().find(line);
        if self.lines.borrow().is_here(at, self.me(), access) == (true, true) {
            return (self.clock(), 0);
        }
        self.in_turn();
        let mut lines = self.lines.borrow_mut();
        // Others may have gone first, and moved it, or left it as it is wanted.
        let at = lines.find(line);
        if lines.is_here(at, self.me(), access).0 {
            return (self.clock(), 0);
        }
        let (there, waited) = lines.journey(at, (self.me(), self.clock()), access, &self.prices);
        if there > self.clock() {
            lines.note(at, site, 1, waited);
            self.cpu().transfers.set(self.cpu().transfers.get() + 1);
        }
        (there, waited)
    }

    fn wait_for_lines(&self, there: Ps, waited: Ps) {
        self.cpu().waiting.set(self.cpu().waiting.get() + waited);
        self.set_clock(there);
    }

    /// The line at `address` is in memory that was allocated or freed: no CPU has used it.
    pub fn forget(&self, address: usize) {
        self.lines.borrow_mut().forget(line_of(address));
    }

    /// The CPU that runs has waited for the lock at `address` since `began`.
    pub fn waited(&self, address: usize, began: Ps, site: &'static Location<'static>) {
        let waited = self.clock() - began;
        self.cpu().waiting.set(self.cpu().waiting.get() + waited);
        let mut lines = self.lines.borrow_mut();
        let at = lines.find(line_of(address));
        lines.note(at, site, 0, waited);
    }

    /// Ends the run.
    pub fn stop(&self) {
        self.stopped.set(true);
        loop {
            self.pause(Paused::Blocked);
        }
    }

    /// An access in a run that explores.
    fn explored(&self, explorer: &dyn Explorer, act: Act) {
        self.spend(explorer.delay(act));
        self.in_turn();
        if !explorer.sees(act) {
            self.stop();
        }
    }
}
