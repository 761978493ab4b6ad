//! The pager threads: each is a slat vCPU that faults for the pages that KVM waits for.

use crate::error::KvmError;
use crate::view::{Tables, View};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use slat::{Access, Fault, Gfn, Idle, Next, OwnedVcpu, VcpuId, Vm};
use slat_mm::HostView;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time until a page that could not be brought in is tried again.
const PAUSE: Duration = Duration::from_millis(5);

/// The pager threads. Dropping this stops them and waits.
#[derive(Debug)]
pub(crate) struct Pagers {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
}

type Engine = Vm<Tables, HostView>;

#[derive(Debug)]
struct Pager {
    vm: Arc<Engine>,
    view: Arc<View>,
    stop: Arc<OwnedFd>,
    trouble: Arc<Mutex<Option<KvmError>>>,
}

impl Pagers {
    /// Starts a thread for each vCPU of `vm`. Threads leave their last error in `trouble`.
    pub(crate) fn start(
        vm: &Arc<Engine>,
        view: &Arc<View>,
        count: u32,
        trouble: &Arc<Mutex<Option<KvmError>>>,
    ) -> Result<Self, KvmError> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(KvmError::os("eventfd"))?);
        let mut pagers = Self { threads: Vec::new(), stop: stop.clone() };
        for id in 0..count {
            let vcpu = vm.owned_vcpu(VcpuId(id)).expect("the VM was made with so many");
            let (vm, view, stop, trouble) = (vm.clone(), view.clone(), stop.clone(), trouble.clone());
            let pager = Pager { vm, view, stop, trouble };
            let thread = thread::Builder::new().name(format!("slat-kvm-{id}"));
            let thread = thread.spawn(move || pager.run(vcpu)).map_err(KvmError::io("a pager's thread"))?;
            pagers.threads.push(thread);
        }
        Ok(pagers)
    }
}

impl Drop for Pagers {
    fn drop(&mut self) {
        let written = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        debug_assert_eq!(written, Ok(8));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Pager {
    fn run(self, mut vcpu: OwnedVcpu<Tables, HostView>) {
        let mut idle = Idle::take().expect("a new thread has its token");
        loop {
            let mut ready =
                [PollFd::new(&self.view.uffd, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
            if poll(&mut ready, None).is_ok() && !ready[1].revents().is_empty() {
                return;
            }
            match self.view.uffd.read().map_err(KvmError::io("userfaultfd")) {
                Ok(Some((address, is_store))) => self.serve(&mut idle, &mut vcpu, address, is_store),
                Ok(None) => {}
                Err(error) => self.note(error),
            }
        }
    }

    fn serve(&self, idle: &mut Idle, vcpu: &mut OwnedVcpu<Tables, HostView>, address: usize, is_store: bool) {
        self.view.counters.faults.fetch_add(1, Relaxed);
        let access = if is_store { Access::Write } else { Access::Read };
        let served = match self.view.gfn_at(address) {
            Some(gfn) => fault(idle, vcpu, gfn, access),
            // The memslot was deleted.
            None => Ok(()),
        };
        let shown = served.and_then(|()| self.view.show(idle, &self.vm, address));
        let Err(error) = shown else { return };
        // Recorded before the vCPU leaves `KVM_RUN`.
        self.note(error);
        for step in [View::refuse, View::offer] {
            if let Err(error) = step(&self.view, address) {
                self.note(error);
            }
            thread::sleep(PAUSE);
        }
    }

    fn note(&self, error: KvmError) {
        self.view.counters.errors.fetch_add(1, Relaxed);
        *self.trouble.lock() = Some(error);
    }
}

/// Afterwards slat's tables map the page, unless it is taken away at once.
fn fault(
    idle: &mut Idle,
    vcpu: &mut OwnedVcpu<Tables, HostView>,
    gfn: Gfn,
    access: Access,
) -> Result<(), KvmError> {
    match vcpu.fault(idle, Fault { gpa: gfn.gpa(), access })? {
        Next::Resume(_) => {}
        // A memslot is being moved or deleted: KVM has the new one already, or still has the old one.
        _ => thread::yield_now(),
    }
    Ok(())
}
