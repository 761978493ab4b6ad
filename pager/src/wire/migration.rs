//! The part of Cloud Hypervisor's migration protocol, version 0, that a local migration and its page faults need.
//!
//! A request has 16 bytes, little endian: command (u16), six bytes that depend on it, the length of its payload (u64). An answer has
//! 16, too: status (u16), six bytes of padding, a length. Each request waits for its answer.

use crate::layout::{Layout, LayoutError, MOST_REGIONS, Region};
use crate::store::{MOST_CONFIG, MOST_STATE, StoreError};
use crate::uffd::PAGE;
use serde::Deserialize;
use std::collections::HashSet;
use std::io;
use std::ops::Range;

/// Bytes of a request, of an answer, and of the range of a page fault.
pub(crate) const HEADER: usize = 16;
/// Most bytes of one page fault.
pub const MOST_FAULT: u64 = 2 << 20;
/// First bytes of a connection for page faults: a role (u16).
pub(crate) const ROLE_FAULT: [u8; 2] = 2u16.to_le_bytes();

/// A request. A number is the length of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigrationRequest {
    Start,
    /// The number of a memslot (u32), and a descriptor of its memory.
    MemoryFd,
    Config(u64),
    State(u64),
    Complete {
        paused: bool,
    },
    Abandon,
    /// An address and a length (u64 each).
    PageFault,
}

impl MigrationRequest {
    pub fn print(self) -> [u8; HEADER] {
        let (command, length) = match self {
            Self::Start => (1u16, 0),
            Self::Config(length) => (2, length),
            Self::State(length) => (3, length),
            Self::Complete { paused: false } => (5, 0),
            Self::Abandon => (6, 0),
            Self::MemoryFd => (7, 4),
            Self::Complete { paused: true } => (8, 0),
            Self::PageFault => (9, HEADER as u64),
        };
        head(command, length)
    }

    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, MigrationError> {
        let (command, length) = numbers(bytes);
        let (request, lengths) = match command {
            1 => match u16::from_le_bytes([bytes[2], bytes[3]]) {
                0 => (Self::Start, 0..=0),
                version => {
                    return sense(format!("version {version} of the protocol is unknown: 0 is served"));
                }
            },
            2 => (Self::Config(length), 1..=MOST_CONFIG),
            3 => (Self::State(length), 1..=MOST_STATE),
            4 => return sense("memory comes over the socket: send-migration needs local=on"),
            5 | 8 => (Self::Complete { paused: command == 8 }, 0..=0),
            6 => (Self::Abandon, 0..=0),
            7 => (Self::MemoryFd, 4..=4),
            9 => (Self::PageFault, HEADER as u64..=HEADER as u64),
            _ => return sense(format!("command {command} is unknown")),
        };
        let (least, most) = lengths.clone().into_inner();
        if lengths.contains(&length) {
            return Ok(request);
        }
        sense(format!("command {command} has {length} bytes: it may have {least} to {most}"))
    }

    /// Returns the error that this request came instead of another one.
    pub fn out_of_turn(self, wanted: &str) -> MigrationError {
        MigrationError::Sense(format!("{self:?} came when {wanted} was to come"))
    }
}

/// Returns an answer without a payload: success or failure.
pub(crate) fn answer(is_ok: bool) -> [u8; HEADER] {
    head(if is_ok { 1 } else { 2 }, 0)
}

/// Checks that the other side accepted `what`.
pub(crate) fn is_ok(bytes: &[u8; HEADER], what: &'static str) -> Result<(), MigrationError> {
    match numbers(bytes) {
        (1, 0) => Ok(()),
        (2, _) => Err(MigrationError::Refused(what)),
        (status, length) => sense(format!("an answer with status {status} and {length} bytes is unknown")),
    }
}

/// Parses the guest-physical addresses of a page fault.
pub(crate) fn range(bytes: &[u8; HEADER]) -> Result<Range<u64>, MigrationError> {
    let (first, second) = bytes.split_at(8);
    let [start, length] = [first, second].map(|part| u64::from_le_bytes(part.try_into().expect("8 bytes")));
    let is_whole = [start, length].iter().all(|number| number.is_multiple_of(PAGE as u64));
    match start.checked_add(length) {
        Some(end) if is_whole && (1..=MOST_FAULT).contains(&length) => Ok(start..end),
        _ => sense(format!(
            "a page fault of {length} bytes at {start:#x}: it is of whole pages, and of {MOST_FAULT} bytes at most"
        )),
    }
}

fn sense<T>(what: impl Into<String>) -> Result<T, MigrationError> {
    Err(MigrationError::Sense(what.into()))
}

fn head(first: u16, length: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..2].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn numbers(bytes: &[u8; HEADER]) -> (u16, u64) {
    let length = bytes[8..].try_into().expect("8 bytes");
    (u16::from_le_bytes([bytes[0], bytes[1]]), u64::from_le_bytes(length))
}

/// A memslot of a machine's configuration. All in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Slot {
    pub slot: u32,
    pub gpa: u64,
    pub size: u64,
    /// Offset of its memory in its file.
    pub file_offset: u64,
    #[serde(default)]
    virtio_mem: bool,
}

#[derive(Deserialize)]
struct Config {
    memory_manager_data: MemoryManager,
}

#[derive(Deserialize)]
struct MemoryManager {
    guest_ram_mappings: Vec<Slot>,
}

/// The memslots of a machine. The image has them one after the other, in the order of the configuration.
#[derive(Debug)]
pub(crate) struct Slots {
    pub slots: Vec<Slot>,
    /// Their guest-physical addresses, and their offsets in the image.
    pub layout: Layout,
}

impl Slots {
    /// Parses the memslots of a configuration in JSON. Ignores unknown fields.
    pub fn parse(config: &[u8]) -> Result<Self, MigrationError> {
        let config: Config =
            serde_json::from_slice(config).or_else(|error| sense(format!("its configuration: {error}")))?;
        let slots = config.memory_manager_data.guest_ram_mappings;
        if slots.len() > MOST_REGIONS {
            return Err(LayoutError::Count(slots.len()).into());
        }
        let (mut seen, mut regions, mut offset) = (HashSet::new(), Vec::new(), 0u64);
        for slot in &slots {
            let wrong = |what| MigrationError::Slot(slot.slot, what);
            let region = Region { base: slot.gpa, size: slot.size, offset };
            if slot.virtio_mem {
                return Err(wrong("virtio-mem is not served"));
            }
            if !seen.insert(slot.slot) {
                return Err(wrong("it occurs twice"));
            }
            if !slot.file_offset.is_multiple_of(PAGE as u64) || slot.end().is_none_or(|end| end > 1 << 62) {
                return Err(wrong("its place in its file makes no sense"));
            }
            regions.push(region);
            offset = offset.checked_add(slot.size).ok_or(LayoutError::Overflow(region))?;
        }
        Ok(Self { layout: Layout::new(regions, offset)?, slots })
    }

    /// Returns the memslot of a page of the image, and the offset of that page in the memslot's file.
    pub fn at(&self, page: usize) -> Option<(usize, u64)> {
        let mut left = (page as u64).checked_mul(PAGE as u64)?;
        for (number, slot) in self.slots.iter().enumerate() {
            if left < slot.size {
                return Some((number, slot.file_offset + left));
            }
            left -= slot.size;
        }
        None
    }

    /// Returns the bytes of the memory of all memslots.
    pub fn size(&self) -> u64 {
        self.slots.iter().map(|slot| slot.size).sum()
    }
}

impl Slot {
    /// Returns the end of its memory in its file.
    pub fn end(&self) -> Option<u64> {
        self.file_offset.checked_add(self.size)
    }
}

/// Error of receiving or restoring a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// The VMM's messages are malformed or not supported.
    #[error("the migration: {0}")]
    Sense(String),
    /// A memslot is malformed or not supported.
    #[error("memslot {0}: {1}")]
    Slot(u32, &'static str),
    /// The memslots contradict each other.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The VMM refused.
    #[error("the VMM refused {0}")]
    Refused(&'static str),
    /// The VMM abandoned the migration.
    #[error("the VMM abandoned the migration")]
    Abandoned,
    /// The template is not a machine.
    #[error("{0} is no machine: `receive` makes one")]
    NoMachine(String),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of the connection or of a memory file.
    #[error("the VMM: {0}")]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_and_wrong_ones_are_refused() {
        use MigrationRequest::*;
        let all = [Start, MemoryFd, Config(7), State(1 << 20), Abandon, PageFault];
        for request in all.into_iter().chain([true, false].map(|paused| Complete { paused })) {
            assert_eq!(MigrationRequest::parse(&request.print()).unwrap(), request);
        }
        assert_eq!(MigrationRequest::parse(&head(2, MOST_CONFIG)).unwrap(), Config(MOST_CONFIG));
        let lengths = [(1, 1), (2, 0), (2, MOST_CONFIG + 1), (3, u64::MAX), (5, 9), (7, 5), (8, 1), (9, 8)];
        for (command, length) in lengths {
            let error = MigrationRequest::parse(&head(command, length)).unwrap_err();
            assert!(error.to_string().contains("it may have"), "{error}");
        }
        let error = |bytes: &[u8; HEADER]| MigrationRequest::parse(bytes).unwrap_err().to_string();
        assert!(error(&head(4, 16)).contains("local=on"));
        assert!(error(&head(0, 0)).contains("command 0 is unknown"));
        assert!(error(&head(10, 0)).contains("command 10 is unknown"));
        let mut later = Start.print();
        later[3] = 1;
        assert!(error(&later).contains("version 256"));
    }

    #[test]
    fn answers_are_yes_or_no() {
        assert!(is_ok(&answer(true), "it").is_ok());
        assert_eq!(is_ok(&answer(false), "it").unwrap_err().to_string(), "the VMM refused it");
        for (status, length) in [(0, 0), (1, 1), (3, 0)] {
            let error = is_ok(&head(status, length), "it").unwrap_err();
            assert!(error.to_string().contains("is unknown"), "{error}");
        }
    }

    #[test]
    fn a_page_fault_is_in_whole_pages_and_not_too_long() {
        let fault = |start: u64, length: u64| {
            range(&[start.to_le_bytes(), length.to_le_bytes()].concat().try_into().unwrap())
        };
        assert_eq!(fault(4096, 8192).unwrap(), 4096..12288);
        for (start, length) in [(1, 4096), (0, 0), (0, 100), (0, MOST_FAULT + 4096), (u64::MAX - 4095, 4096)]
        {
            assert!(fault(start, length).unwrap_err().to_string().contains("page fault"), "{start} {length}");
        }
    }

    fn config(slots: &[(u32, u64, u64, u64)], virtio_mem: bool) -> String {
        let slot = |(slot, gpa, size, offset): &(u32, u64, u64, u64)| {
            format!(
                r#"{{"slot":{slot},"gpa":{gpa},"size":{size},"file_offset":{offset},"zone_id":"a","virtio_mem":{virtio_mem}}}"#
            )
        };
        let slots: Vec<_> = slots.iter().map(slot).collect();
        format!(
            r#"{{"vm_config":{{"a":[1]}},"memory_manager_data":{{"guest_ram_mappings":[{}]}}}}"#,
            slots.join(",")
        )
    }

    #[test]
    fn memslots_lie_in_the_image_in_the_order_of_the_configuration() {
        let text = config(&[(5, 1 << 32, 8192, 12288), (2, 0, 4096, 0)], false);
        let slots = Slots::parse(text.as_bytes()).unwrap();
        assert_eq!(slots.size(), 12288);
        assert_eq!(slots.layout.page((1 << 32) + 4096).unwrap().1, 1);
        assert_eq!(slots.layout.page(0).unwrap().1, 2);
        assert_eq!((slots.slots[0].slot, slots.slots[0].end()), (5, Some(20480)));
        assert_eq!(
            [0, 1, 2, 3].map(|page| slots.at(page)),
            [Some((0, 12288)), Some((0, 16384)), Some((1, 0)), None]
        );
    }

    #[test]
    fn memslots_that_make_no_sense_are_refused() {
        let error = |slots: &[(u32, u64, u64, u64)], virtio_mem| {
            Slots::parse(config(slots, virtio_mem).as_bytes()).unwrap_err().to_string()
        };
        assert_eq!(error(&[(3, 0, 4096, 0)], true), "memslot 3: virtio-mem is not served");
        assert!(error(&[(3, 0, 4096, 0), (3, 8192, 4096, 0)], false).contains("twice"));
        assert!(error(&[(3, 0, 4096, 0), (4, 0, 4096, 0)], false).contains("overlap"));
        assert!(error(&[(3, 0, 4096, 100)], false).contains("its file"));
        assert!(error(&[(3, 0, 4096, u64::MAX - 4095)], false).contains("its file"));
        assert!(error(&[(3, 0, u64::MAX - 4095, 0)], false).contains("its file"));
        assert!(error(&[(3, 0, 100, 0)], false).contains("whole pages"));
        assert!(error(&[], false).contains("0 regions"));
        let many: Vec<_> = (0..513).map(|slot| (slot, u64::from(slot) << 12, 4096, 0)).collect();
        assert!(error(&many, false).contains("513 regions"));
        for text in ["", "{}", r#"{"memory_manager_data":{"guest_ram_mappings":[{"slot":1}]}}"#] {
            let error = Slots::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("its configuration"), "{text}: {error}");
        }
    }
}
