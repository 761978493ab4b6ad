//! `trace`: compares a memory trace that is read in pieces with its lines, parsed one by one.
//!
//! Valgrind documents its format in four lines. The second reader here follows them, and the table of other formats
//! (`crates/vcpu/src/trace/formats.rs`), with strings and copies, and keeps the whole trace. Compressed input goes only to the first reader, which must read or refuse it.

use crate::Input;
use slat_vcpu::trace::{Access, Error, Kind, Reader};
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
    let (accesses, counts) = match read(text.to_vec(), piece, batch) {
        Err(Error::Format { .. }) => return,
        read => read.expect("plain text is read to its end"),
    };
    let expected = expected(text);
    assert_eq!(accesses, expected.0);
    assert_eq!(counts, expected.1, "lines, skipped, garbled");
    for access in accesses {
        let again = read(access.to_string().into_bytes(), piece, 1).unwrap();
        assert_eq!(again, (vec![access], [1, 0, 0]), "the printed form is read back");
    }
}

const GZIP: [u8; 4] = [0x1f, 0x8b, 8, 0];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Accesses; lines, skipped, garbled.
type Seen = (Vec<Access>, [u64; 3]);

/// A line in another spelling or format.
enum OneLine {
    Record(Access, char),
    Garbled,
    Other,
}

/// A stream that returns a few bytes at a time.
struct Pieces(io::Cursor<Vec<u8>>, usize);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.1);
        self.0.read(&mut buffer[..len])
    }
}

fn read(bytes: Vec<u8>, piece: usize, batch: usize) -> Result<Seen, Error> {
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
    // The other format of this trace, which its first record decides.
    let mut other = None;
    for line in &lines {
        let kind = match line.get(..3) {
            Some(b"I  ") => Some(Kind::Fetch),
            Some(b" L ") => Some(Kind::Load),
            Some(b" S ") => Some(Kind::Store),
            Some(b" M ") => Some(Kind::Modify),
            _ => None,
        };
        if let Some((addr, size)) = kind.and_then(|_| record(&line[3..])) {
            if let Some(kind) = kind {
                accesses.push(Access { addr, size, kind });
            }
            continue;
        }
        match (respelled(line), kind) {
            (OneLine::Record(access, format), _) => {
                let known = *other.get_or_insert(if accesses.is_empty() { format } else { 'l' });
                if known == format { accesses.push(access) } else { skipped += 1 }
            }
            (OneLine::Garbled, _) | (_, Some(_)) => garbled += 1,
            (OneLine::Other, None) => skipped += 1,
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

/// Bytes by which a line is judged.
const JUDGED: usize = 512;

/// Parses a line that is not spelled as lackey does.
fn respelled(line: &[u8]) -> OneLine {
    let judged = &line[..line.len().min(JUDGED)];
    let Ok(text) = str::from_utf8(judged) else { return OneLine::Other };
    if let Some(at) = text.find("kvm_page_fault:") {
        let words: Vec<&str> = text[at + "kvm_page_fault:".len()..].split_ascii_whitespace().collect();
        let field = |name| words.iter().position(|word| *word == name).and_then(|at| hex(words.get(at + 1)?));
        let (Some(addr), Some(code)) = (field("address"), field("error_code")) else {
            return OneLine::Garbled;
        };
        if judged.len() == JUDGED || addr >= Access::LIMIT {
            return OneLine::Garbled;
        }
        let fetch = code & if code > u64::from(u32::MAX) { 0x10 } else { 4 } != 0;
        let kind = if fetch {
            Kind::Fetch
        } else if code & 2 != 0 {
            Kind::Store
        } else {
            Kind::Load
        };
        return OneLine::Record(Access { addr, size: 1, kind }, 'k');
    }
    if judged.len() == JUDGED {
        return OneLine::Other;
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let kind = |mark: &str| {
        let at = ["I", "L", "R", "S", "W", "M"].iter().position(|known| *known == mark)?;
        Some([Kind::Fetch, Kind::Load, Kind::Load, Kind::Store, Kind::Store, Kind::Modify][at])
    };
    let of = |kind, addr: Option<u64>, size: Option<u16>, format| match (addr, size) {
        (Some(addr), Some(size)) if addr.checked_add(size.into()).is_some_and(|end| end <= Access::LIMIT) => {
            OneLine::Record(Access { addr, size, kind }, format)
        }
        _ => OneLine::Garbled,
    };
    let decimal = |text: &str| {
        let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|size| digits && (1..=Access::MAX_SIZE).contains(size))
    };
    if let [record, instruction, _, mark @ ("ifetch" | "read" | "write"), size, "byte(s)", "@", ref left @ ..] =
        words[..]
        && let Some(number) = instruction.strip_suffix(':')
        && [record, number]
            .iter()
            .all(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
    {
        let kind = match mark {
            "ifetch" => Kind::Fetch,
            "read" => Kind::Load,
            _ => Kind::Store,
        };
        return of(kind, left.first().and_then(hex), decimal(size), 'v');
    }
    match words[..] {
        [mark, place] if kind(mark).is_some() => {
            let Some(kind) = kind(mark) else { return OneLine::Other };
            match place.split_once(',') {
                Some((addr, size)) => {
                    let number =
                        addr.starts_with("0x") || addr.chars().all(|digit| digit.is_ascii_hexdigit());
                    if number { of(kind, hex(addr), decimal(size), 'l') } else { OneLine::Other }
                }
                None if "RW".contains(mark) && place.starts_with("0x") => of(kind, hex(place), Some(1), 'd'),
                None => OneLine::Other,
            }
        }
        [addr, mark, ref size @ ..] if size.len() < 2 && "RrWw".contains(mark) && mark.len() == 1 => {
            let kind = if "Rr".contains(mark) { Kind::Load } else { Kind::Store };
            if hex(addr).is_none() && !addr.starts_with("0x") {
                return OneLine::Other;
            }
            of(kind, hex(addr), size.first().map_or(Some(1), |size| decimal(size)), 'd')
        }
        _ => OneLine::Other,
    }
}

fn hex(text: impl AsRef<str>) -> Option<u64> {
    let text = text.as_ref();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let all = digits.chars().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| all && digits.len() <= 16)
}
