//! L2 on software vCPUs: a hypervisor in the guest changes its tables at random, on a host that moves its
//! pages.
//!
//! | file | question |
//! |---|---|
//! | `worlds` | does L2's memory hold what L2 stored, whatever L1 and the host do? |
//! | `exact` | does a vCPU use only what T held since its last flush, on what the host has now? |
//! | `kinds` | whose tables: a hypervisor's, or a guest's own on a host without two stages |

mod exact;
mod kinds;
mod worlds;
