//! A running guest: each miss of the processor's TLB walks the guest's own table, and the address of each entry goes
//! through a walk of the engine's table.

use crate::emulator::{DEVICES, EXECUTE, Emulator, Hooks, Page, Processor, READ, RIP, Registers, WRITE};
use crate::process_host::Engine;
use slat::table::formats::Ept4;
use slat::{Access, Fault, Gfn, Gpa, InGuest, Span, Translations};
use slat_vcpu::psc::Psc;
use slat_vcpu::walker::walk;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A processor's caches. They are by guest-virtual address, so a flush of some frames empties them.
pub struct Caches {
    pub emulator: Emulator,
    pub memory: Remembered,
}

/// A TLB without bounds, besides the emulator's. The emulator's has room for some hundred pages, and would drop a stale
/// entry before a test notices it.
#[derive(Default)]
pub struct Remembered {
    pub links: Psc,
    pages: HashMap<u64, Page>,
}

impl Translations for Caches {
    fn flush_all(&mut self) {
        self.emulator.flush_tlb();
        self.memory = Remembered::default();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.flush_all();
    }
}

/// Why a guest has stopped, other than by a kick.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// An access that the second level does not allow: to the guest's table, or (`own`) by the instruction itself.
    Fault { fault: Fault, own: bool },
    /// An access that the guest's own table does not allow. The guest gets no exception: no test needs one.
    PageFault,
    /// An IN instruction.
    Port { port: u16, size: u8 },
}

/// The state of an access to a device: such an instruction runs alone.
#[derive(Clone, Copy, Default, Debug)]
pub enum Device {
    /// No access to a device.
    #[default]
    None,
    /// The next instruction accesses the device at this frame: record the access.
    Observe { frame: Gfn, seen: Option<Seen> },
    /// The next instruction loads `data` from the device at `gpa`, through the virtual page `page`.
    Answer { page: u64, gpa: u64, data: u64 },
}

/// An access to a device.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub gpa: u64,
    pub size: u32,
    /// The value of a store; `None` for a load.
    pub value: Option<u64>,
}

/// The guest that the vCPU is in.
pub struct Guest<'a> {
    pub engine: &'a Engine,
    pub inside: &'a InGuest<'a>,
    pub memory: &'a mut Remembered,
    pub device: &'a mut Device,
    /// The guest-virtual page of the last access to a device.
    pub device_page: u64,
    /// The guest's page-table root.
    pub cr3: u64,
    /// Signals that stop the guest.
    pub signals: u64,
    /// Whether one of them is pending for this thread.
    pub signalled: bool,
    /// Counts blocks of instructions, over all faults, for the check of signals.
    pub blocks: &'a mut u32,
    /// Why the guest has stopped, and the registers with which it goes on.
    pub stop: Option<(Stop, Registers)>,
}

/// Bits of an entry of the guest's table.
const PRESENT: u64 = 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// The length of VMCALL, and of VMMCALL.
pub const HYPERCALL_BYTES: u64 = 3;
/// Blocks between two checks for signals.
const BLOCKS: u32 = 4096;

impl Guest<'_> {
    /// Walks the second level: finds `gpa` in the engine's tables as hardware does.
    fn second(&mut self, gpa: u64, access: Access) -> Result<Page, Fault> {
        let root = self.inside.root();
        // SAFETY: in the guest, and answers empty the cache.
        let found =
            unsafe { walk::<Ept4, _>(self.engine.tables(), root, &mut self.memory.links, Gpa(gpa), access) }?;
        let frame = found.pfn.0 + (Gpa(gpa).gfn().0 & (found.level.pages() - 1));
        // The first store to each page must miss the TLB, so that the walk sets Dirty.
        let write = if found.dirty && found.perms.allows(Access::Write) { WRITE } else { 0 };
        let execute = if found.perms.allows(Access::Fetch) { EXECUTE } else { 0 };
        Ok(Page { at: frame << slat::PAGE_SHIFT | gpa & 0xfff, perms: READ | write | execute })
    }

    /// Walks both levels, and sets the guest's Accessed and Dirty bits, for which it stores to the guest's table.
    fn both(&mut self, vaddr: u64, access: Access) -> Result<Page, Stop> {
        let mut table = self.cr3 & FRAME;
        for level in (0..4).rev() {
            let shift = 12 + 9 * level;
            let at = table + (vaddr >> shift & 511) * 8;
            let entry = |page: Page| {
                // SAFETY: memory behind a slot, which the process keeps mapped as it does for a real KVM.
                unsafe { &*(page.at as *const AtomicU64) }
            };
            let of_table = |fault| Stop::Fault { fault, own: false };
            let found = entry(self.second(at, Access::Read).map_err(of_table)?).load(Ordering::Relaxed);
            if found & PRESENT == 0 {
                return Err(Stop::PageFault);
            }
            table = found & FRAME;
            let is_leaf = level == 0 || found & LARGE != 0;
            let used = if is_leaf && access == Access::Write { ACCESSED | DIRTY } else { ACCESSED };
            if found & used != used {
                let page = self.second(at, Access::Write).map_err(of_table)?;
                entry(page).fetch_or(used, Ordering::Relaxed);
            }
            if is_leaf {
                let inside = (1 << shift) - 1;
                let page = self.second(table & !inside | vaddr & inside, access);
                let page = page.map_err(|fault| Stop::Fault { fault, own: true })?;
                // The first store must miss, so that a walk sets the guest's Dirty, too.
                let write = if (found | used) & DIRTY == 0 { WRITE } else { 0 };
                return Ok(Page { perms: page.perms & !write, ..page });
            }
        }
        unreachable!("level 0 has pages only")
    }

    /// Translates by the cache, by both levels, or to a device.
    fn page(&mut self, vaddr: u64, access: Access) -> Result<Page, Stop> {
        let needed = [READ, WRITE, EXECUTE][access as usize];
        if let Some(page) = self.memory.pages.get(&vaddr).filter(|page| page.perms & needed != 0) {
            return Ok(*page);
        }
        let device = |gpa: u64| Page { at: DEVICES + (gpa & FRAME), perms: READ | WRITE };
        match *self.device {
            // Uses the device of the exit, even if memory has come there since.
            Device::Answer { page, gpa, .. } if page == vaddr => return Ok(device(gpa)),
            _ => {}
        }
        match self.both(vaddr, access) {
            Ok(page) => {
                self.memory.pages.insert(vaddr, page);
                Ok(page)
            }
            Err(Stop::Fault { fault, own: true })
                if access != Access::Fetch
                    && matches!(*self.device, Device::Observe { frame, .. } if frame == fault.gpa.gfn()) =>
            {
                self.device_page = vaddr;
                Ok(device(fault.gpa.0))
            }
            Err(stop) => Err(stop),
        }
    }

    /// Whether the instruction at `rip` is VMCALL or VMMCALL. The emulator has fetched it, and found it invalid.
    pub fn is_hypercall(&mut self, rip: u64) -> bool {
        let mut byte = |at: u64| {
            let page = self.page(at & !0xfff, Access::Fetch).ok()?;
            // SAFETY: memory behind a slot, which the process keeps mapped as it does for a real KVM.
            (page.at < DEVICES).then(|| unsafe { ((page.at | at & 0xfff) as *const u8).read_volatile() })
        };
        let bytes = [rip, rip + 1, rip + 2].map(|at| byte(at).unwrap_or(0));
        matches!(bytes, [0x0f, 0x01, 0xc1 | 0xd9])
    }

    /// Whether a signal is pending.
    fn has_signal(&self) -> bool {
        let mut waits = 0u64;
        // SAFETY: the kernel's set has 8 bytes.
        unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waits, size_of_val(&waits)) };
        waits & self.signals != 0
    }
}

impl Hooks for Guest<'_> {
    fn translate(&mut self, processor: Processor, vaddr: u64, access: Access) -> Option<Page> {
        if self.stop.is_some() {
            return None; // the rest of a block, which is not to be made
        }
        self.page(vaddr, access).map_err(|stop| self.stop = Some((stop, processor.registers()))).ok()
    }

    fn input(&mut self, processor: Processor, port: u16, size: u8) {
        let mut after = processor.registers();
        after[RIP] += 1;
        self.stop = Some((Stop::Port { port, size }, after));
    }

    fn goes_on(&mut self) -> bool {
        if !matches!(self.device, Device::None) {
            return true; // one instruction, and then it ends
        }
        *self.blocks = self.blocks.wrapping_add(1);
        self.signalled = self.signals != 0 && self.blocks.is_multiple_of(BLOCKS) && self.has_signal();
        !self.signalled && !self.inside.kicked()
    }

    fn load(&mut self, at: u64, size: u32) -> u64 {
        if let Device::Answer { gpa, data, .. } = *self.device {
            return data >> (8 * (at.wrapping_sub(gpa) & 7));
        }
        self.see(Seen { gpa: at, size, value: None });
        0
    }

    fn store(&mut self, at: u64, size: u32, value: u64) {
        self.see(Seen { gpa: at, size, value: Some(value) });
    }
}

impl Guest<'_> {
    /// Records an access; the emulator splits one of 8 bytes into two of 4.
    fn see(&mut self, now: Seen) {
        let Device::Observe { seen, .. } = self.device else { return };
        *seen = Some(match *seen {
            Some(Seen { gpa, size, value }) if gpa + u64::from(size) == now.gpa => {
                let value = value.zip(now.value).map(|(low, high)| low | high << (8 * size));
                Seen { gpa, size: size + now.size, value }
            }
            _ => now,
        });
    }
}
