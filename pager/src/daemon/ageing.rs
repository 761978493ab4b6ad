//! Reclaims cold pages: those that were not touched for long, and the oldest ones of guests above their limit.

use super::control::Guests;
use crate::guest::Handle;
use crate::uffd::PAGE;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// When pages are reclaimed.
#[derive(Debug, Clone)]
pub struct Ageing {
    /// Length of a tick.
    pub tick: Duration,
    /// Number of ticks without a touch after which a page is reclaimed in any case. `None`: only above a limit.
    pub cold: Option<u8>,
    /// Bytes of memory that the guests of a template, or all guests (`None`), may have together. At each tick the
    /// excess is reclaimed, the oldest pages first.
    pub limits: Vec<(Option<String>, u64)>,
}

impl Guests {
    /// Ages the guests that have a swap file, in a thread of its own. Calls `failed` once for a guest for which the
    /// kernel refuses it.
    pub fn age(&self, ageing: Ageing, failed: impl Fn(i32, &io::Error) + Send + 'static) -> io::Result<()> {
        let guests = self.clone();
        std::thread::Builder::new().name("ageing".into()).spawn(move || {
            let (mut refused, mut stuck) = (Vec::new(), Stuck::default());
            loop {
                std::thread::sleep(ageing.tick);
                for (pid, error) in ageing.tick(&guests.with_swap(), &mut stuck) {
                    if !refused.contains(&pid) && error.raw_os_error() != Some(libc::ESRCH) {
                        failed(pid, &error);
                        refused.push(pid);
                    }
                }
            }
        })?;
        Ok(())
    }
}

impl Ageing {
    /// Does one tick for these guests. Returns the failures.
    fn tick(&self, guests: &[(i32, Handle)], stuck: &mut Stuck) -> Vec<(i32, io::Error)> {
        let mut failed = Vec::new();
        let mut note = |pid: i32, result: io::Result<usize>| match result {
            Ok(gone) => gone,
            Err(error) => {
                failed.push((pid, error));
                0
            }
        };
        if let Some(cold) = self.cold {
            for (pid, guest) in guests {
                let guest = guest.clone();
                note(*pid, stuck.bounded(*pid, 0, move || guest.reclaim(cold, usize::MAX)));
            }
        }
        for (template, limit) in &self.limits {
            let group: Vec<_> = guests
                .iter()
                .filter(|(_, guest)| template.as_ref().is_none_or(|template| guest.template() == template))
                .collect();
            let resident = |group: &[&(i32, Handle)]| -> u64 {
                group.iter().filter_map(|(_, guest)| guest.resident().ok().flatten()).sum()
            };
            let mut more = resident(&group).saturating_sub(*limit).div_ceil(PAGE as u64) as usize;
            // The oldest first. Pages touched in the last tick stay.
            let ages = |(pid, guest): &&(i32, Handle)| {
                let (pid, guest) = (*pid, guest.clone());
                guest.ages().into_iter().map(move |age| (age, pid, guest.clone())).collect::<Vec<_>>()
            };
            let mut ages: Vec<_> = if more > 0 { group.iter().flat_map(ages).collect() } else { Vec::new() };
            ages.sort_by_key(|(age, ..)| std::cmp::Reverse(*age));
            for (age, pid, guest) in ages {
                if more == 0 {
                    break;
                }
                let most = more;
                let gone = stuck.bounded(pid, 0, move || guest.reclaim(age, most));
                more = more.saturating_sub(note(pid, gone));
            }
        }
        for (pid, guest) in guests {
            let guest = guest.clone();
            if let Err(error) = stuck.bounded(*pid, (), move || guest.age()) {
                note(*pid, Err(error));
            }
        }
        failed
    }
}

/// Time limit of a call for one guest.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// Calls that did not return in time, by the guests' processes. A VMM can hold a lock of its memory's file for as long as
/// it lives, and must not keep the pages of other guests in memory.
#[derive(Default)]
struct Stuck(BTreeMap<i32, JoinHandle<()>>);

impl Stuck {
    /// Makes a call for a guest in a thread of its own, and returns its result. Returns `otherwise` if it takes too long,
    /// or while an earlier call for this guest has not returned.
    fn bounded<T: Send + 'static>(
        &mut self,
        pid: i32,
        otherwise: T,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.0.retain(|_, thread| !thread.is_finished());
        if self.0.contains_key(&pid) {
            return Ok(otherwise);
        }
        let (send, result) = channel();
        let thread = std::thread::Builder::new().name("ages".into()).spawn(move || _ = send.send(call()))?;
        match result.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                self.0.insert(pid, thread);
                Ok(otherwise)
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the call panicked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_for_one_guest_that_does_not_return_delays_others_once() {
        let mut stuck = Stuck::default();
        let (hold, held) = channel::<()>();
        assert_eq!(stuck.bounded(1, 0, move || Ok(held.recv().map_or(1, |()| 2))).unwrap(), 0);
        assert_eq!(stuck.bounded(1, 7, || Ok(3)).unwrap(), 7, "the first call has not returned");
        assert_eq!(stuck.bounded(2, 0, || Ok(4)).unwrap(), 4);
        drop(hold);
        while !stuck.0[&1].is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(stuck.bounded(1, 0, || Ok(5)).unwrap(), 5);
        assert!(stuck.bounded(1, 0, || io::Result::<i32>::Err(io::ErrorKind::NotFound.into())).is_err());
    }
}
