//! Free blocks of a device, and the state of each device.

use crate::frames::FreeFrames;

/// Free blocks, lowest first. Used blocks are reused before new ones, so that a file that cannot grow still has
/// room, and pages that go together lie together.
#[derive(Debug)]
pub(super) struct Blocks {
    free: FreeFrames,
    limit: u64,
}

impl Blocks {
    /// Starts with `limit` free blocks.
    pub(super) fn new(limit: u32) -> Self {
        Self { free: FreeFrames::of(limit.into()), limit: limit.into() }
    }

    /// Takes up to `want` blocks, in order.
    pub(super) fn take(&mut self, want: usize) -> Vec<u32> {
        let mut taken = Vec::with_capacity(want.min(self.free.free() as usize));
        self.free.take_frames(want, &mut taken);
        taken.sort_unstable();
        // The number of blocks fits in a `u32`.
        taken.into_iter().map(|block| block as u32).collect()
    }

    pub(super) fn give(&mut self, block: u32) {
        self.free.give(block.into()..u64::from(block) + 1);
    }

    pub(super) fn are_half_free(&self) -> bool {
        self.in_use() < self.limit / 2
    }

    pub(super) fn in_use(&self) -> u64 {
        self.limit - self.free.free()
    }
}

/// A device that failed or was full gets one page at a time until it takes one: after the working devices, and
/// before them once in this many batches, so that its recovery is noticed.
pub(super) const PROBES: u64 = 16;

/// State of a device.
#[derive(Debug)]
pub(super) struct DeviceState {
    pub(super) priority: i16,
    pub(super) blocks: Blocks,
    /// The last page for it was not stored.
    pub(super) is_failing: bool,
}

/// Returns the order in which to try devices for a batch, by number. Failing devices come last, or first when
/// probed; others by priority, and round-robin within a priority.
pub(super) fn order(device_states: &[DeviceState], batch: u64) -> Vec<usize> {
    let count = device_states.len() as u64;
    let probes = batch.is_multiple_of(PROBES);
    let mut order: Vec<usize> = (0..device_states.len()).collect();
    order.sort_by_key(|&at| {
        let room = &device_states[at];
        let turn = (at as u64 + count - batch % count) % count;
        (room.is_failing != probes, -i32::from(room.priority), turn)
    });
    order
}
