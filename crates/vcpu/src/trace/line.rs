//! One line of a trace: a record, another line, or a garbled record.
//!
//! A line that begins with `I  `, ` L `, ` S ` or ` M ` must be a record: at most 16 hexadecimal digits, a
//! comma, at most 4 decimal digits, the end of the line. This is lackey's own spelling, and nearly every line. The
//! other spellings and formats are in [`super::formats`]. The result depends only on the first [`LONGEST`](super::flaw::LONGEST) bytes
//! of a line and on whether more follow, so a line need not be stored whole.
//!
//! No parser library is used: this is the fast path of each replay.

use super::flaw::{Flaw, NoRecord};
use super::formats::{self, Format};
use super::{Access, Kind};

/// Marks bytes in [`DIGITS`] that are no digits.
const NO_DIGIT: u8 = 0xff;

/// The value of each hexadecimal digit, by its byte.
static DIGITS: [u8; 256] = {
    let mut table = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value];
        table[digit as usize] = value as u8;
        table[digit.to_ascii_uppercase() as usize] = value as u8;
        value += 1;
    }
    table
};

/// Returns the number at the start of `text`, and its length in digits. Stops after `most` digits.
#[inline(always)]
fn number<const RADIX: u64>(text: &[u8], most: usize) -> (u64, usize) {
    let (mut value, mut digits) = (0, 0);
    for &byte in text.iter().take(most) {
        let digit = u64::from(DIGITS[usize::from(byte)]);
        if digit >= RADIX {
            break;
        }
        value = value * RADIX + digit;
        digits += 1;
    }
    (value, digits)
}

/// Returns the record at the start of `text`, and its length. The caller checks what follows: a newline, the
/// end of a line (see [`line`]), or the end of the data so far.
#[inline]
pub(super) fn record(text: &[u8]) -> Result<(Access, usize), NoRecord> {
    let garbled = |flaw| Err(NoRecord::Garbled(flaw));
    let Some((mark, rest)) = text.split_first_chunk::<3>() else { return Err(NoRecord::Other) };
    let kind = match mark {
        b"I  " => Kind::Fetch,
        b" L " => Kind::Load,
        b" S " => Kind::Store,
        b" M " => Kind::Modify,
        _ => return Err(NoRecord::Other),
    };
    // 16 digits are 64 bits: no overflow.
    let (addr, digits) = number::<16>(rest, 16);
    let rest = &rest[digits..];
    if digits == 0 || (digits == 16 && rest.first().is_some_and(u8::is_ascii_hexdigit)) {
        return garbled(Flaw::Address);
    }
    let Some((b',', rest)) = rest.split_first() else { return garbled(Flaw::Comma) };
    let (size, more) = number::<10>(rest, 5);
    if more == 0 {
        return garbled(Flaw::Size);
    }
    if size == 0 {
        return garbled(Flaw::Empty);
    }
    if more == 5 || size > u64::from(Access::MAX_SIZE) {
        return garbled(Flaw::Large);
    }
    if addr > Access::LIMIT - size {
        return garbled(Flaw::Reach);
    }
    Ok((Access { addr, size: size as u16, kind }, mark.len() + digits + 1 + more))
}

/// A record, and its format if it is not spelled as lackey does.
pub(super) type Line = Result<(Access, Option<Format>), NoRecord>;

/// Parses a whole line without its newline, in any format. Accepts a carriage return before the newline. Returns no format
/// for a record that is spelled as lackey does.
pub(super) fn line(text: &[u8]) -> Line {
    let other = |text| formats::line(text).map(|(access, format)| (access, Some(format)));
    match record(text) {
        Ok((access, used)) => match &text[used..] {
            [] | [b'\r'] => Ok((access, None)),
            // Blanks may follow in another spelling.
            _ => other(text).map_err(|_| NoRecord::Garbled(Flaw::Tail)),
        },
        // Lackey's address after `0x`, as other tools print it.
        Err(NoRecord::Garbled(flaw)) => other(text).map_err(|_| NoRecord::Garbled(flaw)),
        Err(NoRecord::Other) => other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_kinds_are_read_as_lackey_prints_them() {
        let cases = [
            ("I  04001234,3", Kind::Fetch, 0x0400_1234, 3),
            (" L 1ffefffff8,8", Kind::Load, 0x1f_feff_fff8, 8),
            (" S 00000000,4096", Kind::Store, 0, 4096),
            (" M 01ffffffffffffff,1", Kind::Modify, (1 << 57) - 1, 1),
            (" L ABCDEFab,0016\r", Kind::Load, 0xabcd_efab, 16),
        ];
        for (text, kind, addr, size) in cases {
            let access = Access { addr, size, kind };
            assert_eq!(line(text.as_bytes()), Ok((access, None)), "{text}");
        }
    }

    #[test]
    fn blanks_after_the_size_are_another_spelling() {
        let access = Access { addr: 0x400, size: 8, kind: Kind::Modify };
        for text in [" M 400,8 ", " M 400,8\r\r", " M 400,8\t\r"] {
            assert_eq!(line(text.as_bytes()), Ok((access, Some(Format::Lackey))), "{text:?}");
        }
    }

    #[test]
    fn each_flaw_has_its_name() {
        let cases = [
            (" L ", Flaw::Address),
            (" L xyz,4", Flaw::Address),
            (" L 00000000000000001,4", Flaw::Address),
            ("I  04001234", Flaw::Comma),
            (" S 400,", Flaw::Size),
            (" S 400,-1", Flaw::Size),
            (" S 400,0", Flaw::Empty),
            (" S 400,4097", Flaw::Large),
            (" S 400,00008", Flaw::Large),
            (" S 400,99999999999999999999999", Flaw::Large),
            (" M 200000000000000,1", Flaw::Reach),
            (" M 1ffffffffffffff,2", Flaw::Reach),
            (" M ffffffffffffffff,1", Flaw::Reach),
            (" M 400,8 L 500,8", Flaw::Tail),
        ];
        for (text, flaw) in cases {
            assert_eq!(line(text.as_bytes()), Err(NoRecord::Garbled(flaw)), "{text}");
        }
    }

    #[test]
    fn text_in_another_form_is_no_record() {
        for text in ["", " ", " L", "==12== Lackey", "hello L 400,8", "\u{0} L 4,4"] {
            assert_eq!(line(text.as_bytes()), Err(NoRecord::Other), "{text}");
        }
    }
}
