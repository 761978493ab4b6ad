//! Firecracker's handshake: one message, a JSON array of mappings, with the userfaultfd as ancillary data.

use super::{Foreign, Handshake, Wire, WireError, receive};
use crate::layout::{MOST_REGIONS, Region};
use crate::uffd::{HUGE_PAGE, PAGE, Uffd};
use serde::Deserialize;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The handshake of `mem_backend: {backend_type: "Uffd"}`. Ignores unknown fields, so that newer VMMs are served.
#[derive(Debug, Clone, Copy, Default)]
pub struct Firecracker;

#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    /// In bytes.
    page_size: Option<u64>,
    /// Also in bytes, despite its name.
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
        let (mappings, fds) = receive(connection, until, wait, is_whole)?;
        let mut fds = Foreign(fds);
        let first = fds.0.first().ok_or(WireError::Descriptors(0))?;
        Uffd::check(first).map_err(WireError::NoUffd)?;
        let (regions, page_size) = regions(&mappings)?;
        let uffd = Uffd::from_fd(fds.0.remove(0)).map_err(WireError::NoUffd)?;
        Ok(Handshake { regions, page_size, uffd, more: fds.take() })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Mapping>, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// Parses a whole message without its descriptors: the regions, and the bytes of a page.
pub(crate) fn mappings(text: &[u8]) -> Result<Result<(Vec<Region>, usize), WireError>, serde_json::Error> {
    parse(text).map(|mappings| regions(&mappings))
}

fn regions(mappings: &[Mapping]) -> Result<(Vec<Region>, usize), WireError> {
    if mappings.len() > MOST_REGIONS {
        return Err(crate::layout::LayoutError::Count(mappings.len()).into());
    }
    let mut page_size = None;
    let mut region = |mapping: &Mapping| {
        let said = [mapping.page_size, mapping.page_size_kib];
        let is_said = said.iter().any(Option::is_some);
        for size in said.into_iter().flatten().chain((!is_said).then_some(PAGE as u64)) {
            if size != PAGE as u64 && size != HUGE_PAGE as u64 {
                return Err(WireError::PageSize(size));
            }
            if *page_size.get_or_insert(size as usize) != size as usize {
                return Err(WireError::PageSizes);
            }
        }
        Ok(Region { base: mapping.base_host_virt_addr, size: mapping.size, offset: mapping.offset })
    };
    let regions = mappings.iter().map(&mut region).collect::<Result<_, _>>()?;
    Ok((regions, page_size.unwrap_or(PAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_known_are_ignored_and_sizes_are_in_bytes() {
        let text = r#"[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096,"page_size_kib":4096,"is_guest_memfd":true},
            {"size":4096,"offset":8192,"base_host_virt_addr":1048576}]"#;
        let (regions, page_size) = regions(&parse(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(regions[0], Region { base: 4096, size: 8192, offset: 0 });
        assert_eq!(regions[1], Region { base: 1 << 20, size: 4096, offset: 8192 });
        assert_eq!(page_size, PAGE);
    }

    #[test]
    fn every_mapping_has_the_same_page_size_of_4_kib_or_2_mib() {
        let size = |sizes: [&str; 2]| {
            let region = |size| format!(r#"{{"base_host_virt_addr":0,"size":1,"offset":0{size}}}"#);
            let text = format!("[{}]", sizes.map(region).join(","));
            regions(&parse(text.as_bytes()).unwrap()).map(|(_, size)| size)
        };
        let (small, huge, both) = (
            r#","page_size":4096"#,
            r#","page_size_kib":2097152"#,
            r#","page_size":2097152,"page_size_kib":2097152"#,
        );
        assert_eq!(size(["", small]).unwrap(), PAGE);
        assert_eq!(size([huge, both]).unwrap(), HUGE_PAGE);
        for mixed in [[small, huge], [huge, ""]] {
            assert!(matches!(size(mixed), Err(WireError::PageSizes)));
        }
        // The value is in bytes, despite its name.
        assert!(matches!(size([r#","page_size_kib":2048"#, ""]), Err(WireError::PageSize(2048))));
    }

    #[test]
    fn a_handshake_without_an_array_of_mappings_is_refused() {
        for text in ["{}", "[1]", "[{}]", r#"[{"base_host_virt_addr":-1,"size":1,"offset":0}]"#, "[]x", "\0"]
        {
            assert!(!parse(text.as_bytes()).is_err_and(|error| error.is_eof()), "{text}");
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        // More bytes may follow.
        for text in ["", "[", r#"[{"base_host"#] {
            assert!(parse(text.as_bytes()).is_err_and(|error| error.is_eof()), "{text}");
        }
    }
}
