//! L2 during everything else: each vCPU now and then runs a guest of its guest. Its hypervisor's table, T, is in L1's
//! memory, and changes at random.
//!
//! T's pages are the first pages of the host, seen through the slot that stays. Any thread stores to T; it records each
//! entry before the store. A vCPU flushes alone, or with all others. What it uses must be what T has mapped since its
//! last flush, on the host's present pages.

use crate::caches::{Caches, Translation};
use crate::host::{Primary, hva, page_of, some_page};
use crate::progress::Share;
use crate::random::Random;
use crate::slot_places::{ALIASES, alias};
use crate::vm_under_test::{World, Wrong, count};
use crate::walker::{Missing, walk};
use slat::nested::{EptFeatures, EptTable, L1Access, L2Next};
use slat::table::Word;
use slat::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// T's pages: a root, two upper tables, two leaf tables.
const TABLES: u64 = 5;
/// Frames of L2, across the border of two leaf tables.
const G2S: u64 = 48;
/// Maximum numbers of uses in one stay, and of steps that a kicked vCPU makes before it answers.
const STAY: u64 = 300;
const LATEST: u64 = 40;
const STORES: u64 = 2;

/// T's value for a frame of L2, and its time.
type Told = Vec<(u64, u64)>;

/// T and its history. See the module's header.
pub struct L1 {
    words: Vec<AtomicU64>,
    clock: AtomicU64,
    told: Vec<Mutex<Told>>,
    /// By vCPU: the time of its last flush.
    flushed: Vec<AtomicU64>,
}

fn g2_of(number: u64) -> Gfn {
    Gfn(500 + number)
}

/// Returns the place of a frame's entry among T's words.
fn place_of(g2: Gfn) -> usize {
    ((3 + g2.0 / 512) * 512 + g2.0 % 512) as usize
}

fn ept() -> EptTable {
    EptTable::new(alias().gfns.start.gpa().0 | 3 << 3 | 6, EptFeatures::of(46)).expect("a good pointer")
}

/// Returns an entry for a page of the host.
fn entry(page: u64, stores: bool) -> u64 {
    (alias().gfns.start + page).gpa().0 | 6 << 3 | 5 | if stores { STORES } else { 0 }
}

impl L1 {
    pub fn new(vcpus: usize) -> Self {
        let words: Vec<_> = (0..TABLES * 512).map(|_| AtomicU64::new(0)).collect();
        let link = |page: u64| (alias().gfns.start + page).gpa().0 | 7;
        for (page, at, to) in [(0, 0, 1), (1, 0, 2), (2, 0, 3), (2, 1, 4)] {
            words[page * 512 + at].store(link(to), SeqCst);
        }
        Self {
            words,
            clock: AtomicU64::new(0),
            told: (0..1024).map(|_| Mutex::default()).collect(),
            flushed: (0..vcpus).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns a word of a page of T, if it is present.
    pub fn read(&self, hva: Hva) -> Option<Word> {
        let at = (page_of(hva) * 512 + hva.offset() / 8) as usize;
        self.words.get(at).map(|word| Word(word.load(SeqCst)))
    }

    /// Replaces a word of a page of T, as the engine does to set Accessed and Dirty.
    pub fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let word = self.words.get((page_of(hva) * 512 + hva.offset() / 8) as usize)?;
        Some(word.compare_exchange(current.0, new.0, SeqCst, SeqCst).map(Word).map_err(Word))
    }

    /// Changes T's value for a frame.
    fn store(&self, g2: Gfn, word: u64) {
        let mut told = self.told[g2.0 as usize].lock().unwrap();
        let oldest = self.flushed.iter().map(|flushed| flushed.load(SeqCst)).min().unwrap_or(0);
        // No vCPU uses earlier values, except the last one.
        let first = told.partition_point(|&(at, _)| at <= oldest).saturating_sub(1);
        told.drain(..first);
        told.push((self.clock.fetch_add(1, SeqCst) + 1, word));
        self.words[place_of(g2)].store(word, SeqCst);
    }

    /// Returns the present time: values recorded before are in T.
    fn now(&self) -> u64 {
        let _all: Vec<_> = (0..G2S).map(|number| drop(self.told[g2_of(number).0 as usize].lock())).collect();
        self.clock.load(SeqCst)
    }

    fn flushes(&self, vcpu: usize, at: u64) {
        self.flushed[vcpu].fetch_max(at, SeqCst);
    }

    fn since(&self, g2: Gfn, since: u64) -> Vec<u64> {
        let told = self.told[g2.0 as usize].lock().unwrap();
        let first = told.partition_point(|&(at, _)| at <= since).saturating_sub(1);
        told[first..].iter().map(|&(_, word)| word).collect()
    }
}

/// L1 changes an entry of T, or flushes on all vCPUs.
pub fn edit<F: Format>(world: &World<F>, idle: &mut Idle, random: &mut Random) {
    let (l1, g2) = (world.vm.host().l1(), g2_of(random.below(G2S)));
    match random.below(8) {
        0 => l1.store(g2, 0),
        1 => l1.store(g2, entry(some_page(random), false)),
        2..6 => l1.store(g2, entry(some_page(random), true)),
        _ => {
            let now = l1.now();
            let g2s = Span::sized(Gfn(0), 1024);
            world.vm.l1_broadcasts(idle, ALIASES, g2s, |_: &EptTable| true);
            (0..l1.flushed.len()).for_each(|vcpu| l1.flushes(vcpu, now));
        }
    }
}

/// A vCPU, which is in the space that stays, runs L2.
pub fn stay<F: Format>(
    (world, share): (&World<F>, &mut Share<'_>),
    vcpu: &mut Vcpu<'_, F, Primary>,
    idle: &mut Idle,
    caches: &mut Both,
    random: &mut Random,
) {
    let (l1, id) = (world.vm.host().l1(), vcpu.id().0 as usize);
    if random.one_in(4) {
        let now = l1.now();
        vcpu.l1_flushes(|_: &EptTable| true);
        l1.flushes(id, now);
    }
    share.about_to("enter L2");
    let Ok(mut l2) = vcpu.nested(idle, ept()) else { return count(&world.counts.no_memory) };
    let mut uses = 0;
    while uses < STAY {
        share.about_to("run in L2");
        let mut guest = l2.enter(idle, caches).poll();
        let mut late = random.below(LATEST);
        let fault = loop {
            if guest.kicked() {
                if late == 0 {
                    guest.answer(caches);
                    late = random.below(LATEST);
                } else {
                    late -= 1;
                }
            }
            uses += 1;
            if uses >= STAY {
                break None;
            }
            let gfn = g2_of(random.below(G2S));
            let access = random.pick(&[Access::Read, Access::Write, Access::Fetch]);
            let found = match caches.l2.find(gfn, access) {
                Some(found) => found,
                None => match walk::<F>(world.vm.host(), guest.root(), &mut caches.l2, (gfn, access)) {
                    Ok(found) => {
                        caches.l2.insert(found);
                        found
                    }
                    Err(Missing::Fault) => break Some(L1Access::new(gfn.gpa(), access)),
                    Err(Missing::Stray) => {
                        world.wrong(Wrong::StrayLink, || format!("on the way to {gfn:?} of L2"));
                        break None;
                    }
                },
            };
            judge(world, id, (gfn, access), &found);
        };
        drop(guest);
        count(&world.counts.uses_of_l2);
        let Some(access) = fault else { return };
        share.about_to("fault in L2");
        match l2.fault(idle, access) {
            Ok(L2Next::ForL1(_)) => {
                // L1 maps another page, without a flush.
                l1.store(access.gpa.gfn(), entry(some_page(random), true));
            }
            Ok(L2Next::Handled { next: Next::Emulate(Emulate::NoMemory), gpa }) => {
                world.wrong(Wrong::Mmio, || format!("{gpa} of L1, for L2"));
                return;
            }
            Ok(_) => {}
            Err(FaultError::NoMemory) => {
                count(&world.counts.no_memory);
                std::thread::yield_now();
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Judges a use of `found` by vCPU `id`, which has not answered since it looked it up.
fn judge<F: Format>(world: &World<F>, id: usize, (gfn, access): (Gfn, Access), found: &Translation) {
    let (host, frame) = (world.vm.host(), found.frame(gfn));
    let (l1, store) = (host.l1(), access == Access::Write);
    let allowed = l1.since(gfn, l1.flushed[id].load(SeqCst));
    let is_it = |&&word: &&u64| {
        let page = (word >> 12).wrapping_sub(alias().gfns.start.0);
        let now = if word == 0 { None } else { host.now(hva(page)) };
        now.is_some_and(|now| now.pfn == frame && (!store || now.writable && word & STORES != 0))
    };
    if allowed.iter().find(is_it).is_none() {
        world.wrong(Wrong::StaleUse, || {
            format!("vCPU {id}, {access:?} of {gfn:?} in L2 by {found:?}; T has said {allowed:x?}")
        });
    }
}

/// A vCPU's caches, of L1 and of L2.
pub struct Both {
    pub l1: Caches,
    l2: Caches,
}

impl Both {
    pub fn new() -> Self {
        Self { l1: Caches::new(), l2: Caches::new() }
    }
}

impl Translations for Both {
    fn flush_all(&mut self) {
        self.l1.flush_all();
        self.l2.flush_all();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.l1.flush(gfns);
    }

    fn flush_nested(&mut self) {
        self.l2.flush_all();
    }
}
