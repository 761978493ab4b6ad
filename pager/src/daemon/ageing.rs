//! Reclaims cold pages: those that were not touched for long, and the oldest ones of guests above their limit.

use super::control::Guests;
use crate::guest::Handle;
use crate::uffd::PAGE;
use std::io;
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
            let mut refused = Vec::new();
            loop {
                std::thread::sleep(ageing.tick);
                for (pid, error) in ageing.tick(&guests.with_swap()) {
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
    fn tick(&self, guests: &[(i32, Handle)]) -> Vec<(i32, io::Error)> {
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
                note(*pid, guest.reclaim(cold, usize::MAX));
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
            for age in (1..=u8::MAX).rev() {
                for (pid, guest) in &group {
                    if more > 0 {
                        more = more.saturating_sub(note(*pid, guest.reclaim(age, more)));
                    }
                }
            }
        }
        for (pid, guest) in guests {
            if let Err(error) = guest.age() {
                note(*pid, Err(error));
            }
        }
        failed
    }
}
