//! Rules for one file, one for all of the engine, and the count of all `unsafe`.

use crate::source::{Finding, Source, words};
use crate::verify::kept::{cells, table};
use std::collections::BTreeMap;
use std::path::Path;

/// A file has at most 450 lines, and a page-table format 140. Integration tests may be longer.
pub fn length(source: &Source) -> Vec<Finding> {
    let format = source.path.starts_with("slat/src/table/formats") && !source.path.ends_with("tests.rs");
    let most = if format { 140 } else { 450 };
    let lines = source.lines.len();
    if lines <= most || source.path.iter().any(|part| part == "tests") {
        return Vec::new();
    }
    vec![source.finding(most, format!("{lines} lines, over {most}"))]
}

/// Each `unsafe` has a nearby `SAFETY:` comment that says what guarantees it. Clippy checks only code for the current
/// target and `cfg`.
pub fn safety(source: &Source) -> Vec<Finding> {
    const REACH: usize = 6;
    source.find(source.code.len(), |index, code| {
        let (_, what) = code.split_once("unsafe ")?;
        let argued =
            !(what.starts_with('{') || what.starts_with("impl")) || source.marked(index, REACH, "SAFETY:");
        (!argued).then(|| format!("unsafe without SAFETY: within {REACH} lines"))
    })
}

/// In slat, each ordering stronger than relaxed has a name: `order!` or `fence!`, which `mutants` weakens. The fences of
/// `sync/prim` and fences of the compiler have a nearby `ORDER(name)` comment. Imports and unit tests are exempt.
pub fn order(source: &Source) -> Vec<Finding> {
    const REACH: usize = 8;
    let mut importing = false;
    source.find(source.shipped(), |index, code| {
        let begins = importing || ["use ", "pub use "].iter().any(|word| code.trim().starts_with(word));
        let imported = begins || code.contains(") use ");
        importing = imported && !code.trim().ends_with(';');
        let ordering = words(code).find(|word| ["SeqCst", "Acquire", "Release", "AcqRel"].contains(word))?;
        let named = code.contains("order!(") || code.contains("fence!(");
        let is_barrier = code.contains("compiler_fence(") || source.path.starts_with("slat/src/sync/prim.rs");
        let may_be_said = is_barrier || !source.path.starts_with("slat/src");
        let said = may_be_said && source.marked(index, REACH, "ORDER(");
        (!(imported || named || said)).then(|| format!("{ordering} without a name: order!, fence!"))
    })
}

/// No unimplemented functions, and no ignored tests.
pub fn promises(source: &Source) -> Vec<Finding> {
    source.find(source.code.len(), |_, code| {
        let broken =
            ["todo!(", "unimplemented!(", "#[ignore"].into_iter().find(|broken| code.contains(broken))?;
        Some(format!("{broken} is a promise, not code"))
    })
}

/// The engine names the modules of nested guests, which are optional, in its root and in `hooks.rs` only.
pub fn optional(source: &Source) -> Vec<Finding> {
    let Ok(path) = source.path.strip_prefix("slat/src") else { return Vec::new() };
    if ["nested", "shadows", "hooks.rs", "lib.rs"].iter().any(|own| path.starts_with(own)) {
        return Vec::new();
    }
    source.find(source.own(), |_, code| {
        let name = ["crate::nested::", "crate::shadows::"].into_iter().find(|name| code.contains(name))?;
        Some(format!("{name} is optional: a hook in slat/src/hooks.rs"))
    })
}

const TABLE: &str = "slat/src/sync/orderings.md";

/// Each `ORDER(tag)` of the engine has a row in [`TABLE`], one of `texts`, which names the module whose `loom_tests.rs`
/// shows it, the test, and how far loom explores it. The tag is in at least two places, one for each side, unless the table
/// says that it `is one-sided`.
pub fn tags(sources: &[Source], texts: &[Source]) -> Vec<Finding> {
    let Some(table) = texts.iter().find(|source| source.path == Path::new(TABLE)) else {
        return Vec::new();
    };
    // | `tag` | `room` | `test` | bound | and so on; the head has no marks around it.
    let lines = table.lines.iter().enumerate().filter(|(_, line)| line.starts_with("| `"));
    let rows: Vec<_> = lines.filter_map(|(at, line)| Some((at, cells::<4>(line)?))).collect();
    let uses: Vec<(&Source, usize, String)> = sources.iter().flat_map(uses).collect();
    let unknown = uses.iter().filter(|(_, _, tag)| !rows.iter().any(|(_, row)| row[0] == tag));
    let unknown = unknown.map(|(file, at, tag)| file.finding(*at, format!("ORDER({tag}) is not in {TABLE}")));
    let mut findings: Vec<Finding> = unknown.collect();
    for (at, [tag, room, test, explored]) in rows {
        let sides = uses.iter().filter(|(_, _, used)| used == tag).count();
        let excused = format!("`{tag}` is one-sided: ");
        let mut find = |what: String| findings.push(table.finding(at, what));
        if sides == 0 {
            find(format!("no ORDER({tag}) in the engine"));
        } else if sides == 1 && !table.lines.iter().any(|line| line.contains(&excused)) {
            find(format!("ORDER({tag}) stands on one side only"));
        }
        let tests = Path::new("slat/src").join(room).join("loom_tests.rs");
        let start = format!("fn {test}(");
        match sources.iter().find(|source| source.path == tests) {
            None => find(format!("no {}", tests.display())),
            Some(tests) => match tests.code.iter().position(|code| code.starts_with(&start)) {
                None => find(format!("no {test} in {}", tests.path.display())),
                Some(first) => {
                    let bounds = bounds(&tests.code[first..]);
                    if bounds != explored {
                        find(format!("{test} is explored `{bounds}`, not `{explored}`"));
                    }
                }
            },
        }
    }
    findings
}

/// How far loom explores the function at the start of `code`, as [`TABLE`] writes it: `whole` for `explore`, the number of
/// preemptions for `explore_within`, each once.
fn bounds(code: &[String]) -> String {
    let mut bounds = Vec::new();
    for line in code.iter().take_while(|line| !line.starts_with('}')) {
        let calls = line.split("explore").skip(1).filter_map(|call| {
            let bound = call.strip_prefix("_within(").and_then(|call| call.split_once(','));
            bound.map(|(bound, _)| bound).or(call.starts_with('(').then_some("whole"))
        });
        bounds.extend(calls);
    }
    let first = |at: &usize| !bounds[..*at].contains(&bounds[*at]);
    let once: Vec<_> = (0..bounds.len()).filter(first).map(|at| bounds[at]).collect();
    once.join(", ")
}

/// Returns the tags in a shipped file of the engine, with the indices of their lines. In code, `order!(a_b.side, Acquire)`
/// has the tag `a-b`.
fn uses(source: &Source) -> Vec<(&Source, usize, String)> {
    let mut uses = Vec::new();
    for at in 0..source.shipped() {
        let said = source.lines[at].split("ORDER(").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        let code = source.code[at].replace("fence!(", "order!(");
        let named = code.split("order!(").skip(1).filter_map(|rest| Some(rest.split_once('.')?.0));
        let named = named.filter(|pair| !pair.starts_with('$')).map(|pair| pair.replace('_', "-"));
        uses.extend(said.map(str::to_owned).chain(named).map(|tag| (source, at, tag)));
    }
    uses
}

/// The target of a relative link, and an included file, of a Markdown file exist. Headings are not checked. A link of
/// the book leads to a chapter: nothing else of the repository is beside the rendered pages.
pub fn links(file: &Source) -> Vec<Finding> {
    let is_chapter = file.path.starts_with("book/src");
    file.find(file.lines.len(), |at, _| {
        let line = file.lines[at].replace("{{#include ", "](include:").replace("}}", ")");
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let mut files = links.filter(|to| !to.contains("://") && !to.starts_with('#'));
        files.find_map(|to| {
            let (to, is_included) = (to.trim_start_matches("include:"), to.starts_with("include:"));
            let to = to.split(['#', ':']).next()?;
            if !file.path.with_file_name(to).exists() {
                return Some(format!("no {to}"));
            }
            let leaves = is_chapter && !is_included && to.starts_with("..");
            leaves.then(|| format!("a link out of the book: {to}"))
        })
    })
}

/// No sentence stands twice in a comment, an old wording under a new one, as a merge can leave it: no line that begins
/// with a small letter follows a line that ends a sentence. The names in [`SMALL`] may begin a sentence.
pub fn leftovers(file: &Source) -> Vec<Finding> {
    let text = |line: &str| {
        let line = line.trim_start();
        if file.path.extension().is_some_and(|end| end == "md") {
            return Some(line.to_owned());
        }
        let text = ["///", "//!", "//"].into_iter().find_map(|mark| line.strip_prefix(mark))?;
        Some(text.trim_start().to_owned())
    };
    let ends = |line: &str| {
        let word = line.strip_suffix('.').and_then(|line| line.rsplit(' ').next());
        word.is_some_and(|word| word.ends_with(|last: char| last.is_ascii_lowercase()) && !word.contains('.'))
    };
    let begins = |line: &str| {
        let word = line.split([' ', '-', '\'', ',']).next().unwrap_or_default();
        line.starts_with(|first: char| first.is_ascii_lowercase()) && !SMALL.contains(&word) && word.len() > 1
    };
    let lines: Vec<_> = file.lines.iter().map(|line| text(line)).collect();
    let mut in_code = false;
    let twice = lines.windows(2).enumerate().filter_map(|(at, pair)| {
        let [Some(before), line] = pair else { return None };
        in_code ^= before.starts_with("```");
        let line = line.as_ref()?;
        let found = !in_code && ends(before) && begins(line);
        found.then(|| file.finding(at + 1, format!("a sentence begins with a small letter: {line}")))
    });
    twice.collect()
}

/// Names that keep their small letter at the beginning of a sentence.
const SMALL: &[&str] =
    &["slat", "cargo", "loom", "shuttle", "vCPU", "vCPUs", "rustup", "rustix", "userfaultfd"];

/// No two rows of a table name the same tests, so no feature is listed twice.
pub fn rows(file: &Source) -> Vec<Finding> {
    let mut seen = BTreeMap::<Vec<&str>, usize>::new();
    let lines = file.lines.iter().enumerate().filter(|(_, line)| line.starts_with("| "));
    let twice = lines.filter_map(|(at, line)| {
        let shown = line.replace("\\|", "  ").split('|').nth(2)?.len();
        let start = line.split('|').nth(1)?.len() + 2;
        let tests: Vec<_> = line.get(start..start + shown)?.split('`').skip(1).step_by(2).collect();
        let first = (!tests.is_empty()).then(|| *seen.entry(tests).or_insert(at))?;
        (first != at).then(|| file.finding(at, format!("line {} names the same tests", first + 1)))
    });
    twice.collect()
}

/// The book's chapters have at most 20,000 words, without the files that they include: an afternoon's reading. The
/// documents at the root have at most 5,000.
pub fn words_of_documents(texts: &[Source]) -> Vec<Finding> {
    let of = |name: &str, most: usize, is_of: fn(&Path) -> bool| {
        let documents: Vec<_> = texts.iter().filter(|text| is_of(&text.path)).collect();
        let words =
            |text: &&Source| text.lines.iter().map(|line| line.split_whitespace().count()).sum::<usize>();
        let all: usize = documents.iter().map(words).sum();
        let longest = documents.iter().max_by_key(|text| words(text))?;
        (all > most).then(|| longest.finding(0, format!("{name} {all} words, over {most}")))
    };
    let book = of("the book has", 20_000, |path| path.starts_with("book/src"));
    let root = of("the documents at the root have", 5_000, |path| path.components().count() == 1);
    book.into_iter().chain(root).collect()
}

/// The chapter whose tables list features.
pub const FEATURES: &str = "book/src/features.md";

pub const INVENTORY: &str = "book/src/verification.md";

/// The table of `unsafe` in [`INVENTORY`], by folder, as cargo-geiger counts it, is right: a finding if `text` lacks
/// the current table. `extern` may follow the word; a block of foreign functions is a block.
pub fn inventory(sources: &[Source], text: &str) -> Option<Finding> {
    let mut rows = BTreeMap::<String, [usize; 5]>::new();
    for source in sources {
        let folder = source.path.iter().next()?.display();
        for (at, code) in source.code.iter().enumerate() {
            for what in code.split("unsafe ").skip(1) {
                let what = what.trim_start_matches("extern").trim_start();
                let kind = ["{", "impl", "fn ", "trait "].iter().position(|begin| what.starts_with(begin));
                let Some(kind) = kind else { continue };
                let counts = rows.entry(format!("`{folder}/`")).or_default();
                counts[if at < source.own() { kind } else { 4 }] += 1;
            }
        }
    }
    let head = ["folder", "blocks", "impls", "functions", "traits", "any of these, in tests"];
    let rows = rows.into_iter().map(|(folder, counts)| {
        let [a, b, c, d, e] = counts.map(|count| count.to_string());
        [folder, a, b, c, d, e]
    });
    let (now, file) = (table(head, rows), Source::new(INVENTORY, text));
    let at = file.lines.iter().position(|line| line.starts_with("| folder")).unwrap_or(0);
    let is_there = text.contains(&format!("\n{now}\n"));
    (!is_there).then(|| file.finding(at, format!("the table of `unsafe` is now\n{now}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_may_be_long() {
        let found = |path, lines| length(&Source::new(path, &"\n".repeat(lines))).len();
        let files = [("a/src/b.rs", 450), ("a/src/b.rs", 451), ("a/tests/b.rs", 451)];
        assert_eq!(files.map(|(path, lines)| found(path, lines)), [0, 1, 0]);
        let format = "slat/src/table/formats/b.rs";
        assert_eq!([found(format, 140), found(format, 141)], [0, 1]);
        assert_eq!(found("slat/src/table/formats/tests.rs", 136), 0);
    }

    #[test]
    fn missing_and_forbidden_text_in_a_file_is_found() {
        let far = format!("// SAFETY: far away\n{}unsafe impl Send for A {{}}", "\n".repeat(6));
        let engine = "slat/src/a.rs";
        let cases: [(super::super::Rule, &str, &str, usize); 20] = [
            (safety, "a.rs", "let a = unsafe { b() };", 1),
            (safety, "a.rs", "// SAFETY: b is kind.\nlet a = unsafe { b() };", 0),
            (safety, "a.rs", &far, 1),
            // Its caller must argue.
            (safety, "a.rs", "unsafe fn a();", 0),
            (order, engine, "a.load(Acquire);", 1),
            (order, engine, "// ORDER(a): b before c.\na.load(Ordering::Acquire);", 1),
            (order, engine, "a.load(order!(a.b, Acquire));\nfence!(a.c);", 0),
            (order, engine, "// ORDER(a): b before c.\ncompiler_fence(SeqCst);", 0),
            (order, engine, "a.load(Relaxed); a.acquire(); ReleaseDate", 0),
            (order, engine, "use core::sync::atomic::{\n    Acquire,\n    Release,\n};\nfence(SeqCst);", 1),
            (order, engine, "#[cfg(test)]\nmod tests {\n    a.load(Acquire);\n}", 0),
            (order, "slat/src/a_tests.rs", "a.load(SeqCst);", 0),
            (order, "cli/src/a.rs", "a.load(SeqCst);", 0),
            (optional, engine, "use crate::shadows::Shadow;\ncrate::nested::f();\n// crate::nested::f", 2),
            (optional, "slat/src/shadows/a.rs", "use crate::nested::L2;", 0),
            (optional, "slat/src/a_tests.rs", "use crate::nested::L2;", 0),
            (optional, "cli/src/a.rs", "use crate::nested::Guest;", 0),
            (promises, "a.rs", "fn a() { todo!() }\n#[ignore = \"slow\"]\nunimplemented!(\"b\")", 3),
            (promises, "a.rs", "// todo!() is not for us", 0),
            (promises, "a.rs", "let a = \"#[ignore\";", 0),
        ];
        for (rule, path, text, findings) in cases {
            assert_eq!(rule(&Source::new(path, text)).len(), findings, "{path}: {text}");
        }
    }

    const ROW: &str =
        "| tag | room | test | loom |\n|---|---|---|---|\n| `a` | `room` | `it_holds` | whole |\n";
    const BOTH: &str = "// ORDER(a): before.\nx;\n// ORDER(a): after.\n";

    fn found(table: &str, code: &str, tests: &str) -> Vec<String> {
        let sources = [
            Source::new(TABLE, table),
            Source::new("slat/src/room.rs", code),
            Source::new("slat/src/room/loom_tests.rs", tests),
        ];
        tags(&sources[1..], &sources[..1]).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn an_order_tag_needs_two_sides_and_a_test_unless_it_is_listed_as_one_sided() {
        let test = "fn it_holds() {\n    explore(it);\n}";
        assert!(found(ROW, BOTH, test).is_empty());
        assert_eq!(found(ROW, BOTH, "fn it_holds_not() {"), ["no it_holds in slat/src/room/loom_tests.rs"]);
        assert_eq!(found(ROW, "", test), ["no ORDER(a) in the engine"]);
        assert_eq!(found("", BOTH, ""), ["ORDER(a) is not in slat/src/sync/orderings.md"; 2]);
        let elsewhere = ROW.replace("`room`", "`other`");
        assert_eq!(found(&elsewhere, BOTH, test), ["no slat/src/other/loom_tests.rs"]);
        // Tests do not count as a side.
        let one = "// ORDER(a): b.\n#[cfg(test)]\nmod tests {\n    // ORDER(a): c.\n}";
        assert_eq!(found(ROW, one, test), ["ORDER(a) stands on one side only"]);
        assert!(found(&format!("{ROW}`a` is one-sided: nothing answers.\n"), one, test).is_empty());
    }

    #[test]
    fn a_bound_that_the_test_has_not_is_found() {
        let bounded =
            "fn it_holds() {\n    explore(a);\n    explore_within(2, b);\n    explore_within(2, c);\n}\n";
        let other = "fn other() {\n    explore_within(3, d);\n}";
        let test = format!("{bounded}{other}");
        for right in ["whole, 2", "whole", "2, whole", "3", "all"] {
            let found = found(&ROW.replace("whole", right), BOTH, &test);
            let wrong = format!("it_holds is explored `whole, 2`, not `{right}`");
            let expected: &[String] = if right == "whole, 2" { &[] } else { &[wrong] };
            assert_eq!(found, expected);
        }
        assert_eq!(found(ROW, BOTH, "fn it_holds() {\n}").len(), 1, "a test that explores nothing");
    }

    #[test]
    fn a_link_leads_to_a_file() {
        let text = "[a](main.rs#b) [c](#d) [e](f://g)\n[h](i.md)\n{{#include main.rs:j}}\n{{#include k.rs}}";
        assert_eq!(links(&Source::new("src/a.md", text)).len(), 2);
    }

    #[test]
    fn a_link_of_the_book_leads_to_a_chapter() {
        let text = "[a](../../slat/src/lib.rs)\n{{#include ../../slat/src/lib.rs}}\n[b](SUMMARY.md)";
        let found = links(&Source::new("book/src/a.md", text));
        assert!(found.iter().any(|finding| finding.line == 1), "{found:?}");
    }

    #[test]
    fn an_old_wording_under_a_new_one_is_found() {
        let found = |path: &str, text: &str| leftovers(&Source::new(path, text)).len();
        assert_eq!(found("a.rs", "//! It ends.\n//! ends, then more."), 1);
        assert_eq!(found("a.md", "It ends.\nends, then more."), 1);
        assert_eq!(found("a.rs", "/// It ends.\n/// slat goes on.\n/// As here, e.g.\n/// this one."), 0);
        assert_eq!(found("a.rs", "/// It ends.\nlet code = 1;\n// It ends.\n*code = 2;"), 0);
        assert_eq!(found("a.md", "```\nit ends.\nends, then more.\n```\n"), 0);
    }

    #[test]
    fn two_rows_that_name_the_same_tests_are_one_feature() {
        let text = "| a | \u{2714} `x::y` |\n| b | `z` |\n| c, anew | seen: `x::y` | `w` |\n| d | no test |\n| e | none |";
        assert_eq!(
            rows(&Source::new(FEATURES, text)).iter().map(|found| found.line).collect::<Vec<_>>(),
            [3]
        );
    }

    #[test]
    fn documents_that_have_grown_too_long_are_found_at_the_longest_of_them() {
        let found = |folder: &str, words: usize| {
            let long = "a word\n".repeat(words / 2);
            let texts = [("a.md", &*long), ("b/c.md", "one more")];
            let texts = texts.map(|(path, text)| Source::new(Path::new(folder).join(path), text));
            words_of_documents(&texts).into_iter().map(|found| (found.path, found.line)).collect::<Vec<_>>()
        };
        assert_eq!(
            [found("book/src", 19_998), found("", 5_000), found("slat", 20_002)],
            [vec![], vec![], vec![]]
        );
        assert_eq!(found("book/src", 20_000), [("book/src/a.md".into(), 1)]);
        assert_eq!(found("", 5_002), [("a.md".into(), 1)]);
        assert_eq!(words_of_documents(&[]), []);
    }

    #[test]
    fn unsafe_is_counted_by_folder_and_kind_and_in_tests_apart() {
        let kinds =
            "unsafe trait A {}\nunsafe impl A for B {}\nconst unsafe fn c() {}\ntype D = unsafe fn();\n";
        let blocks = "// unsafe { e() }\nlet f = (unsafe { g(\"unsafe { h }\") }, unsafe { i() });\n";
        let own = format!("{kinds}{blocks}#[cfg(test)]\nmod tests {{\n    unsafe {{ j() }}\n}}");
        let foreign = "unsafe extern \"C\" {}\npub unsafe extern \"C\" fn o() {}\n#[unsafe(naked)]";
        let tests = "unsafe fn k() {\n    unsafe { l() }\n}";
        let texts = [("a/b.rs", &*own), ("a/tests/b.rs", tests), ("m/n.rs", foreign), ("p.rs", "unsafe_p")];
        let sources = texts.map(|(path, text)| Source::new(path, text));
        let now = inventory(&sources, "").expect("there is no table").what;
        let right = format!("# Text\n\n{}\n", now.split_once('\n').unwrap().1);
        let rows: Vec<_> = right.lines().skip(4).map(|row| row.replace(' ', "")).collect();
        assert_eq!(rows, ["|`a/`|2|1|1|1|3|", "|`m/`|1|0|1|0|0|", ""]);
        assert_eq!(inventory(&sources, &right), None);
        assert_eq!(inventory(&sources[..2], &right).unwrap().line, 3, "a folder has less than the text says");
    }
}
