//! Chunks and packs that were missing or damaged when they were read, for operators.

use super::{Hash, StoreError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most lost chunks of a version that are told apart. Further ones are not counted.
const MOST: usize = 1 << 16;

/// The losses that a process found in its store. A clone of the value refers to the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<BTreeMap<String, Loss>>>);

#[derive(Debug, Default)]
struct Loss {
    /// Number of reads that found no object, and that found a damaged one.
    missing: u64,
    damaged: u64,
    /// The last error.
    error: String,
    /// Lost objects of each open version.
    lost: BTreeMap<String, BTreeSet<Hash>>,
}

/// Losses of a template.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct TemplateLoss {
    /// Name of the template.
    pub template: String,
    /// Chunks and packs of its open versions that the last read found missing or damaged.
    pub lost: u64,
    /// Number of reads that found no object.
    pub missing: u64,
    /// Number of reads that found a damaged object.
    pub damaged: u64,
    /// The last error.
    pub error: String,
}

impl Losses {
    /// Notes the result of a read of a chunk or a pack.
    pub fn note<T>(&self, template: &str, version: &str, hash: Hash, read: &Result<T, StoreError>) {
        let mut all = self.0.lock();
        match read {
            Err(error) if !error.may_pass() => {
                let loss = all.entry(template.into()).or_default();
                let is_missing = matches!(error, StoreError::Missing(_));
                *(if is_missing { &mut loss.missing } else { &mut loss.damaged }) += 1;
                loss.error = error.to_string();
                let lost = loss.lost.entry(version.into()).or_default();
                if lost.len() < MOST {
                    lost.insert(hash);
                }
            }
            Err(_) => {}
            Ok(_) => {
                if let Some(lost) = all.get_mut(template).and_then(|loss| loss.lost.get_mut(version)) {
                    lost.remove(&hash);
                }
            }
        }
    }

    /// Forgets which chunks of a version are lost, because no guest uses it any more.
    pub fn closes(&self, template: &str, version: &str) {
        if let Some(loss) = self.0.lock().get_mut(template) {
            loss.lost.remove(version);
        }
    }

    /// Returns the templates with losses.
    pub fn all(&self) -> Vec<TemplateLoss> {
        let all = self.0.lock();
        let each = |(template, loss): (&String, &Loss)| TemplateLoss {
            template: template.clone(),
            lost: loss.lost.values().map(|lost| lost.len() as u64).sum(),
            missing: loss.missing,
            damaged: loss.damaged,
            error: loss.error.clone(),
        };
        all.iter().map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_lost_until_a_read_succeeds_or_its_version_is_closed() {
        let (losses, [one, two]) = (Losses::default(), [Hash::of(b"1"), Hash::of(b"2")]);
        let missing = || Err::<(), _>(StoreError::Missing("chunks/1".into()));
        let damaged = || Err::<(), _>(StoreError::Damaged { key: "chunks/2".into(), what: "short".into() });
        let down =
            Err::<(), _>(StoreError::Io { key: "chunks/1".into(), error: std::io::Error::other("no") });
        let read = |hash, result: &Result<(), StoreError>| losses.note("debian", "v1", hash, result);
        let counts = || losses.all().iter().map(|loss| (loss.lost, loss.missing, loss.damaged)).next();
        read(one, &down);
        assert_eq!(counts(), None, "a store that is out of reach has lost nothing");
        read(one, &missing());
        read(one, &missing());
        read(two, &damaged());
        assert_eq!(counts(), Some((2, 2, 1)));
        assert!(losses.all()[0].error.contains("chunks/2 is damaged"));
        read(one, &Ok(()));
        assert_eq!(counts(), Some((1, 2, 1)));
        losses.closes("debian", "v1");
        assert_eq!(counts(), Some((0, 2, 1)), "counters stay");
    }
}
