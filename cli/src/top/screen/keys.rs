//! Decodes keys from the bytes that a terminal sends.

/// A key with a meaning here, or a character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Char(char),
    Control(char),
    Escape,
    F1,
}

/// Decodes bytes. Cut-off sequences and keys without a meaning are dropped.
pub fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        match (first, rest) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => {
                // The Linux console sends a second bracket in F1.
                let skipped = usize::from(rest[0] == b'[' && sequence.first() == Some(&b'['));
                let ends = sequence[skipped..].iter().position(|byte| (0x40..=0x7e).contains(byte));
                let length = ends.map_or(sequence.len(), |ends| skipped + ends + 1);
                if matches!((rest[0], &sequence[..length]), (b'O', b"P") | (b'[', b"11~" | b"[A")) {
                    keys.push(Key::F1);
                }
                bytes = &sequence[length..];
            }
            (0x1b, _) => keys.push(Key::Escape),
            (1..=0x1a, _) => keys.push(Key::Control(char::from(first - 1 + b'a'))),
            (b' '..=b'~', _) => keys.push(Key::Char(char::from(*first))),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::{Key::*, keys};

    #[test]
    fn bytes_are_keys() {
        assert_eq!(keys(b" -\x0c"), [Char(' '), Char('-'), Control('l')]);
        assert_eq!(keys(b"\x03"), [Control('c')]);
        assert_eq!(keys(b"\x1b"), [Escape]);
        assert_eq!(keys(b"\x1bq\x1b"), [Escape, Char('q'), Escape]);
        for f1 in ["\x1bOP", "\x1b[11~", "\x1b[[A"] {
            assert_eq!(keys(f1.as_bytes()), [F1], "{f1:?}");
        }
    }

    #[test]
    fn unknown_sequences_are_skipped_whole() {
        // An arrow, an arrow with Control, F2, the mouse wheel, non-Latin letters.
        assert_eq!(keys("\x1b[Ah\x1b[1;5Ch\x1bOQ\x1b[12~h\x1b[<64;1;1Mhßh".as_bytes()), [Char('h'); 5]);
        for cut in ["\x1b[", "\x1bO", "\x1b[1", "\x1b[["] {
            assert_eq!(keys(cut.as_bytes()), [], "{cut:?}");
        }
    }
}
