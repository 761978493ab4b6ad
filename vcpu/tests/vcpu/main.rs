//! Software vCPUs on the engine, with the host of slat-mm behind it.
//!
//! | file | question |
//! |---|---|
//! | `stale` | does a vCPU read a moved page where it is, and is it seen where a flush is missing? |
//! | `walker` | what does the walker leave in the tables, and what does a vCPU on another thread see of changes? |
//! | `spaces` | does a vCPU see another address space at once? |
//! | `ring` | does a full dirty ring stop a vCPU, and is a store through its TLB told? |
//! | `shared` | do vCPUs that move between processors read what they wrote, with TLBs tagged by VM? |
//! | `dirty` | does a dirty log tell every store, beside everything else? |
//! | `private` | does a guest that makes frames private and shared find in each memory what it stored there? |
//! | `nested` | does the guest of a guest find its memory, whatever its hypervisor and the host do? |
//! | `numa` | does a page that is sampled and moved stay readable under a guest? |
//! | `pending` | does a vCPU go on with another task, or park, while a page is on its way? |

mod dirty;
mod nested;
mod numa;
mod pending;
mod private;
mod ring;
#[cfg(seeded)]
mod seeded;
mod shared;
mod spaces;
mod stale;
#[path = "../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
mod walker;
