//! Random edits of L1's tables, as hypervisors make them: each with exactly the flush that the architecture's
//! manual requires.
//!
//! | edit | models |
//! |---|---|
//! | protect | a log of writes, a snapshot: no store until L1 allows it |
//! | clean, age | a log by D bits, aging by A bits |
//! | move, replace | compaction: by unmapping first, or in place |
//! | swap out | reclaim |
//! | relocate | moving a table page to another frame |
//! | new root | another table for the same guest |
//! | split | replacing 2 MiB by 512 pages |
//! | flush | an unneeded flush |

use super::code::{L1Code, Platform};
use super::counts::one;
use super::hypervisor::L1;
use super::l1_memory::{Memory, Page, Watch, first_of};
use super::tables::{L1Tables, Nest};
use super::vcpus::Scope;
use fastrand::Rng;
use slat::nested::L1Format;
use slat::{Gfn, Host, Level, PAGE_SIZE, Span};

/// A flush that covers `g2`, of a random kind.
fn scope(random: &mut Rng, g2: u64) -> Scope {
    match random.u8(..8) {
        0..4 => Scope::Frames(Span::sized(Gfn(g2), 1)),
        4..6 => Scope::Table,
        6 => Scope::Root,
        _ => Scope::All,
    }
}

impl<F: Nest> L1<F> {
    /// Makes one random edit.
    pub(super) fn edit<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        random: &mut Rng,
    ) -> Result<(), P::Error> {
        if memory.order.is_empty() {
            return Ok(());
        }
        let g2 = memory.order[random.usize(..memory.order.len())];
        let choice = random.u8(..32);
        if choice == 0 {
            let scope = scope(random, g2);
            self.flush(code, memory, scope);
            return Ok(());
        }
        if choice == 1 {
            return self.new_root(code, memory);
        }
        if self.split(code, memory, random, g2)? {
            return Ok(());
        }
        if choice < 4 {
            return self.relocate(code, memory, random, g2);
        }
        let Some((gfn, _)) = memory.own(g2) else { return Ok(()) };
        self.check(code, memory, g2)?;
        let by = scope(random, g2);
        match choice {
            4..10 => self.protect(code, memory, (g2, gfn), by),
            10..16 => self.clean(code, memory, (g2, gfn), by),
            16..18 => self.age(code, memory, g2, by),
            18..24 => self.move_page(code, memory, (g2, gfn), by),
            24..28 => self.replace(code, memory, (g2, gfn), by),
            _ => self.swap_out(code, memory, (g2, gfn), by),
        }
    }

    /// Checks that a page has the contents that L1 expects.
    pub(super) fn check<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        g2: u64,
    ) -> Result<(), P::Error> {
        let Some((gfn, watch)) = memory.own(g2) else { return Ok(()) };
        let (sum, counter) = match watch {
            Watch::Open => return Ok(()),
            Watch::Protected(sum) => (sum, &self.counts.stored_protected),
            Watch::Clean(sum) => (sum, &self.counts.stored_clean),
        };
        let now = code.sum(gfn)?;
        // Read after the page: a store sets the bit first.
        let is_dirty = match (watch, memory.entry(g2, Level::K4)) {
            (Watch::Clean(_), Some(at)) => code.load(at)? & memory.table.touched().1 != 0,
            _ => false,
        };
        if is_dirty {
            memory.watch(g2, Watch::Open);
        } else if now != sum {
            one(counter);
            memory.watch(g2, Watch::Open);
        }
        one(&self.counts.checked);
        Ok(())
    }

    fn protect<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        (g2, gfn): (u64, Gfn),
        by: Scope,
    ) -> Result<(), P::Error> {
        let (at, table) = (memory.entry_for(code, g2, Level::K4)?, memory.table);
        code.change(at, |leaf| table.protected(leaf))?;
        self.flush(code, memory, by);
        let sum = code.sum(gfn)?;
        memory.watch(g2, Watch::Protected(sum));
        one(&self.counts.protected);
        Ok(())
    }

    fn clean<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        (g2, gfn): (u64, Gfn),
        by: Scope,
    ) -> Result<(), P::Error> {
        let (_, dirty) = memory.table.touched();
        if dirty == 0 || matches!(memory.own(g2), Some((_, Watch::Protected(_)))) {
            return Ok(());
        }
        let at = memory.entry_for(code, g2, Level::K4)?;
        code.change(at, |leaf| leaf & !dirty)?;
        self.flush(code, memory, by);
        let sum = code.sum(gfn)?;
        memory.watch(g2, Watch::Clean(sum));
        // A store before the checksum has set the bit by now.
        if code.load(at)? & dirty != 0 {
            memory.watch(g2, Watch::Open);
        }
        one(&self.counts.cleaned);
        Ok(())
    }

    fn age<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        g2: u64,
        by: Scope,
    ) -> Result<(), P::Error> {
        let (accessed, _) = memory.table.touched();
        if accessed != 0 {
            let at = memory.entry_for(code, g2, Level::K4)?;
            code.change(at, |leaf| leaf & !accessed)?;
            self.flush(code, memory, by);
            one(&self.counts.aged);
        }
        Ok(())
    }

    /// Unmaps the page, and flushes it from all vCPUs.
    fn unmap<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        g2: u64,
        by: Scope,
    ) -> Result<(), P::Error> {
        let at = memory.entry_for(code, g2, Level::K4)?;
        code.change(at, |_| 0)?;
        self.flush(code, memory, by);
        Ok(())
    }

    fn move_page<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        (g2, gfn): (u64, Gfn),
        by: Scope,
    ) -> Result<(), P::Error> {
        self.unmap(code, memory, g2, by)?;
        let to = memory.frame(code)?;
        code.copy(gfn, to)?;
        memory.free(code, gfn)?;
        memory.map(code, g2, (to, true))?;
        memory.set(g2, Page::Own(to, Watch::Open));
        one(&self.counts.moved);
        Ok(())
    }

    /// Moves a page without unmapping it first, if the architecture allows that.
    fn replace<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        (g2, gfn): (u64, Gfn),
        by: Scope,
    ) -> Result<(), P::Error> {
        if F::Table::BROADCASTS {
            return self.move_page(code, memory, (g2, gfn), by);
        }
        self.protect(code, memory, (g2, gfn), by)?;
        let to = memory.frame(code)?;
        code.copy(gfn, to)?;
        let (at, leaf) = (memory.entry_for(code, g2, Level::K4)?, memory.table.leaf(to, Level::K4, true));
        code.change(at, |_| leaf)?;
        self.flush(code, memory, by);
        self.check(code, memory, g2)?;
        memory.free(code, gfn)?;
        memory.set(g2, Page::Own(to, Watch::Open));
        one(&self.counts.moved);
        Ok(())
    }

    fn swap_out<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        (g2, gfn): (u64, Gfn),
        by: Scope,
    ) -> Result<(), P::Error> {
        self.unmap(code, memory, g2, by)?;
        let mut page = Box::new([0; PAGE_SIZE as usize]);
        page.copy_from_slice(code.page(gfn)?);
        memory.free(code, gfn)?;
        memory.set(g2, Page::Out(page));
        one(&self.counts.swapped);
        Ok(())
    }

    /// Moves a table below the root to another frame.
    fn relocate<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        random: &mut Rng,
        g2: u64,
    ) -> Result<(), P::Error> {
        let level = if random.u8(..4) == 0 { Level::M2 } else { Level::K4 };
        let key = (level, first_of(g2, level));
        let (Some(&table), Some(above)) = (memory.tables.get(&key), memory.entry(g2, level.up())) else {
            return Ok(());
        };
        code.change(above, |_| 0)?;
        let covered = Scope::Frames(Span::sized(Gfn(key.1), level.up().pages()));
        let by = [covered, Scope::Table, Scope::All][random.usize(..3)];
        self.flush(code, memory, by);
        // From here on hardware sets no bits in the table.
        let to = memory.frame(code)?;
        code.copy(table, to)?;
        memory.free(code, table)?;
        memory.tables.insert(key, to);
        let link = memory.table.link(to, level.up());
        code.change(above, |_| link)?;
        one(&self.counts.relocated);
        Ok(())
    }

    /// Replaces the root, and makes every vCPU leave the old one. A bits set meanwhile are lost, which L1
    /// tolerates.
    fn new_root<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
    ) -> Result<(), P::Error> {
        let (old, pages) = (memory.table.root().0.gfn(), F::ROOT_PAGES as u64);
        let root = memory.fresh(code, pages)?;
        for page in 0..pages {
            code.copy(old + page, root + page)?;
        }
        memory.table = F::l1_table(root);
        self.enter_on(memory.table);
        self.vcpus.send_out();
        // The frames are reused, possibly as another root.
        self.flush(code, memory, Scope::All);
        for page in 0..pages {
            memory.free(code, old + page)?;
        }
        one(&self.counts.relocated);
        Ok(())
    }

    /// Splits the leaf of 2 MiB around `g2`, if there is one.
    fn split<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        random: &mut Rng,
        g2: u64,
    ) -> Result<bool, P::Error> {
        let first = Gfn(g2).base(Level::M2).0;
        if !memory.large.remove(&first) {
            return Ok(false);
        }
        let at = memory.entry_for(code, first, Level::M2)?;
        let (large, _) = code.change(at, |_| 0)?;
        let all = Scope::Frames(Span::sized(Gfn(first), Level::M2.pages()));
        let by = [all, Scope::Table, Scope::All][random.usize(..3)];
        self.flush(code, memory, by);
        let (accessed, dirty) = memory.table.touched();
        let mut words = Box::new([0_u8; PAGE_SIZE as usize]);
        for (page, word) in (first..).zip(words.chunks_exact_mut(8)) {
            let Some((gfn, _)) = memory.own(page) else { continue };
            let leaf = memory.table.leaf(gfn, Level::K4, true) | large & (accessed | dirty);
            word.copy_from_slice(&leaf.to_le_bytes());
        }
        let table = memory.frame(code)?;
        code.write(table, &words)?;
        memory.tables.insert((Level::K4, first), table);
        let link = memory.table.link(table, Level::M2);
        code.change(at, |_| link)?;
        one(&self.counts.split);
        Ok(true)
    }
}
