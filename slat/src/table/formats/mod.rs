//! The page-table formats, one small file each.
//!
//! | name | type | manual | levels | A and D |
//! |---|---|---|---|---|
//! | `ept4`, `ept5` | [`Ept4`], [`Ept5`] | Intel SDM 3, EPT | 4, 5 | in hardware |
//! | `npt4`, `npt5` | [`Npt4`], [`Npt5`] | AMD APM 2, nested paging | 4, 5 | in hardware |
//! | `pae` | [`Pae`] | AMD APM 2, nested paging on a 32-bit host | 3 | in hardware |
//! | `ept4-noad` | [`Ept4NoAd`] | Intel SDM 3, EPT, A and D not enabled | 4 | by fault: tracked leaves |
//! | (the host's own) | [`X64`] | AMD APM 2, long mode | 4 | in hardware |
//!
//! A guest's own paging mode does not matter, be it long mode, PAE, 32-bit or "nonpaging": what is mapped here are
//! guest-physical addresses, the outcome of the guest's own translation.

mod ept;
mod npt;
mod pae;
mod paging;
mod x86;

pub use ept::{Ept, Ept4, Ept4NoAd, Ept5};
pub use npt::{Npt, Npt4, Npt5, X64};
pub use pae::Pae;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Level, Pfn};
    use crate::edges::near_edges;
    use crate::table::entry::{Kind, Word};
    use crate::table::format::{Access, Format, Leaf, Perms};
    use proptest::prelude::*;

    /// Encode, decode, and every editor, for one format.
    fn leaves_survive<F: Format>(leaf: Leaf, level: Level) {
        if level > F::MAX_LEAF {
            return;
        }
        if F::HARDWARE_AD {
            present_survives::<F>(leaf, level);
        } else {
            let dirty = leaf.perms.allows(Access::Write);
            present_survives::<F>(Leaf { accessed: true, dirty, ..leaf }, level);
            assert_eq!(F::leaf(&Leaf { accessed: false, ..leaf }, level), Word::tracked(&leaf));
        }
        tracked_survives::<F>(Leaf { accessed: false, ..leaf }, level);
    }

    /// A tracked word is edited as the leaf that it keeps would be, and comes back as that leaf.
    fn tracked_survives<F: Format>(leaf: Leaf, level: Level) {
        let word = Word::tracked(&leaf);
        assert_eq!((F::decode(word), F::host_writable(word)), (leaf, leaf.host_writable));
        assert!(!F::is_present(word) && !F::writable(word));
        for on in [false, true] {
            let edited = F::set_writable(word, on);
            let back = F::set_writable(edited, leaf.perms.allows(Access::Write));
            assert_eq!((edited.kind::<F>(level), F::decode(back)), (Kind::Tracked, leaf));
            assert_eq!(F::decode(edited).perms.allows(Access::Write), on);
        }
        let withdrawn = F::decode(F::write_withdrawn(word));
        let perms = leaf.perms.without(Perms::WRITE);
        assert_eq!(withdrawn, Leaf { perms, host_writable: false, ..leaf });
        let restored = F::restore(word, level);
        let dirty = if F::HARDWARE_AD { leaf.dirty } else { leaf.perms.allows(Access::Write) };
        assert_eq!(restored.kind::<F>(level), Kind::Leaf);
        assert_eq!(F::decode(restored), Leaf { accessed: true, dirty, ..leaf });
    }

    fn present_survives<F: Format>(leaf: Leaf, level: Level) {
        let word = F::leaf(&leaf, level);
        assert_eq!((F::read_leaf(word), F::decode(word)), (leaf, leaf));
        assert_eq!(word.kind::<F>(level), Kind::Leaf);
        assert_eq!(F::writable(word), leaf.perms.allows(Access::Write));
        assert!(!F::writable(F::set_writable(word, false)));
        assert_eq!(
            F::set_writable(F::set_writable(word, false), F::writable(word)),
            word,
            "Dirty and all stay"
        );
        let withdrawn = F::read_leaf(F::write_withdrawn(word));
        assert!(!withdrawn.host_writable && !withdrawn.perms.allows(Access::Write));
        let written = F::set_writable(word, true).0 | F::touch(Access::Write);
        let touched = F::read_leaf(Word(written));
        assert!(touched.accessed && touched.dirty && touched.pfn == leaf.pfn);
    }

    fn links_survive<F: Format>(pfn: Pfn) {
        for level in 2..=F::LEVELS {
            let level = Level(level);
            let link = F::link(pfn, level);
            assert_eq!(link.kind::<F>(level), Kind::Table(pfn));
            assert_eq!(Word(link.0 | F::touch_link(level)).kind::<F>(level), Kind::Table(pfn));
        }
    }

    proptest! {
        #[test]
        fn every_format_keeps_what_it_is_given(
            pfn in near_edges(0..1 << 40), level in 1u8..=3, bits in 0u8..32,
        ) {
            let on = |bit: u8| bits >> bit & 1 == 1;
            let perms = Perms::READ
                .with(if on(0) { Perms::WRITE } else { Perms::NONE })
                .with(if on(1) { Perms::EXECUTE } else { Perms::NONE });
            let level = Level(level);
            let pfn = Pfn(pfn & !(level.pages() - 1));
            let leaf = Leaf { pfn, perms, host_writable: on(2), accessed: on(3), dirty: on(4) };
            leaves_survive::<Ept4>(leaf, level);
            leaves_survive::<Ept5>(leaf, level);
            leaves_survive::<Npt4>(leaf, level);
            leaves_survive::<Npt5>(leaf, level);
            leaves_survive::<Pae>(leaf, level);
            leaves_survive::<Ept4NoAd>(leaf, level);
            links_survive::<Ept5>(pfn);
            links_survive::<Npt5>(pfn);
            links_survive::<Pae>(pfn);
            links_survive::<Ept4NoAd>(pfn);
        }

        #[test]
        fn a_pdpte_sets_nothing_that_is_reserved(pfn in near_edges(0..1 << 40)) {
            let root = Level(Pae::LEVELS);
            let link = Pae::link(Pfn(pfn), root).0 | Pae::touch_link(root);
            prop_assert_eq!(link, pfn << 12 | 1, "P and the address");
            let below = Pae::link(Pfn(pfn), Level::M2).0 | Pae::touch_link(Level::M2);
            prop_assert_eq!(below, pfn << 12 | 0b10_0111, "A, U, W, P");
        }

        #[test]
        fn without_a_and_d_the_two_bits_are_never_set(pfn in near_edges(0..1 << 40), bits in 0u8..8) {
            let leaf = Leaf {
                pfn: Pfn(pfn),
                perms: Perms::from_bits(bits).with(Perms::READ),
                host_writable: true,
                accessed: true,
                dirty: true,
            };
            let word = Ept4NoAd::leaf(&leaf, Level::K4);
            prop_assert_eq!(word.0 & 0b11 << 8, 0);
            prop_assert_eq!(Ept4NoAd::touch(Access::Write) | Ept4NoAd::touch_link(Level::M2), 0);
            prop_assert_eq!(word.0 | 0b11 << 8, Ept4::leaf(&leaf, Level::K4).0);
        }
    }
}
