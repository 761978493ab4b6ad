//! A guest that replays a memory trace: every load is checked, every store is remembered.
//!
//! The trace says where and how much, not what; the guest stores numbers of its own, each different, so a byte in
//! the wrong place is recognised wherever it turns up.

use super::{Findings, Layout, fill};
use crate::cpu::{Core, Program, Step};
use crate::oracle::Oracle;
use crate::trace::{Access, Kind};
use slat::{Fault, Format, Host};
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
        gpa: slat::Gpa,
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
        let Some(gpa) = self.layout.gpa(access.addr) else { return Ok(Step::Stop) };
        let size = u64::from(access.size);
        let room = Layout::REGION - access.addr % Layout::REGION;
        if size <= room {
            self.access(core, access.kind, gpa, size as usize)?;
        } else {
            // Regions that are neighbours in the program need not be in the guest.
            let Some(rest) = self.layout.gpa(access.addr + room) else { return Ok(Step::Stop) };
            self.access(core, access.kind, gpa, room as usize)?;
            self.access(core, access.kind, rest, (size - room) as usize)?;
        }
        self.next += 1;
        self.accesses += 1;
        Ok(Step::Next)
    }
}
