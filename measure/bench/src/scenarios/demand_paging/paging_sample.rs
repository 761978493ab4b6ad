//! One sample: a machine built anew, its vCPUs touch all of its memory for the first time, and a look at what they
//! left.
//!
//! ```text
//! arena       the same frames for all samples: after the first round they are warm
//! └── space   one mapping: anonymous, or (minor faults) of a file whose pages are there, written through another
//!     └── vm  one memslot; the lock is the entrant
//!         ├── vCPUs     each has its part, or all of the memory: `first_touch.rs`
//!         └── handlers  one for each part, or one
//! ```
//! A guest stores a word to each of its pages, and looks at the word beside it, which the handler that brought the page in has left
//! there. Timed is the stretch from the line until the last vCPU is done.

use super::first_touch::{Fixture, Touched};
use crate::parts::sim_host::gfn_of;
use crate::scenarios::threads_prelude::*;
use crate::threads::software_vcpu::{SoftwareVcpu, Uses, stored, words_wrong};
use hdrhistogram::Histogram;
use slat_mm::{File, Serve, UserFaults};
use std::thread::ScopedJoinHandle;

/// As much guest memory as fits in the host's address space.
pub const MOST: u64 = 1 << 44;
/// Where the file of minor faults is mapped once more, for filling it.
const ALIAS: u64 = 1 << 45;

/// The result of one sample.
pub struct Sample {
    /// From the line until the last vCPU was done, in nanoseconds.
    pub wall_ns: f64,
    /// How long each fault took.
    pub fault_ns: Histogram<u64>,
    /// How long vCPUs waited for the MMU lock, all together.
    pub lock_wait_ns: u64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

impl Sample {
    /// The part of their fault time that vCPUs waited for the MMU lock, in percent.
    pub fn lock_share(&self) -> f64 {
        let all = self.fault_ns.mean() * self.fault_ns.len() as f64;
        if all > 0.0 { 100.0 * self.lock_wait_ns as f64 / all } else { 0.0 }
    }
}

impl Job {
    /// The word that has to be beside the guest's word.
    fn beside(&self) -> fn(Gfn) -> u64 {
        if self.serve.is_some() || self.prefilled { given } else { |_| 0 }
    }

    /// One sample under `lock`.
    pub fn sample(&self, lock: MmuLock) -> Result<Sample> {
        let (space, pages) = (AddressSpace::builder(&self.arena).build()?, self.memory.pages().len());
        let file = (self.serve == Some(Serve::Minor)).then(|| File::zeroed(&self.arena, pages * PAGE_SIZE));
        let backing = file.clone().map_or(Backing::Anonymous, |file| Backing::Shared { file, offset: 0 });
        let (bytes, vcpus) = (pages * PAGE_SIZE, self.memory.vcpus);
        let vm = machine::<Npt4>(&space, bytes, backing, |vm| {
            vm.vcpus(vcpus).baseline(Baseline::NONE.mmu_lock(lock))
        });
        let vm = vm.map_err(Error::Machine)?;
        self.fill(&space, file)?;
        let handlers = Handlers::new(self, &space)?;
        let uses = Uses { stores: true, finds: Some((GIVEN_AT, self.beside())) };
        let vcpus: Result<Vec<_>, _> =
            (0..self.memory.vcpus).map(|number| SoftwareVcpu::new(&vm, number, uses)).collect();
        let mut vcpus = vcpus?;
        let parts = &if self.overlap {
            vec![self.memory.pages(); self.memory.vcpus as usize]
        } else {
            self.memory.parts()
        };
        let right = |gfn, pfn| self.is_right(&space, gfn, pfn);
        let fixture = Fixture {
            vm: &*vm,
            parts,
            page: Level::K4,
            right: ("every page is mapped and holds what it has to", right),
        };
        let (lap, served) = thread::scope(|scope| {
            let servers = handlers.queues().iter().map(|queue| start(scope, || handlers.serve(queue)));
            let servers: Vec<_> = servers.collect();
            let lap = {
                let _sent_away = handlers.sent_away();
                fixture.run(&Costs::SERVER, &mut vcpus, || (), None)
            };
            let served = servers.into_iter().map(ScopedJoinHandle::join).map(joined);
            (lap, served.sum::<Result<u64, _>>())
        });
        let wrong = words_wrong(&mut vcpus)?;
        let (Touched { stats, mut tally }, served) = (lap.map_err(Error::Machine)?, served?);
        let touched: u64 = parts.iter().map(Span::len).sum();
        let given = if self.serve.is_some() { pages } else { 0 };
        tally.insert(2, ("vCPUs found in each page what it was given", [touched - wrong, touched]));
        tally.push(("handlers gave every page that they had to, once", [served, given]));
        let mut fault_ns = vcpus[0].cpu.fault_ns.clone();
        for vcpu in &vcpus[1..] {
            fault_ns.add(&vcpu.cpu.fault_ns).map_err(|error| Error::Machine(error.to_string()))?;
        }
        let (_, lock_wait_ns) = vm.lock_waits();
        Ok(Sample { wall_ns: stats.wall_ns as f64, fault_ns, lock_wait_ns, tally })
    }

    /// Guest memory as the host sees it before the guest does.
    fn fill(&self, space: &Arc<AddressSpace>, file: Option<Arc<File>>) -> Result<()> {
        if file.is_none() && !self.prefilled {
            return Ok(());
        }
        let (idle, bytes) = (&mut idle()?, self.memory.bytes());
        let shift = if file.is_some() { ALIAS } else { 0 };
        if let Some(file) = file {
            let backing = Backing::Shared { file, offset: 0 };
            space.mmap(Place::Fixed(hva_of(Gfn(0)) + ALIAS), bytes, Prot::ReadWrite, backing)?;
        }
        for gfn in (0..self.memory.pages().len()).map(Gfn) {
            space.write(idle, hva_of(gfn) + shift + GIVEN_AT, &(self.gives)(gfn).to_le_bytes())?;
        }
        Ok(())
    }

    /// Whether the frame that a page is mapped to is the host's, and holds what it has to.
    fn is_right(&self, space: &AddressSpace, gfn: Gfn, pfn: Pfn) -> bool {
        let host = space.lookup(hva_of(gfn), Access::Read).map(|page| page.pfn);
        let word = |offset| {
            let mut word = [0; 8];
            window(&self.arena).read(pfn, offset, &mut word);
            u64::from_le_bytes(word)
        };
        host == Some(pfn) && word(0) == stored(gfn) && word(GIVEN_AT) == self.beside()(gfn)
    }
}

// The job of all entrants, and the threads that serve its faults, each from a queue of its own over a part of the memory.

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
    pub fn new(job: &'j Job, space: &Arc<AddressSpace>) -> Result<Self> {
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
    pub fn serve(&self, queue: &UserFaults) -> Result<u64> {
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
