//! A guest that replays a memory trace: it checks every load and records every store.
//!
//! The trace has addresses and sizes, but no contents. The guest stores its own numbers, each different, so
//! a byte at a wrong place is recognized wherever it appears.

use super::{Findings, Layout, fill};
use crate::cpu::{Core, Program, Step};
use crate::oracle::Oracle;
use crate::trace::{Access, Kind};
use slat::{Fault, Format, Gfn, Gpa, Host, PAGE_SIZE};
use std::sync::Arc;

/// A replay of a trace. Runs until its batch is used up, or a region without a place is touched.
#[derive(Debug)]
pub struct Replay {
    batch: Arc<Vec<Access>>,
    next: usize,
    /// Places of the program's regions.
    pub layout: Layout,
    oracle: Oracle,
    /// Number of the next write.
    writes: u64,
    buffer: Box<[u8]>,
    /// Results so far.
    pub findings: Findings,
    /// Accesses made so far.
    pub accesses: u64,
}

/// Address and size of an access; the second pair if its bytes are in two regions.
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
    /// Creates a guest without memory and accesses, whose oracle keeps `pages` pages.
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

    /// Sets the next part of the trace. The last one must be used up.
    pub fn feed(&mut self, batch: Arc<Vec<Access>>) {
        debug_assert!(self.next == self.batch.len(), "nothing is skipped");
        (self.batch, self.next) = (batch, 0);
    }

    /// Treats a part of the trace as executed elsewhere: from now on memory must hold what that part has
    /// stored. All its regions must have places; memory is not accessed.
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

    /// Returns the expected contents of each kept page, in no order.
    pub fn expected(&self) -> impl Iterator<Item = (Gfn, &[u8; PAGE_SIZE as usize])> + '_ {
        self.oracle.pages()
    }

    /// Returns the place of an access; `None` if a region has no place. Neighbouring regions of the program may
    /// be apart in the guest.
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

    /// Returns why it has stopped.
    pub fn wants(&mut self) -> Want {
        match self.batch.get(self.next) {
            None => Want::Batch,
            Some(access) if self.layout.gpa(access.addr).is_none() => Want::Region(access.addr),
            Some(access) => Want::Region(last(access)),
        }
    }

    /// Makes one access whose bytes are in one region.
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
        // No further fault can happen, so the instruction completes.
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

/// Returns the last byte of an access.
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
