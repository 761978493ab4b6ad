//! `lru_gen`: commands as text, against the same commands as numbers.
//!
//! Some texts are arbitrary; most are valid commands with numbers near the existing generations. The displayed numbers
//! determine the answer and the evicted pages. Evicted pages come back unchanged.

use crate::Input;
use slat::{Access, Hva, Idle, PAGE_SIZE};
use slat_mm::lru_gen::{Command, LruGen};
use slat_mm::{AddressSpace, Arena, Backing, LruSettings, Place, Prot, Swap};
use std::fmt::Write;
use std::sync::Arc;

const STEPS: usize = 48;
const PAGES: u64 = 24;
const BASE: Hva = Hva(0x4000_0000);
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

struct Machine {
    idle: Idle,
    space: Arc<AddressSpace>,
    lru_gen: LruGen,
}

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let arena = Arena::builder().limit(4 << 20).build().unwrap();
    let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).lru(LruSettings::default()).build().unwrap();
    space.mmap(Place::Fixed(BASE), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let idle = Idle::take().expect("one test at a time on a thread");
    let lru_gen = LruGen::new();
    assert_eq!(lru_gen.add("/fuzz", &space), 1);
    let mut machine = Machine { idle, space, lru_gen };
    let mut written = [0_u64; PAGES as usize];
    for step in 1..=STEPS as u64 {
        if input.is_over() {
            break;
        }
        match input.below(8) {
            0..3 => {
                let page = input.below(PAGES);
                let at = BASE + page * PAGE_SIZE;
                machine.space.write(&mut machine.idle, at, &step.to_le_bytes()).unwrap();
                written[page as usize] = step;
            }
            3..7 => machine.command(&mut input),
            _ => {
                machine.anything(input.rest());
                break;
            }
        }
    }
    for (page, &value) in (0..).zip(&written) {
        let mut bytes = [0; 8];
        machine.space.read(&mut machine.idle, BASE + page * PAGE_SIZE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), value, "page {page}");
    }
}

impl Machine {
    /// Reads the displayed numbers and pages of the generations. Checks the total of pages.
    fn read(&self) -> Vec<(u64, u64)> {
        let text = self.lru_gen.read();
        let generation = |line: &str| {
            let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
            (words.next().unwrap(), words.nth(1).unwrap())
        };
        let all: Vec<(u64, u64)> = text.lines().skip(2).map(generation).collect();
        assert!(all.is_sorted_by(|a, b| a.0 + 1 == b.0) && all.len() <= 4, "{all:?}");
        let there = |page: &u64| self.space.lookup(BASE + page * PAGE_SIZE, Access::Read).is_some();
        let resident = (0..PAGES).filter(there).count() as u64;
        assert_eq!(all.iter().map(|(_, pages)| pages).sum::<u64>(), resident, "pages in generations");
        all
    }

    /// Runs a valid command, and checks the result.
    fn command(&mut self, input: &mut Input<'_>) {
        let before = self.read();
        let (oldest, youngest) = (before[0].0, before[before.len() - 1].0);
        let age = input.flag();
        let from = if age { youngest } else { oldest };
        let seq = from.saturating_add_signed(input.pick(&[0, 1, -1, 2]));
        let (memcg, node) = (input.pick(&[1, 1, 1, 2]), input.pick(&[0, 0, 0, 1]));
        let option = input.pick(&[None, Some(0), Some(1), Some(200), Some(201), Some(202)]);
        let last = option.and_then(|_| input.pick(&[None, Some(0), Some(1), Some(5), Some(u64::MAX)]));
        let mut text = format!("{}{memcg} {node} {seq}", if age { "+" } else { "- " });
        for number in [option, last].into_iter().flatten() {
            write!(text, " {number}").unwrap();
        }
        let said = self.lru_gen.write(&mut self.idle, &text).map_err(|error| error.errno());
        let after = self.read();
        if memcg != 1 || node != 0 || option == Some(202) {
            assert_eq!((said, after), (Err(EINVAL), before), "{text}");
        } else if age {
            let full = before.len() == 4 && last == Some(0);
            let expected = if seq > youngest {
                Err(EINVAL)
            } else if seq == youngest && full {
                Err(ERANGE)
            } else {
                Ok(())
            };
            // Without swap the limit is that of the files' generations, whose oldest one, empty here, may be gone.
            let files_have_room = option == Some(0) && expected == Err(ERANGE) && said == Ok(());
            assert!(said == expected || files_have_room, "{text}: {said:?}, {before:?}, {after:?}");
            let grown = said.is_ok() && seq == youngest;
            assert_eq!(
                after[after.len() - 1].0,
                youngest + u64::from(grown),
                "{text}: {before:?}, {after:?}"
            );
        } else {
            let expected = if seq + 1 < youngest { Ok(()) } else { Err(EINVAL) };
            assert_eq!(said, expected, "{text}: {before:?}, {after:?}");
            let sum = |all: &[(u64, u64)]| all.iter().map(|(_, pages)| pages).sum::<u64>();
            let old: u64 = before.iter().filter(|(number, _)| *number <= seq).map(|(_, pages)| pages).sum();
            let most = if expected.is_ok() { old.min(last.unwrap_or(u64::MAX)) } else { 0 };
            assert!(sum(&before) - sum(&after) <= most, "{text}: {before:?}, {after:?}");
        }
    }

    /// Parses any text: an accepted text must have the parsed meaning, and a refusal has one line.
    fn anything(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for command in Command::all(&text) {
            match command {
                Ok(command) => assert_eq!(Command::all(&said(command)).next().unwrap().unwrap(), command),
                Err(error) => assert!(!error.to_string().contains('\n') && error.errno() == EINVAL),
            }
        }
        let _ = self.lru_gen.write(&mut self.idle, &text);
        self.read();
    }
}

/// Formats the command as text.
fn said(command: Command) -> String {
    match command {
        Command::Age { memcg, node, seq, can_swap, force_scan } => {
            // A later field needs the fields before it.
            let can_swap = can_swap.map(u8::from).or((!force_scan).then_some(1));
            let tail = can_swap.map_or_else(String::new, |on| format!(" {on} {}", u8::from(force_scan)));
            format!("+ {memcg} {node} {seq}{tail}")
        }
        Command::Evict { memcg, node, seq, swappiness, nr } => {
            let numbers = [swappiness.map(u64::from), nr];
            let mut text = format!("- {memcg} {node} {seq}");
            numbers.into_iter().flatten().for_each(|number| write!(text, " {number}").unwrap());
            text
        }
    }
}
