//! The page-table formats, one small file each.
//!
//! | name | type | manual | levels | A and D |
//! |---|---|---|---|---|
//! | `ept4`, `ept5` | [`Ept4`], [`Ept5`] | Intel SDM 3, EPT | 4, 5 | in hardware |
//! | `npt4`, `npt5` | [`Npt4`], [`Npt5`] | AMD APM 2, nested paging | 4, 5 | in hardware |
//! | (the host's own) | [`X64`] | AMD APM 2, long mode | 4 | in hardware |

mod ept;
mod npt;
mod x86;

pub use ept::{Ept, Ept4, Ept5};
pub use npt::{Npt, Npt4, Npt5, X64};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Level, Pfn};
    use crate::table::entry::{Kind, Word};
    use crate::table::format::{Access, Format, Leaf, Perms};
    use proptest::prelude::*;

    /// Encode, decode, and every editor, for one format.
    fn leaves_survive<F: Format>(leaf: Leaf, level: Level) {
        let word = F::leaf(&leaf, level);
        assert_eq!(F::read_leaf(word), leaf);
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
        let touched = F::read_leaf(Word(word.0 | F::touch(Access::Write)));
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
            pfn in 0u64..1 << 40, level in 1u8..=3, bits in 0u8..32,
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
            links_survive::<Ept5>(pfn);
            links_survive::<Npt5>(pfn);
        }
    }
}
