//! The parts of the state: the catalog, leases, and the state of each host.

/// The next step of a host's operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs, reason = "each is what the host does next")]
pub enum Pc {
    #[default]
    Start,
    // A change of the catalog, by any operation.
    Read,
    Write,
    // An upload.
    Know,
    PutChunk,
    PutManifest,
    ReadAgain,
    Publish,
    // A restore.
    Pin,
    LookAgain,
    Load,
    // Runs a collection.
    PinOwn,
    ListAges,
    ListLeases,
    ReadLease,
    ReadManifests,
    ListChunks,
    DeleteChunk,
    DeleteManifest,
    ListEnded,
    DeleteLease,
    Unpin,
}

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
