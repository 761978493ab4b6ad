//! A driver of Firecracker's balloon, a virtio-mmio device: it gives pages back to the host.

/// A page for each of the two queues, and one for the numbers of the pages to give back. Nothing else is there.
const QUEUES: u64 = 24 << 20;
const NUMBERS: u64 = QUEUES + 2 * 4096;
/// The descriptors of a queue, of which one is used.
const DESCRIPTORS: u32 = 16;
/// In a queue's page, after the descriptors: the ring of requests, and the ring of requests that the device has met.
const REQUESTS: u64 = 0x400;
const MET: u64 = 0x800;

/// Registers of virtio-mmio.
const FEATURES: u64 = 0x020;
const FEATURES_WORD: u64 = 0x024;
const QUEUE: u64 = 0x030;
const QUEUE_SIZE: u64 = 0x038;
const QUEUE_READY: u64 = 0x044;
const NOTIFY: u64 = 0x050;
const STATUS: u64 = 0x070;
const QUEUE_ADDRESSES: u64 = 0x080;

/// The device, whose registers begin at this address.
pub struct Balloon {
    device: u64,
    requests: u16,
}

impl Balloon {
    /// Most pages of a request.
    pub const MOST: usize = 256;

    /// Starts the device.
    ///
    /// # Safety
    /// `device` is the address of a balloon's registers, and is mapped.
    pub unsafe fn new(device: u64) -> Self {
        let balloon = Self { device, requests: 0 };
        // Seen, driven, and with the only feature it must have, virtio 1; at the end, ready. Each step adds a bit.
        for (register, value) in [(STATUS, 1), (STATUS, 3), (FEATURES_WORD, 1), (FEATURES, 1), (STATUS, 11)] {
            balloon.set(register, value);
        }
        // Pages leave by the first queue and would return by the second, which is not used but must be there.
        for queue in 0..2 {
            let at = QUEUES + u64::from(queue) * 4096;
            balloon.set(QUEUE, queue);
            balloon.set(QUEUE_SIZE, DESCRIPTORS);
            for (nth, part) in (0..).zip([at, at + REQUESTS, at + MET]) {
                balloon.set(QUEUE_ADDRESSES + nth * 0x10, part as u32);
            }
            balloon.set(QUEUE_READY, 1);
        }
        balloon.set(STATUS, 15);
        balloon
    }

    fn set(&self, register: u64, value: u32) {
        // SAFETY: the caller of `new` promised that a register is there.
        unsafe { ((self.device + register) as *mut u32).write_volatile(value) };
    }

    /// Gives pages back, by their numbers, at most [`Self::MOST`]; returns when the device has taken them.
    pub fn give(&mut self, pages: impl Iterator<Item = u32>) {
        let mut bytes = 0;
        for (index, page) in (0..).zip(pages.take(Self::MOST)) {
            // SAFETY: `NUMBERS` is a page that only this function uses.
            unsafe { (NUMBERS as *mut u32).add(index).write_volatile(page) };
            bytes = (index as u32 + 1) * 4;
        }
        let place = u64::from(self.requests % DESCRIPTORS as u16);
        self.requests = self.requests.wrapping_add(1);
        // SAFETY: the first queue's page, which only this function and the device use; the device reads it when it is
        // notified.
        unsafe {
            (QUEUES as *mut u64).write_volatile(NUMBERS);
            ((QUEUES + 8) as *mut u64).write_volatile(bytes.into());
            ((QUEUES + REQUESTS + 4 + place * 2) as *mut u16).write_volatile(0);
            ((QUEUES + REQUESTS + 2) as *mut u16).write_volatile(self.requests);
            self.set(NOTIFY, 0);
            while ((QUEUES + MET + 2) as *const u16).read_volatile() != self.requests {
                core::hint::spin_loop();
            }
        }
    }
}
