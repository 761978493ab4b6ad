//! Table pages that a VM frees and makes again where all of its memory is invalidated, by the reason that the host gives.

use crate::parts::mm_vm::machine;
use crate::scenarios::threads_prelude::*;
use slat::{Event, SecondaryMmu};

/// Rows of a reason each.
pub const FREED: &str = "table pages freed and made again";

/// Of VMs of so many pages, where reasons are ignored and where they are heeded; with what holds by construction.
pub fn compare(arena: &Arc<Arena>, pages: u64) -> Result<(Vec<Row>, [Check; 3]), Error> {
    let (mut rows, mut right) = (Vec::new(), [[0; 2]; 3]);
    for why in Reason::ALL.into_iter().filter(|&why| why != Reason::Slot) {
        let counted = |heeds| freed_and_made(arena, pages, why, heeds);
        let both @ [[ignored, _], [heeded, _]] = [counted(false)?, counted(true)?];
        let holds = [
            both.iter().all(|[freed, made]| freed == made),
            ignored > 0,
            heeded == if why.frees_tables() { ignored } else { 0 },
        ];
        for (count, holds) in right.iter_mut().zip(holds) {
            *count = [count[0] + u64::from(holds), count[1] + 1];
        }
        let [ignored, heeded] =
            [ignored, heeded].map(|freed| Series::new(vec![(freed * PAGE_SIZE / 1024) as f64]));
        let row = Row::compare(FREED, params! { "reason": why.name() }, "KiB", &ignored, &heeded);
        rows.push(row.answering(PatchSeries::ChangePte));
    }
    let [again, ignored, heeded] = right;
    let checks = [
        Check::all("table pages that a reason frees are made again", again),
        Check::all("reasons ignored: each of them frees table pages", ignored),
        Check::all("reasons heeded: as many are freed where the mapping goes, else none", heeded),
    ];
    Ok((rows, checks))
}

/// The table pages of one VM that heeds reasons, or does not.
fn freed_and_made(arena: &Arc<Arena>, pages: u64, why: Reason, heeds: bool) -> Result<[u64; 2], Error> {
    let (space, memory) = (AddressSpace::builder(arena).build()?, Span::sized(BASE, pages * PAGE_SIZE));
    let vm = machine::<Ept4>(&space, memory.len(), Backing::Anonymous, |vm| {
        vm.baseline(Baseline::NONE.contexts(heeds))
    });
    let (vm, idle) = (vm.map_err(Error::Machine)?, &mut idle()?);
    let mut vcpu = vm.vcpu(VcpuId(0)).expect("no other thread runs it");
    let mut fill = |idle: &mut _| {
        for gfn in (0..pages).map(Gfn) {
            let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write });
            let _ = done.map_err(|error| Error::Machine(error.to_string()))?;
        }
        Ok::<u64, Error>(vm.table_pages(idle).reachable)
    };
    let full = fill(idle)?;
    let told = vm.around(idle, Event::new(memory, why), &mut |idle, told| {
        // A reason page by page has edited nothing before this, any other one all.
        told.changed(idle, memory, None);
    });
    debug_assert!(told.is_ok(), "it may block");
    let left = vm.table_pages(idle).reachable;
    Ok([full - left, fill(idle)? - left])
}
