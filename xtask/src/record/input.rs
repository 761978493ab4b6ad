//! The programs' input: made here, from fixed seeds, so that a trace can be made again.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Lines for `sort`, as long as a page is large or nearly: a comparison of two is a visit to two pages.
pub fn long_lines(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 66 << 20;
    let mut dice = Dice(0x5157_4c49_4e45_5321);
    let filler: Vec<u8> = (b'a'..=b'z').cycle().take(4096).collect();
    let mut file = BufWriter::new(File::create(path)?);
    let (mut bytes, mut lines) = (0, 0);
    while bytes < BYTES {
        let key = dice.below(100_000_000);
        let len = 1500 + dice.below(1500);
        write!(file, "{key:08} ")?;
        file.write_all(&filler[..len as usize])?;
        file.write_all(b"\n")?;
        bytes += 10 + len;
        lines += 1;
    }
    file.flush()?;
    Ok(format!("{lines} lines of about 2 KiB with random keys, {} MiB", bytes >> 20))
}

/// A C file that needs no header: structures, loops, switches, recursion.
pub fn c_source(path: &Path) -> io::Result<String> {
    const FUNCTIONS: u64 = 2;
    let text = c_text(FUNCTIONS);
    fs::write(path, &text)?;
    Ok(format!("a generated C file of {FUNCTIONS} functions, {} bytes", text.len()))
}

fn c_text(functions: u64) -> String {
    let mut dice = Dice(0x5157_4346_494c_4521);
    let mut text = String::new();
    for f in 0..functions {
        let fields = 2 + dice.below(14);
        let (start, step, shift) = (dice.below(1 << 30), 3 + 2 * dice.below(50), 1 + dice.below(20));
        let cases = 3 + dice.below(4);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "struct s{f} {{ int a; unsigned b[{fields}]; struct s{f} *next; }};\n\
             static unsigned f{f}(struct s{f} *p, unsigned n) {{\n  unsigned t = {start}u;\n  \
             for (unsigned i = 0; i < n; i++) {{\n    t = t * {step}u + p->b[i % {fields}];\n    \
             switch (t % {}u) {{",
            cases + 1,
        );
        for case in 0..cases {
            let mix = dice.below(1 << 20);
            let _ = writeln!(text, "    case {case}: t ^= {mix}u + i; p->a += (int)(t >> {shift}); break;");
        }
        let call = if f == 0 { "1".into() } else { format!("f{}((void *)p, n / 2)", dice.below(f)) };
        let _ = writeln!(
            text,
            "    default: if (p->next) p = p->next; else t += {call};\n    }}\n  }}\n  return t;\n}}"
        );
    }
    text += "int main(void) {\n  static struct s0 x;\n  unsigned t = 0;\n";
    for f in 0..functions {
        let _ = writeln!(text, "  t += f{f}((void *)&x, t & 7);");
    }
    text + "  return (int)t;\n}\n"
}

/// Marsaglia's xorshift: enough to make input that looks alive.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_the_same_each_time() {
        assert_eq!(c_text(5), c_text(5));
        assert!(c_text(5).contains("f4((void *)&x"));
    }
}
