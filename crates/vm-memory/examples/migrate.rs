//! Pre-copy of vm-memory's memory by slat-migrate: a guest stores while its pages go over a socket, is halted,
//! and has equal memory on the other side. `cargo run -p slat-vm-memory --example migrate`

use slat::{DirtyPage, DirtyWord, Hva, SpaceId, Span};
use slat_migrate::{MemoryRange, PreCopy, Receiver, Session, Source, Target};
use slat_vm_memory::{Gfn, Region, SlotId, SlotMemory};
use std::error::Error;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;
use vm_memory::bitmap::Bitmap;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryBackend, GuestMemoryRegion, MmapRegion};

const PAGES: u64 = 4096;
const PAGE: u64 = 4096;

type Machine = SlotMemory<Region<MmapRegion<()>>>;

fn machine() -> Result<Machine, Box<dyn Error>> {
    let machine = Machine::default();
    let ram = Region::new(SlotId(0), GuestAddress(0), MmapRegion::new((PAGES * PAGE) as usize)?)?;
    machine.commit(|tx| tx.insert(ram))?;
    Ok(machine)
}

/// The source guest.
struct Here<'m> {
    machine: &'m Machine,
    /// The receiver's confirmed progress of this log.
    session: Session,
    /// Harvested words that are not committed.
    taken: Vec<DirtyWord>,
    /// The guest's thread holds this while it stores.
    run: &'m Mutex<()>,
    halted: Option<MutexGuard<'m, ()>>,
}

impl Source for Here<'_> {
    type Error = vm_memory::GuestMemoryError;

    fn ranges(&self) -> Vec<MemoryRange> {
        vec![MemoryRange { slot: SlotId(0), gfns: Span::sized(Gfn(0), PAGES) }]
    }

    fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn mark_all(&mut self) -> Result<(), Self::Error> {
        let memory = self.machine.memory();
        let log = memory.raw().iter().next().expect("one region").bitmap();
        log.mark_dirty(0, (PAGES * PAGE) as usize);
        Ok(())
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Self::Error> {
        let (memory, taken) = (self.machine.memory(), &mut self.taken);
        memory.raw().harvest(|gfn| {
            let (page, bit) = (gfn.0 & !63, 1 << (gfn.0 % 64));
            match taken.last_mut() {
                Some(word) if word.first.page == page => word.bits |= bit,
                _ => {
                    let (space, slot) = (SpaceId(0), SlotId(0));
                    let first = DirtyPage { space, slot, page, gfn: Gfn(page), hva: Hva(page * PAGE) };
                    taken.push(DirtyWord { first, bits: bit });
                }
            }
        });
        Ok(taken.clone())
    }

    fn commit(&mut self) {
        self.taken.clear();
    }

    fn give_back(&mut self) {
        let memory = self.machine.memory();
        let log = memory.raw().iter().next().expect("one region").bitmap();
        for word in self.taken.drain(..) {
            for bit in (0..64).filter(|bit| word.bits >> bit & 1 == 1) {
                log.mark_dirty(((word.first.page + bit) * PAGE) as usize, 1);
            }
        }
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Self::Error> {
        self.machine.memory().read_slice(contents, GuestAddress(first.gfn.0 * PAGE))
    }

    fn halt(&mut self) -> Result<(), Self::Error> {
        self.halted = self.run.lock().ok();
        Ok(())
    }

    fn resume(&mut self) {
        self.halted = None;
    }
}

/// The target's memory.
struct There(Machine);

impl Target for There {
    type Error = vm_memory::GuestMemoryError;

    /// The memory exists already, filled with zeroes.
    fn create(&mut self, _: &[MemoryRange]) -> Result<(), Self::Error> {
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Self::Error> {
        self.0.memory().write_slice(contents, GuestAddress(gfns.start.0 * PAGE))
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Self::Error> {
        self.write(gfns, &vec![0; (gfns.len() * PAGE) as usize])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (here, there) = (machine()?, machine()?);
    let (run, over) = (Mutex::new(()), AtomicBool::new(false));
    let mut source =
        Here { machine: &here, session: Session::new(), taken: Vec::new(), run: &run, halted: None };
    let (out, back) = UnixStream::pair()?;
    let outcome = thread::scope(|scope| {
        // The guest stores an increasing number to one page after the other.
        let guest = scope.spawn(|| {
            for n in 1u64.. {
                let _runs = run.lock().expect("no thread panics");
                if over.load(SeqCst) {
                    return n;
                }
                let at = GuestAddress(n % PAGES * PAGE + n / PAGES % 512 * 8);
                here.memory().write_obj(n, at).expect("it is mapped");
            }
            0
        });
        let receiver = scope.spawn(|| Receiver::new(There(there.clone()), PAGES * PAGE).serve(back));
        let mut once = Some(out);
        let connect = || once.take().ok_or(io::ErrorKind::NotConnected.into());
        let outcome =
            PreCopy::new().downtime(Duration::from_millis(20)).max_rounds(6).send(&mut source, connect);
        over.store(true, SeqCst);
        source.resume(); // the thread then ends without another store
        let stores = guest.join().expect("the guest does not panic");
        println!("{stores} stores of the guest while it moved");
        receiver.join().expect("the receiver does not panic")?;
        outcome.map_err(Box::<dyn Error>::from)
    })?;
    println!("{} rounds, halted for {:?}", outcome.rounds.len(), outcome.halted);

    let bytes = |machine: &Machine| {
        let mut bytes = vec![0; (PAGES * PAGE) as usize];
        machine.memory().read_slice(&mut bytes, GuestAddress(0)).map(|()| bytes)
    };
    assert!(bytes(&here)? == bytes(&there)?, "every byte");
    println!("every byte is there");
    Ok(())
}
