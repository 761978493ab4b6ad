//! `docs`: renders the documentation. `links`: checks the links of rendered pages, those of the book and of the
//! documentation. Each relative link leads to a file, and its fragment to an anchor of that page. An absolute link is
//! checked only by its form.
//!
//! `house` checks the links of Markdown, but no headings. A renderer may also change an anchor, or leave a link as text.

use crate::outcome::Outcome;
use crate::process::{answer, cargo, emptied, succeed};
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::{fs, str};

const DOCS: &str = "target/doc";

/// The chore `docs`. Cargo documents packages in any order, and rustdoc links only to a package whose folder it finds:
/// so each folder is made first. Old pages are removed first, since rustdoc keeps the page of an item that is gone.
pub fn render() -> Outcome {
    emptied(Path::new(DOCS))?;
    let metadata = answer("cargo", "metadata --no-deps --format-version 1 --locked")?;
    for package in documented(&serde_json::from_str(&metadata)?) {
        fs::create_dir(Path::new(DOCS).join(package))?;
    }
    succeed(&mut cargo("doc -q --workspace --no-deps --locked"))
}

/// Returns the folders of the libraries that have pages.
fn documented(metadata: &serde_json::Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let is_lib = |kind: &serde_json::Value| kind.as_str().is_some_and(|kind| kind.ends_with("lib"));
    let is_documented = |target: &&serde_json::Value| {
        target["doc"] == true && target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_lib))
    };
    targets
        .filter(is_documented)
        .filter_map(|target| Some(target["name"].as_str()?.replace('-', "_")))
        .collect()
}

#[derive(clap::Args)]
pub struct Args {
    /// Folders of rendered pages. Links from one of them may lead to another
    #[arg(default_values = ["target/book", DOCS])]
    folders: Vec<PathBuf>,
}

/// The chore `links`: lists each missing target, with a page that links to it, and fails if there is one.
pub fn run(args: &Args) -> Outcome {
    let mut site = Site::default();
    for folder in &args.folders {
        let before = site.pages.len();
        if folder.is_dir() {
            site.read(folder, folder)?;
        }
        ensure!(site.pages.len() > before, "no HTML page in {}: render it first", folder.display());
    }
    let broken = site.broken();
    for (what, pages) in &broken {
        let others = pages.len() - 1;
        let more = if others == 0 { String::new() } else { format!(", and {others} more") };
        println!("{}{more}: {what}", pages[0].display());
    }
    ensure!(broken.is_empty(), "broken links: {}", broken.len());
    let links: usize = site.pages.values().map(|page| page.links.len()).sum();
    println!("{links} links of {} pages lead somewhere", site.pages.len());
    Ok(())
}

/// The pages of some folders, and the names of all files there.
#[derive(Default)]
struct Site {
    pages: BTreeMap<PathBuf, Page>,
    files: BTreeSet<PathBuf>,
}

/// The links and the anchors of a page.
#[derive(Default, Debug, PartialEq)]
struct Page {
    /// The folder at which relative links begin, if it is not the page's own.
    base: Option<PathBuf>,
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// The page that a browser shows instead, at the same anchor.
    moved_to: Option<String>,
}

impl Site {
    /// Reads the files below `folder`, which is `root` or is inside it.
    fn read(&mut self, root: &Path, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.read(root, &path)?;
            } else if path.extension().is_some_and(|end| end == "html") {
                self.add(root, path.clone(), &fs::read_to_string(&path)?);
            } else {
                self.files.insert(path);
            }
        }
        Ok(())
    }

    fn add(&mut self, root: &Path, path: PathBuf, html: &str) {
        self.files.insert(path.clone());
        self.pages.insert(path, Page::parse(root, html));
    }

    /// Returns the errors, each with its pages.
    fn broken(&self) -> BTreeMap<String, Vec<&Path>> {
        let mut broken = BTreeMap::<_, Vec<&Path>>::new();
        for (path, page) in &self.pages {
            let links = page.links.iter().filter(|link| !is_foreign(path, link));
            let wrong: BTreeSet<_> = links.filter_map(|link| self.wrong(path, page, link)).collect();
            for wrong in wrong {
                broken.entry(wrong).or_default().push(path);
            }
        }
        broken
    }

    /// Returns the error of a link of a page, if there is one.
    fn wrong(&self, path: &Path, page: &Page, link: &str) -> Option<String> {
        if let Some((scheme, rest)) = scheme(link) {
            return absolute_is_wrong(scheme, rest).then(|| format!("not well-formed: {link}"));
        }
        let (to, fragment) = link.split_once('#').unwrap_or((link, ""));
        let to = percent_decoded(to.split('?').next()?);
        let mut target = path.to_owned();
        if !to.is_empty() {
            let folder = page.base.as_deref().or(path.parent())?;
            target = normal(&folder.join(&to));
            if to.ends_with('/') || to.ends_with('.') {
                target.push("index.html");
            }
        }
        if to.starts_with('/') || !self.files.contains(&target) {
            return Some(format!("no file {}", target.display()));
        }
        // A browser follows a few redirections. The links of these pages are checked, too.
        for _ in 0..4 {
            let Some(moved_to) = self.pages.get(&target).and_then(|page| page.moved_to.as_ref()) else {
                break;
            };
            target = normal(&target.parent()?.join(moved_to));
        }
        let anchors = &self.pages.get(&target)?.anchors;
        // rustdoc highlights a range of lines by a script.
        let is_line = |part: &str| part.parse::<usize>().is_ok() && anchors.contains(part);
        let lines = fragment.split_once('-').is_some_and(|(first, last)| is_line(first) && is_line(last));
        let is_there = anchors.contains(fragment) || anchors.contains(&percent_decoded(fragment));
        let is_right = fragment.is_empty() || lines || is_there;
        (!is_right).then(|| format!("no anchor #{fragment} in {}", target.display()))
    }
}

/// Links of vm-memory's documentation, which rustdoc repeats at our implementations of its traits.
const FOREIGN: [&str; 2] = ["struct.VolatileSlice.html", "trait.GuestMemoryBackend.html"];

/// Returns whether a link is not from our sources. rustdoc also writes links to pages that may be missing: to a script
/// that lists a trait's implementors, and from its help to an index of all packages.
fn is_foreign(path: &Path, link: &str) -> bool {
    let is_help = ["help.html", "settings.html"].iter().any(|name| path.ends_with(name));
    let is_repeated = path.parent().is_some_and(|folder| folder.ends_with("slat_vm_memory"));
    link.contains("/trait.impl/")
        || is_help && link.ends_with("./index.html")
        || is_repeated && FOREIGN.contains(&link)
}

/// Splits an absolute link behind its scheme.
fn scheme(link: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = link.split_once(':')?;
    let known =
        !scheme.is_empty() && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    known.then_some((scheme, rest))
}

fn absolute_is_wrong(scheme: &str, rest: &str) -> bool {
    match scheme {
        "http" | "https" => {
            let host = rest.strip_prefix("//").and_then(|rest| rest.split(['/', '?', '#']).next());
            let is_host = |host: &str| {
                let mut labels = host.split(':').next().unwrap_or_default().split('.');
                labels.clone().count() > 1
                    && labels.all(|label| {
                        !label.is_empty()
                            && label.chars().all(|char| char.is_ascii_alphanumeric() || char == '-')
                    })
            };
            !host.is_some_and(is_host)
                || rest.contains(|char: char| char.is_whitespace() || "<>\"`".contains(char))
        }
        "mailto" => !rest.contains('@'),
        "data" | "javascript" => false,
        _ => true,
    }
}

/// Returns a path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(normal.components().next_back(), Some(Component::Normal(_))) => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let hex = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok();
        let escaped = if *first == b'%' { after.get(..2).and_then(hex) } else { None };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Page {
    /// Reads the tags of a page. `root` is the folder that a base of `/` stands for.
    fn parse(root: &Path, html: &str) -> Self {
        let (mut page, mut rest) = (Self::default(), html);
        while let Some((_, after)) = rest.split_once('<') {
            rest = after;
            if let Some(comment) = rest.strip_prefix("!--") {
                rest = comment.split_once("-->").map_or("", |(_, after)| after);
            } else if rest.starts_with(|first: char| first.is_ascii_alphabetic()) {
                let end =
                    rest.find(|char: char| char.is_whitespace() || "/>".contains(char)).unwrap_or(rest.len());
                let tag = rest[..end].to_ascii_lowercase();
                rest = page.attributes(root, &tag, &rest[end..]);
                // The text inside is not HTML.
                if ["script", "style"].contains(&&*tag) {
                    rest = rest.split_once(&format!("</{tag}")).map_or("", |(_, after)| after);
                }
            }
        }
        page
    }

    /// Reads the attributes of a tag, and returns the text behind it.
    fn attributes<'h>(&mut self, root: &Path, tag: &str, mut rest: &'h str) -> &'h str {
        loop {
            rest = rest.trim_start_matches(|char: char| char.is_whitespace() || char == '/');
            if rest.is_empty() || rest.starts_with('>') {
                return rest.strip_prefix('>').unwrap_or(rest);
            }
            let end =
                rest.find(|char: char| char.is_whitespace() || "=>/".contains(char)).unwrap_or(rest.len());
            let name = rest[..end].to_ascii_lowercase();
            rest = rest[end..].trim_start();
            let Some(value) = rest.strip_prefix('=') else { continue };
            let value = value.trim_start();
            let (value, after) = match value.chars().next() {
                Some(quote @ ('"' | '\'')) => value[1..].split_once(quote).unwrap_or((&value[1..], "")),
                _ => value.split_at(
                    value.find(|char: char| char.is_whitespace() || char == '>').unwrap_or(value.len()),
                ),
            };
            rest = after;
            let value = unescaped(value);
            match (tag, &*name) {
                ("meta", "content") if value.contains(";URL=") => {
                    self.moved_to = value.split_once(";URL=").map(|(_, to)| to.to_owned());
                }
                ("base", "href") => self.base = Some(root.join(value.trim_start_matches('/'))),
                (_, "href" | "src") => self.links.push(value),
                (_, "id") | ("a", "name") => _ = self.anchors.insert(value),
                _ => {}
            }
        }
    }
}

/// Returns text with its character references replaced: those that a renderer writes into an attribute.
fn unescaped(text: &str) -> String {
    let named =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&#39;", "'"), ("&#x27;", "'")];
    let text = named.iter().fold(text.to_owned(), |text, (reference, char)| text.replace(reference, char));
    text.replace("&#x2F;", "/").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A book of two chapters, and a page of documentation with its source.
    fn site(chapter: &str) -> Site {
        let mut site = Site::default();
        let book = Path::new("target/book");
        site.add(book, book.join("a.html"), chapter);
        site.add(book, book.join("b.html"), "<h2 id='it-s-b'><a class=header href='#it-s-b'>It's b</a></h2>");
        let doc = Path::new("target/doc");
        site.add(doc, doc.join("slat/index.html"), r#"<a id="impl-From%3CU%3E-for-T" name=old></a>"#);
        site.add(doc, doc.join("src/slat/lib.rs.html"), "<a href=#1 id=1>1</a><a href=#2 id=2>2</a>");
        site.files.insert(book.join("pictures/a b.svg"));
        site
    }

    fn found(chapter: &str) -> Vec<String> {
        site(chapter).broken().into_keys().collect()
    }

    #[test]
    fn libraries_have_pages_unless_they_say_otherwise() {
        let target =
            |name: &str, kind: &str, doc| serde_json::json!({ "name": name, "kind": [kind], "doc": doc });
        let one = [target("slat-kvm", "lib", true), target("slat-kvm", "test", false)];
        let others =
            [target("slat_c", "rlib", true), target("slat_sim", "lib", false), target("slat", "bin", true)];
        let metadata = serde_json::json!({ "packages": [{ "targets": one }, { "targets": others }] });
        assert_eq!(documented(&metadata), ["slat_c", "slat_kvm"].map(str::to_owned).into());
    }

    #[test]
    fn links_to_files_and_anchors_that_exist_are_right() {
        let links = [
            "b.html",
            "b.html#it-s-b",
            "./b.html?search=x#it-s-b",
            "#",
            "#here",
            "pictures/a%20b.svg",
            "../doc/slat/",
            "../doc/slat/index.html#old",
            "../doc/src/slat/lib.rs.html#1-2",
            "../doc/slat/index.html#impl-From%3CU%3E-for-T",
            "../doc/trait.impl/slat/trait.Host.js",
            "https://example.org:80/a?b=c#d",
            "mailto:a@b.org",
            "data:image/png;base64,AA==",
        ];
        let page = format!("<p id=here><a href='{}'>a</a>", links.join("'>a</a><a href='"));
        assert_eq!(found(&page), [""; 0]);
        assert_eq!(site(&page).pages[Path::new("target/book/a.html")].links, links);
    }

    #[test]
    fn links_to_what_is_missing_are_found() {
        for (link, what) in [
            ("c.html", "no file target/book/c.html"),
            ("b.html#b", "no anchor #b in target/book/b.html"),
            ("#there", "no anchor #there in target/book/a.html"),
            ("/b.html", "no file /b.html"),
            ("../../slat/src/lib.rs", "no file slat/src/lib.rs"),
            ("../doc/mm/", "no file target/doc/mm/index.html"),
            ("../doc/src/slat/lib.rs.html#1-3", "no anchor #1-3 in target/doc/src/slat/lib.rs.html"),
            ("https://", "not well-formed: https://"),
            ("https:example.org", "not well-formed: https:example.org"),
            ("https://example", "not well-formed: https://example"),
            ("https://example.org/a b", "not well-formed: https://example.org/a b"),
            ("slat:x", "not well-formed: slat:x"),
        ] {
            assert_eq!(found(&format!("<a class=x\nhref=\"{link}\">")), [what]);
        }
        assert_eq!(found("<img src=c.svg><script src=\"c.js\"></script>").len(), 2);
    }

    #[test]
    fn text_that_is_no_tag_has_no_links() {
        let page = "<!-- <a href=c> --><script>'<a href=c>'</script><style>a<b href=c></style>1 < 2 href=c";
        assert_eq!(found(page), [""; 0]);
    }

    #[test]
    fn a_target_is_listed_once_with_all_pages_that_link_to_it() {
        let mut site = site("<a href=c.html><a href=./c.html>");
        let nested = PathBuf::from("target/book/d/e.html");
        site.add(Path::new("target/book"), nested.clone(), "<a href='../c.html'>");
        let broken: Vec<_> = site.broken().into_iter().collect();
        let pages = vec![Path::new("target/book/a.html"), &nested];
        assert_eq!(broken, [("no file target/book/c.html".to_owned(), pages)]);
    }

    #[test]
    fn an_anchor_is_looked_for_where_a_page_has_moved() {
        let link = |anchor: &str| format!("<a href='c.html#{anchor}'>");
        for (anchor, moved_to, broken) in
            [("it-s-b", "b.html", 0), ("b", "b.html", 1), ("it-s-b", "c.html", 1)]
        {
            let mut site = site(&link(anchor));
            let page = format!("<meta http-equiv=refresh content='0;URL={moved_to}'>");
            site.add(Path::new("target/book"), PathBuf::from("target/book/c.html"), &page);
            assert_eq!(site.broken().len(), broken, "#{anchor} in {moved_to}");
        }
    }

    #[test]
    fn a_base_moves_relative_links() {
        let mut site = site("");
        let page = |base: &str| format!("{base}<a href='b.html'>");
        let path = Path::new("target/book/d/404.html");
        site.add(Path::new("target/book"), path.to_owned(), &page("<base href=\"/\">"));
        assert_eq!(site.broken().len(), 0);
        site.add(Path::new("target/book"), path.to_owned(), &page(""));
        assert_eq!(site.broken().len(), 1);
    }

    #[test]
    fn escaped_attributes_are_read() {
        let page = Page::parse(Path::new(""), "<a href=\"a&amp;b&#39;c\" id='&lt;d&gt;'/><A HREF=e>");
        assert_eq!(page.links, ["a&b'c", "e"]);
        assert!(page.anchors.contains("<d>"));
        assert_eq!(percent_decoded("a%20b%3C%zz%"), "a b<%zz%");
    }
}
