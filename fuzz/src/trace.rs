//! `trace`: compares a memory trace that is read in pieces with its lines, parsed one by one.
//!
//! Valgrind documents its format in four lines. The second reader here follows them, with strings and copies, and keeps
//! the whole trace. Compressed input goes only to the first reader, which must read or refuse it.

use crate::Input;
use slat_vcpu::trace::{Access, Kind, Reader};
use std::io::{self, Read};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let head = input.pick(&[None, None, None, Some(&GZIP), Some(&ZSTD)]);
    let (piece, batch) = (1 + input.below(64) as usize, 1 + input.below(16) as usize);
    let text = input.rest();
    if let Some(head) = head {
        // Any input must give an answer.
        let _ = read([head, text].concat(), piece, batch);
        return;
    }
    if text.starts_with(&GZIP[..2]) || text.starts_with(&ZSTD) {
        return;
    }
    let (accesses, counts) = read(text.to_vec(), piece, batch).expect("plain text is read to its end");
    let expected = expected(text);
    assert_eq!(accesses, expected.0);
    assert_eq!(counts, expected.1, "lines, skipped, garbled");
    for access in accesses {
        let again = read(access.to_string().into_bytes(), piece, 1).unwrap();
        assert_eq!(again, (vec![access], [1, 0, 0]), "what is printed is read back");
    }
}

const GZIP: [u8; 4] = [0x1f, 0x8b, 8, 0];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Accesses; lines, skipped, garbled.
type Seen = (Vec<Access>, [u64; 3]);

/// A stream that returns a few bytes at a time.
struct Pieces(io::Cursor<Vec<u8>>, usize);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.1);
        self.0.read(&mut buffer[..len])
    }
}

fn read(bytes: Vec<u8>, piece: usize, batch: usize) -> Result<Seen, slat_vcpu::trace::Error> {
    let mut reader = Reader::new("fuzz", Pieces(io::Cursor::new(bytes), piece))?;
    let mut all = Vec::new();
    while reader.fill(&mut all, batch)? > 0 {}
    Ok((all, [reader.lines(), reader.skipped(), reader.garbled()]))
}

fn expected(text: &[u8]) -> Seen {
    let mut lines: Vec<_> = text.split(|&byte| byte == b'\n').collect();
    // A newline ends a line; bytes after the last newline are one more line.
    lines.pop_if(|last| last.is_empty());
    let (mut accesses, mut skipped, mut garbled) = (Vec::new(), 0, 0);
    for line in &lines {
        let kind = match line.get(..3) {
            Some(b"I  ") => Kind::Fetch,
            Some(b" L ") => Kind::Load,
            Some(b" S ") => Kind::Store,
            Some(b" M ") => Kind::Modify,
            _ => {
                skipped += 1;
                continue;
            }
        };
        match record(&line[3..]) {
            Some((addr, size)) => accesses.push(Access { addr, size, kind }),
            None => garbled += 1,
        }
    }
    (accesses, [lines.len() as u64, skipped, garbled])
}

/// Parses `ADDRESS,SIZE`, and an optional carriage return.
fn record(text: &[u8]) -> Option<(u64, u16)> {
    let text = str::from_utf8(text).ok()?;
    let text = text.strip_suffix('\r').unwrap_or(text);
    let (addr, size) = text.split_once(',')?;
    let digits = |text: &str, most: usize, radix| {
        (1..=most).contains(&text.len()) && text.chars().all(|digit| digit.is_digit(radix))
    };
    if !digits(addr, 16, 16) || !digits(size, 4, 10) {
        return None;
    }
    let addr = u64::from_str_radix(addr, 16).ok()?;
    let size: u16 = size.parse().ok()?;
    let end = addr.checked_add(size.into())?;
    ((1..=Access::MAX_SIZE).contains(&size) && end <= Access::LIMIT).then_some((addr, size))
}
