//! The panels above the map. Each has a title with its main figure, and as many lines as there is room for.

use super::canvas::Canvas;
use super::history::History;
use super::look::Ink;
use crate::figures;
use crate::sample::{Age, AgesBy};
use crate::top::figure_text::{bytes, count, percent, time};
use slat::PAGE_SIZE;

/// Faults per second by result, with their history.
pub fn faults(canvas: &mut Canvas<'_>, history: &History) {
    let rates = &history.rates;
    canvas.title("faults", &format!("{}/s", count(rates.faults)));
    let kinds = [
        ("map", rates.map),
        ("permission", rates.permission),
        ("spurious", rates.spurious),
        ("mmio", rates.mmio),
        ("retries", rates.retries),
    ];
    canvas.put_figures((0, 1), &kinds.map(|(name, value)| (name, count(value))));
    let (width, height) = (canvas.width(), canvas.height());
    graph(&mut canvas.part((0, 2), (width, height.saturating_sub(2))), history);
}

/// Faults per second as a graph, newest at the right.
pub fn graph(canvas: &mut Canvas<'_>, history: &History) {
    let (width, height) = (canvas.width(), canvas.height());
    let shown = || history.faults.iter().take(usize::from(width));
    let most = shown().copied().fold(0.0, f64::max);
    if most == 0.0 || height == 0 {
        return;
    }
    for (value, back) in shown().zip(1..) {
        let eighths = (value / most * f64::from(height) * 8.0).ceil() as usize;
        for row in 0..height {
            let here = eighths.saturating_sub(usize::from(height - 1 - row) * 8);
            canvas.put((width - back, row), canvas.look.column(here), Ink::Faults);
        }
    }
    if height > 1 {
        // Columns without a sample yet.
        let text = format!("up to {}/s", count(most));
        if history.faults.len() + text.len() < usize::from(width) {
            canvas.put((0, 0), &text, Ink::Label);
        }
    }
}

/// Shootdowns per second, by cause.
pub fn flushes(canvas: &mut Canvas<'_>, history: &History) {
    let rates = &history.rates;
    canvas.title("flushes", &format!("{}/s", count(rates.flushes)));
    if history.now.flushes_by.is_empty() {
        canvas.put((0, 1), "none yet", Ink::Label);
        return;
    }
    let most = rates.flushes_by.iter().map(|of| of.flushes).fold(0.0, f64::max).max(1.0);
    let name = rates.flushes_by.iter().map(|of| of.cause.chars().count()).max().unwrap_or(0) as u16 + 1;
    for (of, y) in rates.flushes_by.iter().zip(1..canvas.height()) {
        canvas.put((0, y), &of.cause, Ink::Label);
        let x = canvas.put((name, y), &format!("{:>6} ", count(of.flushes)), Ink::Figure);
        let room = canvas.width().saturating_sub(x);
        canvas.bar((x, y), room, of.flushes / most, Ink::Flushes);
    }
}

/// Mapped memory by leaf size, and the memory of its tables.
pub fn memory(canvas: &mut Canvas<'_>, history: &History) {
    let now = &history.now;
    let guest = now.heat.frames.saturating_mul(PAGE_SIZE);
    canvas.title("memory", &format!("{} mapped", bytes(now.mapped_bytes)));
    let width = canvas.width();
    let share = now.mapped_bytes as f64 / guest.max(1) as f64;
    let of = format!(" of {}", bytes(guest));
    let bar = width.saturating_sub(of.len() as u16);
    canvas.bar((0, 1), bar, share, Ink::Memory);
    canvas.put((bar, 1), &of, Ink::Label);
    let mapped = now.mapped;
    let sizes = [("4K", mapped.k4), ("2M", mapped.m2), ("1G", mapped.g1)];
    canvas.put_figures((0, 2), &sizes.map(|(size, leaves)| (size, count(leaves as f64))));
    let rates = &history.rates;
    let overhead = figures::percent(now.table_bytes, now.mapped_bytes);
    let per_s = |sign: char, value: f64| format!("{sign}{}/s", count(value));
    let dirty = if now.dirty.by == "off" { "dirty" } else { "logged" };
    let mut lines = vec![
        ("tables", bytes(now.table_bytes), percent(overhead)),
        (dirty, count(now.dirty.pages as f64), per_s('+', rates.dirty)),
    ];
    if let Some(swap) = now.swap {
        lines.push((
            "swapped",
            count(swap.out as f64),
            per_s('-', rates.swapped_out) + &per_s('+', rates.swapped_in),
        ));
    }
    if now.ahead.frames > 0 {
        let zeroed = figures::percent(now.ahead.zeroed, now.ahead.frames);
        lines.push(("frames", count(now.ahead.frames as f64), percent(zeroed) + " zeroed ahead"));
    }
    if now.ahead.direct_reclaims > 0 {
        lines.push(("faults", count(now.ahead.direct_reclaims as f64), "made room".into()));
    }
    if now.lock.waits > 0 {
        lines.push(("lock", count(now.lock.waits as f64), format!("waits, {:.2} s/s", rates.lock_wait)));
    }
    for ((name, figure, rest), y) in lines.into_iter().zip(3..) {
        canvas.put((0, y), name, Ink::Label);
        canvas.put_figures((8, y), &[("", figure), ("", rest)]);
    }
}

/// Mapped memory by the time of its last use.
pub fn ages(canvas: &mut Canvas<'_>, history: &History) {
    let ages = &history.now.ages;
    let by = match ages.by {
        AgesBy::Unknown => "",
        AgesBy::Accessed => "A bits",
        AgesBy::Generation => "generations",
    };
    canvas.title("last used", by);
    if ages.by == AgesBy::Unknown {
        canvas.put((0, 1), "unknown: no A bits", Ink::Label);
        return;
    }
    let most = ages.of.iter().map(|age| age.pages).max().unwrap_or(0).max(1);
    let last = ages.of.len().saturating_sub(1);
    let (width, height) = (canvas.width(), canvas.height());
    for ((index, age), y) in ages.of.iter().enumerate().zip(1..height) {
        let name = name_of(age, canvas.look.within());
        canvas.put((0, y), &name, Ink::Label);
        let x =
            canvas.put((10, y), &format!("{:>6} ", bytes(age.pages.saturating_mul(PAGE_SIZE))), Ink::Figure);
        let warmth = 9 - (7 * index / last.max(1)) as u8;
        let (_, style) = canvas.look.heat(warmth);
        let room = width.saturating_sub(x);
        let eighths = (age.pages as f64 / most as f64 * f64::from(room) * 8.0).ceil();
        canvas.bar_styled((x, y), room, eighths, style);
    }
}

/// The label of an age class: its generation and start, or its age.
pub fn name_of(age: &Age, within: &str) -> String {
    match (age.generation, age.within_ms) {
        (Some(generation), Some(ms)) => format!("#{generation} {}", time(ms)),
        (Some(generation), None) => format!("#{generation}"),
        (None, Some(ms)) => format!("{within} {}", time(ms)),
        (None, None) => "older".into(),
    }
}

/// The vCPUs, as many as fit, side by side if there are many.
pub fn vcpus(canvas: &mut Canvas<'_>, history: &History) {
    let rates = &history.rates;
    canvas.title("vCPUs", &format!("{} acc/s", count(rates.accesses)));
    let retries = format!("{}/s", count(rates.retries));
    canvas.put_figures((0, 1), &[("tlb", percent(rates.tlb_hit_percent)), ("retry", retries)]);
    let rows = canvas.height().saturating_sub(2);
    if rows == 0 {
        return;
    }
    let wide = 24;
    let columns = (canvas.width() / wide).max(1).min((rates.vcpus.len() as u16).div_ceil(rows).max(1));
    let width = canvas.width() / columns;
    let room = usize::from(rows * columns);
    let more = rates.vcpus.len() > room;
    let most = rates.vcpus.iter().map(|vcpu| vcpu.accesses).fold(1.0, f64::max);
    let id = rates.vcpus.len().saturating_sub(1).to_string().len();
    let shown = rates.vcpus.iter().take(if more { room - 1 } else { room });
    for (index, vcpu) in shown.enumerate() {
        let (x, y) = (index as u16 / rows * width, 2 + index as u16 % rows);
        let mut part = canvas.part((x, y), (width.saturating_sub(u16::from(columns > 1)), 1));
        let at = part.put((0, 0), &format!("{index:>id$} "), Ink::Label);
        let text = match vcpu.accesses {
            0.0 => "     idle  ".into(),
            accesses => format!(" {:>5} {:>3.0}%", count(accesses), vcpu.tlb_hit_percent.floor()),
        };
        let bar = part.width().saturating_sub(at + text.chars().count() as u16);
        part.bar((at, 0), bar, vcpu.accesses / most, Ink::Vcpus);
        part.put((at + bar, 0), &text, Ink::Figure);
    }
    if more {
        let left = format!("and {} more", rates.vcpus.len() - (room - 1));
        canvas.put((width * (columns - 1), canvas.height() - 1), &left, Ink::Label);
    }
}
