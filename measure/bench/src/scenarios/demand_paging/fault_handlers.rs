//! The job of all entrants, and the threads that serve its faults, each from a queue of its own over a part of the memory.

use crate::parts::sim_host::gfn_of;
use crate::scenarios::threads_prelude::*;
use slat_mm::{Serve, UserFaults};

/// Where the giver's word lies in a page; the guest's own lies at its beginning.
pub const GIVEN_AT: u64 = 8;

/// The word that handlers leave in a page.
pub fn given(gfn: Gfn) -> u64 {
    gfn.0 << 8 | 2
}

/// The job, the same for every entrant.
pub struct Job {
    pub memory: GuestMemory,
    /// Every vCPU touches all parts.
    pub overlap: bool,
    /// Which faults handlers serve.
    pub serve: Option<Serve>,
    /// One handler for all parts.
    pub single: bool,
    /// The host has every page before.
    pub prefilled: bool,
    /// The word that handlers leave in a page.
    pub gives: fn(Gfn) -> u64,
    pub arena: Arc<Arena>,
}

/// One queue for each part.
pub struct Handlers<'j> {
    job: &'j Job,
    queues: Vec<UserFaults>,
}

impl<'j> Handlers<'j> {
    /// Registered over all of the job's memory; none where there is no handler.
    pub fn new(job: &'j Job, space: &Arc<AddressSpace>) -> Result<Self, Error> {
        let mut queues = Vec::new();
        if let Some(serve) = job.serve {
            let parts = if job.single { vec![job.memory.pages()] } else { job.memory.parts() };
            for part in parts {
                let queue = UserFaults::new(space);
                queue.register(hvas_of(part), serve)?;
                queues.push(queue);
            }
        }
        Ok(Self { job, queues })
    }

    /// The queues, a thread each.
    pub fn queues(&self) -> &[UserFaults] {
        &self.queues
    }

    /// Serves until the queue is closed, and returns how many pages it gave. Where it cannot go on it closes the
    /// queue itself: its sleepers must not sleep for ever.
    pub fn serve(&self, queue: &UserFaults) -> Result<u64, Error> {
        let idle = &mut idle()?;
        let mut contents = vec![0; PAGE_SIZE as usize];
        let mut pages = 0;
        while let Ok(fault) = queue.read(idle, None) {
            let served = if self.job.serve == Some(Serve::Minor) {
                queue.continue_(idle, Span::sized(fault.page, PAGE_SIZE))
            } else {
                let word = (self.job.gives)(gfn_of(fault.page)).to_le_bytes();
                contents[GIVEN_AT as usize..][..word.len()].copy_from_slice(&word);
                queue.copy(idle, fault.page, &contents)
            };
            match served.map_err(|stopped| stopped.why) {
                Ok(()) => pages += 1,
                // Another vCPU's fault on the same page, served before.
                Err(MmError::AlreadyThere(_)) => {}
                Err(why) => {
                    queue.close(idle);
                    return Err(why.into());
                }
            }
        }
        Ok(pages)
    }

    /// The threads go when this is dropped, after a panic of a vCPU, too: their scope waits for them.
    pub fn sent_away(&self) -> SentAway<'_> {
        SentAway(&self.queues)
    }
}

/// See [`Handlers::sent_away`].
pub struct SentAway<'h>(&'h [UserFaults]);

impl Drop for SentAway<'_> {
    fn drop(&mut self) {
        let mut idle = Idle::take().expect("this thread runs no vCPU");
        for queue in self.0 {
            queue.close(&mut idle);
        }
    }
}
