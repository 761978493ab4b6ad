//! The host behind the vCPUs' memory, and behind the invalidators'.

use super::super::arithmetic::Arithmetic;
use slat::{Access, Host, HostError, HostPage, Hva, Idle, Level, TableMemory};
use slat_threads::world::compute;
use std::ptr::NonNull;

/// [`Arithmetic`] with pages of one size behind the vCPUs' memory, and of 4 KiB elsewhere, from some address on. A host that sleeps
/// answers only where it may; it waits awake, since a sleep of microseconds would last tens of them.
pub struct Pages {
    pub level: Level,
    pub small_from: Hva,
    pub sleeps_ns: u64,
}

// SAFETY: each call is passed on to a host that keeps the contract.
unsafe impl TableMemory for Pages {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        Arithmetic.alloc_chunk()
    }

    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: the caller's promise is the same.
        unsafe { Arithmetic.free_chunk(chunk) };
    }
}

impl Host for Pages {
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let vcpus = hva < self.small_from;
        let page = Arithmetic.lookup(hva, access)?;
        let level = if vcpus { self.level } else { Level::K4 };
        (self.sleeps_ns == 0 || !vcpus).then_some(HostPage { level, ..page })
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        compute(self.sleeps_ns);
        let page = Arithmetic.resolve(idle, hva, access)?;
        Ok(HostPage { level: self.level, ..page })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_sleeps_answers_only_where_it_may_and_has_small_pages_elsewhere() {
        let mut idle = Idle::take().unwrap();
        let [here, there] = [Hva(7 << 12), Hva(1 << 40)];
        let host = |sleeps_ns| Pages { level: Level::M2, small_from: there, sleeps_ns };
        let level = |page: HostPage| page.level;
        let look = |sleeps_ns, hva| host(sleeps_ns).lookup(hva, Access::Write).map(level);
        assert_eq!([look(0, here), look(0, there)], [Some(Level::M2), Some(Level::K4)]);
        assert_eq!([look(9, here), look(9, there)], [None, Some(Level::K4)]);
        assert_eq!(host(9).resolve(&mut idle, here, Access::Write).map(level), Ok(Level::M2));
    }
}
