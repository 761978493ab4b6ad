//! The collector: it takes from the log, in one of the ways, and copies the told pages into the shadow.
//!
//! It is a migration that never ends, and often fails. It drops harvests, gives them back after copying half of
//! them, or gives them back after later harvests. While all threads stand still, it takes the last harvest,
//! after which nothing may be left. Then it judges the world.

use super::random::Random;
use super::record::Tally;
use super::world::{Around, HVA, Mistake, Other, PAGES, PLACES, ROUNDS, SLOT, Sizes, VCPUS, World};
use slat::*;
use slat_mm::HostView;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

const WORDS_OF_LOG: usize = PAGES.div_ceil(64) as usize;
/// The initial bytes of a shadow. No thread stores them.
const NOTHING: u8 = 0xee;

/// The way in which the log is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The log of one slot.
    Harvest,
    /// The logs of all slots.
    HarvestAll,
    /// The bits are read, and cleared in parts.
    Manual,
    /// The rings of the vCPUs.
    Ring,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Harvest, Self::HarvestAll, Self::Manual, Self::Ring];
}

/// The collector, and what the log has told it.
pub struct Collector<'w, F: Format> {
    world: &'w World<F>,
    random: Random,
    shadow: Vec<u8>,
    /// For each page: the last round in which it was told and copied for good, and the last round in which it
    /// was told.
    told: Vec<u64>,
    seen: Vec<u64>,
    /// The round in the world, and the round in its life.
    number: u64,
    round: u64,
    /// Whether this round must start the log in its middle, and whether it did.
    pending: bool,
    began_amid: bool,
    held: Option<Harvest<'w, F, HostView>>,
    tally: Tally,
}

impl<'w, F: Format> Collector<'w, F> {
    pub fn new(world: &'w World<F>) -> Self {
        Self {
            world,
            random: Random::new(world.setting.seed ^ 0xc0_11ec_70f0),
            shadow: vec![NOTHING; (PAGES * PAGE_SIZE) as usize],
            told: vec![0; PAGES as usize],
            seen: vec![0; PAGES as usize],
            number: 0,
            round: 0,
            pending: false,
            began_amid: false,
            held: None,
            tally: Tally::default(),
        }
    }

    /// Called while all stand still.
    pub fn before_round(&mut self, idle: &mut Idle, life: u64, round: u64) {
        self.number += 1;
        self.round = round;
        self.began_amid = false;
        if round == 0 {
            self.shadow.fill(NOTHING);
            self.world.renew_memory(idle);
            self.pending = !life.is_multiple_of(2);
            if !self.pending {
                self.begin_log(idle);
            }
        }
        self.world.record.begin_round(self.number, !self.pending);
    }

    /// Called while all run.
    pub fn round(&mut self, idle: &mut Idle) {
        let world = self.world;
        if std::mem::take(&mut self.pending) {
            world.let_guests_run(100 + self.random.below(900));
            self.begin_log(idle);
            world.record.log_is_on();
            self.began_amid = true;
        }
        while world.at_work.load(SeqCst) > 0 && !world.is_over() {
            let pages = self.take(idle, false);
            if pages == 0 && world.setting.around != Around::Everything {
                thread::yield_now();
                continue;
            }
            world.had_a_turn(Other::Collector);
            if world.setting.way != Way::Ring {
                world.let_guests_run(self.random.below(100));
            } else if self.random.one_in(2) {
                // Let the ring fill: the guests stop, and wait for the next harvest.
                let rests = self.random.below(200);
                (0..rests).for_each(|_| thread::yield_now());
            }
        }
    }

    /// Called while all stand still.
    pub fn after_round(&mut self, idle: &mut Idle) {
        drop(self.held.take());
        self.take(idle, true);
        self.check_nothing_is_left(idle);
        self.judge_pages();
        self.judge_bytes(idle);
        if self.round == ROUNDS - 1 {
            self.world.vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, false)).unwrap();
        }
    }

    pub fn tally(self) -> Tally {
        let stats = self.world.vm.stats();
        Tally {
            stores: self.world.steps.load(SeqCst),
            ring_full: self.world.ring_full.load(SeqCst),
            faults: stats.mapped_faults + stats.permission_faults,
            flushes: stats.flushes.paid,
            splits: stats.splits[0],
            slot_changes: self.world.vm.memory().generation().number(),
            ..self.tally
        }
    }

    /// Starts the log. Copies what was stored before, where a new log does not tell every page.
    fn begin_log(&mut self, idle: &mut Idle) {
        self.world.vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, true)).unwrap();
        if !self.world.setting.initially_set {
            (0..PAGES).for_each(|page| self.copy(idle, page));
        }
    }

    /// Takes a part of the log, or all of it where this is the `last` time. Returns the number of told pages.
    fn take(&mut self, idle: &mut Idle, last: bool) -> u64 {
        self.tally.harvests += 1;
        let slots = self.world.vm.memory();
        let harvest = match self.world.setting.way {
            Way::Manual => return self.get_and_clear(idle, last),
            Way::Harvest => slots.harvest(idle, SLOT),
            Way::Ring if !last && self.random.one_in(2) => {
                self.world.vm.harvest_ring(idle, VcpuId(self.random.below(VCPUS) as u32))
            }
            Way::HarvestAll | Way::Ring => slots.harvest_all(idle),
        };
        match harvest {
            Ok(harvest) => {
                let pages = harvest.pages();
                self.end_harvest(idle, harvest, last);
                pages
            }
            Err(error) => {
                self.world.wrong(|| format!("{error}"));
                0
            }
        }
    }

    fn end_harvest(&mut self, idle: &mut Idle, harvest: Harvest<'w, F, HostView>, last: bool) {
        let pages = self.pages_of(&harvest);
        if last {
            self.copy_all(idle, &pages);
            return harvest.commit();
        }
        match self.random.below(8) {
            0 => self.tally.given_back += harvest.pages(),
            1 => {
                // The copy fails half-way.
                self.copy_without_noting(idle, &pages[..pages.len() / 2]);
                self.tally.given_back += harvest.pages();
                harvest.give_back();
            }
            2 => {
                self.tally.given_back += harvest.pages();
                self.held = Some(harvest);
            }
            3 if self.world.setting.mistake == Mistake::CommitsTooEarly => harvest.commit(),
            _ => {
                self.copy_all(idle, &pages);
                harvest.commit();
            }
        }
    }

    /// The pages of the slot in `harvest`. Checks that the harvest agrees with itself.
    fn pages_of(&mut self, harvest: &Harvest<'_, F, HostView>) -> Vec<u64> {
        let by_page: Vec<_> = harvest.iter().map(|page| (page.slot, page.page, page.gfn, page.hva)).collect();
        let by_word: Vec<_> = harvest
            .words()
            .flat_map(|word| {
                let bits = (0..64).filter(move |bit| word.bits >> bit & 1 != 0);
                let DirtyPage { slot, page, gfn, hva, .. } = word.first;
                bits.map(move |bit| (slot, page + bit, gfn + bit, hva + bit * PAGE_SIZE))
            })
            .collect();
        let mut pages = Vec::new();
        for &(slot, page, gfn, hva) in by_page.iter().filter(|(slot, ..)| *slot == SLOT) {
            let base = gfn.0.wrapping_sub(page);
            if page >= PAGES || hva != HVA + page * PAGE_SIZE || !PLACES.contains(&Gfn(base)) {
                self.world.wrong(|| format!("told of page {page} of {slot:?} at {gfn:?}, {hva:?}"));
                continue;
            }
            self.seen[page as usize] = self.number;
            pages.push(page);
        }
        let count = harvest.pages();
        if by_page != by_word || by_page.len() as u64 != count || harvest.is_empty() != (count == 0) {
            self.world.wrong(|| format!("{count} pages, and {by_page:?}, and by words {by_word:?}"));
        }
        let mut each = pages.clone();
        each.sort_unstable();
        each.dedup();
        if each.len() != pages.len() {
            self.world.wrong(|| format!("pages told twice in one harvest: {pages:?}"));
        }
        pages
    }

    /// `GET`, and `CLEAR` of a part. Returns the number of cleared pages.
    fn get_and_clear(&mut self, idle: &mut Idle, last: bool) -> u64 {
        let world = self.world;
        let slots = world.vm.memory();
        let mut bits = [0; WORDS_OF_LOG];
        let set = slots.dirty_bits(idle, SLOT, &mut bits).unwrap();
        let counted: u64 = bits.iter().map(|word| u64::from(word.count_ones())).sum();
        if set != counted {
            world.wrong(|| format!("{set} pages are dirty, and {counted} bits are set"));
        }
        self.see(0, &bits);
        let all = WORDS_OF_LOG as u64;
        let in_use = world.setting.pages_in_use().div_ceil(64);
        let first = if last { 0 } else { self.random.below(in_use) };
        let words = if last { all } else { 1 + self.random.below(all - first) };
        let pages = (words * 64).min(PAGES - first * 64);
        let mut asked = bits[first as usize..(first + words) as usize].to_vec();
        let only_known = last || self.random.one_in(2);
        if !last && self.random.one_in(2) {
            for word in &mut asked {
                *word &= self.random.0.u64(..);
            }
        }
        let known: u64 = asked.iter().map(|word| u64::from(word.count_ones())).sum();
        if !only_known {
            // Also pages that were not told as dirty. Some are dirty by now.
            for word in &mut asked {
                *word |= self.random.0.u64(..) & self.random.0.u64(..);
            }
        }
        let told: Vec<_> = (first * 64..first * 64 + pages)
            .filter(|page| asked[(page / 64 - first) as usize] >> (page % 64) & 1 != 0)
            .collect();
        if world.setting.mistake == Mistake::CopiesFirst {
            self.copy_all(idle, &told);
            // Time for a store that the copy misses.
            world.let_guests_run(20);
        }
        let cleared = slots.clear_dirty(idle, SLOT, first * 64, pages, &asked).unwrap();
        if cleared < known || only_known && cleared != known {
            world.wrong(|| format!("{known} pages were dirty, {cleared} of them were cleared"));
        }
        if world.setting.mistake != Mistake::CopiesFirst {
            self.copy_all(idle, &told);
        }
        self.tally.given_back += set - known;
        cleared
    }

    /// Notes that the bits of `words`, from page `first` on, were told.
    fn see(&mut self, first: u64, words: &[u64]) {
        for (base, word) in (first..).step_by(64).zip(words) {
            for page in (0..64).filter(|bit| word >> bit & 1 != 0).map(|bit| base + bit) {
                match self.seen.get_mut(page as usize) {
                    Some(seen) => *seen = self.number,
                    None => self.world.wrong(|| format!("told of page {page} of {PAGES}")),
                }
            }
        }
    }

    /// While all threads stand still, the last harvest must have taken everything.
    fn check_nothing_is_left(&mut self, idle: &mut Idle) {
        let slots = self.world.vm.memory();
        let left = match self.world.setting.way {
            Way::Manual => slots.dirty_bits(idle, SLOT, &mut [0; WORDS_OF_LOG]),
            Way::Harvest => slots.harvest(idle, SLOT).map(|harvest| harvest.pages()),
            Way::HarvestAll | Way::Ring => slots.harvest_all(idle).map(|harvest| harvest.pages()),
        };
        if left != Ok(0) {
            self.world.wrong(|| format!("after the last harvest, with all at a standstill: {left:?}"));
        }
    }

    fn copy_all(&mut self, idle: &mut Idle, pages: &[u64]) {
        self.copy_without_noting(idle, pages);
        for &page in pages {
            self.told[page as usize] = self.number;
        }
    }

    /// Copies pages that will be told again.
    fn copy_without_noting(&mut self, idle: &mut Idle, pages: &[u64]) {
        for &page in pages {
            self.copy(idle, page);
        }
    }

    fn copy(&mut self, idle: &mut Idle, page: u64) {
        let at = (page * PAGE_SIZE) as usize;
        let copy = &mut self.shadow[at..at + PAGE_SIZE as usize];
        self.world.space.read(idle, HVA + page * PAGE_SIZE, copy).unwrap();
    }

    /// Each page that was stored to was told. Any other page was told only where the rules of the log allow it.
    fn judge_pages(&mut self) {
        let record = &self.world.record;
        for page in 0..PAGES {
            let told = self.told[page as usize] == self.number;
            self.tally.told += u64::from(told);
            if record.is_certain(page) {
                self.tally.certain += 1;
                if !told {
                    self.world.wrong(|| format!("page {page} was stored to, and not told"));
                }
            } else if self.seen[page as usize] == self.number && !record.is_possible(page) {
                if self.round == 0 && self.world.setting.initially_set {
                    self.tally.initial += 1;
                } else if self.may_stem_from_before(page) {
                    self.tally.of_before += 1;
                } else {
                    self.world.wrong(|| format!("page {page} was told, and no thread stored to it"));
                }
            }
        }
    }

    /// Whether `page` may be told though no thread stored to it since. The log must have begun while other
    /// threads worked. Just then, a fault may have made all of a large page writable. Or a dirty leaf from
    /// before was zapped after the log began and before it was armed: such a leaf cannot be told from a store.
    fn may_stem_from_before(&self, page: u64) -> bool {
        let (small, by_bits) =
            (self.world.setting.sizes == Sizes::Small, self.world.setting.track == Track::DirtyBits);
        let first = if small { page } else { page & !(Level::M2.pages() - 1) };
        let end = if small { page + 1 } else { PAGES.min(first + Level::M2.pages()) };
        self.began_amid && (by_bits || !small) && (first..end).any(|page| self.world.record.was_ever(page))
    }

    /// Memory and the shadow must hold what was stored.
    fn judge_bytes(&mut self, idle: &mut Idle) {
        let mut memory = [0; PAGE_SIZE as usize];
        let mut stored = [0; PAGE_SIZE as usize];
        for page in 0..PAGES {
            self.world.stored(page, &mut stored);
            self.world.space.read(idle, HVA + page * PAGE_SIZE, &mut memory).unwrap();
            let shadow = &self.shadow[(page * PAGE_SIZE) as usize..][..PAGE_SIZE as usize];
            for (what, bytes) in [("memory", &memory[..]), ("the shadow", shadow)] {
                // Compares slices first: this is quick even in an unoptimized build.
                if bytes != stored {
                    let at = bytes.iter().zip(&stored).position(|(found, stored)| found != stored).unwrap();
                    let number = self.number;
                    self.world.wrong(|| {
                        format!(
                            "round {number}: {what} is not what was stored: page {page}, byte {at}: {:#x} for {:#x}",
                            bytes[at], stored[at]
                        )
                    });
                    return;
                }
            }
        }
    }
}
