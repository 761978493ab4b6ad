//! The names in one file: its modules, its items, its imports, and the paths in its code. Tests are left out.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// Names in a file. A module within the file is part of it: `inner` says in which such module a name stands, as `a::b`;
/// empty outside of them.
#[derive(Default)]
pub struct Names {
    /// Modules with a file of their own.
    pub modules: Vec<Module>,
    /// Modules within the file.
    pub inner: BTreeSet<String>,
    /// Items outside of functions, with their inner module in front.
    pub items: BTreeSet<String>,
    /// Macros that are exported to the crate's root.
    pub macros: BTreeSet<String>,
    pub imports: Vec<Import>,
    pub paths: Vec<Named>,
}

pub struct Module {
    pub name: String,
    /// The file, relative to this one's folder, where an attribute names it.
    pub path: Option<String>,
}

/// One path of a `use`.
pub struct Import {
    pub path: Named,
    /// Its name in this file; `None` for `::*`.
    pub name: Option<String>,
    /// Whether the file re-exports the name.
    pub is_public: bool,
}

/// A path as it is written.
pub struct Named {
    pub inner: String,
    pub path: Vec<String>,
    pub line: usize,
}

/// Configurations of tests and of simulations, which are not shipped.
const OF_TESTS: [&str; 7] = ["test", "loom", "shuttle", "explored", "virtual_time", "tsan", "miri"];

/// Keywords before the name of an item.
const ITEMS: [&str; 10] =
    ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules"];

impl Names {
    /// Reads the text of a file; an error says where it is no Rust.
    pub fn read(text: &str) -> anyhow::Result<Self> {
        let tokens: TokenStream =
            text.parse().map_err(|error: proc_macro2::LexError| anyhow::anyhow!("{error}"))?;
        let mut names = Self::default();
        names.scan(tokens, "", true);
        Ok(names)
    }

    /// Reads tokens in this inner module; `is_open` outside of functions and types.
    fn scan(&mut self, tokens: TokenStream, inner: &str, is_open: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut at, mut attributes) = (0, Attributes::default());
        while at < tokens.len() {
            if let Some(attribute) = attribute(&tokens, at) {
                let ships = attributes.add(attribute);
                at = if ships { at + 2 } else { after_item(&tokens, at) };
                continue;
            }
            at = match &tokens[at] {
                TokenTree::Ident(word) if word == "use" && !is(tokens.get(at + 1), '<') => {
                    self.uses(&tokens, at, inner)
                }
                TokenTree::Ident(word) if ITEMS.contains(&word.to_string().as_str()) => {
                    self.item(&tokens, at, (inner, is_open), std::mem::take(&mut attributes))
                }
                TokenTree::Ident(_) => self.path(&tokens, at, inner),
                TokenTree::Group(group) => {
                    self.scan(group.stream(), inner, is_open && group.delimiter() == Delimiter::None);
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// Reads the item that begins with this keyword, up to its name at least. Returns the index after that.
    fn item(
        &mut self,
        tokens: &[TokenTree],
        at: usize,
        (inner, is_open): (&str, bool),
        attributes: Attributes,
    ) -> usize {
        let keyword = tokens[at].to_string();
        let name_at = at + 1 + usize::from(keyword == "macro_rules");
        let Some(TokenTree::Ident(name)) = tokens.get(name_at) else { return at + 1 };
        let name = name.to_string();
        let is_pointer = is(at.checked_sub(1).map(|at| &tokens[at]), '*');
        if is_pointer || ITEMS.contains(&name.as_str()) || ["unsafe", "extern", "mut"].contains(&&*name) {
            return at + 1;
        }
        if keyword == "enum" {
            let is_body = |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            let body = (name_at..tokens.len()).find(|&at| is_body(&tokens[at]));
            if let Some((body, TokenTree::Group(variants))) = body.map(|body| (body, &tokens[body])) {
                self.scan(tokens[name_at + 1..body].iter().cloned().collect(), inner, false);
                self.variants(variants.stream(), inner);
                self.items.extend(is_open.then(|| join(inner, &name)));
                return body + 1;
            }
        }
        match tokens.get(name_at + 1) {
            _ if !is_open => {}
            Some(TokenTree::Group(body)) if keyword == "mod" => {
                let place = join(inner, &name);
                self.scan(body.stream(), &place, true);
                self.inner.insert(place);
                return name_at + 2;
            }
            _ if keyword == "mod" => self.modules.push(Module { name, path: attributes.path }),
            _ if attributes.exports => _ = self.macros.insert(name),
            _ => _ = self.items.insert(join(inner, &name)),
        }
        name_at + 1
    }

    /// Reads the variants of an enumeration, whose names are no paths.
    fn variants(&mut self, variants: TokenStream, inner: &str) {
        let tokens: Vec<TokenTree> = variants.into_iter().collect();
        for mut variant in tokens.split(|token| is(Some(token), ',')) {
            while attribute(variant, 0).is_some() {
                variant = &variant[2..];
            }
            let contents = variant.iter().skip(1).cloned().collect();
            self.scan(contents, inner, false);
        }
    }

    /// Reads a `use`. Returns the index after it.
    fn uses(&mut self, tokens: &[TokenTree], at: usize, inner: &str) -> usize {
        let end = (at..tokens.len()).find(|&end| is(tokens.get(end), ';')).unwrap_or(tokens.len());
        let is_public = match at.checked_sub(1).map(|at| &tokens[at]) {
            Some(TokenTree::Ident(word)) => word == "pub",
            Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
            _ => false,
        };
        self.import(&tokens[at + 1..end], &[], inner, is_public);
        end + 1
    }

    /// Reads the tree of a `use` below `base`.
    fn import(&mut self, tree: &[TokenTree], base: &[String], inner: &str, is_public: bool) {
        let mut path = base.to_vec();
        let Some(first) = tree.first() else { return };
        let line = first.span().start().line;
        let mut name = None;
        let mut tokens = tree.iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => name = tokens.next().map(ToString::to_string),
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) => {
                    let below: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in below.split(|token| is(Some(token), ',')) {
                        self.import(part, &path, inner, is_public);
                    }
                    return;
                }
                TokenTree::Punct(sign) if sign.as_char() == '*' => {
                    let path = Named { inner: inner.to_owned(), path, line };
                    self.imports.push(Import { path, name: None, is_public });
                    return;
                }
                _ => {}
            }
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let name = name.or_else(|| path.last().cloned());
        self.imports.push(Import { path: Named { inner: inner.to_owned(), path, line }, name, is_public });
    }

    /// Reads the path that begins at this identifier. Returns the index after it.
    fn path(&mut self, tokens: &[TokenTree], at: usize, inner: &str) -> usize {
        let mut path = Vec::new();
        let mut end = at;
        while let Some(TokenTree::Ident(word)) = tokens.get(end) {
            path.push(word.to_string());
            end += 1;
            if !(is(tokens.get(end), ':') && is(tokens.get(end + 1), ':')) {
                break;
            }
            end += 2;
        }
        // A field or method, the end of a path that begins with no name, or a lifetime.
        let before =
            |sign, count| (1..=count).all(|back| is(at.checked_sub(back).map(|at| &tokens[at]), sign));
        let is_below = (before('.', 1) && !before('.', 2)) || before(':', 2) || before('\'', 1);
        let is_call = matches!(tokens.get(end), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
            || is(tokens.get(end), '!');
        let is_type = path[0].starts_with(|first: char| first.is_ascii_uppercase());
        if !is_below && (path.len() > 1 || is_call || is_type) {
            self.paths.push(Named { inner: inner.to_owned(), path, line: tokens[at].span().start().line });
        }
        end
    }
}

/// Attributes of the next item that matter here.
#[derive(Default)]
struct Attributes {
    path: Option<String>,
    exports: bool,
}

impl Attributes {
    /// Adds an attribute. Returns whether its item may be shipped.
    fn add(&mut self, attribute: TokenStream) -> bool {
        let (name, rest) = head(attribute);
        match name.as_str() {
            "cfg" => return may_ship(rest).0,
            "path" => self.path = literal(rest),
            "macro_export" => self.exports = true,
            _ => {}
        }
        true
    }
}

/// Joins a module's path and a name.
pub fn join(module: &str, name: &str) -> String {
    if module.is_empty() || name.is_empty() { format!("{module}{name}") } else { format!("{module}::{name}") }
}

fn is(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == sign)
}

/// Returns the contents of an attribute that begins here.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<TokenStream> {
    let Some(TokenTree::Group(group)) = tokens.get(at + 1) else { return None };
    let is_attribute = is(tokens.get(at), '#') && group.delimiter() == Delimiter::Bracket;
    is_attribute.then(|| group.stream())
}

/// Returns the name of an attribute or predicate, and the rest.
fn head(tokens: TokenStream) -> (String, TokenStream) {
    let mut tokens = tokens.into_iter();
    let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
    (name, tokens.collect())
}

fn literal(tokens: TokenStream) -> Option<String> {
    let text = tokens.into_iter().last()?.to_string();
    Some(text.trim_matches('"').to_owned())
}

/// Returns whether a predicate of `cfg` may be true in shipped code, and whether it may be false.
fn may_ship(predicate: TokenStream) -> (bool, bool) {
    let mut tokens = predicate.into_iter().peekable();
    if let Some(TokenTree::Group(group)) = tokens.peek() {
        return may_ship(group.stream());
    }
    let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
    let Some(TokenTree::Group(group)) = tokens.next() else {
        return (!OF_TESTS.contains(&name.as_str()), true);
    };
    let parts: Vec<TokenTree> = group.stream().into_iter().collect();
    let parts = parts.split(|token| is(Some(token), ',')).filter(|part| !part.is_empty());
    let mut parts = parts.map(|part| may_ship(part.iter().cloned().collect()));
    match name.as_str() {
        "not" => parts.next().map_or((true, true), |(yes, no)| (no, yes)),
        "any" => parts.fold((false, true), |(yes, no), part| (yes || part.0, no && part.1)),
        _ => parts.fold((true, false), |(yes, no), part| (yes && part.0, no || part.1)),
    }
}

/// Returns the index after the item that has the attribute at `at`.
fn after_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while attribute(tokens, at).is_some() {
        at += 2;
    }
    let words = tokens[at..].iter().take(3).map(ToString::to_string);
    let words: Vec<String> = words.collect();
    let begins = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
    let to_semicolon = begins(&["use", "let"]) || (begins(&["const", "static", "type"]) && !begins(&["fn"]));
    let to_body = begins(&["fn", "impl", "struct", "enum", "union", "trait", "mod", "macro_rules", "extern"]);
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(sign) => {
            sign.as_char() == ';' || (sign.as_char() == ',' && !to_semicolon && !to_body)
        }
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !to_semicolon,
        _ => false,
    };
    (at..tokens.len()).find(|&end| ends(&tokens[end])).unwrap_or(tokens.len()) + 1
}
