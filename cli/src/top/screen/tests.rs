//! The same history gives the same screen, at each size.

use super::history::History;
use super::look::{Depth, Look};
use super::state::{Shown, State};
use super::view;
use crate::figures::VcpuCounts;
use crate::sample::tests::sample;
use crate::sample::{Age, Ages, AgesBy, Caused, Heat, Sample, Swapped};
use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use std::time::Duration;

const LOOK: Look = Look { depth: Depth::Many, ascii: false };

fn history() -> History {
    let mut history = History::default();
    (1..=40).for_each(|halves| history.add(sample(halves)));
    history
}

fn state() -> State {
    State::new(Duration::from_millis(500))
}

fn draw(history: &History, state: &State, look: Look, (width, height): (u16, u16)) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view::draw(history, state, look, area, &mut buffer);
    buffer
}

/// The rows of a terminal after a drawing.
fn text(history: &History, state: &State, look: Look, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(history, state, look, frame.area(), frame.buffer_mut())).unwrap();
    let cells = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            let row: String = (0..width).map(|x| cells[(x, y)].symbol()).collect();
            row.trim_end().to_owned() + "\n"
        })
        .collect()
}

/// `SLAT_SNAPSHOTS=write` rewrites the snapshots.
fn snapshot(name: &str, text: &str) {
    let path = format!("{}/src/top/screen/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var("SLAT_SNAPSHOTS").is_ok_and(|what| what == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name}, drawn:\n{text}\nexpected:\n{expected}");
}

#[test]
fn screens_match_their_snapshots() {
    let history = history();
    for size in [(200, 60), (100, 30), (80, 24), (60, 16), (40, 12), (20, 5)] {
        snapshot(&format!("{}x{}", size.0, size.1), &text(&history, &state(), LOOK, size));
    }
    let help = State { help: true, paused: true, ..state() };
    snapshot("help", &text(&history, &help, LOOK, (80, 24)));
    let ascii = Look { depth: Depth::None, ascii: true };
    let drawn = text(&history, &State { shown: Shown::Written, ..state() }, ascii, (80, 24));
    assert!(drawn.is_ascii(), "{drawn}");
    snapshot("ascii", &drawn);
}

/// A sample with every figure, some beyond their range.
fn hostile() -> Vec<Sample> {
    let most = VcpuCounts { accesses: u64::MAX, faults: u64::MAX, hits: u64::MAX / 2, misses: u64::MAX / 2 };
    let age = Age { generation: Some(u64::MAX), within_ms: Some(u64::MAX), pages: u64::MAX };
    let wild = Sample {
        guest: "名前\u{1b}[2J".repeat(30),
        format: String::new(),
        at_ms: u64::MAX,
        accesses: u64::MAX,
        vcpus: vec![most; 1024],
        flushes_by: vec![Caused { cause: "x".repeat(300), ..Caused::default() }; 40],
        mapped_bytes: u64::MAX,
        table_bytes: u64::MAX,
        swap: Some(Swapped { out: u64::MAX, r#in: u64::MAX }),
        ages: Ages { by: AgesBy::Generation, of: vec![age; 9] },
        heat: Heat {
            frames: u64::MAX,
            frames_per_cell: 0,
            used: "é9".repeat(300),
            written: String::new(),
            large: "z".into(),
        },
        ..sample(7)
    };
    vec![Sample::default(), sample(1), wild, sample(2), Sample::default()]
}

#[test]
fn no_size_and_no_sample_panics() {
    let mut wild = History::default();
    let ages = Ages { by: AgesBy::Unknown, ..Ages::default() };
    let plain = Look { depth: Depth::None, ascii: true };
    let (empty, full) = (History::default(), history());
    for width in (1..=200).filter(|width| *width < 30 || width % 13 == 0) {
        for height in (1..=60).filter(|height| *height < 20 || height % 13 == 0) {
            let state =
                State { shown: [Shown::Used, Shown::Written, Shown::Large][width as usize % 3], ..state() };
            draw(&full, &state, LOOK, (width, height));
            if width < 100 {
                draw(&empty, &state, LOOK, (width, height));
            }
        }
    }
    for next in hostile().into_iter().chain([Sample { ages, ..sample(3) }]) {
        wild.add(next);
        for width in (1..=200).step_by(29).chain([1000]) {
            for height in (1..=60).step_by(7).chain([300]) {
                let help = (width + height) % 5 == 0;
                draw(&wild, &State { help, paused: help, ..state() }, plain, (width, height));
            }
        }
    }
}

#[test]
fn colours_are_those_of_the_terminal() {
    let history = history();
    let colours = |depth| {
        let drawn = draw(&history, &state(), Look { depth, ascii: false }, (80, 24));
        let mut colours: Vec<Color> = drawn.content.iter().map(|cell| cell.fg).collect();
        colours.dedup();
        assert!(drawn.content.iter().all(|cell| cell.bg == Color::Reset));
        colours
    };
    assert!(colours(Depth::None).iter().all(|colour| *colour == Color::Reset));
    let sixteen = |colour: &Color| matches!(colour, Color::Reset | Color::Indexed(..16));
    assert!(colours(Depth::Sixteen).iter().all(sixteen) && colours(Depth::Sixteen).len() > 9);
    assert!(!colours(Depth::Many).iter().all(sixteen));
}

/// A map made before the guest doubled fills half of the row.
#[test]
fn the_past_of_a_grown_guest_keeps_its_place() {
    let map = |cells: &str| Heat {
        frames: cells.len() as u64 * 64,
        frames_per_cell: 64,
        used: cells.into(),
        ..Heat::default()
    };
    let mut history = History::default();
    for (halves, cells) in [(1, "9.9."), (2, "9.9.9999")] {
        history.add(Sample { heat: map(cells), ..sample(halves) });
    }
    let drawn = text(&history, &state(), LOOK, (40, 16));
    let rows: Vec<_> = drawn.lines().filter(|row| row.starts_with('█')).collect();
    let bar = "█".repeat(5) + "     " + &"█".repeat(5);
    assert_eq!(rows, [format!("{bar}     {}", "█".repeat(20)), bar]);
}
