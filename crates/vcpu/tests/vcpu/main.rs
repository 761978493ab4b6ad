//! Tests of software vCPUs on the engine, with the host of slat-mm behind it.
//!
//! | file | question |
//! |---|---|
//! | `stale` | does a vCPU read a moved page at its new place, and does a missing flush show? |
//! | `walker` | does the walker set the right bits, and does a vCPU on another thread see the host's changes? |
//! | `spaces` | does a vCPU see another address space at once? |
//! | `ring` | does a full dirty ring stop a vCPU, and does the ring tell a store through its TLB? |
//! | `shared` | do vCPUs that change processors read what they wrote, with TLBs tagged by VM? |
//! | `dirty` | does a dirty log tell every store, beside everything else? |
//! | `private` | does a guest that converts frames find in each memory what it stored there? |
//! | `nested` | does the guest of a guest find its memory, whatever its hypervisor and the host do? |
//! | `numa` | does a page that is sampled and moved stay readable for a guest? |
//! | `pending` | does a vCPU run another task, or park, while a page is on its way? |

mod dirty;
mod nested;
mod numa;
mod pending;
mod private;
mod ring;
mod shared;
mod spaces;
mod stale;
#[path = "../../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
#[path = "../../../../slat/src/tries.rs"]
mod tries;
mod walker;
