//! The allowed results of each L2 address, and the comparison of one access of L2.
//!
//! L1 gets the promises of a TLB: between a change of T and the flush, an access may use any state of T since the last
//! flush. A refusal always uses the current T, since hardware caches none; and it drops the cached translations of the
//! address.

use crate::block;
use crate::tables::{ACCESSED, DIRTY, FRAMES, Path, Says, Tables};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::x86_64::__cpuid;
use slat::{Access, Gpa, PAGE_SIZE, Pfn};
use slat_judge::{CODE_OFFSET, Random};
use slat_walker_x86::println;
use slat_walker_x86::processor::{Exit, MemoryFault, Processor as _, Registers};
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmcb::FLUSH_ALL;
use slat_walker_x86::window::{Guest, write_code};

/// Offset of the word that L2 loads and stores in each frame.
const DATA: u64 = 0x100;
const ALL: [Access; 3] = [Access::Read, Access::Write, Access::Fetch];
/// Bits of the first word of #VMEXIT(NPF): the final address, or a walk of the guest's own tables.
const FINAL: u64 = 1 << 32;
const WALK: u64 = 1 << 33;
/// Present, store, user, reserved: the bits that are compared for a walk of the guest's own tables.
const LOW: u64 = 0xf;

/// One of L1's tables, and its tag.
struct Table {
    tables: Tables,
    /// None before its first run, and after all were freed.
    asid: Option<u32>,
    /// Results of T for each cell since the last flush.
    said: Vec<Vec<Says>>,
    /// Whether Accessed or Dirty was cleared since then.
    cleared: bool,
}

/// The state of the tests.
pub struct Trial {
    random: Random,
    processor: Svm,
    guest: Box<Guest>,
    all: [Table; 2],
    /// The next ASID, and their number.
    asids: (u32, u32),
    flush_all: bool,
    /// Expected word of each frame.
    words: Vec<u64>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    accesses: u64,
    refusals: u64,
    walks: u64,
    stale: u64,
    changes: u64,
    flushes: u64,
    odd: u64,
}

/// Result of an access.
enum Came {
    Through(u64),
    Refused(MemoryFault),
}

impl Trial {
    pub fn new(mut random: Random) -> Result<Self, String> {
        let guest = Guest::new();
        block::check(&guest.start())?;
        let home = guest.fixed();
        let home = home.gfn.gpa().0..(home.gfn + home.pages).gpa().0;
        let all = [(); 2].map(|()| {
            let tables = Tables::new(home.clone(), &mut random);
            let said = tables.cells.iter().map(|_| Vec::new()).collect();
            Table { tables, asid: None, said, cleared: false }
        });
        let words: Vec<u64> = FRAMES.step_by(PAGE_SIZE as usize).collect();
        for &frame in &words {
            write_code(Pfn(frame / PAGE_SIZE));
            store(frame, frame);
        }
        let mut processor = Svm::new(&guest.start());
        processor.vmcb().control.nested_cr3 = all[0].tables.root;
        let asids = (1, __cpuid(0x8000_000a).ebx.clamp(3, 16));
        let mut new =
            Self { random, processor, guest, all, asids, flush_all: false, words, counts: Counts::default() };
        new.listen();
        Ok(new)
    }

    /// Does one turn: changes, a flush or none, an access.
    pub fn turn(&mut self) -> Result<(), String> {
        let which = self.random.below(2) as usize;
        let mut cell = self.some_cell(which);
        if self.random.once_in(2) {
            if self.random.once_in(2) {
                // So that there is a cached translation.
                self.access(which, cell, Access::Read)?;
            }
            let Table { tables, cleared, .. } = &mut self.all[which];
            *cleared |= tables.change(tables.cells[cell], &mut self.random);
            self.counts.changes += 1;
            self.listen();
        }
        if self.random.once_in(4) {
            self.flush(which);
        }
        if self.random.once_in(16) {
            return self.walk(which);
        }
        if self.random.once_in(2) {
            cell = self.some_cell(which);
        }
        let access = self.random.pick(&ALL);
        self.access(which, cell, access)
    }

    fn some_cell(&mut self, which: usize) -> usize {
        self.random.below(self.all[which].tables.cells.len() as u64) as usize
    }

    /// Adds the current results of each T to the allowed ones, until the next flush.
    fn listen(&mut self) {
        for Table { tables, said, .. } in &mut self.all {
            for (&cell, said) in tables.cells.iter().zip(said) {
                let says = tables.walk(cell).says;
                if !said.contains(&says) {
                    said.push(says);
                }
            }
        }
    }

    /// Does L1's flush: a new ASID for the table; or everything, by `TLB_CONTROL`.
    fn flush(&mut self, which: usize) {
        self.counts.flushes += 1;
        let all = self.random.once_in(4) || self.asids.0 == self.asids.1;
        if all {
            self.flush_all = true;
            self.asids.0 = 1;
            self.all.iter_mut().for_each(Table::flushed);
        } else {
            self.all[which].flushed();
        }
        self.listen();
    }

    /// Lets L2 make an access through this table.
    fn run(&mut self, which: usize, gpa: u64, access: Access, value: u64) -> Result<Came, String> {
        let table = &mut self.all[which];
        if table.asid.is_none() && self.asids.0 == self.asids.1 {
            self.flush_all = true;
            self.asids.0 = 1;
            self.all.iter_mut().for_each(Table::flushed);
            self.listen();
        }
        let table = &mut self.all[which];
        let asid = *table.asid.get_or_insert_with(|| {
            self.asids.0 += 1;
            self.asids.0 - 1
        });
        let (rip, rbx) = self.guest.aim(Gpa(gpa), access);
        let vmcb = self.processor.vmcb();
        (vmcb.control.nested_cr3, vmcb.control.asid) = (table.tables.root, asid);
        vmcb.control.tlb_control = if core::mem::take(&mut self.flush_all) { FLUSH_ALL } else { 0 };
        vmcb.save.rip = rip;
        let mut registers = Registers { rax: value, rbx, ..Registers::default() };
        // An address of the lower half.
        let mark = value >> 17;
        block::mark(&mut self.processor, mark);
        let exit = self.processor.run(&mut registers);
        if !block::is_marked(&mut self.processor, mark) {
            return Err(format!("VMLOAD or VMSAVE has lost {mark:x}"));
        }
        self.counts.accesses += 1;
        match exit {
            Exit::Call => Ok(Came::Through(registers.rax)),
            Exit::Memory(fault) => Ok(Came::Refused(fault)),
            exit => Err(format!("L2 has come out by {exit:x?} at {:#x}", self.processor.rip())),
        }
    }

    /// Tests one access to a cell.
    fn access(&mut self, which: usize, cell: usize, access: Access) -> Result<(), String> {
        let page = self.all[which].tables.cells[cell];
        let gpa = page + if access == Access::Fetch { CODE_OFFSET } else { DATA };
        let value = self.random.next();
        let before = self.all[which].tables.walk(page);
        // The table may need an ASID first, which is a flush.
        let came = self.run(which, gpa, access, value)?;
        let Table { tables, said, cleared, .. } = &mut self.all[which];
        let (path, said) = (tables.walk(page), &mut said[cell]);
        let describe = |what: &str| {
            let entries: Vec<_> = path.entries.iter().map(|entry| entry.1).collect();
            format!("{what}: {access:?} of {gpa:#x} by {entries:x?}, said since the flush: {said:x?}")
        };
        let leaf = |path: &Path| path.entries.last().map_or(0, |entry| entry.1) & DIRTY;
        if leaf(&path) != leaf(&before) && (access != Access::Write || matches!(came, Came::Refused(_))) {
            return Err(describe("Dirty without a store"));
        }
        match came {
            Came::Refused(fault) => {
                self.counts.refusals += 1;
                let wanted = path.says.reported(access) | FINAL;
                if path.says.allows(access) {
                    return Err(describe(&format!("refused for nothing, {fault:x?}")));
                }
                // QEMU does this itself.
                let is_odd = path.says == Says::Reserved && fault.raw == wanted & !1;
                self.counts.odd += u64::from(is_odd);
                if fault.gpa.0 != gpa || fault.raw != wanted && !is_odd {
                    return Err(describe(&format!("{fault:x?} where {wanted:#x} is to be told")));
                }
                // The refusal drops the cached translations of this address.
                *said = alloc::vec![path.says];
                Ok(())
            }
            Came::Through(answer) => {
                let reached = |says: &Says| match *says {
                    Says::Leads { to, .. } if says.allows(access) => match access {
                        Access::Read => answer == self.words[index(to)],
                        Access::Write => load(to) == value,
                        Access::Fetch => answer == to,
                    },
                    _ => false,
                };
                let is_stale = !reached(&path.says);
                let Some(Says::Leads { to, .. }) =
                    Some(path.says).filter(reached).or(said.iter().copied().find(reached))
                else {
                    return Err(describe(&format!(
                        "a nested guest has reached what T does not say, {answer:#x}"
                    )));
                };
                if access == Access::Write {
                    self.words[index(to)] = value;
                }
                self.counts.stale += u64::from(is_stale);
                if said.len() == 1 && !*cleared {
                    marked(&path, access).map_err(describe)?;
                }
                Ok(())
            }
        }
    }

    /// Makes a page of the guest's own tables not present: its walk is refused, as a store. After the entry is
    /// restored, the guest continues.
    fn walk(&mut self, which: usize) -> Result<(), String> {
        let page = self.random.pick(&self.guest.tables());
        let before = self.all[which].tables.walk(page).says;
        let (entry, word) = self.all[which].tables.shut(page, &mut self.random);
        self.flush(which);
        let cell = self.some_cell(which);
        let gpa = self.all[which].tables.cells[cell] + DATA;
        let says = self.all[which].tables.walk(page).says;
        let came = self.run(which, gpa, Access::Read, 0)?;
        let Came::Refused(fault) = came else {
            return Err(format!("the guest has walked its table {page:#x} by {:#x}", entry.read()));
        };
        let wanted = says.reported(Access::Write) | WALK;
        let seen = (fault.raw & (LOW | FINAL | WALK), fault.gpa.0 & !(PAGE_SIZE - 1));
        if seen != (wanted, page) {
            return Err(format!("{fault:x?} of a walk by {page:#x} where {wanted:#x} is to be told"));
        }
        self.counts.walks += 1;
        entry.write(word);
        if self.all[which].tables.walk(page).says != before {
            return Err(format!("the entry of {page:#x} has changed"));
        }
        self.access(which, cell, Access::Read)
    }

    /// Checks that each store of L2 is in its frame, and in no other.
    pub fn compare_frames(&self) -> Result<(), String> {
        let frames = FRAMES.step_by(PAGE_SIZE as usize);
        let wrong = frames.zip(&self.words).find(|&(frame, wanted)| load(frame) != *wanted);
        let Some((frame, wanted)) = wrong else { return Ok(()) };
        Err(format!("a frame of L1's, {frame:#x}, has {:#x}, and L2 stored {wanted:#x}", load(frame)))
    }

    pub fn report(&self) {
        let Counts { accesses, refusals, walks, stale, changes, flushes, odd } = self.counts;
        for (count, what) in [
            (accesses, "accesses of L2"),
            (refusals, "refused by T"),
            (walks, "walks refused"),
            (changes, "changes of T"),
            (flushes, "flushes by L1"),
            (stale, "by what T said before"),
            (odd, "reserved bits told of as if nothing were present"),
        ] {
            println!("l1: {count} {what}");
        }
    }
}

impl Table {
    /// Notes a flush of the table, which gets another ASID.
    fn flushed(&mut self) {
        (self.asid, self.cleared) = (None, false);
        self.said.iter_mut().for_each(Vec::clear);
    }
}

/// Checks that Accessed is set on the whole path, and Dirty in the leaf by a store.
fn marked(path: &Path, access: Access) -> Result<(), &'static str> {
    let now = path.entries.iter().map(|entry| entry.0.read());
    let Some(leaf) = now.clone().next_back() else { return Ok(()) };
    if now.into_iter().any(|entry| entry & ACCESSED == 0) {
        return Err("an entry is not Accessed");
    }
    if access == Access::Write && leaf & DIRTY == 0 {
        return Err("the leaf is not Dirty");
    }
    Ok(())
}

fn index(frame: u64) -> usize {
    ((frame - FRAMES.start) / PAGE_SIZE) as usize
}

/// Loads the word of a frame.
fn load(frame: u64) -> u64 {
    // SAFETY: memory that is in no other use; volatile, because L2 stores to it.
    unsafe { ((frame + DATA) as *const u64).read_volatile() }
}

fn store(frame: u64, value: u64) {
    // SAFETY: as above.
    unsafe { ((frame + DATA) as *mut u64).write_volatile(value) }
}
