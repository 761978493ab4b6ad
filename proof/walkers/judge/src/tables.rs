//! The raw words of the tables: the path to a frame, and a copy of all words for comparison.

use crate::machine_trait::Bits;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ptr::with_exposed_provenance;
use slat::table::{Entry, Word};
use slat::{Format, Gfn, Level, Pfn};

const ENTRIES: usize = 512;

/// Returns the entries of the table in frame `table`.
///
/// # Safety
/// It is a page of tables that are in use: read from a link, or a root, since the engine was last called.
unsafe fn entries<'a>(table: Pfn) -> &'a [Entry; ENTRIES] {
    let page = with_exposed_provenance::<[Entry; ENTRIES]>(table.address() as usize);
    // SAFETY: the caller promises a page of tables in use; table memory is identity mapped; entries are atomics.
    unsafe { &*page }
}

/// An entry on a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) level: Level,
    pub(crate) table: Pfn,
    pub(crate) index: usize,
    pub(crate) word: Word,
}

impl Step {
    /// The entry itself.
    ///
    /// # Safety
    /// The engine has not been called since the step was made.
    pub(crate) unsafe fn entry<'a>(self) -> &'a Entry {
        // SAFETY: the caller promises that the engine has not been called since the step was made, so the table is in
        // use.
        unsafe { &entries(self.table)[self.index] }
    }
}

/// Returns the path of a walk for `gfn`, which the format can translate: from the root to the first entry that is not a
/// link.
///
/// # Safety
/// `root` is the root of tables in use, and the engine is not called meanwhile.
pub(crate) unsafe fn path<F: Format>(root: Pfn, gfn: Gfn) -> Vec<Step> {
    let mut level = F::ROOT_LEVEL;
    let mut table = F::top(root, gfn);
    let mut steps = Vec::with_capacity(usize::from(F::LEVELS));
    loop {
        let index = F::index(gfn, level);
        // SAFETY: the caller promises that the tables are in use.
        let word = unsafe { &entries(table)[index] }.peek();
        steps.push(Step { level, table, index, word });
        if !F::is_table(word, level) {
            return steps;
        }
        (table, level) = (F::pfn(word), level.down());
    }
}

/// Calls `visit` with every table below `root`, and its level.
///
/// # Safety
/// As [`path`].
unsafe fn for_each_table<F: Format>(root: Pfn, mut visit: impl FnMut(Pfn, Level, &[Entry; ENTRIES])) {
    let mut left: Vec<(Pfn, Level)> =
        (0..F::ROOT_PAGES as u64).map(|page| (root + page, F::ROOT_LEVEL)).collect();
    while let Some((table, level)) = left.pop() {
        // SAFETY: the caller promises that the tables are in use.
        let words = unsafe { entries(table) };
        visit(table, level, words);
        let links = words.iter().map(Entry::peek).filter(|word| F::is_table(*word, level));
        left.extend(links.map(|word| (F::pfn(word), level.down())));
    }
}

/// Bits that walkers may set besides the look-ups, by entry.
pub(crate) type Excused = BTreeMap<(u64, usize), u64>;

/// Expected value of every word.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    tables: BTreeMap<u64, Copied>,
    age: u64,
}

#[derive(Debug)]
struct Copied {
    words: Box<[u64; ENTRIES]>,
    level: Level,
    /// Age of the last copy.
    age: u64,
}

impl Shadow {
    /// Copies all tables below `roots`.
    ///
    /// # Safety
    /// As [`path`].
    pub(crate) unsafe fn take<F: Format>(&mut self, roots: &[Pfn]) {
        self.age += 1;
        let age = self.age;
        for &root in roots {
            // SAFETY: the caller promises that the tables are in use.
            unsafe {
                for_each_table::<F>(root, |table, level, entries| {
                    let fresh = || Copied { words: Box::new([0; ENTRIES]), level, age };
                    let copied = self.tables.entry(table.0).or_insert_with(fresh);
                    (copied.level, copied.age) = (level, age);
                    for (word, entry) in copied.words.iter_mut().zip(entries) {
                        *word = entry.peek().0;
                    }
                });
            }
        }
        self.tables.retain(|_, copied| copied.age == age);
    }

    /// Sets the expected word of this step.
    pub(crate) fn expect(&mut self, step: &Step, word: Word) {
        if let Some(copied) = self.tables.get_mut(&step.table.0) {
            copied.words[step.index] = word.0;
        }
    }

    /// Returns every word that differs from the expected one, except excused bits.
    ///
    /// # Safety
    /// The engine has not been called since [`take`](Self::take).
    pub(crate) unsafe fn compare(&self, excused: &Excused) -> Vec<Bits> {
        let mut strays = Vec::new();
        for (&table, copied) in &self.tables {
            // SAFETY: a table then, and the caller promises that the engine has not been called since.
            let entries = unsafe { entries(Pfn(table)) };
            for (index, (entry, &expected)) in entries.iter().zip(copied.words.iter()).enumerate() {
                let found = entry.peek().0;
                let may = if found == expected { 0 } else { *excused.get(&(table, index)).unwrap_or(&0) };
                if found & !may != expected & !may {
                    strays.push(Bits { level: copied.level, expected, found });
                }
            }
        }
        strays
    }
}
