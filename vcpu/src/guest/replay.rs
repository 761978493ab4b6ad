//! A guest that replays a memory trace: every load is checked, every store is remembered.
//!
//! The trace says where and how much, not what; the guest stores numbers of its own, each different, so a byte in
//! the wrong place is recognised wherever it turns up.

use super::{Findings, Layout, fill};
use crate::cpu::{Core, Program, Step};
use crate::oracle::Oracle;
use crate::trace::{Access, Kind};
use slat::{Fault, Format, Gfn, Gpa, Host, PAGE_SIZE};
use std::sync::Arc;

/// See the module's header. Runs until its batch is used up, or a region is touched that has no place yet.
#[derive(Debug)]
pub struct Replay {
    batch: Arc<Vec<Access>>,
    next: usize,
    /// Where the program's regions lie.
    pub layout: Layout,
    oracle: Oracle,
    /// The number of the next write.
    writes: u64,
    buffer: Box<[u8]>,
    /// What was found so far.
    pub findings: Findings,
    /// Accesses made so far.
    pub accesses: u64,
}

/// Where an access lies: place and size; and those of its rest, where its bytes are in two regions.
type Parts = (Gpa, usize, Option<(Gpa, usize)>);

/// Why a replay has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The batch is used up.
    Batch,
    /// This traced address is in a region without a place: [`Layout::place`] it.
    Region(u64),
}

impl Replay {
    /// A guest with no memory placed and nothing to do, whose oracle remembers `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self {
            batch: Arc::default(),
            next: 0,
            layout: Layout::new(),
            oracle: Oracle::new(pages),
            writes: 1,
            buffer: vec![0; 2 * usize::from(Access::MAX_SIZE)].into(),
            findings: Findings::default(),
            accesses: 0,
        }
    }

    /// The next part of the trace. The last one must be used up.
    pub fn feed(&mut self, batch: Arc<Vec<Access>>) {
        debug_assert!(self.next == self.batch.len(), "nothing is skipped");
        (self.batch, self.next) = (batch, 0);
    }

    /// Takes a part of the trace as made already, elsewhere: from now on its memory has to hold what it has stored there. All
    /// regions of the part must have places; nothing is accessed.
    pub fn recall(&mut self, batch: &[Access]) {
        for access in batch.iter().filter(|access| access.kind.writes()) {
            let Some((gpa, size, rest)) = self.parts(access) else { continue };
            for (gpa, size) in std::iter::once((gpa, size)).chain(rest) {
                let written = &mut self.buffer[..size];
                fill(written, gpa, self.writes);
                self.oracle.wrote(gpa, written);
                self.writes += 1;
            }
        }
    }

    /// What each page that it remembers has to hold, in no order.
    pub fn expected(&self) -> impl Iterator<Item = (Gfn, &[u8; PAGE_SIZE as usize])> + '_ {
        self.oracle.pages()
    }

    /// Where an access lies; `None` where a region has no place. Neighbours in the program need not be neighbours in the guest.
    #[inline(always)]
    fn parts(&mut self, access: &Access) -> Option<Parts> {
        let gpa = self.layout.gpa(access.addr)?;
        let size = u64::from(access.size);
        let room = Layout::REGION - access.addr % Layout::REGION;
        if size <= room {
            return Some((gpa, size as usize, None));
        }
        let rest = self.layout.gpa(access.addr + room)?;
        Some((gpa, room as usize, Some((rest, (size - room) as usize))))
    }

    /// What it waits for, after it has stopped.
    pub fn wants(&mut self) -> Want {
        match self.batch.get(self.next) {
            None => Want::Batch,
            Some(access) if self.layout.gpa(access.addr).is_none() => Want::Region(access.addr),
            Some(access) => Want::Region(last(access)),
        }
    }

    /// One access whose bytes lie in one region.
    #[inline(always)]
    fn access(
        &mut self,
        core: &mut Core<'_, impl Format, impl Host>,
        kind: Kind,
        gpa: Gpa,
        size: usize,
    ) -> Result<(), Fault> {
        let (read, written) = self.buffer.split_at_mut(Access::MAX_SIZE.into());
        let (read, written) = (&mut read[..size], &mut written[..size]);
        match kind {
            Kind::Fetch => core.fetch(gpa, read)?,
            Kind::Load | Kind::Modify => core.load(gpa, read)?,
            Kind::Store => {}
        }
        if kind.writes() {
            fill(written, gpa, self.writes);
            core.store(gpa, written)?;
        }
        // Nothing faults any more: only now is the instruction done.
        if kind != Kind::Store {
            self.findings.check(&mut self.oracle, gpa, read);
        }
        if kind.writes() {
            self.oracle.wrote(gpa, written);
            self.writes += 1;
        }
        Ok(())
    }
}

/// The last byte of an access.
fn last(access: &Access) -> u64 {
    access.addr + u64::from(access.size) - 1
}

impl Program for Replay {
    #[inline]
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let Some(&access) = self.batch.get(self.next) else { return Ok(Step::Stop) };
        let Some((gpa, size, rest)) = self.parts(&access) else { return Ok(Step::Stop) };
        self.access(core, access.kind, gpa, size)?;
        if let Some((gpa, size)) = rest {
            self.access(core, access.kind, gpa, size)?;
        }
        self.next += 1;
        self.accesses += 1;
        Ok(Step::Next)
    }
}
