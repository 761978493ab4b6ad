//! The help, drawn over the panels.

use super::canvas::Canvas;
use super::look::Ink;

/// Name and meaning.
const TEXT: [(&str, &str); 18] = [
    ("faults", "TLB misses without a usable leaf entry, by result"),
    ("retries", "attempts repeated because an invalidation or another vCPU intervened"),
    ("flushes", "TLB shootdowns, by cause"),
    ("memory", "mapped memory by leaf size, and the memory of the tables"),
    ("dirty", "pages in the dirty log; without a log, pages with a D bit"),
    ("last used", "mapped memory by age, from LRU generations or Accessed bits"),
    ("vCPUs", "accesses per second and TLB hits of each vCPU"),
    ("map", "guest memory from left to right; newest row on top"),
    ("", ""),
    ("space", "pause the view; the run continues"),
    ("+  -", "sample more often, less often"),
    ("h", "map: recent use, written pages, large pages"),
    ("?", "show or hide this help"),
    ("q  Esc", "quit; a run with --top continues without its view"),
    ("Ctrl-C", "quit; a run with --top ends"),
    ("Ctrl-L", "redraw"),
    ("", ""),
    ("", "Each sample flushes the guest's TLB, a few times per second."),
];

/// Draws as much of the help as fits.
pub fn draw(canvas: &mut Canvas<'_>) {
    canvas.clear();
    canvas.title("help", "");
    for ((name, meaning), y) in TEXT.iter().zip(1..) {
        canvas.put((1, y), name, Ink::Title);
        canvas.put((12, y), meaning, Ink::Label);
    }
}
