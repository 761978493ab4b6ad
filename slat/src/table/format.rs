//! A page-table format: geometry, encode, decode. One small file each, under [`formats`](super::formats).
//!
//! A format says how a link and a leaf look. It does not say what an *absent* entry looks like: holes, tracked
//! leaves and frozen entries are the engine's own and are laid out once, for every 64-bit format, in
//! [`entry`](super::entry), inside the bits that all hardware ignores when an entry is not present.
//!
//! To add one: copy the nearest file in `formats/`, change the bits, keep the assertions at its foot, add a
//! line to `formats/mod.rs` and a row to its table of tests. A format can also live in another crate: [`Format`] is an
//! `unsafe trait` with a documented obligation, and [`Vm::builder`](crate::Vm::builder) and [`Map::new`](crate::map::Map::new)
//! check its constants when they are compiled for it.

use super::entry::{ALWAYS_CLEAR, TAG, TAG_HOLE, TAG_MMIO, TAG_TRACKED, Version, Word, gather};
pub use super::leaf::{Access, Leaf, MemoryType, Perms};
use crate::addr::{Gfn, INDEX_BITS, Level, Pfn};
use core::fmt::Debug;

/// What a word is, at the level where it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A link to the table in this frame.
    Table(Pfn),
    /// A mapped page: decode it with [`Format::read_leaf`].
    Leaf,
    /// Nothing mapped; the last invalidation that covered it.
    Hole(Version),
    /// The same, and no memslot was there as of this number.
    Mmio(Version),
    /// A leaf withdrawn from the hardware: decode it with [`Word::tracked_leaf`].
    Tracked,
    /// Owned for a moment by the freezer with this mark.
    Frozen(u64),
}

impl Word {
    /// What the word is, found at `level` of a table of format `F`.
    #[inline]
    pub fn kind<F: Format>(self, level: Level) -> Kind {
        if F::is_present(self) {
            if F::is_table(self, level) { Kind::Table(F::pfn(self)) } else { Kind::Leaf }
        } else {
            match self.0 & TAG {
                TAG_HOLE => Kind::Hole(self.version()),
                TAG_MMIO => Kind::Mmio(self.version()),
                TAG_TRACKED => Kind::Tracked,
                _ => Kind::Frozen(gather(self.0)),
            }
        }
    }
}

/// A page-table format of 64-bit entries, 512 to a table page.
///
/// The trait is `unsafe`, not sealed: a hypervisor may have hardware that this crate does not know:
///
/// ```
/// use slat::{Access, Format, Level, Leaf, MemoryType, Perms, Pfn, table::Word};
///
/// /// One bit for each permission, frames where x86 has them.
/// #[derive(Clone, Copy, Default, Debug)]
/// struct Mine;
///
/// // SAFETY: tests show for each leaf and link what `Format` demands.
/// unsafe impl Format for Mine {
///     const NAME: &'static str = "mine";
///     const LEVELS: u8 = 4;
///     const MAX_LEAF: Level = Level::G1;
///     const TABLE_MASK: u64 = 0x81; // a link has bit 0 (present), and bit 7 (large) clear
///     const TABLE_BITS: u64 = 0x01;
///     const PRESENT: u64 = 0x01;
///     const ADDRESS: u64 = 0xf_ffff_ffff_f000;
///     const WRITE: u64 = 0x02;
///     const HOST_WRITE: u64 = 1 << 53;
///     const ACCESSED: u64 = 0x20;
///     const DIRTY: u64 = 0x40;
///
///     fn link(pfn: Pfn, _: Level) -> Word {
///         Word(pfn.address() | 0x01)
///     }
///     fn leaf(leaf: &Leaf, level: Level) -> Word {
///         let bit = |on: bool, bit: u64| if on { bit } else { 0 };
///         let large = bit(level > Level::K4, 0x80);
///         let write = bit(leaf.perms.allows(Access::Write), Self::WRITE);
///         let execute = bit(leaf.perms.allows(Access::Fetch), 0x04);
///         let host = bit(leaf.host_writable, Self::HOST_WRITE);
///         let used = bit(leaf.accessed, Self::ACCESSED) | bit(leaf.dirty, Self::DIRTY);
///         Word(leaf.pfn.address() | 0x01 | large | write | execute | host | used)
///     }
///     fn read_leaf(word: Word) -> Leaf {
///         let has = |bit| word.0 & bit != 0;
///         let perms = Perms::of(true, has(Self::WRITE), has(0x04));
///         let (accessed, dirty) = (has(Self::ACCESSED), has(Self::DIRTY));
///         let memory = MemoryType::WriteBack;
///         Leaf { pfn: Self::pfn(word), perms, memory, host_writable: has(Self::HOST_WRITE), accessed, dirty }
///     }
/// }
///
/// let memory = MemoryType::WriteBack;
/// let leaf = Leaf { pfn: Pfn(7), perms: Perms::RX, memory, host_writable: true, accessed: false, dirty: false };
/// assert_eq!(Mine::read_leaf(Mine::leaf(&leaf, Level::M2)), leaf);
/// assert!(Mine::is_table(Mine::link(Pfn(7), Level::M2), Level::M2));
/// ```
/// Safe code cannot implement it:
///
/// ```compile_fail,E0200
/// # use slat::{Format, Leaf, Level, Pfn, table::Word};
/// #[derive(Clone, Copy, Default, Debug)]
/// struct Mine;
/// impl Format for Mine { // E0200: the trait requires an `unsafe impl`
/// #   const NAME: &'static str = "mine";
/// #   const LEVELS: u8 = 4;
/// #   const MAX_LEAF: Level = Level::G1;
/// #   const TABLE_MASK: u64 = 0x81;
/// #   const TABLE_BITS: u64 = 1;
/// #   const PRESENT: u64 = 1;
/// #   const ADDRESS: u64 = 0xf_ffff_ffff_f000;
/// #   const WRITE: u64 = 2;
/// #   const HOST_WRITE: u64 = 1 << 53;
/// #   const ACCESSED: u64 = 0x20;
/// #   const DIRTY: u64 = 0x40;
/// #   fn link(_: Pfn, _: Level) -> Word { Word(0) }
/// #   fn leaf(_: &Leaf, _: Level) -> Word { Word(0) }
/// #   fn read_leaf(_: Word) -> Leaf { unreachable!() }
/// }
/// ```
/// A format whose constants break an obligation is refused when a VM or a map is compiled for it:
///
/// ```compile_fail,E0080
/// # use slat::{*, map::Map, table::{Heap, formats::Ept}};
/// let _ = Map::<Ept<1>, _>::new(Heap); // E0080: "the walker's stack holds five levels"
/// ```
/// ```compile_fail,E0080
/// # use slat::{*, table::formats::{Arm64, Ept}};
/// # fn f<H: Host>(host: H) {
/// let _ = Vm::<Arm64<52>, _>::builder(host); // E0080: frames 2^36 apart would share an entry
/// # }
/// # struct By;
/// # unsafe impl TableMemory for By {}
/// # impl Host for By {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// # fn main() { f(By) }
/// ```
///
/// # Safety
/// The engine follows every word that the format calls a link, and writes only what the format makes. An implementation
/// promises, for every `level` from 2 to [`LEVELS`](Self::LEVELS):
///
/// * **Links.** For a frame that fits [`ADDRESS`](Self::ADDRESS), `link(pfn, level)` is present, `is_table` says so, and
///   `pfn` gives the frame back. Bits of [`touch_link`](Self::touch_link) change none of that.
/// * **Leaves.** `leaf` makes a present word of a leaf that allows loads, or a [tracked](Word::tracked) one where the leaf
///   is not accessed and [`HARDWARE_AD`](Self::HARDWARE_AD) is false. No such word links a table, whatever `level` up to
///   [`MAX_LEAF`](Self::MAX_LEAF) it is made for, nor does one that `touch`, `set_write` or `write_withdrawn` made of it.
///   `read_leaf` gives back what `leaf` was given.
/// * **Geometry.** `index` is below 512 and `root_page` below [`ROOT_PAGES`](Self::ROOT_PAGES) for each frame below
///   `1 << FRAME_BITS`, and two frames share an entry of the lowest level only if they are equal. The defaults keep this.
/// * **Constants.** They say what their documentation says. Those that are not true of any format are refused at compile
///   time.
pub unsafe trait Format: Copy + Default + Debug + Send + Sync + 'static {
    /// As users type it: `ept4`.
    const NAME: &'static str;
    /// Levels from the root to the 4 KiB leaves.
    const LEVELS: u8;
    /// The level of the root's entries. Not to be overridden.
    const ROOT_LEVEL: Level = Level::new(Self::LEVELS).expect("a table has at most six levels");
    /// The largest page that an entry may map.
    const MAX_LEAF: Level;
    /// An entry above the lowest level links a table where `word & TABLE_MASK == TABLE_BITS`.
    const TABLE_MASK: u64;
    /// See [`TABLE_MASK`](Self::TABLE_MASK).
    const TABLE_BITS: u64;
    /// Any of these bits set: hardware takes the entry for present.
    const PRESENT: u64;
    /// The bits that hold the frame's address.
    const ADDRESS: u64;
    /// Set in a leaf: hardware lets stores through. One bit, which [`set_writable`](Self::set_writable) gives and takes.
    const WRITE: u64;
    /// Set in a leaf, in a bit that hardware ignores: the host allowed writes when the leaf was made.
    const HOST_WRITE: u64;
    /// Set by the walker in every entry that it goes through; none where [`HARDWARE_AD`](Self::HARDWARE_AD) is false.
    const ACCESSED: u64;
    /// Set by the walker in a leaf that it stores through; none where [`HARDWARE_AD`](Self::HARDWARE_AD) is false. Of two
    /// bits the walker sets one, and either says that the page is dirty.
    const DIRTY: u64;
    /// Whether walkers set Accessed and Dirty. Where not, a leaf is accessed while it is present, and dirty while it
    /// may be written; one that no vCPU has accessed is a [tracked word](Word::tracked), which the next access gives
    /// back by a fault.
    const HARDWARE_AD: bool = true;
    /// How a leaf says each [`MemoryType`], in the order of [`MemoryType::ALL`]; `None` where it knows write-back only: then memslots
    /// and host pages of other types are refused.
    const MEMORY: Option<[u64; 4]> = None;

    /// A link, standing in an entry of `level`, to the table in frame `pfn`. Links allow everything; leaves decide.
    fn link(pfn: Pfn, level: Level) -> Word;
    /// A leaf of size `level`: a present one, or a tracked word where only that can say that it is not accessed.
    fn leaf(leaf: &Leaf, level: Level) -> Word;
    /// What a present leaf says. Meaningless for other words: [`decode`](Self::decode) reads tracked ones too.
    fn read_leaf(word: Word) -> Leaf;
    /// Pages of the root, a power of two: where it has more than 512 entries, as many pages lie side by side, aligned to
    /// their size together. Each is a table like any other: [`root_page`](Self::root_page) says whose.
    const ROOT_PAGES: usize = 1;
    /// Guest frames that a table of this format can map: `1 << FRAME_BITS`.
    const FRAME_BITS: u32 = Self::LEVELS as u32 * INDEX_BITS + Self::ROOT_PAGES.ilog2();

    /// Whether a leaf can say this type.
    #[inline(always)]
    fn has_memory_type(memory: MemoryType) -> bool {
        Self::MEMORY.is_some() || memory == MemoryType::WriteBack
    }

    /// The bits of a leaf of this type.
    #[inline(always)]
    fn memory_bits(memory: MemoryType) -> u64 {
        Self::MEMORY.map_or(0, |types| types[memory as usize])
    }

    /// The type of a present leaf.
    #[inline(always)]
    fn memory_type(word: Word) -> MemoryType {
        let Some(types) = Self::MEMORY else { return MemoryType::WriteBack };
        let said = word.0 & memory_mask(types);
        let is_said = |memory: &MemoryType| types[*memory as usize] == said;
        MemoryType::ALL.into_iter().find(is_said).unwrap_or_default()
    }

    /// Whether the hardware lets stores through this present leaf.
    #[inline(always)]
    fn writable(word: Word) -> bool {
        word.0 & Self::WRITE != 0
    }

    /// What a leaf says, present or tracked.
    #[inline]
    fn decode(word: Word) -> Leaf {
        if word.is_tracked() { word.tracked_leaf() } else { Self::read_leaf(word) }
    }

    /// A tracked word of `level` as the present leaf that it keeps: accessed now.
    #[inline]
    fn restore(word: Word, level: Level) -> Word {
        Self::leaf(&Leaf { accessed: true, ..word.tracked_leaf() }, level)
    }

    /// Whether the host allowed writes when this leaf, present or tracked, was made.
    #[inline(always)]
    fn host_writable(word: Word) -> bool {
        if word.is_tracked() { word.tracked_leaf().host_writable } else { word.0 & Self::HOST_WRITE != 0 }
    }

    /// The leaf, present or tracked, with its write permission given or taken; all else, Dirty bits included, stays.
    #[inline(always)]
    fn set_writable(word: Word, on: bool) -> Word {
        if word.is_tracked() {
            let mut leaf = word.tracked_leaf();
            leaf.perms = if on { leaf.perms.with(Perms::WRITE) } else { leaf.perms.without(Perms::WRITE) };
            return Word::tracked(&leaf);
        }
        Self::set_write(word, on)
    }

    /// The same for a present leaf.
    #[inline(always)]
    fn set_write(word: Word, on: bool) -> Word {
        Word(word.0 & !Self::WRITE | if on { Self::WRITE } else { 0 })
    }

    /// The leaf, present or tracked, as it is after the host withdrew write permission.
    #[inline(always)]
    fn write_withdrawn(word: Word) -> Word {
        if word.is_tracked() {
            let leaf = Self::set_writable(word, false).tracked_leaf();
            return Word::tracked(&Leaf { host_writable: false, ..leaf });
        }
        Word(Self::set_writable(word, false).0 & !Self::HOST_WRITE)
    }

    /// Bits that a walker sets in a leaf that it uses: Accessed, and Dirty for a store.
    #[inline(always)]
    fn touch(access: Access) -> u64 {
        Self::ACCESSED | if access == Access::Write { Self::DIRTY } else { 0 }
    }

    /// Bits that a walker sets in a link of `level` that it follows; none where such links have no Accessed bit.
    #[inline(always)]
    fn touch_link(_level: Level) -> u64 {
        Self::ACCESSED
    }

    /// Whether a word found at `level` links a lower table.
    #[inline(always)]
    fn is_table(word: Word, level: Level) -> bool {
        level > Level::K4 && word.0 & Self::TABLE_MASK == Self::TABLE_BITS
    }

    /// Whether hardware takes the word for present.
    #[inline(always)]
    fn is_present(word: Word) -> bool {
        word.0 & Self::PRESENT != 0
    }

    /// The frame in a link or a leaf.
    #[inline(always)]
    fn pfn(word: Word) -> Pfn {
        Pfn((word.0 & Self::ADDRESS) >> crate::addr::PAGE_SHIFT)
    }

    /// Which of the root's pages serves `gfn`, a frame that the format can map.
    #[inline(always)]
    fn root_page(gfn: Gfn) -> usize {
        if Self::ROOT_PAGES == 1 { 0 } else { (gfn.0 >> Self::ROOT_LEVEL.up().shift()) as usize }
    }

    /// The frame of the root's page that serves `gfn`, where `root` is the root's first.
    #[inline(always)]
    fn top(root: Pfn, gfn: Gfn) -> Pfn {
        Pfn(root.0 + Self::root_page(gfn) as u64)
    }

    /// The index of `gfn`'s entry in its table page of `level`.
    #[inline(always)]
    fn index(gfn: Gfn, level: Level) -> usize {
        ((gfn.0 >> level.shift()) & ((1 << INDEX_BITS) - 1)) as usize
    }
}

/// The bits that tell a leaf's type.
const fn memory_mask([a, b, c, d]: [u64; 4]) -> u64 {
    a | b | c | d
}

/// Proves at compile time what the constants of every format owe. [`Vm::builder`](crate::Vm::builder) and
/// [`Map::new`](crate::map::Map::new) evaluate it for their format; each format's file ends in a call too.
pub(crate) const fn assert_format<F: Format>() {
    assert!(F::LEVELS >= 2 && F::LEVELS <= 5, "the walker's stack holds five levels");
    assert!(F::ROOT_LEVEL.number() == F::LEVELS, "the root's level follows from the number of levels");
    assert!(
        F::MAX_LEAF.number() < F::LEVELS && F::MAX_LEAF.number() <= Level::G1.number(),
        "the root maps nothing itself"
    );
    let below_root = F::ROOT_LEVEL.shift();
    assert!(F::ROOT_PAGES.is_power_of_two() && F::ROOT_PAGES <= 16, "no architecture has more");
    assert!(
        below_root < F::FRAME_BITS && F::FRAME_BITS <= below_root + INDEX_BITS + F::ROOT_PAGES.ilog2(),
        "the root has at least two entries in use, and at most all"
    );
    assert!(F::WRITE.is_power_of_two() && F::HOST_WRITE.is_power_of_two() && F::DIRTY.count_ones() <= 2);
    assert!(F::HARDWARE_AD == (F::ACCESSED != 0) && F::HARDWARE_AD == (F::DIRTY != 0), "both or neither");
    let (accessed, dirty) = (F::ACCESSED, F::DIRTY & F::DIRTY.wrapping_neg());
    assert!(accessed == 0 || F::PRESENT < accessed, "one comparison says whether a leaf is young");
    assert!(dirty == 0 || F::PRESENT < dirty, "and whether it is dirty");
    assert!(F::TABLE_BITS & !F::TABLE_MASK == 0 && F::TABLE_BITS & F::PRESENT != 0);
    assert!(F::TABLE_MASK & (F::HOST_WRITE | F::ACCESSED | F::DIRTY) == 0, "no such bit makes a leaf a link");
    if let Some([a, b, c, d]) = F::MEMORY {
        assert!(a != b && a != c && a != d && b != c && b != d && c != d, "a leaf tells its memory type");
        let others =
            F::PRESENT | F::TABLE_MASK | F::WRITE | F::HOST_WRITE | F::ACCESSED | F::DIRTY | F::ADDRESS;
        assert!(memory_mask([a, b, c, d]) & others == 0, "by bits of their own");
    }
    assert!(
        F::ADDRESS & (F::PRESENT | F::TABLE_MASK | F::WRITE | F::HOST_WRITE | F::ACCESSED | F::DIRTY) == 0
    );
    assert!(F::PRESENT & !ALWAYS_CLEAR == 0, "an absent word must be absent to the hardware");
}
