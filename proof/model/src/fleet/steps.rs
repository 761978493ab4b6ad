//! Uploads, restores and removals: `upload.rs`, `library.rs`, `catalog.rs`.

use super::shared::{Manifest, Upload};
use super::{Fleet, Op, Pc, State};
use crate::bug::Bug;
use crate::state::Bad;

impl Fleet {
    /// Reads the catalog, to change it.
    pub(super) fn read(&self, s: &mut State, i: usize, next: Pc) {
        s.hosts[i].serial = s.catalog.serial;
        s.hosts[i].read = self.makes(Bug::FleetUnconditional).then(|| Box::new(s.catalog.clone()));
        s.hosts[i].pc = next;
    }

    /// Returns whether the catalog may be written, because it is unchanged since it was read. Otherwise reads it again.
    pub(super) fn may_write(s: &mut State, i: usize, again: Pc) -> bool {
        if let Some(read) = s.hosts[i].read.take() {
            s.catalog = *read;
        } else if s.catalog.serial != s.hosts[i].serial {
            s.hosts[i].pc = again;
            return false;
        }
        s.hosts[i].serial = 0;
        true
    }

    pub(super) fn remove(&self, s: &mut State, i: usize, template: u8) {
        if s.hosts[i].pc == Pc::Start {
            return self.read(s, i, Pc::Write);
        }
        if Self::may_write(s, i, Pc::Start) {
            if s.catalog.templates[usize::from(template)].is_some() {
                s.catalog.set(template, None);
                s.catalog.serial += 1;
            }
            s.done(i);
        }
    }

    pub(super) fn upload(&self, s: &mut State, i: usize, template: u8, content: u8) {
        match s.hosts[i].pc {
            Pc::Start => {
                s.hosts[i].works = true;
                self.write_lease(s, i);
                s.hosts[i].pc = Pc::Read;
            }
            Pc::Read => self.read(s, i, Pc::Write),
            Pc::Write => {
                if !Self::may_write(s, i, Pc::Read) {
                    return;
                }
                s.catalog.serial += 1;
                let (lease, epoch) = ((i as u8, s.hosts[i].lease), s.catalog.epoch);
                let upload = Upload { lease, epoch, began: s.catalog.serial };
                s.catalog.uploads.push(upload);
                s.catalog.uploads.sort_unstable();
                s.hosts[i].upload = Some(upload);
                s.hosts[i].found = s.catalog.templates.iter().flatten().copied().collect();
                s.hosts[i].pc = Pc::Know;
            }
            Pc::Know => {
                // An upload does not rely on a deleted manifest.
                let found = std::mem::take(&mut s.hosts[i].found);
                let mut known = found.into_iter().filter(|name| name.content == content);
                s.hosts[i].chunk = known.find_map(|name| s.manifest(name));
                s.hosts[i].pc = if s.hosts[i].chunk.is_some() { Pc::PutManifest } else { Pc::PutChunk };
            }
            Pc::PutChunk => {
                let epoch = s.hosts[i].upload.map_or(0, |upload| upload.epoch);
                let epoch = if self.makes(Bug::FleetNameReused) { 0 } else { epoch };
                if !s.chunks.contains(&(content, epoch)) {
                    s.chunks.push((content, epoch));
                    s.chunks.sort_unstable();
                }
                s.hosts[i].chunk = Some(epoch);
                s.hosts[i].pc = Pc::PutManifest;
            }
            Pc::PutManifest => {
                let Some((name, chunk)) = self.manifest_of(s, i, content) else { return };
                s.manifests.retain(|(other, _)| *other != name);
                s.manifests.push((name, chunk));
                s.manifests.sort_unstable();
                s.hosts[i].pc = Pc::ReadAgain;
            }
            Pc::ReadAgain => self.read(s, i, Pc::Publish),
            _ => {
                if !Self::may_write(s, i, Pc::ReadAgain) {
                    return;
                }
                let Some((name, _)) = self.manifest_of(s, i, content) else { return };
                let before = s.catalog.uploads.len();
                let own = s.hosts[i].upload;
                s.catalog.uploads.retain(|upload| Some(*upload) != own);
                if s.catalog.uploads.len() < before || self.makes(Bug::FleetGivenUpPublished) {
                    s.catalog.set(template, Some(name));
                    s.catalog.serial += 1;
                }
                s.hosts[i].works = false;
                Self::unpin(s, i);
                s.done(i);
            }
        }
    }

    /// Returns the name of host `i`'s manifest, and the epoch of its chunk.
    fn manifest_of(&self, s: &State, i: usize, content: u8) -> Option<(Manifest, u8)> {
        let (chunk, upload) = (s.hosts[i].chunk?, s.hosts[i].upload?);
        let listed = if self.makes(Bug::FleetManifestByContent) { 0 } else { chunk };
        Some((Manifest { content, chunk: listed, epoch: upload.epoch }, chunk))
    }

    pub(super) fn open(&self, s: &mut State, i: usize, template: u8) {
        let now = s.catalog.templates[usize::from(template)];
        match s.hosts[i].pc {
            Pc::Start => match now {
                Some(name) => {
                    s.hosts[i].found = vec![name];
                    s.hosts[i].pc = Pc::Pin;
                }
                None => s.done(i),
            },
            Pc::Pin => {
                let host = &mut s.hosts[i];
                host.pins.clone_from(&host.found);
                s.hosts[i].lapsed = false;
                self.write_lease(s, i);
                let blindly = self.makes(Bug::FleetPinnedBlindly);
                s.hosts[i].pc = if blindly { Pc::Load } else { Pc::LookAgain };
            }
            Pc::LookAgain => match now {
                Some(name) if s.hosts[i].found == [name] => s.hosts[i].pc = Pc::Load,
                Some(name) => {
                    s.hosts[i].found = vec![name];
                    s.hosts[i].pc = Pc::Pin;
                }
                None => {
                    s.hosts[i].pins.clear();
                    Self::unpin(s, i);
                    s.done(i);
                }
            },
            _ => {
                let found = s.hosts[i].found.first().copied();
                let loaded = found.and_then(|name| Some((name, s.manifest(name)?)));
                if loaded.is_none() && !s.hosts[i].lapsed {
                    s.bad = Some(Bad::PinLost);
                }
                s.hosts[i].serves = loaded;
                s.done(i);
            }
        }
    }

    pub(super) fn close(s: &mut State, i: usize) {
        s.hosts[i].pins.clear();
        s.hosts[i].serves = None;
        Self::unpin(s, i);
        s.done(i);
    }

    /// One step of host `i`.
    pub(super) fn step(&self, s: &mut State, i: usize) {
        match self.op(i, s.hosts[i].op) {
            Some(Op::Upload { template, content }) => self.upload(s, i, template, content),
            Some(Op::Open(template)) => self.open(s, i, template),
            Some(Op::Close) => Self::close(s, i),
            Some(Op::Remove(template)) => self.remove(s, i, template),
            Some(Op::Collect) => self.collect(s, i),
            None => {}
        }
    }
}
