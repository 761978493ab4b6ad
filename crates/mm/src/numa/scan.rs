//! The scan: round and round an address space, a piece at a time.

use super::policy::stretch_end;
use super::settings::Settings;
use crate::error::MmError;
use crate::pages::pages_of;
use crate::space::AddressSpace;
use crate::stats::numa::{Counted, Skip};
use crate::vma::{ADDRESSES, Prot};
use parking_lot::Mutex;
use slat::{Hva, Idle, PAGE_SIZE, Span};
use std::sync::Arc;

/// Scans an address space on request. A [`Scanner`](super::Scanner) scans periodically.
///
/// ```
/// use slat::{Access, Hva, Idle};
/// use slat_mm::*;
///
/// // Two nodes. A thread of node 1 uses memory that is on node 0.
/// let mut idle = Idle::take().unwrap();
/// let arena = Arena::builder().limit(16 << 20).nodes(2).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let span = space.mmap(Place::Fixed(Hva(0x10_0000)), 4096, Prot::ReadWrite, Backing::Anonymous)?;
/// space.write(&mut idle, span.start, b"hello")?;
/// Node(1).run_here();
///
/// // The second access between scans moves the page.
/// let balancer = Balancer::new(&space, Settings::default());
/// for _ in 0..2 {
///     balancer.scan(&mut idle, 1 << 20)?;
///     space.read(&mut idle, span.start, &mut [0])?;
/// }
/// let page = space.lookup(span.start, Access::Read).unwrap();
/// assert_eq!(arena.node_of(page.pfn), Node(1));
/// assert_eq!(space.numa_stats().migrated, 1);
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
pub struct Balancer {
    space: Arc<AddressSpace>,
    settings: Settings,
    /// Where the next scan begins. Locked during a scan, so that scans do not overlap.
    at: Mutex<Hva>,
}

impl Balancer {
    /// Creates a balancer of `space` that begins at its lowest address.
    pub fn new(space: &Arc<AddressSpace>, settings: Settings) -> Self {
        Self { space: space.clone(), settings, at: Mutex::new(ADDRESSES.start) }
    }

    /// Returns its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes eligible pages protnone in the next `bytes` of mapped addresses, from where the last scan ended,
    /// once around at most. Waits while another thread scans. May sleep.
    pub fn scan(&self, idle: &mut Idle, bytes: u64) -> Result<(), MmError> {
        let mut at = self.at.lock();
        let (begin, mut left, mut wrapped) = (*at, bytes, false);
        while left > 0 {
            let ahead = Span::new(*at, if wrapped { begin } else { ADDRESSES.end });
            match self.step(idle, ahead, left)? {
                Some(done) => {
                    *at = done.end;
                    left -= done.len().min(left);
                }
                None if wrapped => break,
                None => (*at, wrapped) = (ADDRESSES.start, true),
            }
        }
        Ok(())
    }

    /// Scans the first stretch of `ahead`, up to `most` bytes and at least a page, and returns it; an empty one
    /// if a mapping was skipped. `None` if nothing is mapped there. The mappings may change between two steps.
    fn step(&self, idle: &mut Idle, ahead: Span<Hva>, most: u64) -> Result<Option<Span<Hva>>, MmError> {
        let space = &*self.space;
        let state = space.state.read();
        if ahead.is_empty() {
            return Ok(None);
        }
        let Some(vma) = state.vmas().over(ahead).next() else { return Ok(None) };
        let rest = vma.span.clamp(&ahead);
        let passed_over = match vma.prot {
            Prot::None => Some(Skip::NoAccess),
            _ if vma.is_shared() => Some(Skip::File),
            _ => None,
        };
        if let Some(why) = passed_over {
            space.numa.skip(why, rest.len() / PAGE_SIZE);
            return Ok(Some(Span::new(rest.end, rest.end)));
        }
        let room = rest.end.min(stretch_end(rest.start, &self.settings)).0 - rest.start.0;
        let part = Span::sized(rest.start, room.min(most).next_multiple_of(PAGE_SIZE));
        space.numa.add(Counted::Scanned, part.len() / PAGE_SIZE);
        space.make_protnone(&state, idle, pages_of(part), &self.settings)?;
        Ok(Some(part))
    }
}
