//! Memslots: transactions and look-ups.

use crate::slat_status;
use crate::slat_status::{SLAT_EINVAL, SLAT_ENOENT};
use crate::status::{given, guarded};
use crate::types::frames;
use crate::vm::space_id;
use crate::{slat_slot, slat_slot_op, slat_slot_op_kind, slat_thread, slat_vm};
use core::mem::MaybeUninit;
use slat::slots::{Rule, Transaction};
use slat::{Gpa, Hva, SlotError, SlotId, Span};

impl slat_slot_op_kind {
    const ALL: [Self; 8] = [
        Self::SLAT_SLOT_CREATE,
        Self::SLAT_SLOT_DELETE,
        Self::SLAT_SLOT_MOVE,
        Self::SLAT_SLOT_FLAGS,
        Self::SLAT_SLOT_CUT,
        Self::SLAT_SLOT_CREATE_WITH_PRIVATE,
        Self::SLAT_SLOT_SET_PRIVATE,
        Self::SLAT_SLOT_SET_SHARED,
    ];
}

/// Runs `count` memslot operations in order, in address space `space`, and publishes all of them at once: no vCPU ever
/// sees a part of them. Memory that slots lose is unmapped and flushed before this returns. Any thread; waits for vCPUs
/// in the guest, for readers, and for other transactions. The rules are KVM's.
///
/// Errors, after which nothing has changed, and `failed`, unless it is null, has the number of the refused operation:
/// `SLAT_EINVAL`, `SLAT_EEXIST`, `SLAT_ENOENT` (also for the space), `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the
/// token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_slots_commit(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    ops: *const slat_slot_op,
    count: usize,
    failed: Option<&mut MaybeUninit<usize>>,
) -> slat_status {
    guarded(|| {
        let (vm, mut call) = (given(vm)?, given(thread)?.call()?);
        if count == 0 {
            return Ok(());
        }
        if ops.is_null() || !ops.is_aligned() || count > isize::MAX as usize / size_of::<slat_slot_op>() {
            return Err(SLAT_EINVAL);
        }
        // SAFETY: as many operations, by the caller's contract.
        let ops = unsafe { core::slice::from_raw_parts(ops, count) };
        let mut at = 0;
        let result = vm.any.commit(call.idle(), space_id(space)?, &mut |tx| {
            for (number, op) in ops.iter().enumerate() {
                at = number;
                operate(tx, op)?;
            }
            Ok(())
        });
        result?.map_err(|error| {
            failed.map(|failed| failed.write(at));
            error.into()
        })
    })
}

/// Runs one operation.
fn operate(tx: &mut Transaction<'_>, op: &slat_slot_op) -> Result<(), SlotError> {
    use slat_slot_op_kind as Kind;
    let id = SlotId(op.slot.id);
    let unsound = SlotError { id, gpas: Span::new(Gpa(0), Gpa(0)), rule: Rule::GuestAddress };
    let known = |tx: &Transaction<'_>| tx.get(id).ok_or(SlotError { rule: Rule::Missing, ..unsound });
    let range = || frames(op.slot.gpa, op.slot.bytes).ok_or(unsound);
    let kind = Kind::ALL.get(op.kind as usize).ok_or(unsound)?;
    match kind {
        Kind::SLAT_SLOT_CREATE => tx.create(op.slot.read().ok_or(unsound)?),
        Kind::SLAT_SLOT_DELETE => tx.delete(id).map(drop),
        Kind::SLAT_SLOT_MOVE => {
            let to = known(tx).map(|slot| slat_slot { gpa: op.slot.gpa, ..slot.into() })?;
            tx.move_to(id, to.read().ok_or(unsound)?.gfns.start).map(drop)
        }
        Kind::SLAT_SLOT_FLAGS => {
            let old = known(tx)?;
            let new = slat_slot { flags: op.slot.flags, ..old.into() }.read().ok_or(unsound)?;
            if (old.readonly, old.execute) != (new.readonly, new.execute) {
                return Err(unsound);
            }
            tx.set_log_dirty(id, new.log_dirty).map(drop)
        }
        Kind::SLAT_SLOT_CUT => tx.cut(id, range()?, SlotId(op.rest)).map(drop),
        Kind::SLAT_SLOT_CREATE_WITH_PRIVATE => {
            tx.create_with_private(op.slot.read().ok_or(unsound)?, Hva(op.private_hva))
        }
        Kind::SLAT_SLOT_SET_PRIVATE | Kind::SLAT_SLOT_SET_SHARED => {
            tx.set_private(range()?, *kind == Kind::SLAT_SLOT_SET_PRIVATE)
        }
    }
}

/// Returns the memslot of guest address `gpa` of address space `space`, in `slot`. For a slot with private memory it is
/// the part around `gpa` that is all private, or all shared. Any thread; never sleeps.
///
/// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_slots_find(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    slot: Option<&mut MaybeUninit<slat_slot>>,
) -> slat_status {
    guarded(|| {
        let (vm, slot, mut call) = (given(vm)?, given(slot)?, given(thread)?.call()?);
        let found = vm.any.find(call.idle(), space_id(space)?, Gpa(gpa).gfn())?.ok_or(SLAT_ENOENT)?;
        slot.write(found.into());
        Ok(())
    })
}
