//! Changes the guest's memory while the guest runs.

use crate::arguments::{Arguments, Churn};
use anyhow::Result;
use slat::{Hva, Idle, PAGE_SIZE, SlotId, Span};
use slat_kvm::KvmVm;
use std::time::Duration;

/// Pages that are moved, or paged out, at once.
const PIECE: u32 = 64;
/// Pieces between two harvests. After a harvest the next store to each page faults, so the guest needs time between two
/// harvests.
const PIECES_A_HARVEST: usize = 16;

/// Number of pages of each kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Churned {
    pub moved: u64,
    pub dirty: u64,
}

/// Makes the changes that the arguments ask for, piece by piece, until `over` returns true. `over` waits for the given
/// time.
pub fn churn(
    vm: &KvmVm,
    memory: &[(SlotId, Span<Hva>)],
    arguments: &Arguments,
    mut over: impl FnMut(Duration) -> bool,
) -> Result<Churned> {
    let mut idle = Idle::take().expect("a new thread has its token");
    let idle = &mut idle;
    let pieces: Vec<_> = memory.iter().flat_map(|&(_, hvas)| pieces(hvas)).collect();
    let mut churned = Churned::default();
    let pause = Duration::from_secs(1) * PIECE / arguments.rate;
    let mut round = 0;
    while !over(pause) {
        let moved = pieces[round % pieces.len()];
        let out = pieces[(round + pieces.len() / 2) % pieces.len()];
        round += 1;
        if arguments.churns(Churn::Move) {
            churned.moved += vm.space().migrate(idle, moved)?;
        }
        if arguments.churns(Churn::PageOut) {
            vm.space().pageout(idle, out)?;
        }
        if arguments.churns(Churn::LogDirty) && round % PIECES_A_HARVEST == 0 {
            for &(slot, _) in memory {
                let harvest = vm.harvest(idle, slot)?;
                churned.dirty += harvest.pages();
                harvest.commit();
            }
        }
    }
    Ok(churned)
}

fn pieces(hvas: Span<Hva>) -> impl Iterator<Item = Span<Hva>> {
    let bytes = u64::from(PIECE) * PAGE_SIZE;
    let starts = (hvas.start.0..hvas.end.0).step_by(bytes as usize);
    starts.map(move |start| Span::new(Hva(start), Hva((start + bytes).min(hvas.end.0))))
}
