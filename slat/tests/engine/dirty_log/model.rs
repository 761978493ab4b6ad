//! The rules of dirty logs, as plainly as they can be written. It shares no code with its subjects.

use std::collections::{BTreeMap, BTreeSet};

const EINVAL: i32 = 22;
const ENOENT: i32 = 2;

/// Ids are below this.
pub const IDS: u32 = 64;

/// An operation on a VM, or in it. Pages are numbered from their slot's first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Create {
        id: u32,
        log: bool,
    },
    Delete {
        id: u32,
    },
    /// Moves the slot to its place of this number.
    Move {
        id: u32,
        place: usize,
    },
    Log {
        id: u32,
        on: bool,
    },
    /// The guest stores to a page of an existing slot; or loads from it.
    Store {
        id: u32,
        page: u64,
    },
    Load {
        id: u32,
        page: u64,
    },
    /// A device writes to this many pages.
    Device {
        id: u32,
        page: u64,
        pages: u64,
    },
    /// The host takes its pages away for a moment.
    Zap {
        id: u32,
    },
    /// The log is taken: for good, or given back.
    Harvest {
        id: u32,
        commit: bool,
    },
    HarvestAll {
        commit: bool,
    },
    /// The dirty pages.
    Get {
        id: u32,
    },
    /// Cleans pages that `bits` names, by words of 64 from `first` on, among the next `pages`.
    Clear {
        id: u32,
        first: u64,
        pages: u64,
        bits: Vec<u64>,
    },
}

impl Operation {
    pub const KINDS: usize = 12;

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Delete { .. } => "delete",
            Self::Move { .. } => "move",
            Self::Log { .. } => "log",
            Self::Store { .. } => "store",
            Self::Load { .. } => "load",
            Self::Device { .. } => "device",
            Self::Zap { .. } => "zap",
            Self::Harvest { .. } => "harvest",
            Self::HarvestAll { .. } => "harvest all",
            Self::Get { .. } => "get",
            Self::Clear { .. } => "clear",
        }
    }
}

/// Result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Done,
    /// Dirty pages, in order.
    Pages(Vec<u64>),
    /// Number of pages really cleared.
    Cleared(u64),
    /// It was done; there is no further result.
    Unsaid,
}

/// A slot: the number of its place, and its log.
#[derive(Clone, Debug)]
pub struct Record {
    pub place: usize,
    pub log: Option<BTreeSet<u64>>,
}

/// The model. See the module's header.
#[derive(Debug)]
pub struct Model {
    pub shapes: &'static [Shape; 3],
    initially_set: bool,
    pub slots: BTreeMap<u32, Record>,
}

/// A slot's size, and its possible places. The windows of two slots have no frame in common.
#[derive(Debug)]
pub struct Shape {
    pub pages: u64,
    pub places: [u64; 3],
}

/// By id. All of it lies below 1 MiB, which a guest in real mode can reach: words of 64 pages, parts of one, one page.
pub static SMALL: [Shape; 3] = [
    Shape { pages: 100, places: [0, 5, 16] },
    Shape { pages: 64, places: [116, 117, 127] },
    Shape { pages: 1, places: [192, 193, 200] },
];

/// As above, with room for pages of 2 MiB, in some places.
pub static LARGE: [Shape; 3] = [
    Shape { pages: 1100, places: [0, 512, 700] },
    Shape { pages: 640, places: [2048, 2050, 2560] },
    Shape { pages: 512, places: [4096, 4608, 5121] },
];

/// Slots of more than the 128 MiB that are kept together, and one page more.
pub static BIG: [Shape; 3] = [
    Shape { pages: 70_000, places: [0, 100, 512] },
    Shape { pages: (1 << 15) + 1, places: [80_000, 80_001, 3 << 15] },
    Shape { pages: 1 << 15, places: [5 << 15, 5 << 15 | 1, 6 << 15] },
];

impl Model {
    pub fn new(shapes: &'static [Shape; 3], initially_set: bool) -> Self {
        Self { shapes, initially_set, slots: BTreeMap::new() }
    }

    pub fn ask(&mut self, operation: &Operation) -> Result<Reply, i32> {
        match *operation {
            Operation::Create { id, log } => {
                let mut record = Record { place: 0, log: None };
                if log {
                    record.log = Some(self.fresh_log(id));
                }
                self.slots.insert(id, record);
            }
            Operation::Delete { id } => _ = self.slots.remove(&id),
            Operation::Move { id, place } => self.slot(id).place = place,
            Operation::Log { id, on } => {
                let fresh = self.fresh_log(id);
                let log = &mut self.slot(id).log;
                *log = if on { Some(log.take().unwrap_or(fresh)) } else { None };
            }
            Operation::Store { id, page } => self.mark(id, page),
            Operation::Device { id, page, pages } => {
                (page..page + pages).for_each(|page| self.mark(id, page));
            }
            Operation::Load { .. } | Operation::Zap { .. } => {}
            Operation::Harvest { id, commit } => {
                let log = self.log(id)?;
                let pages = log.iter().copied().collect();
                if commit {
                    log.clear();
                }
                return Ok(Reply::Pages(pages));
            }
            Operation::HarvestAll { commit } => {
                // Page numbers of one slot after the other's, in order of frames, which is that of ids.
                let mut all = Vec::new();
                for log in self.slots.values_mut().filter_map(|slot| slot.log.as_mut()) {
                    all.extend(log.iter());
                    if commit {
                        log.clear();
                    }
                }
                return Ok(Reply::Pages(all));
            }
            Operation::Get { id } => return Ok(Reply::Pages(self.log(id)?.iter().copied().collect())),
            Operation::Clear { id, first, pages, ref bits } => {
                if id >= IDS || !first.is_multiple_of(64) {
                    return Err(EINVAL);
                }
                let all = self.shapes.get(id as usize).map_or(0, |shape| shape.pages);
                let log = self.log(id)?;
                let rest = all.checked_sub(first).ok_or(EINVAL)?;
                if pages > rest || pages < rest && !pages.is_multiple_of(64) {
                    return Err(EINVAL);
                }
                let named = |page: u64| bits[((page - first) / 64) as usize] >> (page % 64) & 1 != 0;
                let before = log.len();
                log.retain(|&page| !(first..first + pages).contains(&page) || !named(page));
                return Ok(Reply::Cleared((before - log.len()) as u64));
            }
        }
        Ok(Reply::Done)
    }

    fn slot(&mut self, id: u32) -> &mut Record {
        self.slots.get_mut(&id).expect("only what is there is changed")
    }

    /// Returns the log of a slot that a request names.
    fn log(&mut self, id: u32) -> Result<&mut BTreeSet<u64>, i32> {
        if id >= IDS {
            return Err(EINVAL);
        }
        self.slots.get_mut(&id).and_then(|slot| slot.log.as_mut()).ok_or(ENOENT)
    }

    fn fresh_log(&self, id: u32) -> BTreeSet<u64> {
        if self.initially_set { (0..self.shapes[id as usize].pages).collect() } else { BTreeSet::new() }
    }

    fn mark(&mut self, id: u32, page: u64) {
        if let Some(log) = &mut self.slot(id).log {
            log.insert(page);
        }
    }
}
