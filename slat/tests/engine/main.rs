//! The engine from outside, through its public interface: one binary, since linking takes most of a test's build time.
//! `soak` is another binary: it is run alone, for a duration of choice.
//!
//! | file | what is tested |
//! |---|---|
//! | [`fault`], [`formats`], [`huge`], [`memory_types`], [`mmio`], [`spaces`] | faults, in each format; large pages; memory types and execution; MMIO; address spaces |
//! | [`private`] | frames with private and shared memory |
//! | [`pending`] | faults that do not block: pages on their way, and pages that the VMM provides |
//! | [`prefault`] | pages mapped ahead of the guest, as for an access |
//! | [`age`], [`reasons`], [`withdrawn`] | which pages were accessed; decisions page by page; leaves withdrawn to learn of an access |
//! | [`debts`] | flushes that are owed |
//! | [`ends`] | every operation at the first and last frames and host addresses |
//! | [`dirty`], [`ring`], [`dirty_log`] | dirty logs by bitmap and by ring; their rules, compared with a model and with KVM |
//! | [`slots`] | the rules of memslots, compared with an oracle and with KVM |
//! | [`limit`], [`scale`], [`shrink`] | a budget for tables; what large and empty VMs cost; table memory that goes back |
//! | [`adopted`] | memslots that are cut, transactions that an embedder refuses, dirty logs whose rules change |
//! | [`sound`] | what safe code is promised |
//! | [`inject`] | readers that stay, vCPUs that do not answer, hosts that refuse and panic |
//! | [`words`] | the words of errors and values |
//! | [`held`] | frames that the VMM, or hardware, uses beside the tables |
//! | [`write_tracking`] | stores that come to a listener |
//! | [`published`] | published bugs of other second-stage MMUs |
//! | [`documented`] | the examples: of each type that an embedder names, and those in `examples/`, which are run |

mod common;

mod adopted;
mod age;
mod debts;
mod dirty;
mod dirty_log;
mod documented;
mod ends;
mod fault;
mod formats;
mod held;
mod huge;
mod inject;
mod limit;
mod memory_types;
mod mmio;
mod pending;
mod prefault;
mod private;
mod published;
mod reasons;
mod ring;
mod scale;
mod shrink;
mod slots;
mod sound;
mod spaces;
mod withdrawn;
mod words;
mod write_tracking;
