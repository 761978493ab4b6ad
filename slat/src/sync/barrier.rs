//! Asymmetric barriers: the frequent side is free, and the rare side pays for both.
//!
//! A store-then-load on both sides (Dekker's pattern) needs a full fence on each. Here the frequent side
//! ([`Barrier::light`]) only keeps the *compiler* from reordering the two. The rare side ([`Barrier::heavy`]) makes
//! every running thread of the process execute a full fence, by `membarrier(PRIVATE_EXPEDITED)`. Measured: the light
//! side is free, where a fence would double the cost of a fault; the heavy side takes 0.3 to 10 us.
//!
//! Without membarrier (bare metal, other systems, loom, Miri) both sides are a `SeqCst` fence.

use super::prim::{SeqCst, compiler_fence};

/// The pair of fences that this machine offers. Chosen when a VM is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    asymmetric: bool,
}

impl Barrier {
    /// Returns the cheapest pair that works here.
    pub(crate) fn detect() -> Self {
        Self { asymmetric: membarrier::register() }
    }

    /// A fence on both sides: works everywhere.
    #[cfg(any(test, loom))]
    pub(crate) const fn symmetric() -> Self {
        Self { asymmetric: false }
    }

    /// Whether the frequent side is free.
    pub(crate) const fn is_asymmetric(self) -> bool {
        self.asymmetric
    }

    /// The frequent side.
    #[inline(always)]
    pub(crate) fn light(self) {
        if self.asymmetric {
            // ORDER(asymmetric): keeps the compiler from moving a later load above the earlier store; the membarrier of
            // the thread that calls `heavy` keeps the processor from it.
            compiler_fence(SeqCst);
        } else {
            // The store before, the load after; pairs with the fence in `heavy`.
            fence!(asymmetric.light);
        }
    }

    /// The rare side.
    pub(crate) fn heavy(self) {
        // This thread's earlier stores before its later loads; pairs with every `light`.
        fence!(asymmetric.heavy);
        if self.asymmetric {
            membarrier::all_threads();
        }
    }
}

#[cfg(all(feature = "std", target_os = "linux", not(any(loom, miri, shuttle, tsan, virtual_time))))]
mod membarrier {
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

    fn call(command: libc::c_long) -> libc::c_long {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    /// Registers this process with the kernel. Idempotent; false if the kernel does not support it.
    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED) == 0
    }

    /// Returns once every running thread of this process has passed a full fence.
    pub(super) fn all_threads() {
        let failed = call(PRIVATE_EXPEDITED);
        // Fails only if unregistered, and `register` succeeded before anything could call this.
        assert_eq!(failed, 0, "membarrier stopped working after it was registered");
    }
}

#[cfg(not(all(feature = "std", target_os = "linux", not(any(loom, miri, shuttle, tsan, virtual_time)))))]
mod membarrier {
    /// Under shuttle and in virtual time every store is visible at once: barriers are asymmetric, and only take time.
    pub(super) fn register() -> bool {
        cfg!(any(shuttle, virtual_time))
    }

    pub(super) fn all_threads() {
        #[cfg(virtual_time)]
        slat_machine::barrier();
    }
}
