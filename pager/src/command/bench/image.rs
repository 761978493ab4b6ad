//! Measures faults of an image on this host, beside a handler that maps the file and copies one page for each fault.

use super::{Bench, FAULTS, Failure, IMAGE, median, other, register, spread, with_mapped};
use slat_pager::twin::{Memory, copy_mapped};
use slat_pager::{Cache, Guest, Journal, Options, PAGE, Parts, Template};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server of faults.
#[derive(Clone, Copy)]
enum Handler {
    Mapped,
    Pager(Options),
}

impl Bench {
    pub(super) fn image(&self, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder).map_err(other)?;
        let path = folder.join("image");
        let mut image = std::io::BufWriter::new(File::create(&path).map_err(other)?);
        IMAGE.write(&mut image).and_then(|()| image.flush()).map_err(other)?;
        let mut single = Options::default();
        single.window = 1;
        let handlers = [
            ("mmap and COPY", Handler::Mapped),
            ("the pager, window 1", Handler::Pager(single)),
            ("the pager", Handler::Pager(Options::default())),
        ];
        println!(
            "fault: {FAULTS} pages of an image in the kernel's cache; the time of all, and medians of rounds"
        );
        for (order, factor) in [("in a row", 1), ("in no order", 6_421)] {
            let mut rows = [const { Vec::new() }; 3];
            for _ in 0..self.rounds * 4 {
                for (row, (_, handler)) in rows.iter_mut().zip(handlers) {
                    row.push(touch_all(&path, factor, handler)?);
                }
            }
            let base = median(rows[0].clone());
            for ((name, _), row) in handlers.iter().zip(rows) {
                let ratio = median(row.clone()).as_secs_f64() / base.as_secs_f64();
                println!("  {order:<12} {name:<20} {}  {ratio:.2} x", spread(row));
            }
        }
        Ok(())
    }
}

/// Returns the time in which a guest touches its pages.
fn touch_all(path: &Path, factor: usize, handler: Handler) -> Result<Duration, Failure> {
    let memory = Memory::new(IMAGE, false).map_err(other)?;
    let template = Template::of_image(path).map_err(other)?;
    let (uffd, layout) = register(&memory, &template)?;
    let touch = || {
        let began = Instant::now();
        for number in 0..FAULTS {
            // SAFETY: nothing writes to it but the handler.
            unsafe { memory.touch(number * factor % IMAGE.pages) };
        }
        began.elapsed()
    };
    let Handler::Pager(options) = handler else {
        let mut took = Duration::ZERO;
        with_mapped(path, IMAGE.pages * PAGE, |image| {
            took = std::thread::scope(|scope| {
                scope.spawn(|| copy_mapped(&uffd, &memory.regions(), image, FAULTS));
                touch()
            });
            Ok(())
        })?;
        return Ok(took);
    };
    let (journal, cache) = (Journal::new(&layout).map_err(other)?, Arc::new(Cache::new(256 << 20)));
    let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, options);
    let guest = guest.map_err(other)?;
    let took = touch();
    guest.stop();
    Ok(took)
}
