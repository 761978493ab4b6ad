//! A collection: `gc.rs`.

use super::shared::Manifest;
use super::{Fleet, PATIENCE, Pc, State};
use crate::bug::Bug;

impl Fleet {
    pub(super) fn collect(&self, s: &mut State, i: usize) {
        match s.hosts[i].pc {
            Pc::Start => {
                s.hosts[i].gc.uploads = s.catalog.uploads.iter().map(|upload| upload.lease).collect();
                s.hosts[i].pc = Pc::PinOwn;
            }
            Pc::PinOwn => {
                s.hosts[i].works = true;
                self.write_lease(s, i);
                s.hosts[i].pc = Pc::ListAges;
            }
            Pc::ListAges => {
                let own = (i as u8, s.hosts[i].lease);
                // Its own clock may be ahead of the store's.
                let ahead = if self.makes(Bug::FleetOwnClock) { PATIENCE - 1 } else { 0 };
                let patience = if self.makes(Bug::FleetImpatient) { 1 } else { PATIENCE };
                let listed = || s.leases.iter().filter(|lease| lease.name != own);
                let seen: Vec<_> = s.leases.iter().map(|lease| lease.name).collect();
                let ended = listed().filter(|lease| lease.age + ahead >= patience);
                let ended: Vec<_> = ended.map(|lease| lease.name).collect();
                let early = self.makes(Bug::FleetLeasesReadFirst);
                let gc = &mut s.hosts[i].gc;
                (gc.listed, gc.seen, gc.ended) = (seen.clone(), seen, ended);
                s.hosts[i].pc = if early { Pc::ListLeases } else { Pc::Read };
            }
            Pc::Read => self.read(s, i, Pc::Write),
            Pc::Write => {
                if Self::may_write(s, i, Pc::Read) {
                    self.begin_epoch(s, i);
                }
            }
            Pc::ListLeases => {
                let all = s.leases.iter().map(|lease| lease.name);
                let gc = &mut s.hosts[i].gc;
                gc.leases = all.filter(|name| !gc.ended.contains(name)).collect();
                s.hosts[i].pc = Pc::ReadLease;
            }
            Pc::ReadLease => {
                let Some(name) = s.hosts[i].gc.leases.pop() else {
                    let early = self.makes(Bug::FleetLeasesReadFirst);
                    s.hosts[i].pc = if early { Pc::Read } else { Pc::ReadManifests };
                    return;
                };
                let pins = s.leases.iter().find(|lease| lease.name == name).map(|lease| lease.pins.clone());
                if !self.makes(Bug::FleetLeasesUnread) {
                    s.hosts[i].gc.manifests.extend(pins.unwrap_or_default());
                }
            }
            Pc::ReadManifests => {
                let mut manifests = std::mem::take(&mut s.hosts[i].gc.manifests);
                manifests.sort_unstable();
                manifests.dedup();
                let is_gone = |name: &Manifest| s.manifest(*name).is_none();
                if s.hosts[i].gc.own.iter().any(is_gone) && !self.makes(Bug::FleetMissingPassed) {
                    s.hosts[i].pc = Pc::Unpin;
                    return;
                }
                let chunk = |name: &Manifest| Some((name.content, s.manifest(*name)?));
                let chunks = manifests.iter().filter_map(chunk).collect();
                (s.hosts[i].gc.manifests, s.hosts[i].gc.chunks) = (manifests, chunks);
                s.hosts[i].gc.own.clear();
                s.hosts[i].pc = Pc::ListChunks;
            }
            _ => Self::delete(s, i),
        }
    }

    /// Deletes objects that nothing needs.
    fn delete(s: &mut State, i: usize) {
        match s.hosts[i].pc {
            Pc::ListChunks => {
                let gc = &s.hosts[i].gc;
                let goes = |name: &&(u8, u8)| name.1 < gc.floor && !gc.chunks.contains(name);
                s.hosts[i].gc.doomed = s.chunks.iter().filter(goes).copied().collect();
                s.hosts[i].gc.chunks.clear();
                s.hosts[i].pc = Pc::DeleteChunk;
            }
            Pc::DeleteChunk => {
                if let Some(name) = s.hosts[i].gc.doomed.pop() {
                    s.chunks.retain(|other| *other != name);
                } else {
                    let gc = &s.hosts[i].gc;
                    let names = s.manifests.iter().map(|(name, _)| *name);
                    let goes = |name: &Manifest| name.epoch < gc.floor && !gc.manifests.contains(name);
                    s.hosts[i].gc.doomed_manifests = names.filter(goes).collect();
                    s.hosts[i].gc.manifests.clear();
                    s.hosts[i].pc = Pc::DeleteManifest;
                }
            }
            Pc::DeleteManifest => match s.hosts[i].gc.doomed_manifests.pop() {
                Some(name) => s.manifests.retain(|(other, _)| *other != name),
                None => s.hosts[i].pc = Pc::ListEnded,
            },
            Pc::ListEnded => {
                let gc = &mut s.hosts[i].gc;
                let there = |name: &(u8, u8)| s.leases.iter().any(|lease| lease.name == *name);
                let ended = std::mem::take(&mut gc.ended).into_iter();
                gc.ended = ended.filter(|name| gc.seen.contains(name) && there(name)).collect();
                (gc.seen, gc.listed) = (Vec::new(), Vec::new());
                s.hosts[i].pc = Pc::DeleteLease;
            }
            Pc::DeleteLease => match s.hosts[i].gc.ended.pop() {
                Some(name) => s.leases.retain(|lease| lease.name != name),
                None => s.hosts[i].pc = Pc::Unpin,
            },
            _ => {
                s.hosts[i].works = false;
                Self::unpin(s, i);
                s.done(i);
            }
        }
    }

    /// Writes the catalog, which is unchanged since it was read.
    fn begin_epoch(&self, s: &mut State, i: usize) {
        let gc = &mut s.hosts[i].gc;
        let lost = |lease: &(u8, u8)| gc.uploads.contains(lease) && !gc.listed.contains(lease);
        if !self.makes(Bug::FleetUploadKept) {
            s.catalog.uploads.retain(|upload| !gc.ended.contains(&upload.lease) && !lost(&upload.lease));
        }
        s.catalog.epoch += 1;
        s.catalog.serial += 1;
        s.catalog.forget_retired();
        gc.uploads.clear();
        gc.floor = if self.makes(Bug::FleetFloorIgnored) { u8::MAX } else { s.catalog.floor() };
        gc.own = if self.makes(Bug::FleetRetiredIgnored) {
            s.catalog.templates.iter().flatten().copied().collect()
        } else {
            s.catalog.manifests().collect()
        };
        gc.manifests.extend(&gc.own);
        let early = self.makes(Bug::FleetLeasesReadFirst);
        s.hosts[i].pc = if early { Pc::ReadManifests } else { Pc::ListLeases };
    }

    /// Runs a whole collection while no other host acts.
    pub(super) fn collect_alone(&self, s: &mut State) {
        while s.hosts[0].op == 0 {
            self.collect(s, 0);
        }
        Self::look(s);
    }
}
