//! A vCPU's caches: translations, small and large, and links to tables of every level (the paging-structure cache).
//! Entries stay until the engine asks for a flush.

use slat::{Access, Gfn, Level, Perms, Pfn, Span, Translations};

/// One translation, as the walker found it.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    pub gfns: Span<Gfn>,
    /// Frame of the first page.
    pub pfn: Pfn,
    pub perms: Perms,
    /// Whether Dirty is set in the table: a store then needs no walk.
    pub dirty: bool,
}

impl Translation {
    pub fn serves(&self, gfn: Gfn, access: Access) -> bool {
        let allowed = self.perms.allows(access) && (self.dirty || access != Access::Write);
        allowed && self.gfns.contains(gfn)
    }

    pub fn frame(&self, gfn: Gfn) -> Pfn {
        self.pfn + (gfn.0 - self.gfns.start.0)
    }
}

const SMALL: usize = 1024;
const LARGE: usize = 32;
const LINKS: usize = 16;
const LEVELS: usize = 5;

/// The frames that a table serves, and the table's page.
type Link = (Span<Gfn>, Pfn);

/// All caches of a vCPU. See the module's header.
pub struct Caches {
    small: Vec<Option<Translation>>,
    large: Vec<Option<Translation>>,
    /// Links, by the level of the table.
    links: [[Option<Link>; LINKS]; LEVELS],
}

impl Caches {
    pub fn new() -> Self {
        Self { small: vec![None; SMALL], large: vec![None; LARGE], links: [[None; LINKS]; LEVELS] }
    }

    pub fn find(&self, gfn: Gfn, access: Access) -> Option<Translation> {
        let small = self.small[gfn.0 as usize % SMALL];
        let large = self.large[(gfn.0 >> Level::M2.shift()) as usize % LARGE];
        [small, large].into_iter().flatten().find(|found| found.serves(gfn, access))
    }

    pub fn insert(&mut self, found: Translation) {
        let gfn = found.gfns.start.0 as usize;
        if found.gfns.len() == 1 {
            self.small[gfn % SMALL] = Some(found);
        } else {
            self.large[(gfn >> Level::M2.shift()) % LARGE] = Some(found);
        }
    }

    /// Returns the lowest cached table for `gfn`.
    pub fn link(&self, gfn: Gfn) -> Option<(Level, Pfn)> {
        (1..LEVELS as u8).filter_map(Level::new).find_map(|level| {
            let (gfns, table) = self.links[usize::from(level.number())][line(gfn, level)]?;
            gfns.contains(gfn).then_some((level, table))
        })
    }

    /// Caches the link to `table`, of `level`, for `gfn`.
    pub fn insert_link(&mut self, gfn: Gfn, level: Level, table: Pfn) {
        let gfns = Span::sized(gfn.base(level.up()), level.up().pages());
        self.links[usize::from(level.number())][line(gfn, level)] = Some((gfns, table));
    }
}

fn line(gfn: Gfn, level: Level) -> usize {
    (gfn.0 >> level.up().shift()) as usize % LINKS
}

impl Translations for Caches {
    fn flush_all(&mut self) {
        *self = Self::new();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        for place in self.small.iter_mut().chain(&mut self.large) {
            *place = place.filter(|found| !found.gfns.overlaps(&gfns));
        }
        for place in self.links.iter_mut().flatten() {
            *place = place.filter(|(served, _)| !served.overlaps(&gfns));
        }
    }
}
