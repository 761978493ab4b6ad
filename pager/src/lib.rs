//! The memory of microVMs, served through Linux's userfaultfd.
//!
//! A VMM restores a guest whose memory is empty, and sends its userfaultfd to the pager. Each page comes from a snapshot template
//! when the guest first touches it.
//!
//! ```
//! use slat_pager::*;
//! use std::sync::Arc;
//! # let folder = std::env::temp_dir().join(format!("slat-pager-doc-{}", std::process::id()));
//!
//! // A template in a store: an image of 1 MiB, in chunks of 64 KiB.
//! let library = Library::new(Folder::open(&folder)?);
//! let image = vec![7; 1 << 20];
//! library.snapshot("seven", &*image, image.len() as u64, 64 << 10)?;
//! assert_eq!(library.verify("seven")?.chunks, 1); // one chunk that occurs 16 times
//!
//! // What a VMM said about its memory is checked against the template.
//! let template = library.open("seven")?;
//! let layout = Layout::new(vec![Region { base: 0x7000_0000, size: 1 << 20, offset: 0 }], template.size())?;
//! # let uffd = match Uffd::new(Features::REMOVE) {
//! #     Ok(uffd) => uffd,
//! #     Err(error) => { println!("skipped: no userfaultfd: {error}"); return Ok(()) }
//! # };
//!
//! // Its faults are served, from a cache that all guests share. `uffd` came from the VMM.
//! let (cache, journal) = (Arc::new(Cache::new(64 << 20)), Journal::new(&layout)?);
//! let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, Options::default())?;
//! assert_eq!(guest.stats().filled, 0); // nothing was touched
//! guest.stop();
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The program `slat-pager` does this for many VMMs: a [`Keeper`] holds their connections, and starts the [`Worker`] that serves
//! them again if it is killed.
//!
//! # What is promised
//!
//! | promise | by |
//! |---|---|
//! | A page has the template's content, or zeros once the guest gave it back: in every race of removal and fill. | one lock around reading events and filling pages; the page is looked up in the journal under it |
//! | A worker that is killed loses no removal. | the kernel writes events into the journal, by the same call that takes them |
//! | A worker that is killed freezes no guest. | the keeper starts another one, which asks for all faults again |
//! | What the store gives is what was stored. | the hash of each chunk is its name |
//! | A store that does not answer holds up only who needs it. | the thread that reads a guest's faults does not wait for the store; faults are tried again, later each time |
//! | A working set makes no byte wrong. | it says which pages come ahead of faults; their content is the template's, after the same look at the journal |
//! | A hostile VMM harms only its own guest. | [`WireError`], [`MigrationError`] and [`LayoutError`]; descriptors are looked at; sizes are bounded |
//! | A machine of Cloud Hypervisor ends only when its template is stored. | the answer to its last message comes after the catalog was written |
//!
//! # The rooms
//!
//! | room | what happens there |
//! |---|---|
//! | `uffd` | the kernel's interface |
//! | `layout` | where a guest's memory is |
//! | `wire` | how a VMM tells it |
//! | `store` | templates, their chunks and their working sets |
//! | `cache` | chunks that are in the host's memory |
//! | `share` | pages that clones of a template have in common |
//! | `pace` | few compute ahead of faults, and many wait for the store |
//! | `journal` | for which pages the template no longer speaks |
//! | `guest` | faults and their answers |
//! | `machine` | whole machines of Cloud Hypervisor, kept and restored |
//! | `latency` | how long they took |
//! | `daemon` | keeper and worker |
//! | `hostile` | what comes from outside, for the fuzzer |
//! | `twin` | a process that does what a VMM does, for tests and the demonstration |
#![deny(missing_docs)]
#![cfg(target_os = "linux")]

mod cache;
mod compute_limit;
#[cfg(feature = "config")]
mod config;
mod daemon;
mod guest;
#[doc(hidden)]
pub mod hostile;
mod journal;
mod latency;
mod layout;
mod machine;
mod sabotage;
mod share;
mod store;
#[doc(hidden)]
pub mod twin;
mod uffd;
mod wire;

pub use cache::{Cache, CacheStats, Source};
#[cfg(feature = "config")]
#[doc(hidden)]
pub use config::flags;
pub use daemon::{
    Ageing, Answer, Event, Guests, Keeper, Moment, Monitor, Request, Serving, Worker, WorkerError,
    accept_one, checkpoint,
};
pub use guest::{
    Backing, Guest, GuestStats, Handle, Harvest, HarvestError, Life, Lost, MOST_REPLAYING, OnFailure,
    Options, Parts, Stored, swap_file,
};
pub use journal::{Journal, MOST_READERS};
pub use latency::Latency;
pub use layout::{Layout, LayoutError, MOST_REGIONS, Region};
pub use machine::{Received, Restore, keep_machines, receive_machine, restore_machine, serve_machines};
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use share::Share;
#[doc(hidden)]
pub use store::{Clock, Trouble};
pub use store::{
    Entry, Folder, Gc, Hash, Library, MOST_CHUNK, Nbd, PATIENCE, Steady, SteadyOptions, Store, StoreError,
    StoreStats, Template, Verified, Version, WorkingSet,
};
#[cfg(feature = "s3")]
pub use store::{Objects, s3};
pub use uffd::{Features, Filled, HUGE_PAGE, PAGE, Refusal, Uffd};
pub use wire::{
    Firecracker, Handshake, MOST_CONFIG, MOST_FAULT, MOST_FDS, MOST_HANDSHAKE, MOST_STATE, MigrationError,
    Wire, WireError,
};
