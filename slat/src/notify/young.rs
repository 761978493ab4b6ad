//! Which pages of a host range a VM has accessed: its leaves' Accessed bits, or, where the format has none, leaves that
//! are withdrawn so that the next access faults.
//!
//! Aging takes nothing away, so it is no invalidation: nobody waits, and a leaf that changes while it is looked at is
//! left to whoever changes it. Young may be said of a page that is not, and the other way round; Dirty is kept.

use super::along::along;
use super::secondary::Young;
use crate::addr::{Hva, Span};
use crate::host::Host;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::table::entry::Word;
use crate::table::format::Format;
use crate::table::walk::Walk;
use crate::tlb::FlushDebt;
use crate::tlb::debt::Owed;
use crate::vm::Vm;

/// Whether any page of `hvas` has been accessed; and whatever else `young` asks for.
pub(super) fn young<F: Format, H: Host>(
    vm: &Vm<F, H>,
    idle: &mut Idle,
    hvas: Span<Hva>,
    young: Young,
) -> bool {
    let mut found = false;
    for space in &vm.spaces {
        let mut owed = Owed::default();
        let mut walk = Walk::<F, H, Shared>::on_any_seat(vm, space, idle);
        along(&mut walk, hvas, |mut steps, _| {
            while let Some((_, step)) = steps.next() {
                let word = step.at.word;
                let is_leaf = F::is_present(word) && !F::is_table(word, step.at.level);
                if !is_leaf || !F::read_leaf(word).accessed {
                    continue;
                }
                found = true;
                if young == Young::Test {
                    return None;
                }
                if step.at.entry.cas(word, aged::<F>(word)).is_ok() && young == Young::ClearAndFlush {
                    owed.owe(step.gfns);
                }
            }
            Some(steps.goal())
        });
        FlushDebt::new(vm, owed, None).settle();
        if found && young == Young::Test {
            break;
        }
    }
    found
}

/// The leaf as it is when nobody has accessed it.
fn aged<F: Format>(word: Word) -> Word {
    if F::HARDWARE_AD { Word(word.0 & !F::ACCESSED) } else { Word::tracked(&F::read_leaf(word)) }
}
