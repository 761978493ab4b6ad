//! Firecracker's handshake: one message, a JSON array of mappings, with the userfaultfd as ancillary data.

use super::{Handshake, Wire, WireError, receive};
use crate::layout::{MOST_REGIONS, Region};
use crate::uffd::{PAGE, Uffd};
use serde::Deserialize;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most bytes that a handshake has: less than a socket holds, because it stays there.
pub const MOST_HANDSHAKE: usize = 64 << 10;
/// The most descriptors that come with it: the userfaultfd, shared memory, and the userfault bitmap of guests without secrets.
pub const MOST_FDS: usize = 3;

/// The handshake of `mem_backend: {backend_type: "Uffd"}`. Fields that it does not know are ignored, so that newer VMMs are served.
#[derive(Debug, Clone, Copy, Default)]
pub struct Firecracker;

#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    /// In bytes.
    page_size: Option<u64>,
    /// In bytes, too: the name is an old mistake.
    page_size_kib: Option<u64>,
}

impl Wire for Firecracker {
    fn handshake(&self, connection: &UnixStream, wait: Duration) -> Result<Handshake, WireError> {
        let until = Instant::now() + wait;
        let is_whole = |bytes: &[u8]| match parse(bytes) {
            Err(error) if error.is_eof() => Ok(None),
            Err(error) => Err(WireError::Syntax(error.to_string())),
            Ok(mappings) => Ok(Some(mappings)),
        };
        let (mappings, mut fds) = receive(connection, until, wait, is_whole)?;
        if fds.is_empty() {
            return Err(WireError::Descriptors(0));
        }
        let uffd = Uffd::from_fd(fds.remove(0)).map_err(WireError::NoUffd)?;
        Ok(Handshake { regions: regions(&mappings)?, uffd, more: fds })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Mapping>, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// The regions of a whole message, without its descriptors.
pub(crate) fn mappings(text: &[u8]) -> Result<Result<Vec<Region>, WireError>, serde_json::Error> {
    parse(text).map(|mappings| regions(&mappings))
}

fn regions(mappings: &[Mapping]) -> Result<Vec<Region>, WireError> {
    if mappings.len() > MOST_REGIONS {
        return Err(crate::layout::LayoutError::Count(mappings.len()).into());
    }
    let region = |mapping: &Mapping| {
        let sizes = [mapping.page_size, mapping.page_size_kib];
        if let Some(size) = sizes.into_iter().flatten().find(|size| *size != PAGE as u64) {
            return Err(WireError::PageSize(size));
        }
        Ok(Region { base: mapping.base_host_virt_addr, size: mapping.size, offset: mapping.offset })
    };
    mappings.iter().map(region).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_known_are_ignored_and_sizes_are_in_bytes() {
        let text = r#"[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096,"page_size_kib":4096,"is_guest_memfd":true},
            {"size":4096,"offset":8192,"base_host_virt_addr":1048576}]"#;
        let regions = regions(&parse(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(regions[0], Region { base: 4096, size: 8192, offset: 0 });
        assert_eq!(regions[1], Region { base: 1 << 20, size: 4096, offset: 8192 });
        let huge = text.replace(":4096,\"is", ":2097152,\"is");
        assert!(matches!(
            super::regions(&parse(huge.as_bytes()).unwrap()),
            Err(WireError::PageSize(0x20_0000))
        ));
    }

    #[test]
    fn what_is_no_array_of_mappings_is_refused() {
        for text in ["{}", "[1]", "[{}]", r#"[{"base_host_virt_addr":-1,"size":1,"offset":0}]"#, "[]x", "\0"]
        {
            assert!(!parse(text.as_bytes()).is_err_and(|error| error.is_eof()), "{text}");
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        // It may go on.
        for text in ["", "[", r#"[{"base_host"#] {
            assert!(parse(text.as_bytes()).is_err_and(|error| error.is_eof()), "{text}");
        }
    }
}
