//! The help, drawn over the panels.

use super::canvas::Canvas;
use super::look::Ink;

/// Name and meaning.
const TEXT: [(&str, &str); 18] = [
    ("faults", "TLB misses that found no usable leaf, by what they found"),
    ("retries", "attempts made again: an invalidation, or another vCPU, came between"),
    ("flushes", "shootdowns paid, by why the host or the engine took pages away"),
    ("memory", "what the tables map, in which leaves; the tables' own bytes"),
    ("dirty", "pages told by the dirty log; without one, pages with a D bit"),
    ("last used", "mapped memory by age: generations of the LRU, or Accessed bits"),
    ("vCPUs", "accesses of each in a second, and its TLB hits"),
    ("map", "guest memory from left to right, now on top, the past below"),
    ("", ""),
    ("space", "pause the view; the run goes on"),
    ("+  -", "sample more often, less often"),
    ("h", "map: how recently used, what is written, large pages"),
    ("?", "this, and away with it"),
    ("q  Esc", "leave; a run with --top goes on without its view"),
    ("Ctrl-C", "the same; a run with --top ends, too"),
    ("Ctrl-L", "draw everything anew"),
    ("", ""),
    ("", "A watched guest refills its TLB at each look, a few times a second."),
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
