//! The layout by the size of the terminal: panels above the map, or a list of lines where there is no room for
//! panels.

use super::canvas::Canvas;
use super::history::History;
use super::look::{Ink, Look};
use super::state::State;
use super::{heat, help, panels};
use crate::figures;
use crate::top::figure_text::{bytes, count, percent, time};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use slat::PAGE_SIZE;
use std::iter;

/// Panels are drawn from this size on.
const PANELS: (u16, u16) = (72, 21);
/// Columns between two panels.
const GAP: u16 = 2;

/// Draws the screen.
pub fn draw(history: &History, state: &State, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut all = Canvas::new(buffer, area, look);
    let (width, height) = (all.width(), all.height());
    let (title, keys) = (u16::from(height >= 3), u16::from(height >= 2));
    if title > 0 {
        draw_title(&mut all.part((0, 0), (width, 1)), history, state);
    }
    let rows = height - title - keys;
    let mut body = all.part((0, title), (width, rows));
    if width >= PANELS.0 && height >= PANELS.1 {
        draw_panels(&mut body, history, state);
    } else {
        draw_list(&mut body, history, state);
    }
    if state.help {
        help::draw(&mut all.part((0, title), (width, rows)));
    }
    if keys > 0 {
        draw_keys(&mut all.part((0, height - 1), (width, 1)), state);
    }
}

fn draw_title(canvas: &mut Canvas<'_>, history: &History, state: &State) {
    let now = &history.now;
    let dot = canvas.look.dot();
    let x = canvas.put((0, 0), "slat ", Ink::Title);
    let vcpus = now.vcpus.len();
    let what = format!(
        "{} {dot} {} {dot} {vcpus} vCPU{} {dot} {:.1} s",
        now.guest,
        now.format,
        if vcpus == 1 { "" } else { "s" },
        now.at_ms as f64 / 1e3
    );
    canvas.put((x, 0), &what, Ink::Figure);
    let every = format!(" every {}", time(state.interval.as_millis() as u64));
    let (status, ink) = if state.paused { (" paused ", Ink::Alert) } else { (every.as_str(), Ink::Label) };
    canvas.put_right(0, status, ink);
}

/// As many lines as fit, in order of importance.
fn draw_keys(canvas: &mut Canvas<'_>, state: &State) {
    let pause = if state.paused { "go on" } else { "pause" };
    let keys =
        [("q", "quit"), ("?", "help"), ("space", pause), ("h", "map"), ("+", "faster"), ("-", "slower")];
    let mut x = 0;
    for (key, what) in keys {
        if usize::from(x) + key.len() + 1 + what.len() > usize::from(canvas.width()) {
            break;
        }
        x = canvas.put((x, 0), key, Ink::Title);
        x = canvas.put((x, 0), &format!(" {what}"), Ink::Label) + 2;
    }
}

/// Two panels, three panels, and the map.
fn draw_panels(canvas: &mut Canvas<'_>, history: &History, state: &State) {
    let (width, height) = (canvas.width(), canvas.height());
    let upper = (height / 4).clamp(6, 14);
    let causes = history.now.flushes_by.len() as u16;
    let middle = (height / 5).clamp(7, 12);
    let flushes = (width / 3).clamp(30, 60);
    let faults = width - flushes - GAP;
    panels::faults(&mut canvas.part((0, 0), (faults, upper - 1)), history);
    panels::flushes(
        &mut canvas.part((faults + GAP, 0), (flushes, (causes + 1).clamp(2, upper - 1))),
        history,
    );
    let third = (width - 2 * GAP) / 3;
    let last = width - 2 * (third + GAP);
    panels::memory(&mut canvas.part((0, upper), (third, middle)), history);
    panels::ages(&mut canvas.part((third + GAP, upper), (third, middle)), history);
    panels::vcpus(&mut canvas.part((2 * (third + GAP), upper), (last, middle)), history);
    heat::draw(&mut canvas.part((0, upper + middle + 1), (width, height)), history, state, false);
}

/// The lines, then the map: a quarter of the height at least.
fn draw_list(canvas: &mut Canvas<'_>, history: &History, state: &State) {
    let (width, height) = (canvas.width(), canvas.height());
    let lines = lines(history, canvas.look.within());
    let wanted = (lines.len() as u16).min(height - height / 4);
    let label = 8;
    for ((name, figures), y) in lines.into_iter().zip(0..wanted) {
        canvas.put((0, y), name, Ink::Label);
        if y == 0 {
            let x = label + figures[0].1.chars().count().max(8) as u16 + 1;
            panels::graph(&mut canvas.part((x, y), (width, 1)), history);
        }
        canvas.put_figures((label, y), &figures);
    }
    let left = height.saturating_sub(wanted);
    heat::draw(&mut canvas.part((0, wanted), (width, left)), history, state, left < 5);
}

/// Named figures; some have no name.
type Figures = Vec<(&'static str, String)>;

/// Name and figures of each line.
fn lines(history: &History, within: &str) -> Vec<(&'static str, Figures)> {
    let (now, rates) = (&history.now, &history.rates);
    let per_s = |value: f64| format!("{}/s", count(value));
    let kinds =
        [("map", rates.map), ("perm", rates.permission), ("spur", rates.spurious), ("mmio", rates.mmio)];
    let causes = rates.flushes_by.iter().filter(|of| of.flushes > 0.0);
    let causes = causes.map(|of| ("", format!("{} {}", of.cause, count(of.flushes))));
    let overhead = figures::percent(now.table_bytes, now.mapped_bytes);
    let sizes = [("4K", now.mapped.k4), ("2M", now.mapped.m2), ("1G", now.mapped.g1)];
    let sizes = sizes.into_iter().filter(|(_, leaves)| *leaves > 0);
    let sizes = sizes.map(|(size, leaves)| (size, count(leaves as f64)));
    let ages = now.ages.of.iter().filter(|age| age.pages > 0);
    let ages = ages.map(|age| {
        ("", format!("{} {}", panels::name_of(age, within), bytes(age.pages.saturating_mul(PAGE_SIZE))))
    });
    let pages = count(now.dirty.pages as f64);
    let mut lines = vec![
        ("faults", vec![("", per_s(rates.faults))]),
        ("kinds", kinds.map(|(name, value)| (name, count(value))).into()),
        ("flushes", iter::once(("", per_s(rates.flushes))).chain(causes).collect()),
        (
            "mapped",
            iter::once(("", bytes(now.mapped_bytes)))
                .chain(sizes)
                .chain([("tables", percent(overhead))])
                .collect(),
        ),
        ("tlb", vec![("hits", percent(rates.tlb_hit_percent)), ("retries", per_s(rates.retries))]),
        ("dirty", vec![("pages", pages), ("", format!("+{}", per_s(rates.dirty)))]),
        ("used", ages.collect()),
        ("vCPUs", vec![("", now.vcpus.len().to_string()), ("accesses", per_s(rates.accesses))]),
    ];
    lines.retain(|(_, figures)| !figures.is_empty());
    lines
}
