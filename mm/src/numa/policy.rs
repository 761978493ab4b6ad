//! How the secondary MMUs are told that pages become protnone. The pages are the same under every policy; what
//! the guest loses and what it pays are not.
//!
//! | policy | who is told | the guest loses | flushes |
//! |---|---|---|---|
//! | [`Range`](Policy::Range) | each 2 MiB with a present page, before ([`Why::Clear`]) | all of it, protnone or not | one for each |
//! | [`Page`](Policy::Page) | the same 2 MiB, and inside each page that changes ([`Why::Numa`]) | those pages | one for each page |
//! | [`PageBatched`](Policy::PageBatched) | from the first page that will change to the last, in one stretch of up to [`Settings::stretch`], and inside each run of neighbours that do; not at all where none will | those pages | one for each stretch |
//!
//! The first is Linux, the second is the NUMA protection series. Range flushes once for each 2 MiB here: KVM's walk may have to let
//! go of its lock and flush page by page, which this engine's does not.
//!
//! What was told is zapped at once, and flushed before the notification ends: when the scan is over, no thread uses
//! the pages without a hint fault.

use super::Settings;
use super::stats::{Counted, Skip};
use crate::error::MmError;
use crate::pte::{Pte, hvas_of};
use crate::space::{AddressSpace, Found};
use crate::state::State;
use slat::{Gfn, Hva, Idle, Level, Span, Why};

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Before: whole ranges are unmapped, whatever changes in them.
    Range,
    /// As the NUMA protection series describes: page by page.
    Page,
    /// Page by page, and one flush for many.
    #[default]
    PageBatched,
}

/// What is in a stretch.
#[derive(Clone, Copy, Debug)]
struct Survey {
    /// Whether any page is mapped.
    present: bool,
    /// From the first page that may become protnone to the last.
    wanted: Option<Span<Gfn>>,
}

/// Pages that became protnone, neighbours together.
///
/// The listeners are told when all are collected and the page locks are free again. Until then guests go on using the pages, and
/// wait only while the listeners are told. That does no harm: no vCPU faults the pages in before the notification ends; a thread
/// that changes one of them meanwhile has a notification of its own; and telling twice zaps nothing twice.
#[derive(Debug, Default)]
struct Runs(Vec<Span<Gfn>>);

impl Runs {
    fn add(&mut self, pages: Span<Gfn>) {
        match self.0.last_mut() {
            Some(run) if run.end == pages.start => run.end = pages.end,
            _ => self.0.push(pages),
        }
    }
}

impl AddressSpace {
    /// Makes protnone what may be in `pages`, which lie in one mapping and, but for
    /// [`PageBatched`](Policy::PageBatched), in one region.
    pub(super) fn make_protnone(
        &self,
        state: &State,
        idle: &mut Idle,
        pages: Span<Gfn>,
        settings: &Settings,
    ) -> Result<(), MmError> {
        let survey = self.survey(pages)?;
        let (why, pages) = match (settings.policy, survey.wanted) {
            (Policy::Range, _) if survey.present => (Why::Clear, pages),
            (Policy::Page, _) if survey.present => (Why::Numa, pages),
            (Policy::PageBatched, Some(wanted)) => (Why::Numa, wanted),
            _ => return Ok(()),
        };
        self.numa.add(Counted::Notified, 1);
        let mut result = Ok(());
        self.around(state, idle, pages, why, &mut |idle, told| {
            let (mut runs, mut made) = (Runs::default(), 0);
            result = self.each_page(pages, |found| {
                let Pte::Mapped { pfn, writable } = found.pte else { return Ok(()) };
                if self.reason_to_skip(&found).is_some() {
                    return Ok(());
                }
                found.set(Pte::Protnone { pfn, writable });
                let covers = Span::sized(found.page, found.level.pages());
                made += covers.len();
                match settings.policy {
                    Policy::Range => {}
                    Policy::Page => {
                        told.changed(idle, hvas_of(covers), None);
                        told.flush(idle);
                        self.numa.add(Counted::Told, 1);
                        self.numa.add(Counted::Flushed, 1);
                    }
                    Policy::PageBatched => runs.add(covers),
                }
                Ok(())
            });
            for &run in &runs.0 {
                told.changed(idle, hvas_of(run), None);
            }
            self.numa.add(Counted::Told, runs.0.len() as u64);
            self.numa.add(Counted::Protnone, made);
        });
        result
    }

    /// Looks before any listener is told, and counts what will be left alone.
    fn survey(&self, pages: Span<Gfn>) -> Result<Survey, MmError> {
        let mut survey = Survey { present: false, wanted: None };
        self.each_page(pages, |found| {
            survey.present |= matches!(found.pte, Pte::Mapped { .. });
            let covers = Span::sized(found.page, found.level.pages());
            match self.reason_to_skip(&found) {
                Some(why) => self.numa.skip(why, covers.len()),
                None => survey.wanted.get_or_insert(covers).end = covers.end,
            }
            Ok(())
        })?;
        Ok(survey)
    }

    /// Why this page, of a mapping that the scanner may touch, is left as it is.
    fn reason_to_skip(&self, found: &Found<'_>) -> Option<Skip> {
        match found.pte {
            Pte::Protnone { .. } => Some(Skip::Already),
            Pte::Empty | Pte::Parked(_) | Pte::Swapped { .. } => Some(Skip::NoAccess),
            Pte::Mapped { .. } if self.is_pinned(found.pfn, found.level) => Some(Skip::Pinned),
            Pte::Mapped { .. } if !self.is_sole(found.pfn, found.level) => Some(Skip::Shared),
            Pte::Mapped { .. } => None,
        }
    }
}

/// Where the stretch that begins at `at` ends at the latest.
pub(super) fn stretch_end(at: Hva, settings: &Settings) -> Hva {
    let region = Level::M2.bytes();
    let unit = match settings.policy {
        Policy::Range | Policy::Page => region,
        Policy::PageBatched => settings.stretch.max(1).checked_next_multiple_of(region).unwrap_or(region),
    };
    // Stretches are aligned, so that a scan that stopped in one does not shift all that follow.
    Hva((at.0 / unit).saturating_add(1).saturating_mul(unit))
}
