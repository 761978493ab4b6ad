//! A working set: the pages of a template that its guests touch first, in order.

use super::chunk::Name;
use super::pack::{MOST_PACK, Pack};
use super::{Hash, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Number of pages in a block: 256 KiB of the image, with one word of bits.
const BLOCK: usize = 64;

/// Most bytes of a working set as an object.
pub const MOST_WORKING_SET: usize = 64 << 20;

/// The pages that a guest touched, in blocks of 64 pages, in the order of the blocks' first touches. It says only
/// *which* pages are filled ahead of faults: their content is always the template's. So a wrong working set wastes
/// time, but makes no byte wrong. A clone of the value refers to the same set.
///
/// A process that recorded a guest of a store's template also writes the content of the pages, as packs: objects that a
/// replay reads instead of the chunks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkingSet {
    blocks: Arc<Vec<(u32, u64)>>,
    packs: Arc<Vec<Pack>>,
}

/// The JSON form. `sum` is the hash of the text of the rest.
#[derive(Serialize, Deserialize)]
struct Text {
    /// 1: without packs. 2: with packs.
    version: u32,
    /// Hash of the template's manifest.
    template: String,
    /// Numbers of blocks, and the bits of their pages.
    blocks: Vec<(u32, u64)>,
    /// Names of the packs, and their numbers of pages, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    packs: Vec<(String, usize)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl WorkingSet {
    /// Makes the working set of these faults, in their order. A page may occur more than once.
    pub fn of_faults(pages: impl IntoIterator<Item = usize>) -> Self {
        let (mut blocks, mut places) = (Vec::new(), HashMap::new());
        for page in pages {
            let Ok(block) = u32::try_from(page / BLOCK) else { continue };
            let place = *places.entry(block).or_insert_with(|| {
                blocks.push((block, 0));
                blocks.len() - 1
            });
            blocks[place].1 |= 1 << (page % BLOCK);
        }
        Self { blocks: Arc::new(blocks), ..Self::default() }
    }

    /// Returns the same set with these packs.
    pub(super) fn with_packs(self, packs: Vec<Pack>) -> Self {
        Self { packs: Arc::new(packs), ..self }
    }

    /// Returns its packs, in order.
    pub(crate) fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.blocks.iter().map(|(_, bits)| bits.count_ones() as usize).sum()
    }

    /// Returns its pages as runs: blocks in their order, and the runs of a block by address.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.blocks.iter().flat_map(|(block, bits)| {
            let (first, mut rest) = (*block as usize * BLOCK, *bits);
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let start = rest.trailing_zeros() as usize;
                    let end = start + (!(rest >> start)).trailing_zeros() as usize;
                    rest &= u64::MAX.checked_shl(end as u32).unwrap_or(0);
                    first + start..first + end
                })
            })
        })
    }

    pub(crate) fn print(&self, template: Hash) -> Vec<u8> {
        let version = if self.packs.is_empty() { 1 } else { 2 };
        let packs = self.packs.iter().map(|pack| (pack.name.to_string(), pack.pages)).collect();
        sealed(Text {
            version,
            template: template.to_string(),
            blocks: self.blocks.to_vec(),
            packs,
            sum: None,
        })
    }

    /// Returns the text with the right sum.
    pub fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
        serde_json::from_slice(bytes).ok().map(|text| sealed(Text { sum: None, ..text }))
    }

    /// Parses a working set. `None`: it belongs to an earlier template of the same name.
    pub(crate) fn parse(key: &str, template: Hash, bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        let damaged = |what: String| StoreError::Damaged { key: key.into(), what };
        let mut text: Text = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if text.version != if text.packs.is_empty() { 1 } else { 2 } {
            return Err(damaged(format!("version {} is unknown", text.version)));
        }
        if text.sum.take() != Some(sum(&text)) {
            return Err(damaged("its sum is wrong".into()));
        }
        // Otherwise the fill ahead would exceed the image.
        let mut seen = HashSet::new();
        if let Some((block, _)) = text.blocks.iter().find(|(block, _)| !seen.insert(*block)) {
            return Err(damaged(format!("block {block} occurs twice")));
        }
        let pack = |(name, pages): &(String, usize)| {
            let name = Name::parse(name)?;
            (1..=MOST_PACK).contains(pages).then_some(Pack { name, pages: *pages })
        };
        let packs: Option<Vec<Pack>> = text.packs.iter().map(pack).collect();
        let packs = packs.ok_or_else(|| damaged("it lists what is no pack".into()))?;
        let set = Self { blocks: Arc::new(text.blocks), packs: Arc::new(packs) };
        Ok((text.template == template.to_string()).then_some(set))
    }
}

fn sealed(mut text: Text) -> Vec<u8> {
    text.sum = Some(sum(&text));
    serde_json::to_vec(&text).expect("numbers and strings are JSON")
}

/// Returns the hash of a working set without its sum.
fn sum(text: &Text) -> String {
    Hash::of(&serde_json::to_vec(text).expect("numbers and strings are JSON")).to_string()
}

/// Returns the key of a template's working set.
pub(super) fn key(template: &str) -> String {
    format!("sets/{template}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_runs_and_in_the_order_of_their_first_faults() {
        let set = WorkingSet::of_faults([200, 3, 2, 201, 63, 64, 3, 127, 0, 1]);
        let runs: Vec<_> = set.runs().collect();
        assert_eq!(runs, [200..202, 0..4, 63..64, 64..65, 127..128]);
        assert_eq!(set.pages(), 9);
        let all: Vec<_> = WorkingSet::of_faults(0..128).runs().collect();
        assert_eq!(all, [0..64, 64..128]);
        assert_eq!(WorkingSet::default().runs().count(), 0);
    }

    #[test]
    fn a_working_set_comes_back_and_a_damaged_or_foreign_one_does_not() {
        let (set, template) = (WorkingSet::of_faults([5, 900]), Hash::of(b"a"));
        let text = String::from_utf8(set.print(template)).unwrap();
        assert_eq!(WorkingSet::parse("a", template, text.as_bytes()).unwrap(), Some(set));
        assert_eq!(WorkingSet::parse("a", Hash::of(b"b"), text.as_bytes()).unwrap(), None);
        let pack = Pack { name: Name { hash: Hash::of(b"p"), epoch: 3 }, pages: 2 };
        let packed = WorkingSet::of_faults([5, 900]).with_packs(vec![pack]);
        let packed_text = String::from_utf8(packed.print(template)).unwrap();
        assert_eq!(WorkingSet::parse("a", template, packed_text.as_bytes()).unwrap(), Some(packed));
        for (from, to) in
            [(".3\",2", ".3\",0"), (".3\",2", ".3\",513"), (".3\"", ".03\""), ("version\":2", "version\":1")]
        {
            let edited = packed_text.replacen(from, to, 1);
            let sealed = WorkingSet::seal(edited.as_bytes()).unwrap();
            assert!(edited != packed_text && WorkingSet::parse("a", template, &sealed).is_err(), "{to}");
        }
        let twice = WorkingSet::seal(text.replace("[14,", "[0,").as_bytes()).unwrap();
        assert!(WorkingSet::parse("a", template, &twice).unwrap_err().to_string().contains("0 occurs twice"));
        for (from, to) in [("[0,", "[1,"), ("\"version\":1", "\"version\":2"), ("}", "")] {
            let edited = text.replacen(from, to, 1);
            assert!(edited != text && WorkingSet::parse("a", template, edited.as_bytes()).is_err(), "{to}");
        }
    }
}
