//! A vCPU that runs L2, the guest of a hypervisor (L1) that is its own guest; or, without a second stage, a
//! guest on its own page table.
//!
//! ```text
//! L1 enters L2 ─▶ `Vcpu::nested` ─▶ steps of the program, under L2's tag
//!        ▲                             │ fault
//!        │ refused by T: for L1  ◀── `L2::fault` ──▶ the program continues
//! ```

use super::{Cpu, Exit, Program, Stay, Stayed};
use crate::caches::{Caches, Under};
use slat::nested::{GuestFlush, GuestTable, L1Access, L1Fault, L1Format, L2, L2Next, NestedError};
use slat::{Fault, Format, Gfn, Host, HostError, Idle, Leave, Next, SpaceId, Span, Vcpu, Vm};
use std::time::Instant;

/// Why the vCPU has left L2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum L2Exit {
    /// The program stopped.
    Stopped,
    /// L1's table refuses an access: L1 handles it.
    ForL1(L1Fault),
    /// Like an exit of L1, at the address in L1's memory that L1's table gives.
    Own(Exit),
}

impl<'vm, F: Format, H: Host> Cpu<'vm, F, H> {
    /// Runs `program` as L1's guest on `table` until it exits. The vCPU has a processor of its own. Fails if
    /// there is no memory for tables.
    pub fn run_l2<T: L1Format>(
        &mut self,
        idle: &mut Idle,
        table: T,
        program: &mut impl Program,
    ) -> Result<L2Exit, NestedError> {
        self.run_entered(idle, |vcpu, idle| vcpu.nested(idle, table), program)
    }

    /// Runs `program` on the guest's own page table, in a VM [without two
    /// stages](slat::Builder::without_two_stages), until it exits; a page fault of the guest is
    /// [`L2Exit::ForL1`]. Addresses are linear, [without their sign](GuestTable::access). Fails if there is no
    /// memory for tables.
    pub fn run_guest(
        &mut self,
        idle: &mut Idle,
        table: GuestTable,
        program: &mut impl Program,
    ) -> Result<L2Exit, NestedError> {
        self.run_entered(idle, |vcpu, idle| vcpu.guest_paging(idle, table), program)
    }

    /// Executes the guest's flush of its page tables on this vCPU: see
    /// [`Vcpu::guest_flushes`](slat::Vcpu::guest_flushes).
    pub fn guest_flushes(&mut self, flush: GuestFlush) {
        self.vcpu.guest_flushes(flush);
    }

    fn run_entered<T: L1Format>(
        &mut self,
        idle: &mut Idle,
        enters: impl for<'v> FnOnce(
            &'v mut Vcpu<'vm, F, H>,
            &mut Idle,
        ) -> Result<L2<'v, 'vm, F, H, T>, NestedError>,
        program: &mut impl Program,
    ) -> Result<L2Exit, NestedError> {
        let mut caches = self.caches.take().unwrap_or_default();
        let exit = self.run_entered_in(idle, &mut caches, enters, program);
        self.caches = Some(caches);
        exit
    }

    fn run_entered_in<T: L1Format>(
        &mut self,
        idle: &mut Idle,
        caches: &mut Caches,
        enters: impl for<'v> FnOnce(
            &'v mut Vcpu<'vm, F, H>,
            &mut Idle,
        ) -> Result<L2<'v, 'vm, F, H, T>, NestedError>,
        program: &mut impl Program,
    ) -> Result<L2Exit, NestedError> {
        self.tell(program);
        let exit_ns = self.exit;
        let mut l2 = enters(&mut self.vcpu, idle)?;
        loop {
            let vm = l2.vcpu().vm();
            let ready = l2.enter(idle, caches);
            let stay = Stay { vm, window: self.window, late: &mut self.late, under: Under::L2 };
            let fault = match stay.run(ready, caches, program, &mut { u64::MAX }) {
                Stayed::Fault(fault) => fault,
                Stayed::Stopped => return Ok(L2Exit::Stopped),
                Stayed::StepsDone | Stayed::Kicked => {
                    while let Some(token) = l2.take_ready() {
                        program.page_ready(token);
                    }
                    continue;
                }
            };
            super::spend(exit_ns);
            let began = self.timed.then(Instant::now);
            if let Some(exit) = deal_with(&mut l2, idle, fault) {
                return Ok(exit);
            }
            if let Some(began) = began {
                self.fault_ns.saturating_record(began.elapsed().as_nanos() as u64);
            }
        }
    }

    /// Executes L1's flush on this vCPU, of its tables that `covers` accepts: see
    /// [`Vcpu::l1_flushes`](slat::Vcpu::l1_flushes).
    pub fn l1_flushes<T: L1Format>(&mut self, covers: impl Fn(&T) -> bool) {
        self.vcpu.l1_flushes(covers);
    }

    /// Executes L1's flush of frames of L2 on all vCPUs: see [`Vm::l1_broadcasts`].
    pub fn l1_broadcasts<T: L1Format>(
        &mut self,
        idle: &mut Idle,
        (space, g2s): (SpaceId, Span<Gfn>),
        covers: impl Fn(&T) -> bool,
    ) {
        let vm: &Vm<F, H> = self.vcpu.vm();
        vm.l1_broadcasts(idle, space, g2s, covers);
    }

    /// A seeded mistake: its caches keep L2's translations whatever is flushed.
    #[doc(hidden)]
    #[must_use]
    pub fn keeping_l2(mut self) -> Self {
        self.caches.get_or_insert_default().keep_l2();
        self
    }
}

/// Handles a fault of L2, outside of it. `None` if the program may continue.
fn deal_with<F: Format, H: Host, T: L1Format>(
    l2: &mut L2<'_, '_, F, H, T>,
    idle: &mut Idle,
    Fault { gpa, access }: Fault,
) -> Option<L2Exit> {
    let done = match l2.fault(idle, L1Access::new(gpa, access)) {
        Ok(done) => done,
        Err(error) => return Some(L2Exit::Own(Exit::Failed(Fault { gpa, access }, error))),
    };
    match done {
        L2Next::ForL1(fault) => Some(L2Exit::ForL1(fault)),
        L2Next::Handled { next: done, gpa } => {
            let fault = Fault { gpa, access };
            match done {
                Next::Emulate(_) => Some(L2Exit::Own(Exit::Mmio(fault))),
                Next::Leave(Leave::RingFull) => Some(L2Exit::Own(Exit::RingFull)),
                Next::Leave(Leave::Pending(_)) => {
                    Some(L2Exit::Own(Exit::Failed(fault, HostError::Pending.into())))
                }
                Next::Leave(Leave::NeedsPage) => {
                    Some(L2Exit::Own(Exit::Failed(fault, HostError::NeedsPage.into())))
                }
                _ => None,
            }
        }
        // Other results: run again.
        _ => None,
    }
}
