//! L1's handling of an access that its table refuses.

use super::code::{L1Code, Platform};
use super::hypervisor::{FaultResult, L1};
use super::l1_memory::{Memory, Page, Watch};
use super::tables::{L1Tables, Nest};
use super::vcpus::Scope;
use fastrand::Rng;
use slat::nested::{L1Fault, Refusal};
use slat::{Access, Gfn, Gpa, Host, Level, Span};

impl<F: Nest> L1<F> {
    /// Handles an access of L2 that T refuses.
    pub(super) fn deal_with<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        random: &mut Rng,
        fault: &L1Fault,
    ) -> Result<FaultResult, P::Error> {
        self.counts.refused();
        // L1's tables have no reserved bits, and are in memory.
        if !matches!(fault.why, Refusal::NotPresent | Refusal::Rights) {
            return Ok(FaultResult::Wrong);
        }
        let (g2, store) = (fault.access.gpa.gfn().0, fault.access.access == Access::Write);
        match memory.pages.get(&g2) {
            None => self.first_touch(code, memory, random, (g2, store))?,
            Some(Page::Zero) if store => {
                self.unmap_zero(code, memory, g2)?;
                memory.map_own(code, g2)?;
            }
            Some(&Page::Own(gfn, Watch::Protected(_))) if store => {
                self.check(code, memory, g2)?;
                let [with, without] = [true, false].map(|stores| memory.table.leaf(gfn, Level::K4, stores));
                let at = memory.entry_for(code, g2, Level::K4)?;
                code.change(at, |leaf| leaf | with & !without)?;
                memory.watch(g2, Watch::Open);
            }
            Some(Page::Zero | Page::Own(..)) => return Ok(FaultResult::Nothing),
            Some(Page::Out(_)) => {
                let Some(Page::Out(page)) = memory.pages.remove(&g2) else { return Ok(FaultResult::Wrong) };
                let gfn = memory.frame(code)?;
                code.write(gfn, &page)?;
                memory.map(code, g2, (gfn, true))?;
                memory.pages.insert(g2, Page::Own(gfn, Watch::Open));
            }
        }
        Ok(FaultResult::Mapped)
    }

    fn first_touch<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        random: &mut Rng,
        (g2, store): (u64, bool),
    ) -> Result<(), P::Error> {
        if !store && random.bool() {
            let zero = memory.zero(code)?;
            memory.map(code, g2, (zero, false))?;
            memory.set(g2, Page::Zero);
            return Ok(());
        }
        let large = self.settings.large && random.u8(..4) == 0;
        if large && memory.map_large(code, g2)? {
            return Ok(());
        }
        memory.map_own(code, g2)
    }

    /// Unmaps the zero page for a store. If L1's hardware drops the translation of a refused access, no flush is
    /// needed: no other vCPU depends on the frame.
    fn unmap_zero<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &mut Memory<F::Table>,
        g2: u64,
    ) -> Result<(), P::Error> {
        let at: Gpa = memory.entry_for(code, g2, Level::K4)?;
        code.change(at, |_| 0)?;
        if F::Table::BROADCASTS {
            self.flush(code, memory, Scope::Frames(Span::sized(Gfn(g2), 1)));
        }
        Ok(())
    }
}
