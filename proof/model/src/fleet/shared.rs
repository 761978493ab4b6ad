//! The shared state, the state of each host, and the properties.

use super::{Fleet, HOSTS, PATIENCE, Pc, State};
use crate::bug::Bug;
use crate::shared::Bad;

/// A manifest's name: the content, the epoch of the chunk that it lists, and that of the upload that wrote it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Manifest {
    pub content: u8,
    pub chunk: u8,
    pub epoch: u8,
}

/// An upload in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Upload {
    /// Its host, and the number of the host's lease.
    pub lease: (u8, u8),
    pub epoch: u8,
    pub began: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Catalog {
    pub serial: u8,
    pub epoch: u8,
    pub templates: [Option<Manifest>; 2],
    pub retired: Vec<(Manifest, u8)>,
    pub uploads: Vec<Upload>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Lease {
    /// Its host, and the number of the host's lease.
    pub name: (u8, u8),
    /// Ticks of the store's clock since it was written.
    pub age: u8,
    pub pins: Vec<Manifest>,
}

/// State of a host.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Host {
    pub op: u8,
    pub pc: Pc,
    /// The catalog as read, for a write: its number; or all of it for an unconditional write.
    pub serial: u8,
    pub read: Option<Box<Catalog>>,
    /// Number of its current lease, and ticks since the last write.
    pub lease: u8,
    pub since: u8,
    /// Manifests that it pins. An upload or a collection pins no manifest.
    pub pins: Vec<Manifest>,
    pub works: bool,
    /// It has stalled once.
    pub has_stalled: bool,
    /// Its lease may have ended since it pinned its manifest.
    pub lapsed: bool,
    /// The manifest that it serves, and the epoch of the chunk.
    pub serves: Option<(Manifest, u8)>,
    /// Its upload; and what it found.
    pub upload: Option<Upload>,
    pub found: Vec<Manifest>,
    pub chunk: Option<u8>,
    /// Its collection.
    pub gc: Gc,
}

/// State of a collection.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Gc {
    pub uploads: Vec<(u8, u8)>,
    /// Listed leases that were not written since.
    pub seen: Vec<(u8, u8)>,
    pub listed: Vec<(u8, u8)>,
    pub ended: Vec<(u8, u8)>,
    pub floor: u8,
    pub leases: Vec<(u8, u8)>,
    /// Of the catalog that it wrote; then those that leases pin, too.
    pub own: Vec<Manifest>,
    pub manifests: Vec<Manifest>,
    pub chunks: Vec<(u8, u8)>,
    pub doomed: Vec<(u8, u8)>,
    pub doomed_manifests: Vec<Manifest>,
}

impl Catalog {
    pub fn set(&mut self, template: u8, manifest: Option<Manifest>) {
        let before = std::mem::replace(&mut self.templates[usize::from(template)], manifest);
        if let Some(before) = before.filter(|before| manifest != Some(*before)) {
            self.retired.retain(|(other, _)| *other != before);
            self.retired.push((before, self.serial + 1));
            self.retired.sort_unstable();
        }
        self.forget_retired();
    }

    pub fn forget_retired(&mut self) {
        let first = self.uploads.iter().map(|upload| upload.began).min();
        self.retired.retain(|(_, at)| first.is_some_and(|first| first < *at));
    }

    pub fn floor(&self) -> u8 {
        self.uploads.iter().map(|upload| upload.epoch).fold(self.epoch, u8::min)
    }

    pub fn manifests(&self) -> impl Iterator<Item = Manifest> {
        self.templates.iter().flatten().copied().chain(self.retired.iter().map(|(name, _)| *name))
    }
}

impl State {
    /// Two templates, of content 0 and 1.
    pub(super) fn new() -> Self {
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

    pub(super) fn manifest(&self, name: Manifest) -> Option<u8> {
        self.manifests.iter().find(|(other, _)| *other == name).map(|(_, chunk)| *chunk)
    }

    /// Ends the operation of host `i`.
    pub(super) fn done(&mut self, i: usize) {
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

impl Fleet {
    /// Writes the host's lease.
    pub(super) fn write_lease(&self, s: &mut State, i: usize) {
        let host = &mut s.hosts[i];
        // The lease may have ended: a collection that has seen that may delete it at any later time.
        if host.since >= PATIENCE && !self.makes(Bug::FleetLeaseRevived) {
            host.lease += 1;
        }
        host.since = 0;
        let (name, pins) = ((i as u8, host.lease), host.pins.clone());
        s.leases.retain(|lease| lease.name != name);
        s.leases.push(Lease { name, age: 0, pins });
        s.leases.sort_unstable_by_key(|lease| lease.name);
        s.hosts.iter_mut().for_each(|host| host.gc.seen.retain(|seen| *seen != name));
    }

    /// Removes a pin of the host.
    pub(super) fn unpin(s: &mut State, i: usize) {
        let host = &s.hosts[i];
        if host.pins.is_empty() && !host.works {
            let name = (i as u8, host.lease);
            s.leases.retain(|lease| lease.name != name);
        }
    }

    /// Advances the store's clock by a tick.
    pub(super) fn tick(s: &mut State) {
        s.leases.iter_mut().for_each(|lease| lease.age = (lease.age + 1).min(PATIENCE));
        for host in &mut s.hosts {
            host.since = (host.since + 1).min(PATIENCE);
            host.lapsed |= host.since == PATIENCE && !host.pins.is_empty();
        }
    }

    /// Stalls the host until its lease has ended.
    pub(super) fn stall(s: &mut State, i: usize) {
        let host = &mut s.hosts[i];
        (host.has_stalled, host.since) = (true, PATIENCE);
        host.lapsed |= !host.pins.is_empty();
        let name = (i as u8, host.lease);
        s.leases.iter_mut().filter(|lease| lease.name == name).for_each(|lease| lease.age = PATIENCE);
    }

    /// Kills the host.
    pub(super) fn die(&self, s: &mut State, i: usize) {
        Self::stall(s, i);
        let (op, lease) = (self.programs[i].len() as u8, s.hosts[i].lease);
        s.hosts[i] = Host { op, lease, has_stalled: true, ..Host::default() };
    }

    /// Checks the properties of each state.
    pub(super) fn look(s: &mut State) {
        let has = |content, chunk| s.chunks.contains(&(content, chunk));
        let whole = |name: Manifest| s.manifest(name).is_some_and(|chunk| has(name.content, chunk));
        if !s.catalog.templates.iter().flatten().all(|name| whole(*name)) {
            s.bad = Some(Bad::TemplateBroken);
        }
        let serves = |host: &Host| host.lapsed || host.serves.is_none_or(|(name, at)| has(name.content, at));
        if !s.hosts.iter().all(serves) {
            s.bad = Some(Bad::PinLost);
        }
    }

    /// At the end, when every host is gone, checks that two collections leave exactly the objects of templates.
    pub(super) fn audit(&self, s: &mut State) {
        let mut rest = s.clone();
        for _ in 0..2 {
            rest.leases.iter_mut().for_each(|lease| lease.age = PATIENCE);
            rest.hosts = std::array::from_fn(|_| Host { lease: 9, ..Host::default() });
            self.collect_alone(&mut rest);
        }
        let mut kept: Vec<_> = rest.catalog.templates.iter().flatten().collect();
        kept.dedup();
        let chunks: Vec<_> =
            kept.iter().filter_map(|name| Some((name.content, rest.manifest(**name)?))).collect();
        let is_needed = |chunk| chunks.contains(chunk);
        if rest.manifests.len() > kept.len() || !rest.chunks.iter().all(is_needed) || !rest.leases.is_empty()
        {
            s.bad = Some(Bad::Garbage);
        }
        if rest.bad.is_some() {
            s.bad = rest.bad;
        }
    }
}

const _: () = assert!(HOSTS < 8);
