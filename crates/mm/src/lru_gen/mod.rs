//! The kernel's text interface to the multi-gen LRU, over address spaces: like `/sys/kernel/debug/lru_gen` and
//! `/sys/kernel/mm/lru_gen/`. A user-space reclaimer reads the generations, and evicts ahead of need.
//!
//! ```text
//! memcg     1 /guest                                    an address space: its number and name
//!  node     0
//!           4      30120       1024          0          generation, its age in ms, anonymous pages, pages of files
//!           5       9004         96          0
//!           6         12        311          0
//! ```
//! | command | effect | errors |
//! |---|---|---|
//! | `+ memcg node max_seq [can_swap [force_scan]]` | begins a new generation after `max_seq`; pages used since the last one stay in `max_seq` | EINVAL: no such generation yet. ERANGE: no room, and `force_scan` is 0 |
//! | `- memcg node min_seq [swappiness [nr]]` | evicts the generations up to `min_seq`, at most `nr` pages | EINVAL: one of the two youngest. EINTR: [interrupted](LruGen::interrupt) |
//!
//! A reclaimer ages periodically, reads how old the generations are, and evicts the old ones.
//!
//! | file | contents |
//! |---|---|
//! | `command` | the parser of commands |
//! | `print` | the output format |
//! | `settings` | `enabled` and `min_ttl_ms` |
//!
//! **Differences from the kernel.** A number that does not fit is refused, not truncated. There are no memcgs:
//! each address space counts as one.

mod command;
mod error;
mod print;
mod settings;

pub use command::Command;
pub use error::LruGenError;

use crate::nodes::Node;
use crate::space::AddressSpace;
use parking_lot::RwLock;
use slat::Idle;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Pages evicted between two checks for an [interrupt](LruGen::interrupt).
const BATCH: u64 = 64;

/// Numbered address spaces, with the kernel's text commands.
///
/// ```
/// use slat::Idle;
/// use slat_mm::{AddressSpace, Arena, LruSettings, lru_gen::LruGen};
///
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let space = AddressSpace::builder(&arena).lru(LruSettings::default()).build()?;
/// let lru_gen = LruGen::new();
/// assert_eq!(lru_gen.add("/guest", &space), 1);
/// assert!(lru_gen.read().starts_with("memcg     1 /guest\n node     0\n"));
/// let mut idle = Idle::take().unwrap();
/// let error = lru_gen.write(&mut idle, "+ 1 0 99").unwrap_err();
/// assert_eq!(error.errno(), libc::EINVAL);
/// # Ok::<(), slat_mm::MmError>(())
/// ```
#[derive(Debug, Default)]
pub struct LruGen {
    spaces: RwLock<Vec<Entry>>,
    interrupted: AtomicBool,
}

/// One address space. Its number is its index plus one.
#[derive(Debug)]
struct Entry {
    path: String,
    space: Weak<AddressSpace>,
}

impl LruGen {
    /// Starts without address spaces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an address space under a name (in the kernel, a cgroup's path) and returns its number. An address
    /// space without an LRU is not shown. After an address space is dropped, its number names none.
    ///
    /// # Panics
    /// If 65,535 address spaces were added before.
    pub fn add(&self, path: &str, space: &Arc<AddressSpace>) -> u16 {
        let mut spaces = self.spaces.write();
        spaces.push(Entry { path: path.into(), space: Arc::downgrade(space) });
        u16::try_from(spaces.len()).expect("a memcg's number has 16 bits")
    }

    /// Returns the generations of all address spaces, as text.
    pub fn read(&self) -> String {
        let mut text = String::new();
        for (number, entry) in (1u16..).zip(self.spaces.read().iter()) {
            if let Some(space) = entry.space.upgrade()
                && let Some(lru) = space.lru()
            {
                // Writing to a string does not fail.
                let _ =
                    write!(text, "{}", print::Memcg { number, path: &entry.path, nodes: &lru.generations() });
            }
        }
        text
    }

    /// Executes the commands of `text` in order, up to the first that fails. May sleep.
    pub fn write(&self, idle: &mut Idle, text: &str) -> Result<(), LruGenError> {
        Command::all(text).try_for_each(|command| self.carry_out(idle, command?))
    }

    /// Makes current and later evictions end soon with `EINTR`.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Relaxed);
    }

    fn carry_out(&self, idle: &mut Idle, command: Command) -> Result<(), LruGenError> {
        match command {
            Command::Age { memcg, node, seq, can_swap, force_scan } => {
                let (space, node) = (self.space(memcg)?, node_of(node)?);
                // Swappiness 0 means no swapping; the address space checks whether it has a swap.
                let swappiness = space.lru().map_or(0, |lru| lru.settings().swappiness);
                let can_swap = can_swap.unwrap_or(swappiness > 0);
                space.age(idle, node, seq, can_swap, force_scan)?;
                Ok(())
            }
            Command::Evict { memcg, node, seq, swappiness, nr } => {
                let (space, node) = (self.space(memcg)?, node_of(node)?);
                let mut left = nr.unwrap_or(u64::MAX);
                loop {
                    let batch = left.min(BATCH);
                    let evicted = space.evict(idle, node, seq, swappiness, Some(batch))?;
                    left -= evicted.min(left);
                    if evicted == 0 || left == 0 {
                        return Ok(());
                    }
                    if self.interrupted.load(Relaxed) {
                        return Err(LruGenError::Interrupted);
                    }
                }
            }
        }
    }

    fn space(&self, memcg: u32) -> Result<Arc<AddressSpace>, LruGenError> {
        let spaces = self.spaces.read();
        let entry = (memcg as usize).checked_sub(1).and_then(|at| spaces.get(at));
        entry.and_then(|entry| entry.space.upgrade()).ok_or(LruGenError::NoSuchMemcg(memcg))
    }
}

fn node_of(number: u32) -> Result<Node, LruGenError> {
    u8::try_from(number).map(Node).map_err(|_| LruGenError::NoSuchNode(number))
}
