//! Reads the rules: statements that begin with a keyword, as `README.md` describes them.

use crate::ast::{Action, Bound, Clause, Formula, Item, Kind, Mistake, Sort, Symbol, System, Update};
use crate::reader::{Definition, Reader, tokens};
use std::collections::HashMap;

const KEYWORDS: &str =
    "sort static state define axiom initially clause order promise action require set mistake";
/// Reads a system from its files, each a name and a text.
///
/// ```
/// let text = "sort thread t s  state holds(thread)
///     action lock(t) require !holds(s) set holds(t) := true
///     promise one: holds(t) & holds(s) -> s = t";
/// let system = slat_proof::parse("lock", &[("lock.rules", text)]).unwrap();
/// assert_eq!((system.actions.len(), system.clauses.len()), (1, 1));
/// let wrong = text.replace("holds(s)", "hold(s)");
/// let why = slat_proof::parse("lock", &[("lock.rules", &wrong)]).unwrap_err();
/// assert_eq!(why, "lock.rules:2: hold is not declared, at `hold`");
/// ```
pub fn parse(name: &str, files: &[(&str, &str)]) -> Result<System, String> {
    let mut system = System { name: name.to_owned(), ..System::default() };
    let mut definitions = HashMap::new();
    for (file, text) in files {
        let tokens = tokens(text);
        let mut reader =
            Reader { tokens, at: 0, comment: String::new(), system, definitions, file: (*file).to_owned() };
        while reader.at < reader.tokens.len() {
            reader.statement().map_err(|why| {
                let last = reader.tokens.len() - 1;
                let (token, line) = &reader.tokens[reader.at.min(last)];
                format!("{}:{line}: {why}, at `{token}`", reader.file)
            })?;
        }
        (system, definitions) = (reader.system, reader.definitions);
    }
    begin_empty(&mut system);
    Ok(system)
}

/// Relations are empty in the beginning, unless the rules say otherwise.
fn begin_empty(system: &mut System) {
    for (index, symbol) in system.symbols.iter().enumerate() {
        let is_said = system.initial.iter().any(|update| update.symbol == index);
        if symbol.sort.is_some() || symbol.is_static || is_said {
            continue;
        }
        let bound: Vec<Bound> =
            symbol.arguments.iter().enumerate().map(|(place, &sort)| (format!("x{place}"), sort)).collect();
        let places = bound.iter().map(|(name, _)| Formula::Variable(name.clone())).collect();
        let sorts = symbol.arguments.clone();
        system.initial.push(Update { symbol: index, sorts, places, bound, value: Formula::Truth(false) });
    }
}

impl Reader {
    fn statement(&mut self) -> Result<(), String> {
        if let Some(comment) = self.peek().strip_prefix('#') {
            self.comment = comment.to_owned();
            self.at += 1;
            return Ok(());
        }
        let text = std::mem::take(&mut self.comment);
        match self.next().as_str() {
            "sort" => {
                self.sort();
                Ok(())
            }
            "static" => self.symbol(true),
            "state" => self.symbol(false),
            "define" => self.define(),
            "axiom" => {
                let axiom = self.clause(text, Kind::Argument)?;
                self.system.axioms.push(axiom);
                Ok(())
            }
            keyword @ ("clause" | "order" | "promise") => {
                let kind = match keyword {
                    "promise" => Kind::Promise,
                    "clause" => Kind::Argument,
                    _ => Kind::Order,
                };
                let clause = self.clause(text, kind)?;
                self.system.clauses.push(clause);
                Ok(())
            }
            "initially" => {
                let updates = self.updates(&[])?;
                self.system.initial.extend(updates);
                Ok(())
            }
            "action" => self.action(text),
            "mistake" => self.mistake(),
            _ => {
                self.at -= 1;
                Err("no statement begins so".to_owned())
            }
        }
    }

    fn sort_named(&self, name: &str) -> Result<usize, String> {
        let found = self.system.sorts.iter().position(|sort| sort.name == name);
        found.ok_or_else(|| format!("no sort has the name {name}"))
    }

    fn sort(&mut self) {
        let name = self.next();
        let ordered = self.accept("ordered");
        let mut letters = Vec::new();
        while self.is_name() {
            letters.push(self.next());
        }
        self.system.sorts.push(Sort { name, letters, ordered });
    }

    /// Returns whether the next token is a name, and no keyword.
    fn is_name(&self) -> bool {
        let token = self.peek();
        token.starts_with(|c: char| c.is_alphabetic()) && !KEYWORDS.split(' ').any(|keyword| keyword == token)
    }

    /// `name(sort, …): sort`, any number of them.
    fn symbol(&mut self, is_static: bool) -> Result<(), String> {
        loop {
            let name = self.next();
            let mut arguments = Vec::new();
            if self.accept("(") {
                loop {
                    let sort = self.next();
                    arguments.push(self.sort_named(&sort)?);
                    if !self.accept(",") {
                        break;
                    }
                }
                self.expect(")")?;
            }
            let sort = if self.accept(":") {
                let sort = self.next();
                Some(self.sort_named(&sort)?)
            } else {
                None
            };
            self.system.symbols.push(Symbol { name, arguments, sort, is_static });
            if !self.accept(",") {
                return Ok(());
            }
        }
    }

    fn parameters(&mut self) -> Result<Vec<Bound>, String> {
        let mut parameters = Vec::new();
        if self.accept("(") {
            parameters = self.variables()?;
            self.expect(")")?;
        }
        Ok(parameters)
    }

    fn define(&mut self) -> Result<(), String> {
        let name = self.next();
        let parameters = self.parameters()?;
        self.expect(":=")?;
        let formula = self.formula()?;
        self.definitions.insert(name, Definition { parameters, formula });
        Ok(())
    }

    fn clause(&mut self, text: String, kind: Kind) -> Result<Clause, String> {
        let name = self.next();
        self.expect(":")?;
        Ok(Clause { name, text, kind, formula: self.closed(&[])? })
    }

    /// `symbol(place, …), … := value`.
    fn updates(&mut self, parameters: &[Bound]) -> Result<Vec<Update>, String> {
        let mut updates = vec![self.place(parameters)?];
        while self.accept(",") {
            updates.push(self.place(parameters)?);
        }
        self.expect(":=")?;
        let value = self.formula()?;
        for update in &mut updates {
            let known: Vec<Bound> = parameters.iter().chain(&update.bound).cloned().collect();
            if let Some((name, _)) = self.free(&value, &known).first() {
                return Err(format!("{name} is not bound"));
            }
            update.value = value.clone();
        }
        Ok(updates)
    }

    /// The left side of an assignment.
    fn place(&mut self, parameters: &[Bound]) -> Result<Update, String> {
        let Formula::Apply { symbol, sorts, arguments: places } = self.atom()? else {
            return Err("no symbol".to_owned());
        };
        if self.system.symbols[symbol].is_static && !parameters.is_empty() {
            return Err("a static symbol is changed".to_owned());
        }
        let mut bound = Vec::new();
        for place in &places {
            let free = self.free(place, parameters);
            if !free.is_empty() && !matches!(place, Formula::Variable(_)) {
                return Err("a term has a variable that is no parameter".to_owned());
            }
            bound.extend(free);
        }
        Ok(Update { symbol, sorts, places, bound, value: Formula::Truth(false) })
    }

    /// Parts of an action, with their label; none, if there are no more.
    fn items(&mut self, parameters: &[Bound]) -> Result<Vec<(String, Item)>, String> {
        let keyword = self.peek().to_owned();
        if keyword != "require" && keyword != "set" {
            return Ok(Vec::new());
        }
        self.at += 1;
        let mut label = String::new();
        if self.accept("[") {
            label = self.next();
            self.expect("]")?;
        }
        let items = match keyword.as_str() {
            "require" => vec![Item::Require(self.closed(parameters)?)],
            _ => self.updates(parameters)?.into_iter().map(Item::Set).collect(),
        };
        Ok(items.into_iter().map(|item| (label.clone(), item)).collect())
    }

    fn action(&mut self, text: String) -> Result<(), String> {
        let name = self.next();
        let parameters = self.parameters()?;
        let mut items = Vec::new();
        loop {
            let more = self.items(&parameters)?;
            if more.is_empty() {
                break;
            }
            items.extend(more);
        }
        self.system.actions.push(Action { name, text, parameters, items });
        Ok(())
    }

    /// `mistake name "text" action: -label, [label] part, …; action: …`.
    fn mistake(&mut self) -> Result<(), String> {
        let (name, text) = (self.next(), self.next().trim_matches('"').to_owned());
        let mut actions = Vec::new();
        while self.is_name() {
            let action = self.next();
            let index =
                self.system.action(&action).ok_or_else(|| format!("no action has the name {action}"))?;
            let mut changed = self.system.actions[index].clone();
            while self.accept("without") {
                let label = self.next();
                let before = changed.items.len();
                changed.items.retain(|(known, _)| *known != label);
                if changed.items.len() == before {
                    return Err(format!("{action} has no part {label}"));
                }
            }
            loop {
                let items = self.items(&changed.parameters)?;
                let Some((label, _)) = items.first().cloned() else { break };
                let before = changed.items.len();
                changed.items.retain(|(known, _)| label.is_empty() || *known != label);
                if !label.is_empty() && changed.items.len() == before {
                    return Err(format!("{action} has no part {label}"));
                }
                changed.items.extend(items);
            }
            actions.push((index, changed));
        }
        self.system.mistakes.push(Mistake { name, text, actions });
        Ok(())
    }
}
