//! Compares the receiver's memory with the sender's and with what the guests wrote, byte by byte, while the guests are halted.

use super::checked_guest::Guest;
use super::endpoint::{Machine, hvas_of};
use crate::scenarios::threads_prelude::*;
use std::collections::HashSet;

/// The counts. All but the first are zero where nothing was lost.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    pub pages: u64,
    /// Pages that are not as they are at the sender.
    pub not_the_senders: u64,
    /// Pages that are not what the guest has written.
    pub not_the_guests: u64,
    /// Pages that came, and that the receiving machine's own log does not tell of.
    pub unmarked: u64,
    /// The first page that differs.
    pub first: Option<Gfn>,
}

/// Compares both machines with each other and with what the guests know. Takes what the receiver has logged.
pub fn compare(
    idle: &mut Idle,
    sender: &Machine,
    receiver: &Machine,
    guests: &[Mutex<Guest>],
) -> Result<Compared, Error> {
    let marked: HashSet<Gfn> = {
        let harvest = receiver.vm.memory().harvest_all(idle)?;
        let marked = harvest.iter().map(|page| page.gfn).collect();
        harvest.commit();
        marked
    };
    let mut compared = Compared::default();
    let read = |idle: &mut Idle, machine: &Machine, gfn| {
        let mut page = [0; PAGE_SIZE as usize];
        machine.space.read(idle, hvas_of(Span::sized(gfn, 1)).start, &mut page).map(|()| page)
    };
    for (range, guest) in sender.ranges.iter().zip(guests) {
        let guest = guest.lock();
        for gfn in (range.gfns.start.0..range.gfns.end.0).map(Gfn) {
            let (sent, came) = (read(idle, sender, gfn)?, read(idle, receiver, gfn)?);
            let [other, lost] = [sent != came, guest.expected(gfn) != came];
            compared.pages += 1;
            compared.not_the_senders += u64::from(other);
            compared.not_the_guests += u64::from(lost);
            compared.unmarked += u64::from(came != [0; PAGE_SIZE as usize] && !marked.contains(&gfn));
            if other || lost {
                compared.first.get_or_insert(gfn);
            }
        }
    }
    Ok(compared)
}
