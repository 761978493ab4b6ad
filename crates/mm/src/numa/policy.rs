//! How secondary MMUs are notified that pages become protnone. All policies make the same pages protnone; they
//! differ in what the guest loses and pays.
//!
//! | policy | notification | the guest loses | flushes |
//! |---|---|---|---|
//! | [`Range`](Policy::Range) | of each 2 MiB with a present page, as a whole ([`Reason::Clear`]) | all of the 2 MiB | one per 2 MiB |
//! | [`Page`](Policy::Page) | of the same 2 MiB, and inside it of each page that changes ([`Reason::Numa`]) | those pages | one per page |
//! | [`PageBatched`](Policy::PageBatched) | from the first page that will change to the last, in stretches of up to [`Settings::stretch`], and inside it of each run of neighbours that change; none if no page will change | those pages | one per stretch |
//!
//! The first is Linux, the second is the NUMA protection series. Range flushes once per 2 MiB here, while KVM's
//! walk may release its lock and flush page by page.
//!
//! A page is zapped when it is reported, and flushed before the notification ends. So after the scan no thread
//! uses it without a hint fault.

use super::settings::{Policy, Settings};
use crate::error::MmError;
use crate::pages::hvas_of;
use crate::pte::Pte;
use crate::space::{AddressSpace, Found};
use crate::state::State;
use crate::stats::numa::{Counted, Skip};
use slat::{Gfn, Hva, Idle, Level, Reason, Span};

/// The pages of a stretch.
#[derive(Clone, Copy, Debug)]
struct Survey {
    /// Whether any page is mapped.
    present: bool,
    /// From the first page that may become protnone to the last.
    wanted: Option<Span<Gfn>>,
}

/// Pages that became protnone, neighbours together.
///
/// Listeners are notified when all pages are collected and the page locks are free. Until then guests use the
/// pages, and they wait only during the notifications. This is safe: no vCPU faults the pages in before the
/// notification ends. A thread that changes one of them meanwhile has a notification of its own. Reporting a
/// page twice zaps it once.
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
    /// Makes the eligible pages in `pages` protnone. They lie in one mapping and, except for
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
            (Policy::Range, _) if survey.present => (Reason::Clear, pages),
            (Policy::Page, _) if survey.present => (Reason::Numa, pages),
            (Policy::PageBatched, Some(wanted)) => (Reason::Numa, wanted),
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

    /// Inspects the pages before any listener is notified, and counts those to skip.
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

    /// Returns why this page, of a mapping that the scanner may change, is skipped.
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

/// Returns the last possible end of a stretch that begins at `at`.
pub(super) fn stretch_end(at: Hva, settings: &Settings) -> Hva {
    let region = Level::M2.bytes();
    let unit = match settings.policy {
        Policy::Range | Policy::Page => region,
        Policy::PageBatched => settings.stretch.max(1).checked_next_multiple_of(region).unwrap_or(region),
    };
    // Stretches are aligned, so that a scan that stopped inside one does not shift all later ones.
    Hva((at.0 / unit).saturating_add(1).saturating_mul(unit))
}
