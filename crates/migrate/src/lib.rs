//! Live migration of a guest's memory: pre-copy in rounds on a dirty log, over any stream.
//!
//! ```
//! use slat::{DirtyPage, DirtyWord, Gfn, Hva, PAGE_SIZE, SlotId, Span, SpaceId};
//! use slat_migrate::{MemoryRange, PreCopy, Receiver, Session, Source, Target};
//! use std::{convert::Infallible, io, os::unix::net::UnixStream, thread, time::Duration};
//! use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
//! use std::sync::{Mutex, MutexGuard};
//!
//! const PAGES: usize = 512;
//! const PAGE: usize = PAGE_SIZE as usize;
//!
//! // The source guest: its memory, a dirty log with one bit per page, and a lock that its vCPU holds to run.
//! struct Machine {
//!     memory: Vec<Mutex<[u8; PAGE]>>,
//!     log: Vec<AtomicU64>,
//!     run: Mutex<()>,
//! }
//!
//! impl Machine {
//!     fn store(&self, page: usize, byte: u8) {
//!         self.memory[page].lock().unwrap()[page] = byte;
//!         self.log[page / 64].fetch_or(1 << (page % 64), SeqCst);
//!     }
//! }
//!
//! struct Here<'m> {
//!     machine: &'m Machine,
//!     session: Session,
//!     taken: Vec<DirtyWord>,
//!     halted: Option<MutexGuard<'m, ()>>,
//! }
//!
//! impl Source for Here<'_> {
//!     type Error = Infallible;
//!     fn ranges(&self) -> Vec<MemoryRange> {
//!         vec![MemoryRange { slot: SlotId(0), gfns: Span::sized(Gfn(0), PAGES as u64) }]
//!     }
//!     fn session(&mut self) -> &mut Session {
//!         &mut self.session
//!     }
//!     fn mark_all(&mut self) -> Result<(), Infallible> {
//!         self.machine.log.iter().for_each(|word| word.store(u64::MAX, SeqCst));
//!         Ok(())
//!     }
//!     fn harvest(&mut self) -> Result<Vec<DirtyWord>, Infallible> {
//!         let words = (0..).zip(&self.machine.log).map(|(word, log)| {
//!             let page = word * 64;
//!             let first = DirtyPage { space: SpaceId(0), slot: SlotId(0), page, gfn: Gfn(page), hva: Hva(page << 12) };
//!             DirtyWord { first, bits: log.swap(0, SeqCst) }
//!         });
//!         self.taken = words.collect();
//!         Ok(self.taken.clone())
//!     }
//!     fn commit(&mut self) {
//!         self.taken.clear();
//!     }
//!     fn give_back(&mut self) {
//!         for word in self.taken.drain(..) {
//!             self.machine.log[word.first.page as usize / 64].fetch_or(word.bits, SeqCst);
//!         }
//!     }
//!     fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Infallible> {
//!         for (page, contents) in (first.page as usize..).zip(contents.chunks_mut(PAGE)) {
//!             contents.copy_from_slice(&*self.machine.memory[page].lock().unwrap());
//!         }
//!         Ok(())
//!     }
//!     fn halt(&mut self) -> Result<(), Infallible> {
//!         self.halted = Some(self.machine.run.lock().unwrap());
//!         Ok(())
//!     }
//!     fn resume(&mut self) {
//!         self.halted = None;
//!     }
//! }
//!
//! // The target's memory.
//! #[derive(Default)]
//! struct There(Vec<u8>);
//!
//! impl Target for There {
//!     type Error = Infallible;
//!     fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Infallible> {
//!         self.0 = vec![0; ranges[0].gfns.len() as usize * PAGE];
//!         Ok(())
//!     }
//!     fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Infallible> {
//!         self.0[gfns.start.0 as usize * PAGE..][..contents.len()].copy_from_slice(contents);
//!         Ok(())
//!     }
//!     fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Infallible> {
//!         self.0[gfns.start.0 as usize * PAGE..][..gfns.len() as usize * PAGE].fill(0);
//!         Ok(())
//!     }
//! }
//!
//! let machine = Machine {
//!     memory: (0..PAGES).map(|_| Mutex::new([0; PAGE])).collect(),
//!     log: (0..PAGES / 64).map(|_| AtomicU64::new(0)).collect(),
//!     run: Mutex::new(()),
//! };
//! (0..PAGES / 2).for_each(|page| machine.store(page, 1));
//! let mut source = Here { machine: &machine, session: Session::new(), taken: Vec::new(), halted: None };
//! let (here, there) = UnixStream::pair()?;
//! let done = AtomicBool::new(false);
//!
//! let (outcome, target) = thread::scope(|scope| {
//!     // The guest stores during the migration.
//!     scope.spawn(|| {
//!         for (page, byte) in (0..PAGES / 8).cycle().zip((2..=255).cycle()) {
//!             let _runs = machine.run.lock().unwrap();
//!             if done.load(SeqCst) {
//!                 break;
//!             }
//!             machine.store(page, byte);
//!         }
//!     });
//!     let receiving = scope.spawn(|| {
//!         let mut receiver = Receiver::new(There::default(), 2 << 20);
//!         receiver.serve(there).map(|()| receiver.into_target())
//!     });
//!     let mut once = Some(here); // only one connection, which does not break
//!     let connect = || once.take().ok_or(io::ErrorKind::NotConnected.into());
//!     let outcome = PreCopy::new().downtime(Duration::from_millis(20)).max_rounds(5).send(&mut source, connect);
//!     done.store(true, SeqCst);
//!     source.halted = None; // lets the guest's thread end; it has not stored since the halt
//!     (outcome, receiving.join().unwrap())
//! });
//!
//! let (outcome, target) = (outcome?, target?);
//! let bytes: Vec<u8> = machine.memory.iter().flat_map(|page| *page.lock().unwrap()).collect();
//! assert!(target.0 == bytes);
//! assert_eq!(outcome.rounds[0].told, PAGES as u64);
//! assert!(outcome.rounds[0].sent.zeroes >= PAGES as u64 / 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For the engine's VM, [`VmLog`] is the log. `measure/bench/src/scenarios/migrate` of the repository migrates a VM over
//! TCP.
//!
//! | | |
//! |---|---|
//! | [`PreCopy::send`] | sends the guest of a [`Source`], in rounds |
//! | stop conditions | [`downtime`](PreCopy::downtime): the remaining pages fit; [`max_rounds`](PreCopy::max_rounds): even if they do not |
//! | limits | [`bandwidth`](PreCopy::bandwidth); [`auto_converge`](PreCopy::auto_converge) slows the vCPUs down |
//! | cancelling | [`Source::progress`] returns `Break`; [`cancel`] |
//! | a broken connection | the round goes back to the log, and is sent over another connection to the same receiver |
//! | another receiver | each connection compares [`Session`] and receiver; if they differ, the migration begins anew |
//! | [`Receiver`] | fills a [`Target`], connection by connection |
//!
//! # Guarantees
//!
//! * After `Ok` on both sides, every byte of the ranges at the target is as at the source when it was halted. This holds
//!   for any order of connections, also if senders or receivers are killed, restarted or replaced, or another guest was
//!   sent to the same receiver.
//! * A page that was received and not written since is not sent again, even after a connection has broken, unless the
//!   receiver was restarted or has received another guest.
//! * The guest runs on one side only. The sender sends `Go` after the receiver has everything and while the
//!   guest is halted, and never resumes a guest after that. If `Go` is lost, the guest stays halted on both
//!   sides. The manager of both must see the receiver's `Ok` before it frees the sender's memory.
//! * The receiver refuses wrong input with a [`WireError`], and never panics: frames outside of the memory,
//!   pages out of turn, memory that overlaps or is too large, pages with a wrong checksum. A sender that cannot be
//!   received hears why. Identity and checksums do not protect against attackers: the stream must.
//!
//! Registers and devices are not sent: the VMM sends them itself, with the last round, while the guest is
//! halted. Post-copy, compression and parallel streams are not implemented.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod checksum;
mod connection;
#[cfg(test)]
mod crash_tests;
mod error;
mod frame;
mod identity;
mod log;
mod outcome;
mod precopy;
mod receiver;
mod source_target;
#[cfg(test)]
mod test_support;
mod wire;

pub use error::{MigrateError, WireError};
pub use frame::{Frame, MemoryRange, Receipt};
pub use identity::Session;
pub use log::{LogError, VmLog};
pub use outcome::{Outcome, Round, Sent};
pub use precopy::{PreCopy, cancel};
pub use receiver::Receiver;
pub use source_target::{Progress, Source, Target};
