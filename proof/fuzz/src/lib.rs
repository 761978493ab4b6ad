//! Targets for libFuzzer: properties that slat must keep for any bytes.
//!
//! ```text
//! bytes ──▶ Input: choices, one after the other ──▶ calls of slat              ─┐
//!                                             └──▶ the same on a plain model  ─┴─▶ they must agree, after each step
//! ```
//! | target | calls | the model |
//! |---|---|---|
//! | `vm` | memslots, faults, invalidations of every reason, huge pages, dirty logs, aging, in two address spaces | maps of leaves, tables and dirty pages, and a TLB that forgets nothing by itself |
//! | `slots` | `KVM_SET_USER_MEMORY_REGION`, fields at the edges of its rules | the brute-force oracle of slat's own tests |
//! | `trace` | a memory trace, cut anywhere | its lines, one by one |
//! | `lru_gen` | commands as text | the same commands as numbers, and the pages that there are |
//! | `sound` | anything that safe code can ask: extreme arguments, leaked guards, panics in callbacks, calls from inside a fault, two VMs | the host's own pages, and processors that forget nothing by themselves |
//! | `swap` | pages stored, damaged, read back | the stored bytes, or an error |
//! | `nested` | a guest's guest, whose hypervisor's tables have arbitrary words | each walk of those tables since a vCPU's flush, with memslots and host as they are now |
//! | `map` | a table without a VM, in seven formats, whose memory may run out | a list of mapped ranges |
//! | `pager` | handshakes, objects of a store, a server of NBD, configurations | a value or an error, in bounded memory |
//!
//! Promises: a target panics only if slat is wrong; the same bytes do the same thing.
//!
//! `corpus/` has the minimised inputs that the fuzzer kept, with one folder for each target. `crashes/` has inputs that
//! once made a target panic. `cargo test` replays all of them, without a fuzzer.

mod heap;
mod input;
mod lru_gen;
mod map;
mod nested;
mod pager;
mod slots;
mod sound;
mod swap;
mod trace;
mod vm;

pub use input::Input;
pub use pager::bounded;

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// Name of the target and of its folders.
    pub name: &'static str,
    /// Runs the target. Panics if slat does something wrong.
    pub run: fn(&[u8]),
}

impl Target {
    /// All targets.
    pub const ALL: &'static [Self] = &[
        Self { name: "vm", run: vm::run },
        Self { name: "slots", run: slots::run },
        Self { name: "trace", run: trace::run },
        Self { name: "lru_gen", run: lru_gen::run },
        Self { name: "swap", run: swap::run },
        Self { name: "sound", run: sound::run },
        Self { name: "nested", run: nested::run },
        Self { name: "pager", run: pager::run },
        Self { name: "map", run: map::run },
    ];

    /// Returns the target of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|target| target.name == name)
    }
}
