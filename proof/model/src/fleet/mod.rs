//! Hosts that share only a store: models `pager/src/store/`, with a state of its own.
//!
//! Each step is one call of the store, or less. An image is one chunk here. A host runs a program of uploads, restores,
//! removals and collections. It renews its lease in time, unless it stalls or dies. After a stall its lease ends by its
//! age, and later the host continues, as a suspended machine does. Clocks of hosts are slow by a bound: a lease may be
//! half as old again as it should be before it is renewed. The clock of a collecting host may be ahead.
//!
//! | rule | the host | mistakes that break it |
//! |---|---|---|
//! | F1 | changes the catalog by a conditional write of what it has read | `fleet-unconditional` |
//! | F2 | writes a chunk under a name of the upload's epoch; a collection begins an epoch first, and deletes names of earlier ones alone | `fleet-name-reused`, `fleet-floor-ignored` |
//! | F3 | registers an upload before it looks what is there; the templates of then stay known until it is over | `fleet-retired-ignored` |
//! | F4 | publishes an upload only while it is registered | `fleet-given-up-published` |
//! | F5 | writes its pin, then looks whether the catalog still has the template | `fleet-pinned-blindly` |
//! | F6 | collects in this order: it begins the epoch, then reads the leases, then deletes | `fleet-leases-unread`, `fleet-leases-read-first` |
//! | F7 | deletes nothing where a manifest that the catalog had is gone: another collection went ahead of this one | `fleet-missing-passed` |
//! | F8 | tells the age of a lease by the store's clock alone, and waits for much longer than the slowest host renews | `fleet-own-clock`, `fleet-impatient` |
//! | F9 | writes a lease that may have ended under a new name | `fleet-lease-revived` |
//! | F10 | names a manifest by all that is in it, so no two contents have one name | `fleet-manifest-by-content` |
//! | F11 | gives up the uploads of leases that have ended | `fleet-upload-kept` |
//!
//! Properties: each template is whole at any time, whatever stalls. Objects that a host serves exist, unless the host
//! stalled since it pinned them. When all programs have ended, two collections leave exactly the objects of templates.

mod collect;
mod explore;
mod leases;
pub mod scenarios;
mod shared;
mod steps;

use crate::bug::Bug;
pub use shared::Pc;
use shared::{Catalog, Host, Lease, Manifest};

/// Number of hosts.
const HOSTS: usize = 3;
/// Ticks of the store's clock after which a lease has ended.
const PATIENCE: u8 = 3;
/// Ticks after which the slowest host has renewed its lease.
const RENEWAL: u8 = 1;

/// An operation of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes a template of an image with this content.
    Upload {
        /// The template.
        template: u8,
        /// The content.
        content: u8,
    },
    /// Begins to serve a guest of the template.
    Open(u8),
    /// Ends that guest.
    Close,
    /// Removes the template.
    Remove(u8),
    /// Runs a collection.
    Collect,
}

/// A scenario: a program for each host, and perhaps a mistake.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Its events, in a few words.
    pub name: String,
    programs: Vec<Vec<Op>>,
    /// Hosts that may stall, once each, while they have a lease.
    stalls: Vec<usize>,
    /// Whether time advances in ticks.
    ticks: bool,
    bug: Option<Bug>,
}

/// The whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    catalog: Catalog,
    /// Existing chunks: contents, and the epochs of their names.
    chunks: Vec<(u8, u8)>,
    /// Existing manifests: their names, and the epoch of their chunk.
    manifests: Vec<(Manifest, u8)>,
    leases: Vec<Lease>,
    hosts: [Host; HOSTS],
    bad: Option<crate::state::Bad>,
}

impl Fleet {
    fn new(name: &str, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        Self { name: format!("fleet: {name}"), programs, stalls: Vec::new(), ticks: false, bug: None }
    }

    /// Time goes on.
    fn in_time(self) -> Self {
        Self { ticks: true, ..self }
    }

    /// These hosts may stall.
    fn stalling(self, hosts: &[usize]) -> Self {
        Self { stalls: hosts.to_vec(), ..self }
    }

    /// The same with a mistake.
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    fn makes(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn op(&self, host: usize, at: u8) -> Option<Op> {
        self.programs.get(host)?.get(usize::from(at)).copied()
    }
}

impl State {
    /// Two templates, of content 0 and 1.
    fn new() -> Self {
        let first = |content| Manifest { content, chunk: 0, epoch: 0 };
        // One collection has already run, so an upload's chunks have names of their own.
        let catalog = Catalog { epoch: 1, templates: [Some(first(0)), Some(first(1))], ..Catalog::default() };
        Self {
            catalog,
            chunks: vec![(0, 0), (1, 0)],
            manifests: vec![(first(0), 0), (first(1), 0)],
            leases: Vec::new(),
            hosts: std::array::from_fn(|_| Host::default()),
            bad: None,
        }
    }

    fn manifest(&self, name: Manifest) -> Option<u8> {
        self.manifests.iter().find(|(other, _)| *other == name).map(|(_, chunk)| *chunk)
    }

    /// Ends the operation of host `i`.
    fn done(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let next = Host {
            op: host.op + 1,
            lease: host.lease,
            since: host.since,
            pins: std::mem::take(&mut host.pins),
            has_stalled: host.has_stalled,
            lapsed: host.lapsed,
            serves: host.serves,
            ..Host::default()
        };
        *host = next;
    }
}

const _: () = assert!(HOSTS < 8);
