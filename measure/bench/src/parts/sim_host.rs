//! A primary MMU of arithmetic and one word for each page, with what a real one costs.
//!
//! ```text
//! fault ─▶ lookup: the page's word ─▶ there? ─▶ that frame
//!          resolve: (handler ▷ zero a page ▷ the host's own fault ▷ shared lines) ─▶ write the word
//! ```
//! Eight words share a cache line, as entries of a real page table do; so what one CPU writes and another reads travels here,
//! too. The frame of a page that was never moved is its place plus a constant, so that a check can say which one is right. No
//! data is behind any of it.

use crate::parts::broadcast_bus::Processors;
use crate::parts::setting::Work;
use crate::parts::word_lines::Words;
use crate::world::Ordering::Relaxed;
use crate::world::{AtomicU64, compute, hand_over, kick, rest, zero_page};
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SIZE, Pfn, Span, VcpuId};
use std::sync::Arc;

/// Where guest memory lies in the host's address space.
pub const BASE: Hva = Hva(1 << 40);
/// The frame of the first page, before any has been moved.
const FIRST_FRAME: u64 = 1 << 24;

/// The host's state of an address: a word of its page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageWord(u64);

impl PageWord {
    const ABSENT: Self = Self(0);
    /// Absent, and the kernel's work under its lock has been done.
    const ASKED: Self = Self(1);
    const PRESENT: u64 = 2;
    const WRITABLE: u64 = 4;

    fn of(page: HostPage) -> Self {
        Self(page.pfn.0 << 3 | u64::from(page.writable) * Self::WRITABLE | Self::PRESENT)
    }

    fn page(self) -> Option<HostPage> {
        let page =
            HostPage { pfn: Pfn(self.0 >> 3), writable: self.0 & Self::WRITABLE != 0, ..HostPage::PLAIN };
        (self.0 & Self::PRESENT != 0).then_some(page)
    }

    /// A page that is there for a caller of [`SimHost::resolve`].
    fn hidden(page: HostPage) -> Self {
        Self(Self::of(page).0 & !Self::PRESENT)
    }

    fn is_hidden(self) -> bool {
        self.0 & Self::PRESENT == 0 && self.0 >> 3 != 0
    }

    /// No page is there, not even a hidden one.
    fn is_missing(self) -> bool {
        self.page().is_none() && !self.is_hidden()
    }

    /// The word after a fault of the host's own, where it was not present: a hidden page is shown, a missing page comes.
    fn brought_in(self, hva: Hva) -> Self {
        if self.is_hidden() { Self(self.0 | Self::PRESENT) } else { Self::of(first_page(gfn_of(hva))) }
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct SimHost {
    /// One word for each page of [`Work::host_page`].
    pages: Words,
    /// The lines that every fault of the primary MMU writes to: the first word of each.
    mm: Words,
    work: Work,
    /// In an atomic of `core`'s: what checks need costs no time.
    hints: core::sync::atomic::AtomicU64,
    /// Where the hardware may broadcast flushes.
    processors: Option<Arc<Processors>>,
    is_silent: bool,
}

impl SimHost {
    /// So many pages of 4 KiB from [`BASE`] on, none of them present.
    pub fn new(pages: u64, work: &Work) -> Self {
        Self {
            pages: Words::new(pages.div_ceil(work.host_page.pages()) as usize, |_| 0),
            mm: Words::new(8 * work.mm_lines as usize, |_| 0),
            work: work.clone(),
            hints: 0.into(),
            processors: None,
            is_silent: false,
        }
    }

    /// The same with every page present, at its first frame.
    pub fn filled(pages: u64, work: &Work) -> Self {
        let host = Self::new(pages, work);
        for page in (0..pages).step_by(work.host_page.pages() as usize) {
            host.set(hva_of(Gfn(page)), Some(first_page(Gfn(page))));
        }
        host
    }

    /// The same on processors whose hardware may broadcast flushes.
    #[must_use]
    pub fn on(self, processors: Arc<Processors>) -> Self {
        Self { processors: Some(processors), ..self }
    }

    /// Negative control: says of each flush that it was broadcast, and does none.
    #[must_use]
    pub fn silent(self, is_silent: bool) -> Self {
        Self { is_silent, ..self }
    }

    fn word(&self, hva: Hva) -> Option<&AtomicU64> {
        self.pages.get((hva.0.checked_sub(BASE.0)? / self.work.host_page.bytes()) as usize)
    }

    /// The page that `word` has, as the one that maps `hva`.
    fn page_of(&self, word: PageWord, hva: Hva) -> Option<HostPage> {
        let level = self.work.host_page;
        let inside = gfn_of(hva).0 % level.pages();
        word.page().map(|page| HostPage { pfn: page.pfn + inside, level, ..page })
    }

    /// The page at `hva`, as one load finds it.
    pub fn page(&self, hva: Hva) -> Option<HostPage> {
        self.page_of(PageWord(self.word(hva)?.load(Relaxed)), hva)
    }

    /// Puts another page there, or none: one store. A caller that changes what a VM maps has to invalidate first.
    pub fn set(&self, hva: Hva, page: Option<HostPage>) {
        let word = page.map_or(PageWord::ABSENT, PageWord::of);
        if let Some(at) = self.word(hva) {
            at.store(word.0, Relaxed);
        }
    }

    /// Takes away what is there until a fault asks for it, which finds `page`: as a scanner does that would like to know who
    /// uses a page. To be called as [`set`](Self::set).
    pub fn hide(&self, hva: Hva, page: HostPage) {
        if let Some(at) = self.word(hva) {
            at.store(PageWord::hidden(page).0, Relaxed);
        }
    }

    /// Takes away what is there: each page comes back as its other frame. To be called as [`set`](Self::set), by one thread at a
    /// time.
    pub fn take_away(&self, hvas: Span<Hva>) {
        for gfn in (gfn_of(hvas.start).0..gfn_of(hvas.end).0).map(Gfn) {
            let hva = hva_of(gfn);
            let is_first = self.page(hva) == Some(first_page(gfn));
            self.set(hva, Some(if is_first { other_page(gfn) } else { first_page(gfn) }));
        }
    }

    /// How often a fault asked for a hidden page, and found it.
    pub fn hints(&self) -> u64 {
        self.hints.load(Relaxed)
    }

    /// The host's own fault: finds a page, zeroes it and maps it. A hidden one needs only to be shown.
    fn bring_in(&self, hva: Hva) {
        compute(self.work.host_ns);
        for line in (0..self.mm.len()).step_by(8) {
            self.mm[line].fetch_add(1, Relaxed);
        }
        let Some(at) = self.word(hva) else { return };
        // All of this took time, and zeroing takes more: another vCPU may bring the page in meanwhile, and a scanner may
        // then move it. So the page is put there only where it is still missing.
        let mut found = PageWord(at.load(Relaxed));
        if self.work.zeroing && found.is_missing() {
            zero_page();
        }
        while found.page().is_none() {
            let brought = found.brought_in(hva);
            match at.compare_exchange(found.0, brought.0, Relaxed, Relaxed) {
                Ok(_) if found.is_hidden() => {
                    self.hints.fetch_add(1, Relaxed);
                    return;
                }
                Ok(_) => return,
                Err(now) => found = PageWord(now),
            }
        }
    }
}

/// The host address behind a frame.
pub fn hva_of(gfn: Gfn) -> Hva {
    BASE + gfn.0 * PAGE_SIZE
}

/// The host addresses behind frames.
pub fn hvas_of(gfns: Span<Gfn>) -> Span<Hva> {
    Span::new(hva_of(gfns.start), hva_of(gfns.end))
}

/// The frame before a host address: the inverse of [`hva_of`].
pub fn gfn_of(hva: Hva) -> Gfn {
    Gfn((hva.0 - BASE.0) / PAGE_SIZE)
}

/// The host's page behind a frame at first.
pub fn first_page(gfn: Gfn) -> HostPage {
    HostPage { pfn: Pfn(FIRST_FRAME + gfn.0), ..HostPage::PLAIN }
}

/// The host's page there after [`SimHost::take_away`], every other time.
pub fn other_page(gfn: Gfn) -> HostPage {
    HostPage { pfn: Pfn(2 * FIRST_FRAME + gfn.0), ..HostPage::PLAIN }
}

impl Host for SimHost {
    #[inline]
    fn lookup(&self, hva: Hva, _access: Access) -> Option<HostPage> {
        if self.work.host_sleeps_ns > 0 {
            return None;
        }
        let at = self.word(hva)?;
        let word = PageWord(at.load(Relaxed));
        // Once for each page, however often the engine asks.
        if word != PageWord::ASKED && self.work.under_lock_ns > 0 {
            compute(self.work.under_lock_ns);
            if word == PageWord::ABSENT {
                at.store(PageWord::ASKED.0, Relaxed);
            }
        }
        self.page_of(word, hva)
    }

    fn resolve(&self, _idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let at = self.word(hva).ok_or(HostError::Fault)?;
        if self.work.host_sleeps_ns > 0 {
            rest(self.work.host_sleeps_ns);
        }
        if PageWord(at.load(Relaxed)).page().is_none() {
            if self.work.handlers {
                hand_over(|| {
                    compute(self.work.handler_ns);
                    self.bring_in(hva);
                });
            } else {
                self.bring_in(hva);
            }
        }
        let now = self.page_of(PageWord(at.load(Relaxed)), hva);
        now.filter(|page| page.writable || access != Access::Write).ok_or(HostError::Fault)
    }

    fn kick(&self, vcpu: VcpuId) {
        kick(vcpu.0);
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        self.is_silent || self.processors.as_ref().is_some_and(|processors| processors.broadcast(gfns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_page_it_is() {
        for writable in [false, true] {
            let page = HostPage { writable, ..first_page(Gfn(5)) };
            assert_eq!(PageWord::of(page).page(), Some(page));
        }
        assert_eq!((PageWord::ABSENT.page(), PageWord::ASKED.page()), (None, None));
    }

    /// Simulated only: on threads, who comes first is chance.
    #[cfg(virtual_time)]
    #[test]
    fn a_page_that_was_moved_while_another_vcpu_asked_for_it_stays_moved() {
        use crate::world::{Costs, Job, rest, run};
        for host_ns in [0, 1000] {
            // The second asks while the first is still bringing the page in, and goes on after it was moved.
            let work = Work { host_ns, ..Work::default() };
            let host = SimHost::new(1, &work);
            let (at, moved) = (hva_of(Gfn(0)), HostPage { pfn: Pfn(7), ..first_page(Gfn(0)) });
            let mover = || {
                while host.page(at).is_none() {
                    rest(1);
                }
                host.set(at, Some(moved));
            };
            let asks = |later| {
                let host = &host;
                move || {
                    rest(later);
                    host.resolve(&mut Idle::take().unwrap(), at, Access::Read).unwrap();
                }
            };
            run(
                &Costs::SERVER,
                vec![Job::new("asks", asks(0)), Job::new("asks", asks(100)), Job::new("moves", mover)],
            );
            assert_eq!(host.page(at), Some(moved), "{host_ns} ns");
        }
    }

    #[test]
    fn a_page_comes_when_it_is_asked_for_and_no_sooner() {
        let mut idle = Idle::take().unwrap();
        let host = SimHost::new(9, &Work { host_ns: 0, under_lock_ns: 1, ..Work::default() });
        let [first, last] = [Gfn(0), Gfn(8)].map(hva_of);
        assert_eq!((host.lookup(last, Access::Read), host.lookup(last, Access::Read)), (None, None));
        assert_eq!(host.resolve(&mut idle, last, Access::Write), Ok(first_page(Gfn(8))));
        assert_eq!(host.lookup(last, Access::Read), Some(first_page(Gfn(8))));
        assert_eq!(host.lookup(first, Access::Read), None);
        for outside in [hva_of(Gfn(16)), Hva(0)] {
            assert_eq!(host.resolve(&mut idle, outside, Access::Read), Err(HostError::Fault));
        }
        host.set(first, Some(HostPage { writable: false, ..first_page(Gfn(3)) }));
        assert_eq!(host.resolve(&mut idle, first, Access::Write), Err(HostError::Fault));
        assert_eq!(
            host.resolve(&mut idle, first, Access::Read).map(|page| page.pfn),
            Ok(first_page(Gfn(3)).pfn)
        );
    }
}
