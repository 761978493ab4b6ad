//! Parses commands.

use super::LruGenError;

/// One command. Generations are numbered as reading shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `+ memcg node max_seq [can_swap [force_scan]]`: begin a new generation after `max_seq`.
    Age {
        /// Number of the address space.
        memcg: u32,
        /// Number of the node.
        node: u32,
        /// The youngest generation that the writer knows of.
        seq: u64,
        /// Whether to age anonymous pages; by default if swappiness is above 0.
        can_swap: Option<bool>,
        /// Whether to scan regions that are not dense too; by default yes.
        force_scan: bool,
    },
    /// `- memcg node min_seq [swappiness [nr_to_reclaim]]`: evict the generations up to `min_seq`.
    Evict {
        /// Number of the address space.
        memcg: u32,
        /// Number of the node.
        node: u32,
        /// The last generation to evict.
        seq: u64,
        /// Preference for anonymous pages over file pages, 0 to 200; `max` or 201 evicts anonymous pages only.
        swappiness: Option<u8>,
        /// Most pages to evict.
        nr: Option<u64>,
    },
}

/// The largest swappiness: anonymous pages only.
const SWAPPINESS_MAX: u64 = 201;

impl Command {
    /// Parses all commands of a text, separated by commas, semicolons or newlines; empty ones are skipped. Each
    /// is parsed on demand, so that commands before a bad one are carried out, as in the kernel.
    ///
    /// ```
    /// use slat_mm::lru_gen::Command;
    /// let all: Result<Vec<_>, _> = Command::all("+ 1 0 3; - 1 0 0 200 32\n").collect();
    /// assert_eq!(all.unwrap()[1], Command::Evict { memcg: 1, node: 0, seq: 0, swappiness: Some(200), nr: Some(32) });
    /// assert!(Command::all("+ 1 0").next().unwrap().is_err());
    /// ```
    pub fn all(text: &str) -> impl Iterator<Item = Result<Self, LruGenError>> + '_ {
        let parts = text.split([',', ';', '\n']).map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| Self::one(part).ok_or_else(|| LruGenError::Garbage(shown(part))))
    }

    fn one(text: &str) -> Option<Self> {
        // As in the kernel, no space is needed after the sign.
        let sign = text.chars().next()?;
        let mut words = text[sign.len_utf8()..].split_ascii_whitespace();
        let (memcg, node) = (number(words.next()?)?, number(words.next()?)?);
        let (memcg, node) = (u32::try_from(memcg).ok()?, u32::try_from(node).ok()?);
        let seq = number(words.next()?)?;
        let swappiness = match words.next() {
            Some("max") => Some(SWAPPINESS_MAX),
            Some(word) => Some(number(word).filter(|&most| most <= SWAPPINESS_MAX)?),
            None => None,
        };
        let last = match words.next() {
            Some(word) => Some(number(word)?),
            None => None,
        };
        if words.next().is_some() {
            return None;
        }
        match sign {
            '+' => {
                let can_swap = swappiness.map(|swappiness| swappiness > 0);
                Some(Self::Age { memcg, node, seq, can_swap, force_scan: last != Some(0) })
            }
            '-' => {
                let swappiness = swappiness.map(|swappiness| swappiness as u8);
                Some(Self::Evict { memcg, node, seq, swappiness, nr: last })
            }
            _ => None,
        }
    }
}

/// Parses digits only: the standard parser accepts a sign.
fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

/// Shortens any text to one line for an error.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let mut shown: String =
        text.chars().take(MOST).map(|char| if char.is_control() { '?' } else { char }).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Option<Command> {
        let mut all = Command::all(text);
        let first = all.next()?.ok();
        assert!(all.next().is_none());
        first
    }

    /// Commands that the kernel's own parser accepts, and their fields.
    #[test]
    fn commands_as_the_kernel_takes_them() {
        let age = |can_swap, force_scan| Command::Age { memcg: 1, node: 0, seq: 3, can_swap, force_scan };
        for (text, command) in [
            ("+ 1 0 3", age(None, true)),
            ("+1 0 3", age(None, true)),
            ("  +\t1  0 3 \n", age(None, true)),
            ("+ 1 0 3 1", age(Some(true), true)),
            ("+ 1 0 3 0", age(Some(false), true)),
            ("+ 1 0 3 1 0", age(Some(true), false)),
            ("+ 1 0 3 200 1", age(Some(true), true)),
        ] {
            assert_eq!(one(text), Some(command), "{text:?}");
        }
        let evict = |swappiness, nr| Command::Evict { memcg: 2, node: 1, seq: 7, swappiness, nr };
        for (text, command) in [
            ("- 2 1 7", evict(None, None)),
            ("- 2 1 7 0", evict(Some(0), None)),
            ("- 2 1 7 max", evict(Some(201), None)),
            ("-2 1 7 60 4096", evict(Some(60), Some(4096))),
            ("- 2 1 7 60 0", evict(Some(60), Some(0))),
        ] {
            assert_eq!(one(text), Some(command), "{text:?}");
        }
    }

    #[test]
    fn garbage_is_refused_and_named() {
        for text in [
            "+",
            "+ 1 0",
            "* 1 0 3",
            "1 0 3",
            "+ 1 0 3 1 1 1",
            "+ 1 0 3x",
            "+ 1 0 x",
            "+ -1 0 3",
            "+ +1 0 3",
            "+ 4294967296 0 3",
            "- 1 0 18446744073709551616",
            "- 1 0 3 202",
            "- 1 0 3 min",
            "é 1 0 3",
        ] {
            let error = Command::all(text).next().unwrap().unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{text}");
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = Command::all(&"\u{7}".repeat(99)).next().unwrap().unwrap_err();
        assert!(error.to_string().len() < 120 && !error.to_string().contains('\u{7}'), "{error}");
    }

    #[test]
    fn separators_between_commands_do_not_count() {
        let all: Vec<_> = Command::all(",;\n\n + 1 0 3,,- 1 0 0 ; \n").collect();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(Command::all(" \n").count(), 0);
    }

    /// Any command as text, with varying signs and spaces.
    fn written() -> impl Strategy<Value = (Command, String)> {
        let fields = (any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>());
        let options = (0..=201u8, any::<u64>(), 0..3usize);
        (fields, options).prop_map(|((memcg, node, seq, age), (swappiness, last, options))| {
            let text = format!("{} {memcg} {node} {seq}", if age { '+' } else { '-' });
            let option = |nth, text: String| if nth <= options { text } else { String::new() };
            let text = text + &option(1, format!(" {swappiness}")) + &option(2, format!("\t{last}"));
            let (first, second) = ((options >= 1).then_some(swappiness), (options == 2).then_some(last));
            let command = if age {
                let can_swap = first.map(|swappiness| swappiness > 0);
                Command::Age { memcg, node, seq, can_swap, force_scan: second != Some(0) }
            } else {
                Command::Evict { memcg, node, seq, swappiness: first, nr: second }
            };
            (command, text)
        })
    }

    proptest! {
        #[test]
        fn every_command_is_understood(all in prop::collection::vec(written(), 0..8), between in "[,;\n][,;\n ]{0,3}") {
            let text = all.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(&between);
            let parsed: Result<Vec<_>, _> = Command::all(&text).collect();
            prop_assert_eq!(parsed.unwrap(), all.iter().map(|(command, _)| *command).collect::<Vec<_>>());
        }

        #[test]
        fn no_text_panics(text in any::<String>(), like in "[-+0-9 max,;\n\t]{0,40}") {
            Command::all(&text).chain(Command::all(&like)).for_each(|command| {
                if let Err(error) = command {
                    assert!(!error.to_string().contains('\n'));
                }
            });
        }
    }
}
