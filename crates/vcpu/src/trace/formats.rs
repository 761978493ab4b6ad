//! The formats of a line beside lackey's own spelling.
//!
//! | format | line | read as |
//! |---|---|---|
//! | lackey, spelled otherwise | `L 1ffefff8,8`, `I 0x4001234,3`: any blanks, also none at the start; `0x` | the same access |
//! | address and direction | `0x7f001000 R`, `7f001000 W`, `0x7f001000 W 8`, `R 0x7f001000`, `W 0x7f001000` | 1 byte, or so many |
//! | drmemtrace, by its tool `view` | `47446 37770: 2765543 read 8 byte(s) @ 0x7f001000 by PC 0x…`; also `write`, `ifetch` | the same access; all threads as one stream |
//! | ftrace or perf | `… kvm_page_fault: vcpu 0 rip 0x… address 0x7f001000 error_code 0x182` | 1 byte; the faults of all vCPUs as one stream |
//!
//! A trace has one of them. The first record decides, so that a program's own output is not taken for records of another
//! format ([`Reader`](super::Reader)). A line that names an access and a comma, or a page fault, must be a record.

use super::flaw::{Flaw, LONGEST, NoRecord, access};
use super::{Access, Kind};
use std::str;

/// The formats, for messages.
pub const FORMATS: &str = "lackey's (` L 1ffefff8,8`), `ADDRESS R` or `ADDRESS W`, drmemtrace's view, and kvm_page_fault of ftrace or perf";

/// The format of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Lackey,
    Direction,
    View,
    PageFault,
}

/// The name of the event in lines of ftrace and perf.
const EVENT: &str = "kvm_page_fault:";

/// Parses a line that is not spelled as lackey does.
#[cold]
pub(super) fn line(text: &[u8]) -> Result<(Access, Format), NoRecord> {
    // Whether more follows depends on no buffer.
    let (text, cut) = (&text[..text.len().min(LONGEST)], text.len() >= LONGEST);
    let Ok(line) = str::from_utf8(text) else { return Err(NoRecord::Other) };
    if let Some((_, event)) = line.split_once(EVENT) {
        // A line that is cut off may end in the middle of a number.
        let access = if cut { Err(Flaw::PageFault) } else { page_fault(event) };
        return access.map(|access| (access, Format::PageFault)).map_err(NoRecord::Garbled);
    }
    if cut {
        return Err(NoRecord::Other);
    }
    let mut words = line.split_ascii_whitespace();
    let [first, second, third, fourth] = [words.next(), words.next(), words.next(), words.next()];
    if let Some(kind) = fourth {
        let (Some(record), Some(instruction)) = (first, second) else { return Err(NoRecord::Other) };
        let access = view((record, instruction, kind), words)?;
        return access.map(|access| (access, Format::View)).map_err(NoRecord::Garbled);
    }
    match [first, second, third, fourth] {
        [Some(mark), Some(place), None, None] if kind(mark).is_some() => {
            let Some(kind) = kind(mark) else { return Err(NoRecord::Other) };
            marked(kind, mark, place)
        }
        [Some(addr), Some(mark), size, None] => {
            let kind = match mark {
                "R" | "r" => Kind::Load,
                "W" | "w" => Kind::Store,
                _ => return Err(NoRecord::Other),
            };
            let Some(addr) = hexadecimal(addr) else {
                return Err(if addr.starts_with("0x") {
                    NoRecord::Garbled(Flaw::Address)
                } else {
                    NoRecord::Other
                });
            };
            let size = size.map_or(Ok(1), |size| decimal(size).ok_or(Flaw::Size));
            let access = size.and_then(|size| access(kind, addr, size));
            access.map(|access| (access, Format::Direction)).map_err(NoRecord::Garbled)
        }
        _ => Err(NoRecord::Other),
    }
}

/// Parses `L 1ffefff8,8` or `R 0x1ffefff8`.
fn marked(kind: Kind, mark: &str, place: &str) -> Result<(Access, Format), NoRecord> {
    match place.split_once(',') {
        Some((addr, size)) => {
            let Some(addr) = hexadecimal(addr) else {
                // A sentence may begin with `I`, and go on with a comma.
                let digits = addr.starts_with("0x") || addr.bytes().all(|byte| byte.is_ascii_hexdigit());
                return Err(if digits { NoRecord::Garbled(Flaw::Address) } else { NoRecord::Other });
            };
            let access = decimal(size).ok_or(Flaw::Size).and_then(|size| access(kind, addr, size));
            access.map(|access| (access, Format::Lackey)).map_err(NoRecord::Garbled)
        }
        None if ["R", "W"].contains(&mark) && place.starts_with("0x") => {
            let access = hexadecimal(place).ok_or(Flaw::Address).and_then(|addr| access(kind, addr, 1));
            access.map(|access| (access, Format::Direction)).map_err(NoRecord::Garbled)
        }
        None => Err(NoRecord::Other),
    }
}

fn kind(mark: &str) -> Option<Kind> {
    Some(match mark {
        "I" => Kind::Fetch,
        "L" | "R" => Kind::Load,
        "S" | "W" => Kind::Store,
        "M" => Kind::Modify,
        _ => return None,
    })
}

/// Parses `RECORD INSTRUCTION: THREAD KIND SIZE byte(s) @ ADDRESS …`, whose words after KIND are left.
fn view<'a>(
    (record, instruction, kind): (&str, &str, &str),
    mut left: impl Iterator<Item = &'a str>,
) -> Result<Result<Access, Flaw>, NoRecord> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let kind = match kind {
        "ifetch" => Kind::Fetch,
        "read" => Kind::Load,
        "write" => Kind::Store,
        _ => return Err(NoRecord::Other),
    };
    let [size, unit, at, addr] = [left.next(), left.next(), left.next(), left.next()];
    if !number(record)
        || !instruction.strip_suffix(':').is_some_and(number)
        || (unit, at) != (Some("byte(s)"), Some("@"))
    {
        return Err(NoRecord::Other);
    }
    let Some(addr) = addr.and_then(hexadecimal) else { return Ok(Err(Flaw::Address)) };
    let size = size.and_then(decimal).ok_or(Flaw::Size);
    Ok(size.and_then(|size| access(kind, addr, size)))
}

/// Parses what follows the name of the event.
fn page_fault(event: &str) -> Result<Access, Flaw> {
    let field = |name: &str| {
        let mut words = event.split_ascii_whitespace().skip_while(|word| *word != name);
        words.nth(1).and_then(hexadecimal).ok_or(Flaw::PageFault)
    };
    let (addr, code) = (field("address")?, field("error_code")?);
    // On AMD: a page fault's error code, with bit 32 or 33 set. On Intel: an EPT violation's exit qualification.
    let fetch = if code >> 32 != 0 { 1 << 4 } else { 1 << 2 };
    let kind = match code {
        _ if code & fetch != 0 => Kind::Fetch,
        _ if code & 2 != 0 => Kind::Store,
        _ => Kind::Load,
    };
    access(kind, addr, 1)
}

/// Returns the number, which may begin with `0x`.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let all = !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn decimal(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str) -> Option<(Kind, u64, u16, Format)> {
        let (Access { addr, size, kind }, format) = super::super::line::line(text.as_bytes()).ok()?;
        Some((kind, addr, size, format?))
    }

    #[test]
    fn lackeys_lines_are_read_without_their_blanks_and_with_0x() {
        use Format::Lackey;
        for (text, expected) in [
            ("L 1fff000740,8", (Kind::Load, 0x1f_ff00_0740, 8, Lackey)),
            ("S 1fff000748,8\r", (Kind::Store, 0x1f_ff00_0748, 8, Lackey)),
            ("M  04033e06,1", (Kind::Modify, 0x403_3e06, 1, Lackey)),
            ("I 04001234,3", (Kind::Fetch, 0x400_1234, 3, Lackey)),
            ("\tL\t0x400,4", (Kind::Load, 0x400, 4, Lackey)),
            (" L 0x400,4", (Kind::Load, 0x400, 4, Lackey)),
            ("I  0x400,4 ", (Kind::Fetch, 0x400, 4, Lackey)),
        ] {
            assert_eq!(reads(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn addresses_with_a_direction_are_read() {
        use Format::Direction;
        for (text, expected) in [
            ("0x7f001000 R", (Kind::Load, 0x7f00_1000, 1, Direction)),
            ("7F001000 w\r", (Kind::Store, 0x7f00_1000, 1, Direction)),
            ("0x7f001000 W 8", (Kind::Store, 0x7f00_1000, 8, Direction)),
            ("R 0x7f001000", (Kind::Load, 0x7f00_1000, 1, Direction)),
            ("W 0x7f001000", (Kind::Store, 0x7f00_1000, 1, Direction)),
        ] {
            assert_eq!(reads(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn lines_of_drmemtraces_view_are_read() {
        use Format::View;
        for (text, expected) in [
            (
                "       47445       37770:     2765543 ifetch       5 byte(s) @ 0x0000000000404a7e 48 8b 5c 24 08       mov",
                (Kind::Fetch, 0x40_4a7e, 5, View),
            ),
            (
                "       47446       37770:     2765543 read         8 byte(s) @ 0x00007fdf64e2adc8 by PC 0x0000000000404a7e",
                (Kind::Load, 0x7fdf_64e2_adc8, 8, View),
            ),
            ("1 1: T7 write 64 byte(s) @ 0x1000 by PC 0x2000", (Kind::Store, 0x1000, 64, View)),
        ] {
            assert_eq!(reads(text), Some(expected), "{text}");
        }
        // Records without an access, and a program's own output.
        for text in [
            "           5           0:     2765542 <marker: page size 4096>",
            "<--record#-> <--instr#->: <---tid---> <record details>",
            "7 3: 42 pref-r-L1 1 byte(s) @ 0x1000 by PC 0x2000",
            "core 0: EEPROM read 8 byte(s) @ 0x10",
        ] {
            assert_eq!(reads(text), None, "{text}");
        }
    }

    #[test]
    fn page_faults_of_both_vendors_are_read() {
        let line = |event: &str| format!(" qemu-system-x86-4711  [003] d..1.  1234.567890: {event}");
        for (event, kind, addr) in [
            (
                "kvm_page_fault: vcpu 0 rip 0xffffffff81000000 address 0x00000000fee000b0 error_code 0x181",
                Kind::Load,
                0xfee0_00b0,
            ),
            ("kvm_page_fault: vcpu 1 rip 0x1000 address 0x1234000 error_code 0x182", Kind::Store, 0x123_4000),
            ("kvm_page_fault: vcpu 1 rip 0x1000 address 0x1234000 error_code 0x184", Kind::Fetch, 0x123_4000),
            (
                "kvm:kvm_page_fault: vcpu 1 rip 0x1000 address 0x1234000 error_code 0x100000004",
                Kind::Load,
                0x123_4000,
            ),
            (
                "kvm:kvm_page_fault: vcpu 1 rip 0x1000 address 0x1234000 error_code 0x100000006",
                Kind::Store,
                0x123_4000,
            ),
            (
                "kvm:kvm_page_fault: vcpu 1 rip 0x1000 address 0x1234000 error_code 0x100000014",
                Kind::Fetch,
                0x123_4000,
            ),
            ("kvm_page_fault: address 5000 error_code 182", Kind::Store, 0x5000),
        ] {
            assert_eq!(reads(&line(event)), Some((kind, addr, 1, Format::PageFault)), "{event}");
        }
    }

    #[test]
    fn what_names_an_access_and_is_none_is_garbled() {
        let garbled = |text: &str| super::super::line::line(text.as_bytes()).unwrap_err();
        for (text, flaw) in [
            ("L 1fff000740,", Flaw::Size),
            ("L 1fff000740,0", Flaw::Empty),
            ("L 1fff000740,4097", Flaw::Large),
            ("S 0xffffffffffffffff,1", Flaw::Reach),
            ("S 0x12345678901234567,1", Flaw::Address),
            ("S ,1", Flaw::Address),
            ("0xzz R", Flaw::Address),
            ("0x1000 R 0", Flaw::Empty),
            ("0x1000 W x", Flaw::Size),
            ("R 0x", Flaw::Address),
            ("1 1: 7 read 8 byte(s) @ 0x", Flaw::Address),
            ("1 1: 7 read 8 byte(s) @", Flaw::Address),
            ("1 1: 7 read x byte(s) @ 0x1000", Flaw::Size),
            ("1 1: 7 read 0 byte(s) @ 0x1000", Flaw::Empty),
            ("kvm_page_fault: address 0x1000", Flaw::PageFault),
            ("kvm_page_fault: address zz error_code 0x1", Flaw::PageFault),
            (" L xyz,4", Flaw::Address),
        ] {
            assert_eq!(garbled(text), NoRecord::Garbled(flaw), "{text}");
        }
        let cut = format!("kvm_page_fault: address 0x1000 error_code 0x1{}", "0".repeat(LONGEST));
        assert_eq!(garbled(&cut), NoRecord::Garbled(Flaw::PageFault));
        for text in
            ["I am here, too", "I think, so", "R", "W 1000", "hello W", "L", "I add 5", "1 2 3 R", "R W"]
        {
            assert_eq!(garbled(text), NoRecord::Other, "{text}");
        }
    }
}
