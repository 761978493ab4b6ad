//! Everything that a newcomer meets first has an example: a type by its page, a task by a file in `examples/`.

use std::fs;
use std::path::{Path, PathBuf};

/// The types and traits that an embedder names.
const PAGES: [&str; 16] = [
    "Builder",
    "Format",
    "GuestSpace",
    "Harvest",
    "Host",
    "HostPage",
    "InGuest",
    "Invalidation",
    "OwnedVcpu",
    "Region",
    "SecondaryMmu",
    "TableMemory",
    "Transaction",
    "Translations",
    "Vcpu",
    "Vm",
];

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Rust files below `folder`, with their paths.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// Returns the documentation and attributes of the public item `name`, with included pages.
fn page(sources: &[(PathBuf, String)], name: &str) -> Option<String> {
    let is_item = |line: &str| {
        let rest = line.strip_prefix("pub ")?;
        let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
        let rest = rest.strip_prefix("struct ").or(rest.strip_prefix("trait "))?;
        rest.strip_prefix(name)?.starts_with([' ', '<', ':', ';', '(']).then_some(())
    };
    sources.iter().find_map(|(path, text)| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| is_item(line).is_some())?;
        let is_doc = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
        let first = at - lines[..at].iter().rev().take_while(is_doc).count();
        let read = |line: &&str| match line.strip_prefix("#[doc = include_str!(\"") {
            Some(file) => fs::read_to_string(path.with_file_name(file.split('"').next().unwrap())).unwrap(),
            None => line.trim_start_matches("///").trim().to_owned(),
        };
        Some(lines[first..at].iter().map(read).collect::<Vec<_>>().join("\n"))
    })
}

/// Whether the page has an example that is run: a block of code without an attribute that prevents it.
fn has_example(page: &str) -> bool {
    page.lines().filter(|line| line.starts_with("```")).step_by(2).any(|opens| opens == "```")
}

#[test]
fn the_page_of_each_type_that_an_embedder_names_has_an_example() {
    let mut sources = sources(&crate_folder().join("src"));
    // A re-exported item is documented where it is defined.
    sources.extend(self::sources(&crate_folder().join("../crates/slots/src")));
    let without =
        PAGES.into_iter().filter(|name| !page(&sources, name).is_some_and(|page| has_example(&page)));
    assert_eq!(without.collect::<Vec<_>>(), [""; 0], "these have none");
}

#[test]
fn a_picture_and_what_must_not_compile_are_no_examples() {
    for (page, expected) in
        [("```\nlet a = 1;\n```", true), ("```text\n->\n```", false), ("Says much.", false)]
    {
        assert_eq!(has_example(page), expected, "{page}");
    }
    assert!(has_example("```compile_fail\nlet a;\n```\n```\nlet a = 1;\n```"));
}

/// No examples: `cargo xtask gate` counts the instructions of one; the other measures.
const PROGRAMS: [&str; 2] = ["gate", "nested_cost"];
const EXAMPLES: [&str; 14] = [
    "aging",
    "bare_metal",
    "custom_format",
    "custom_primary_mmu",
    "dirty_log",
    "embed",
    "emulator",
    "gate",
    "map_frames",
    "nested_cost",
    "passthrough",
    "post_copy",
    "primary_mmu",
    "tracing",
];

#[test]
fn each_task_of_an_embedder_has_an_example_under_80_lines() {
    let mut found = Vec::new();
    for (path, text) in sources(&crate_folder().join("examples")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(
            PROGRAMS.contains(&&name[..]) || text.lines().count() < 80,
            "{name}: {} lines",
            text.lines().count()
        );
        found.push(name);
    }
    found.sort();
    assert_eq!(found, EXAMPLES);
}

/// The smallest hypervisor, which embedders copy.
#[path = "../../examples/embed.rs"]
mod embed;

#[test]
fn the_smallest_hypervisor_runs_on_though_its_tables_are_replaced() {
    // `vcpu/run.rs` tests that each entry walks the tables that are current.
    embed::main().unwrap();
    let text = fs::read_to_string(crate_folder().join("examples/embed.rs")).unwrap();
    assert!(text.lines().count() <= 45 && text.contains("zap_all"), "{}", text.lines().count());
    for word in ["unsafe", "root", "go("] {
        assert!(!text.contains(word), "an embedder need not know {word}");
    }
}
