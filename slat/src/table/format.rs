//! Page-table formats: geometry, encoding, decoding. Each format is one small file under [`formats`](super::formats).
//!
//! A format defines links and leaves. It does not define *absent* entries: the engine lays out holes, withdrawn leaves
//! and frozen entries once for every 64-bit format, in [`entry`](super::entry), inside the bits that all hardware
//! ignores in an entry that is not present.
//!
//! To add a format: copy the nearest file in `formats/`, change the bits, add a line to `formats/mod.rs`, and the
//! type to the assertions and to `for_all!` in its tests. Another crate may define formats, too: [`Format`] is an
//! `unsafe trait` with a documented obligation, and [`Vm::builder`](crate::Vm::builder) and
//! [`Map::new`](crate::map::Map::new) check its constants at compile time.

use super::entry::{ALWAYS_CLEAR, TAG, TAG_HOLE, TAG_MMIO, TAG_WITHDRAWN, Version, Word, gather};
pub use super::leaf::{Access, Leaf, MemoryType, Perms};
use crate::addr::{Gfn, INDEX_BITS, Level, Pfn};
use core::fmt::Debug;

/// The kind of a word, at the level where it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A link to the table in this frame.
    Table(Pfn),
    /// A mapped page; [`Format::read_leaf`] decodes it.
    Leaf,
    /// Maps nothing; the number of the last invalidation that covered it.
    Hole(Version),
    /// A hole without a memslot, as of this number.
    Mmio(Version),
    /// A leaf withdrawn from the hardware; [`Word::withdrawn_leaf`] decodes it.
    Withdrawn,
    /// Owned for a moment by the thread with this mark.
    Frozen(u64),
}

impl Word {
    /// Returns the kind of the word, found at `level` of a table of format `F`.
    #[inline]
    pub fn kind<F: Format>(self, level: Level) -> Kind {
        if F::is_present(self) {
            if F::is_table(self, level) { Kind::Table(F::pfn(self)) } else { Kind::Leaf }
        } else {
            match self.0 & TAG {
                TAG_HOLE => Kind::Hole(self.version()),
                TAG_MMIO => Kind::Mmio(self.version()),
                TAG_WITHDRAWN => Kind::Withdrawn,
                _ => Kind::Frozen(gather(self.0)),
            }
        }
    }

    /// Returns the leaf of the word, found at `level` of a table of format `F`: of a mapped page, whether the hardware
    /// sees it or it is withdrawn ([`Kind::Withdrawn`]). `None` for links and for words that map nothing.
    ///
    /// ```
    /// use slat::{Leaf, Level, Pfn, table::{Version, Word, formats::Ept4NoAd}, Format};
    /// let old = Leaf { accessed: false, dirty: false, ..Leaf::plain(Pfn(512)) };
    /// let word = Ept4NoAd::leaf(&old, Level::M2);
    /// assert!(!Ept4NoAd::is_present(word), "the hardware has no Accessed bit, so the first access faults");
    /// assert_eq!(word.leaf::<Ept4NoAd>(Level::M2), Some(old));
    /// assert_eq!(Word::hole(Version::default()).leaf::<Ept4NoAd>(Level::M2), None);
    /// ```
    #[inline]
    pub fn leaf<F: Format>(self, level: Level) -> Option<Leaf> {
        self.maps::<F>(level).then(|| F::decode(self))
    }

    /// Whether the word, found at `level`, maps a page.
    #[inline(always)]
    pub(crate) fn maps<F: Format>(self, level: Level) -> bool {
        matches!(self.kind::<F>(level), Kind::Leaf | Kind::Withdrawn)
    }
}

/// A page-table format of 64-bit entries, 512 to a table page.
///
/// The trait is `unsafe` rather than sealed, because a hypervisor may have hardware that this crate does not know:
///
/// ```
/// use slat::{Access, Format, Level, Leaf, MemoryType, Perms, Pfn, table::Word};
///
/// /// One bit for each permission; frames where x86 has them.
/// #[derive(Clone, Copy, Default, Debug)]
/// struct Mine;
///
/// // SAFETY: tests check each leaf and link against the obligations of `Format`.
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
/// A format whose constants break an obligation does not compile in a VM or a map:
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
/// # impl Host for By {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// # fn main() { f(By) }
/// ```
///
/// # Safety
/// The engine follows every word that the format calls a link, and writes only words that the format makes. An
/// implementation guarantees, for every `level` from 2 to [`LEVELS`](Self::LEVELS):
///
/// * **Links.** For a frame that fits [`ADDRESS`](Self::ADDRESS), `link(pfn, level)` is present, `is_table` is true for
///   it, and `pfn` returns the frame. Bits of [`touch_link`](Self::touch_link) change none of that.
/// * **Leaves.** `leaf` encodes a leaf that allows loads as a present word, or as a [withdrawn](Word::withdrawn) one if the
///   leaf is not accessed and [`HARDWARE_AD`](Self::HARDWARE_AD) is false. No such word links a table, at any `level`
///   up to [`MAX_LEAF`](Self::MAX_LEAF), nor does a word that `touch`, `set_write` or `write_withdrawn` made of it.
///   `read_leaf` is the inverse of `leaf`.
/// * **Geometry.** `index` is below 512, and `root_page` below [`ROOT_PAGES`](Self::ROOT_PAGES), for each frame below
///   `1 << FRAME_BITS`. Different frames have different entries at the lowest level. The defaults guarantee this.
/// * **Constants.** They are as documented. Combinations that no format can have fail at compile time.
pub unsafe trait Format: Copy + Default + Debug + Send + Sync + 'static {
    /// The name that users type: `ept4`.
    const NAME: &'static str;
    /// Number of levels, from the root to the 4 KiB leaves.
    const LEVELS: u8;
    /// The level of the root's entries. Do not override it.
    const ROOT_LEVEL: Level = Level::new(Self::LEVELS).expect("a table has at most six levels");
    /// The largest page that an entry may map.
    const MAX_LEAF: Level;
    /// An entry above the lowest level links a table if `word & TABLE_MASK == TABLE_BITS`.
    const TABLE_MASK: u64;
    /// See [`TABLE_MASK`](Self::TABLE_MASK).
    const TABLE_BITS: u64;
    /// Hardware treats an entry as present if any of these bits is set.
    const PRESENT: u64;
    /// The bits of the frame's address.
    const ADDRESS: u64;
    /// The bit of a leaf that permits stores. [`set_writable`](Self::set_writable) sets and clears it.
    const WRITE: u64;
    /// A bit of a leaf that hardware ignores: the host allowed writes when the leaf was made.
    const HOST_WRITE: u64;
    /// The bits that the walker sets in every entry that it uses; none if [`HARDWARE_AD`](Self::HARDWARE_AD) is false.
    const ACCESSED: u64;
    /// The bits that the walker sets in a leaf that it stores through; none if [`HARDWARE_AD`](Self::HARDWARE_AD) is
    /// false. Of two bits the walker sets one; each of them marks the page dirty.
    const DIRTY: u64;
    /// Whether walkers set Accessed and Dirty. If not, a present leaf is accessed, and a writable one is dirty. A leaf
    /// that no vCPU has accessed is a [withdrawn word](Word::withdrawn), which a fault restores at the next access.
    const HARDWARE_AD: bool = true;
    /// The bits of each [`MemoryType`] in a leaf, in the order of [`MemoryType::ALL`]. `None` if the format has only
    /// write-back; memslots and host pages of other types are then refused.
    const MEMORY: Option<[u64; 4]> = None;

    /// Encodes a link in an entry of `level` to the table in frame `pfn`. Links allow everything; leaves decide.
    fn link(pfn: Pfn, level: Level) -> Word;
    /// Encodes a leaf of size `level`: as a present word, or as a withdrawn one if a present word cannot say "not
    /// accessed".
    fn leaf(leaf: &Leaf, level: Level) -> Word;
    /// Decodes a present leaf. Meaningless for other words; [`decode`](Self::decode) reads withdrawn ones too.
    fn read_leaf(word: Word) -> Leaf;
    /// Number of pages of the root, a power of two. A root with more than 512 entries has contiguous pages, together
    /// aligned to their size. Each page is an ordinary table; [`root_page`](Self::root_page) selects it.
    const ROOT_PAGES: usize = 1;
    /// Number of bits of a guest frame number that the format can map.
    const FRAME_BITS: u32 = Self::LEVELS as u32 * INDEX_BITS + Self::ROOT_PAGES.ilog2();

    /// Whether a leaf can have this memory type.
    #[inline(always)]
    fn has_memory_type(memory: MemoryType) -> bool {
        Self::MEMORY.is_some() || memory == MemoryType::WriteBack
    }

    /// Returns the bits of this memory type in a leaf.
    #[inline(always)]
    fn memory_bits(memory: MemoryType) -> u64 {
        Self::MEMORY.map_or(0, |types| types[memory as usize])
    }

    /// Returns the memory type of a present leaf.
    #[inline(always)]
    fn memory_type(word: Word) -> MemoryType {
        let Some(types) = Self::MEMORY else { return MemoryType::WriteBack };
        let said = word.0 & memory_mask(types);
        let is_said = |memory: &MemoryType| types[*memory as usize] == said;
        MemoryType::ALL.into_iter().find(is_said).unwrap_or_default()
    }

    /// Whether the hardware permits stores through this present leaf.
    #[inline(always)]
    fn writable(word: Word) -> bool {
        word.0 & Self::WRITE != 0
    }

    /// Decodes a leaf, present or withdrawn.
    #[inline]
    fn decode(word: Word) -> Leaf {
        if word.is_withdrawn() { word.withdrawn_leaf() } else { Self::read_leaf(word) }
    }

    /// Converts a withdrawn word of `level` to a present leaf, accessed now.
    #[inline]
    fn restore(word: Word, level: Level) -> Word {
        Self::leaf(&Leaf { accessed: true, ..word.withdrawn_leaf() }, level)
    }

    /// Whether the host allowed writes when this leaf, present or withdrawn, was made.
    #[inline(always)]
    fn host_writable(word: Word) -> bool {
        if word.is_withdrawn() { word.withdrawn_leaf().host_writable } else { word.0 & Self::HOST_WRITE != 0 }
    }

    /// Sets or clears the write permission of a leaf, present or withdrawn. Everything else stays, including Dirty bits.
    #[inline(always)]
    fn set_writable(word: Word, on: bool) -> Word {
        if word.is_withdrawn() {
            let mut leaf = word.withdrawn_leaf();
            leaf.perms = if on { leaf.perms.with(Perms::WRITE) } else { leaf.perms.without(Perms::WRITE) };
            return Word::withdrawn(&leaf);
        }
        Self::set_write(word, on)
    }

    /// Sets or clears the write permission of a present leaf.
    #[inline(always)]
    fn set_write(word: Word, on: bool) -> Word {
        Word(word.0 & !Self::WRITE | if on { Self::WRITE } else { 0 })
    }

    /// Returns the leaf, present or withdrawn, after the host has withdrawn the write permission.
    #[inline(always)]
    fn write_withdrawn(word: Word) -> Word {
        if word.is_withdrawn() {
            let leaf = Self::set_writable(word, false).withdrawn_leaf();
            return Word::withdrawn(&Leaf { host_writable: false, ..leaf });
        }
        Word(Self::set_writable(word, false).0 & !Self::HOST_WRITE)
    }

    /// Returns the bits that a walker sets in a leaf that it uses: Accessed, and Dirty for a store.
    #[inline(always)]
    fn touch(access: Access) -> u64 {
        Self::ACCESSED | if access == Access::Write { Self::DIRTY } else { 0 }
    }

    /// Returns the bits that a walker sets in a link of `level` that it follows; none if such links have no Accessed
    /// bit.
    #[inline(always)]
    fn touch_link(_level: Level) -> u64 {
        Self::ACCESSED
    }

    /// Whether a word found at `level` links a lower table.
    #[inline(always)]
    fn is_table(word: Word, level: Level) -> bool {
        level > Level::K4 && word.0 & Self::TABLE_MASK == Self::TABLE_BITS
    }

    /// Whether hardware treats the word as present.
    #[inline(always)]
    fn is_present(word: Word) -> bool {
        word.0 & Self::PRESENT != 0
    }

    /// Returns the frame of a link or a leaf.
    #[inline(always)]
    fn pfn(word: Word) -> Pfn {
        Pfn((word.0 & Self::ADDRESS) >> crate::addr::PAGE_SHIFT)
    }

    /// Returns the index of the root's page for `gfn`, which the format can map.
    #[inline(always)]
    fn root_page(gfn: Gfn) -> usize {
        if Self::ROOT_PAGES == 1 { 0 } else { (gfn.0 >> Self::ROOT_LEVEL.up().shift()) as usize }
    }

    /// Returns the frame of the root's page for `gfn`. `root` is the frame of the root's first page.
    #[inline(always)]
    fn top(root: Pfn, gfn: Gfn) -> Pfn {
        Pfn(root.0 + Self::root_page(gfn) as u64)
    }

    /// Returns the index of `gfn`'s entry in its table page of `level`.
    #[inline(always)]
    fn index(gfn: Gfn, level: Level) -> usize {
        ((gfn.0 >> level.shift()) & ((1 << INDEX_BITS) - 1)) as usize
    }
}

/// The bits of a leaf that encode its memory type.
const fn memory_mask([a, b, c, d]: [u64; 4]) -> u64 {
    a | b | c | d
}

/// A format that a processor also walks from its own virtual addresses, with no second stage: x86's long mode and PAE
/// paging. Second-stage formats (EPT, Arm's stage 2, RISC-V's G-stage) are not.
/// [`Builder::without_two_stages`](crate::Builder::without_two_stages) takes only such formats.
pub trait HostPaging: Format {}

/// Checks the constants of a format at compile time. [`Vm::builder`](crate::Vm::builder) and
/// [`Map::new`](crate::map::Map::new) evaluate it for their format; each format's file also ends in a call.
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
