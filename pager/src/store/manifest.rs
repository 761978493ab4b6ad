//! The manifest lists the chunks of a template. It is an object of the store.

use super::chunk::Name;
use super::{Hash, MOST_CHUNK, StoreError, is_name};
use crate::uffd::PAGE;
use serde::{Deserialize, Serialize};

/// Most bytes of a manifest: an image of 1 TiB in chunks of 2 MiB, or of 128 GiB in chunks of 256 KiB.
pub const MOST_MANIFEST: usize = 64 << 20;
/// Most pages of an overlay: those of the largest chunk.
pub const MOST_OVERLAY: usize = MOST_CHUNK / PAGE;
/// Most bytes of a machine's configuration.
pub const MOST_CONFIG: u64 = 16 << 20;
/// Most bytes of the state of its devices and vCPUs.
pub const MOST_STATE: u64 = 64 << 20;

/// A template: its size, and its chunks in order. A chunk of zeros is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub size: u64,
    pub chunk: usize,
    pub chunks: Vec<Option<Name>>,
    pub machine: Option<Machine>,
    /// The template is an overlay. Then it lists no chunks of its own.
    pub overlay: Option<Overlaid>,
}

/// Pages that replace those of another template, the base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlaid {
    /// Name of the base.
    pub base: String,
    /// Manifest of the base.
    pub version: String,
    /// Ranges of pages, as first pages and numbers of pages, in ascending order.
    pub pages: Vec<(usize, usize)>,
    /// Name of the chunk that has the content of these pages, in order.
    pub content: String,
}

impl Overlaid {
    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.pages.iter().map(|(_, count)| count).sum()
    }

    /// Returns whether the ranges are in ascending order, disjoint and in an image of `size` bytes, and whether one chunk
    /// can have their content.
    fn is_fine(&self, size: u64) -> bool {
        let mut least = 0;
        let ascend = self.pages.iter().all(|(first, count)| {
            let is_next = *first >= least && *count > 0;
            least = first.saturating_add(*count);
            is_next
        });
        let is_inside = least as u64 <= size / PAGE as u64;
        let is_named = is_name(&self.base)
            && [&self.version, &self.content].map(|name| Name::parse(name).is_some()) == [true; 2];
        ascend && is_inside && is_named && (1..=MOST_OVERLAY).contains(&self.count())
    }
}

/// The parts of an image that is a whole machine, in order: its memory, its configuration, the state of its devices and
/// vCPUs. In bytes. The rest of the image is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub memory: u64,
    pub config: u64,
    pub state: u64,
}

impl Machine {
    /// Returns the bytes of the image, in whole pages.
    pub fn size(&self) -> Option<u64> {
        let size = self.memory.checked_add(self.config)?.checked_add(self.state)?;
        size.checked_next_multiple_of(PAGE as u64)
    }
}

/// The JSON form. `sum` is the hash of the text of the rest.
#[derive(Serialize, Deserialize)]
struct Text {
    /// 1: a template with chunks. 2: an overlay.
    version: u32,
    size: u64,
    chunk: usize,
    chunks: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlay: Option<Overlaid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl Manifest {
    /// Checks the sizes of an image and of its chunks.
    pub fn check(size: u64, chunk: usize) -> Result<(), StoreError> {
        if size == 0 || !size.is_multiple_of(PAGE as u64) {
            return Err(StoreError::Size(format!(
                "an image of {size} bytes: it is in whole pages of {PAGE} bytes"
            )));
        }
        if !chunk.is_power_of_two() || !(PAGE..=MOST_CHUNK).contains(&chunk) {
            let what = format!("chunks of {chunk} bytes: a power of two from {PAGE} to {MOST_CHUNK}");
            return Err(StoreError::Size(what));
        }
        // A chunk has at most 78 bytes in the manifest.
        if size.div_ceil(chunk as u64) > (MOST_MANIFEST / 80) as u64 {
            return Err(StoreError::Size(format!(
                "an image of {size} bytes has too many chunks of {chunk} bytes"
            )));
        }
        Ok(())
    }

    /// Returns a hash that is the same for templates with the same content, whenever their chunks were written.
    pub fn identity(&self) -> Hash {
        let first = |name: &Name| Name { epoch: 0, ..*name };
        let chunks = self.chunks.iter().map(|name| name.as_ref().map(first)).collect();
        Hash::of(&Self { chunks, ..self.clone() }.print())
    }

    /// Returns the names of the chunks that it lists.
    pub fn names(&self) -> impl Iterator<Item = Name> {
        let content = self.overlay.as_ref().and_then(|overlay| Name::parse(&overlay.content));
        self.chunks.iter().flatten().copied().chain(content)
    }

    pub fn print(&self) -> Vec<u8> {
        let chunks = self.chunks.iter().map(|name| name.map(|name| name.to_string())).collect();
        let (&Self { size, chunk, machine, .. }, overlay) = (self, self.overlay.clone());
        let version = if overlay.is_some() { 2 } else { 1 };
        sealed(Text { version, size, chunk, chunks, machine, overlay, sum: None })
    }

    /// Returns the text with the right sum.
    pub fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
        serde_json::from_slice(bytes).ok().map(|text| sealed(Text { sum: None, ..text }))
    }

    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |what: String| StoreError::Damaged { key: key.into(), what };
        let mut text: Text = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if text.version != if text.overlay.is_some() { 2 } else { 1 } {
            return Err(damaged(format!("version {} is unknown", text.version)));
        }
        if text.sum.take() != Some(sum(&text)) {
            return Err(damaged("its sum is wrong".into()));
        }
        Self::check(text.size, text.chunk).map_err(|error| damaged(error.to_string()))?;
        if text.machine.is_some_and(|machine| {
            machine.size() != Some(text.size) || machine.config > MOST_CONFIG || machine.state > MOST_STATE
        }) {
            return Err(damaged("the parts of its machine are not its image".into()));
        }
        if text.overlay.as_ref().is_some_and(|overlay| !overlay.is_fine(text.size)) {
            return Err(damaged("the pages of its overlay are not in order, or not in its image".into()));
        }
        let parse = |name: &Option<String>| name.as_deref().map(Name::parse);
        let chunks: Option<Vec<_>> =
            text.chunks.iter().map(|name| parse(name).map_or(Some(None), |name| name.map(Some))).collect();
        let chunks = chunks.ok_or_else(|| damaged("a chunk's name is none".into()))?;
        let wanted = if text.overlay.is_some() { 0 } else { text.size.div_ceil(text.chunk as u64) };
        if chunks.len() as u64 != wanted {
            return Err(damaged(format!(
                "{} chunks of {} bytes are no image of {}",
                chunks.len(),
                text.chunk,
                text.size
            )));
        }
        Ok(Self { size: text.size, chunk: text.chunk, chunks, machine: text.machine, overlay: text.overlay })
    }
}

fn sealed(mut text: Text) -> Vec<u8> {
    text.sum = Some(sum(&text));
    serde_json::to_vec(&text).expect("numbers and strings are JSON")
}

/// Returns the hash of a manifest without its sum.
fn sum(text: &Text) -> String {
    Hash::of(&serde_json::to_vec(text).expect("numbers and strings are JSON")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_a_damaged_one_does_not() {
        let name = |content: &[u8], epoch| Some(Name { hash: Hash::of(content), epoch });
        let chunks = vec![None, name(b"a", 0), name(b"b", 7)];
        let machine = Some(Machine { memory: 12288, config: 2, state: 5000 });
        let manifest = Manifest { size: 3 * 8192 - 4096, chunk: 8192, chunks, machine, overlay: None };
        let text = String::from_utf8(manifest.print()).unwrap();
        assert_eq!(Manifest::parse("a", text.as_bytes()).unwrap(), manifest);
        let again = Manifest { chunks: vec![None, name(b"a", 9), name(b"b", 0)], ..manifest.clone() };
        assert!(again.identity() == manifest.identity() && again != manifest);
        let edits = [
            ("8192", "4096"),
            ("20480", "24576"),
            ("null,", ""),
            ("\"version\":1", "\"version\":2"),
            ("}", ""),
        ];
        let parts = text.replace("5000", "9000");
        let error = Manifest::parse("a", &Manifest::seal(parts.as_bytes()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("parts of its machine"), "{error}");
        for (from, to) in edits {
            let edited = text.replacen(from, to, 1);
            assert!(edited != text && Manifest::parse("a", edited.as_bytes()).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn an_overlay_comes_back_and_a_damaged_one_does_not() {
        let name = Name { hash: Hash::of(b"a"), epoch: 3 }.to_string();
        let overlay = |pages: &[_]| Overlaid {
            base: "a".into(),
            version: name.clone(),
            pages: pages.to_vec(),
            content: name.clone(),
        };
        let manifest = |overlay| Manifest {
            size: 64 << 20,
            chunk: 8192,
            chunks: Vec::new(),
            machine: None,
            overlay: Some(overlay),
        };
        let parse = |manifest: &Manifest| Manifest::parse("a", &manifest.print());
        let fine = manifest(overlay(&[(0, 1), (1, 2), (16_383, 1)]));
        assert_eq!(parse(&fine).unwrap(), fine);
        assert_eq!(fine.names().collect::<Vec<_>>(), [Name::parse(&name).unwrap()]);
        let order: [&[(usize, usize)]; 7] = [
            &[],
            &[(5, 0)],
            &[(5, 2), (6, 1)],
            &[(5, 1), (4, 1)],
            &[(16_384, 1)],
            &[(0, 513)],
            &[(1, usize::MAX)],
        ];
        for pages in order {
            assert!(parse(&manifest(overlay(pages))).is_err(), "{pages:?}");
        }
        for wrong in [
            Overlaid { base: "/".into(), ..overlay(&[(0, 1)]) },
            Overlaid { version: "x".into(), ..overlay(&[(0, 1)]) },
        ] {
            assert!(parse(&manifest(wrong)).is_err());
        }
        assert!(parse(&Manifest { chunks: vec![None; 8192], ..fine }).is_err(), "it has chunks of its own");
    }

    #[test]
    fn sizes_are_checked() {
        let fine = |size, chunk| Manifest::check(size, chunk).is_ok();
        assert!(fine(4096, 4096) && fine(1 << 40, MOST_CHUNK));
        let bad = [
            (0, 4096),
            (4097, 4096),
            (4096, 0),
            (4096, 12288),
            (4096, 2048),
            (4096, 4 << 20),
            (1 << 40, 4096),
        ];
        assert_eq!(bad.map(|(size, chunk)| fine(size, chunk)), [false; 7]);
    }
}
