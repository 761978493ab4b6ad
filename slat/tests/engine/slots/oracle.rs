//! The rules of `KVM_SET_USER_MEMORY_REGION`, as plainly as they can be written.
//!
//! One map per address space, from id to record. It finds overlap by reading every record. It checks the rules in the
//! kernel's order, because the order is visible: a region that overlaps another *and* reaches past the guest's last
//! frame is `EEXIST`, not `EINVAL`.
//!
//! Left out: `ENOMEM`, and the refusal of a slot that would make the number of all pages wrap (it takes more slots than
//! there are ids).

use std::collections::BTreeMap;

pub const PAGE: u64 = 4096;
pub const LOG_DIRTY: u32 = 1;
pub const READONLY: u32 = 2;
/// The kernel counts a slot's pages in an `int`.
pub const MOST_PAGES: u64 = (1 << 31) - 1;

/// The limits of a VM.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Valid ids are below this.
    pub ids: u32,
    /// Valid address spaces are below this.
    pub spaces: u32,
    /// The first guest frame out of reach.
    pub gfn_end: u64,
    /// The first byte beyond user addresses.
    pub hva_end: u64,
}

/// One call, field by field, unchecked. The kernel packs `space` and `id` into one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub space: u32,
    pub id: u32,
    pub flags: u32,
    pub gpa: u64,
    pub bytes: u64,
    pub hva: u64,
}

/// A live slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub gfn: u64,
    pub pages: u64,
    pub hva: u64,
    pub flags: u32,
}

impl Record {
    pub fn end(&self) -> u64 {
        self.gfn + self.pages
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.gfn < other.end() && other.gfn < self.end()
    }
}

/// The effect of an accepted request. Variants that remove something carry its old value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Created,
    Deleted(Record),
    Moved(Record),
    Flags(Record),
    Nothing,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    Id,
    Flags,
    BytesAligned,
    GpaAligned,
    HvaAligned,
    HvaReach,
    Space,
    Wraps,
    TooManyPages,
    Missing,
    SameSize,
    SameHva,
    SameReadonly,
    Overlaps,
    GpaReach,
}

impl Rule {
    pub const ALL: [Self; 15] = [
        Self::Id,
        Self::Flags,
        Self::BytesAligned,
        Self::GpaAligned,
        Self::HvaAligned,
        Self::HvaReach,
        Self::Space,
        Self::Wraps,
        Self::TooManyPages,
        Self::Missing,
        Self::SameSize,
        Self::SameHva,
        Self::SameReadonly,
        Self::Overlaps,
        Self::GpaReach,
    ];

    pub fn errno(self) -> i32 {
        const EEXIST: i32 = 17;
        const EINVAL: i32 = 22;
        if self == Self::Overlaps { EEXIST } else { EINVAL }
    }
}

/// Every slot of a VM.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub limits: Limits,
    /// Negative control: an oracle without one rule must be detected.
    pub forgets: Option<Rule>,
    pub spaces: Vec<BTreeMap<u32, Record>>,
}

impl Oracle {
    pub fn new(limits: Limits) -> Self {
        Self { limits, forgets: None, spaces: vec![BTreeMap::new(); limits.spaces as usize] }
    }

    /// The slots of one address space, by id.
    pub fn slots(&self, space: u32) -> &BTreeMap<u32, Record> {
        &self.spaces[space as usize]
    }

    /// Returns the effect of the request, without applying it.
    pub fn judge(&self, request: &Request) -> Result<Change, Rule> {
        let Request { space, id, flags, gpa, bytes, hva } = *request;
        let limits = self.limits;
        let unless =
            |broken: bool, rule: Rule| if broken && self.forgets != Some(rule) { Err(rule) } else { Ok(()) };

        unless(id >= limits.ids, Rule::Id)?;
        unless(flags & !(LOG_DIRTY | READONLY) != 0, Rule::Flags)?;
        unless(bytes % PAGE != 0, Rule::BytesAligned)?;
        unless(gpa % PAGE != 0, Rule::GpaAligned)?;
        unless(hva % PAGE != 0, Rule::HvaAligned)?;
        unless(hva.checked_add(bytes).is_none_or(|end| end > limits.hva_end), Rule::HvaReach)?;
        unless(space >= limits.spaces, Rule::Space)?;
        unless(gpa.checked_add(bytes).is_none(), Rule::Wraps)?;
        unless(bytes / PAGE > MOST_PAGES, Rule::TooManyPages)?;

        let slots = self.slots(space);
        let old = slots.get(&id).copied();
        let new = Record { gfn: gpa / PAGE, pages: bytes / PAGE, hva, flags };
        if bytes == 0 {
            unless(old.is_none(), Rule::Missing)?;
            return Ok(old.map_or(Change::Nothing, Change::Deleted));
        }
        if let Some(old) = old {
            unless(new.pages != old.pages, Rule::SameSize)?;
            unless(new.hva != old.hva, Rule::SameHva)?;
            unless((new.flags ^ old.flags) & READONLY != 0, Rule::SameReadonly)?;
            if new == old {
                return Ok(Change::Nothing);
            }
            if new.gfn == old.gfn {
                return Ok(Change::Flags(old));
            }
        }
        let blocked = slots.iter().any(|(&other, record)| other != id && record.overlaps(&new));
        unless(blocked, Rule::Overlaps)?;
        unless(new.end() > limits.gfn_end, Rule::GpaReach)?;
        Ok(old.map_or(Change::Created, Change::Moved))
    }

    /// Applies the request if the rules allow it.
    pub fn set(&mut self, request: &Request) -> Result<Change, Rule> {
        let change = self.judge(request)?;
        let slots = &mut self.spaces[request.space as usize];
        if request.bytes == 0 {
            slots.remove(&request.id);
        } else {
            let &Request { gpa, bytes, hva, flags, .. } = request;
            slots.insert(request.id, Record { gfn: gpa / PAGE, pages: bytes / PAGE, hva, flags });
        }
        Ok(change)
    }

    /// Returns the slot that contains `gfn`.
    pub fn find(&self, space: u32, gfn: u64) -> Option<(u32, Record)> {
        let mut holders = self.slots(space).iter().filter(|(_, slot)| slot.gfn <= gfn && gfn < slot.end());
        holders.next().map(|(&id, &slot)| (id, slot))
    }

    /// Returns the slots of one address space, in order of guest frames.
    pub fn by_gfn(&self, space: u32) -> Vec<(u32, Record)> {
        let mut slots: Vec<_> = self.slots(space).iter().map(|(&id, &slot)| (id, slot)).collect();
        slots.sort_unstable_by_key(|(_, slot)| slot.gfn);
        slots
    }

    /// Returns the guest frames behind the host addresses `[start, end)`, slot by slot, in order of guest frames: whole
    /// pages, even where the range only touches them.
    pub fn over_hvas(&self, space: u32, start: u64, end: u64) -> Vec<(u64, u64)> {
        let clamp = |slot: &Record| {
            let from = start.max(slot.hva);
            let to = end.min(slot.hva + slot.pages * PAGE);
            (from < to)
                .then(|| (slot.gfn + (from - slot.hva) / PAGE, slot.gfn + (to - slot.hva).div_ceil(PAGE)))
        };
        let mut ranges: Vec<_> = self.slots(space).values().filter_map(clamp).collect();
        ranges.sort_unstable();
        ranges
    }
}
