//! Reads the rules: statements that begin with a keyword, as `README.md` describes them.

use crate::ast::{Action, Bound, Clause, Formula, Item, Kind, Mistake, Sort, Symbol, System, Update};
use std::collections::HashMap;

const KEYWORDS: &str = "sort static state define axiom initially clause order promise action require set mistake";
const OPERATORS: [&str; 7] = ["<->", "->", ":=", "!=", "<=", ">=", "//"];

/// A token, with its line.
type Token = (String, usize);

/// A definition: a formula with parameters, which replaces its uses.
struct Definition {
    parameters: Vec<Bound>,
    formula: Formula,
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// The comment above the statement that is read.
    comment: String,
    system: System,
    definitions: HashMap<String, Definition>,
    /// The file, for messages.
    file: String,
}

/// Reads a system from its files, each a name and a text.
///
/// ```
/// let text = "sort thread t\n state holds(thread) initially holds(t) := false\n\
///             # The lock.\n action lock(t) require !holds(s) set holds(t) := true\n sort other s";
/// assert!(slat_proof::parse("lock", &[("lock", text)]).is_err());
/// let text = text.replace("thread t", "thread t s").replace("sort other s", "promise one: holds(t) & holds(s) -> s = t");
/// let system = slat_proof::parse("lock", &[("lock", &text)]).unwrap();
/// assert_eq!((system.actions.len(), system.clauses.len()), (1, 1));
/// ```
pub fn parse(name: &str, files: &[(&str, &str)]) -> Result<System, String> {
    let mut system = System { name: name.to_owned(), ..System::default() };
    let mut definitions = HashMap::new();
    for (file, text) in files {
        let tokens = tokens(text);
        let mut reader = Reader { tokens, at: 0, comment: String::new(), system, definitions, file: (*file).to_owned() };
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

/// Splits a text. A run of comment lines is one token.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut rest = text.trim();
        if let Some(comment) = rest.strip_prefix('#') {
            match tokens.last_mut() {
                Some((last, _)) if last.starts_with('#') => *last += &format!(" {}", comment.trim()),
                _ => tokens.push((format!("#{}", comment.trim()), line)),
            }
            continue;
        }
        while !rest.is_empty() {
            let word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            let operator = OPERATORS.iter().find(|operator| rest.starts_with(**operator));
            let length = if let Some(operator) = operator {
                operator.len()
            } else if rest.starts_with('"') {
                2 + rest[1..].find('"').unwrap_or(0)
            } else {
                let all = rest.find(|c| !word(c)).unwrap_or(rest.len());
                // `a->b` is no word.
                rest[..all].find("->").unwrap_or(if rest[all..].starts_with('>') && rest[..all].ends_with('-') { all - 1 } else { all }).max(1)
            };
            tokens.push((rest[..length].to_owned(), line));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

impl Reader {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |(token, _)| token)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).map_or(String::new(), |(token, _)| token.clone())
    }

    fn accept(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(format!("`{token}` is missing")) }
    }

    fn statement(&mut self) -> Result<(), String> {
        if let Some(comment) = self.peek().strip_prefix('#') {
            self.comment = comment.to_owned();
            self.at += 1;
            return Ok(());
        }
        let text = std::mem::take(&mut self.comment);
        match self.next().as_str() {
            "sort" => self.sort(),
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

    fn sort(&mut self) -> Result<(), String> {
        let name = self.next();
        let ordered = self.accept("ordered");
        let mut letters = Vec::new();
        while self.is_name() {
            letters.push(self.next());
        }
        self.system.sorts.push(Sort { name, letters, ordered });
        Ok(())
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

    /// The sort of a variable, by its letters.
    fn sort_of(&self, variable: &str) -> Option<usize> {
        let letters = variable.trim_end_matches(|c: char| c.is_ascii_digit());
        self.system.sorts.iter().position(|sort| sort.letters.iter().any(|known| known == letters))
    }

    /// Variables, separated by commas.
    fn variables(&mut self) -> Result<Vec<Bound>, String> {
        let mut bound = Vec::new();
        loop {
            let name = self.next();
            let sort = self.sort_of(&name).ok_or_else(|| format!("{name} is no variable"))?;
            bound.push((name, sort));
            if !self.accept(",") {
                return Ok(bound);
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

    /// A closed formula: variables that are no parameters are quantified.
    fn closed(&mut self, parameters: &[Bound]) -> Result<Formula, String> {
        let formula = self.formula()?;
        let free = self.free(&formula, parameters);
        Ok(if free.is_empty() { formula } else { Formula::Quantified(true, free, Box::new(formula)) })
    }

    fn free(&self, formula: &Formula, parameters: &[Bound]) -> Vec<Bound> {
        let mut free = Vec::new();
        names(formula, &mut parameters.iter().map(|(name, _)| name.clone()).collect(), &mut free);
        free.into_iter().map(|name| (name.clone(), self.sort_of(&name).expect("checked"))).collect()
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
        let Formula::Apply { symbol, sorts, arguments: places } = self.atom()? else { return Err("no symbol".to_owned()) };
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
            let index = self.system.actions.iter().position(|known| known.name == action);
            let index = index.ok_or_else(|| format!("no action has the name {action}"))?;
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

    fn formula(&mut self) -> Result<Formula, String> {
        let left = self.disjunction()?;
        if self.accept("->") {
            return Ok(Formula::Implies(Box::new(left), Box::new(self.formula()?)));
        }
        if self.accept("<->") {
            return Ok(Formula::Equal(Box::new(left), Box::new(self.disjunction()?)));
        }
        Ok(left)
    }

    fn disjunction(&mut self) -> Result<Formula, String> {
        let mut parts = vec![self.conjunction()?];
        while self.accept("|") {
            parts.push(self.conjunction()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Formula::Or(parts) })
    }

    fn conjunction(&mut self) -> Result<Formula, String> {
        let mut parts = vec![self.comparison()?];
        while self.accept("&") {
            parts.push(self.comparison()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Formula::And(parts) })
    }

    fn comparison(&mut self) -> Result<Formula, String> {
        let left = self.atom()?;
        let operator = self.peek().to_owned();
        if !["=", "!=", "<=", ">=", "<", ">"].contains(&operator.as_str()) {
            return Ok(left);
        }
        self.at += 1;
        let (left, right) = (Box::new(left), Box::new(self.atom()?));
        let not = |formula| Formula::Not(Box::new(formula));
        Ok(match operator.as_str() {
            "=" => Formula::Equal(left, right),
            "!=" => not(Formula::Equal(left, right)),
            "<=" => Formula::AtMost(left, right),
            ">=" => Formula::AtMost(right, left),
            "<" => not(Formula::AtMost(right, left)),
            _ => not(Formula::AtMost(left, right)),
        })
    }

    fn atom(&mut self) -> Result<Formula, String> {
        let token = self.next();
        match token.as_str() {
            "!" => return Ok(Formula::Not(Box::new(self.atom()?))),
            "true" | "false" => return Ok(Formula::Truth(token == "true")),
            "(" => {
                let formula = self.formula()?;
                self.expect(")")?;
                return Ok(formula);
            }
            "if" => {
                let condition = Box::new(self.formula()?);
                self.expect("then")?;
                let yes = Box::new(self.formula()?);
                self.expect("else")?;
                return Ok(Formula::If(condition, yes, Box::new(self.formula()?)));
            }
            "all" | "some" => {
                let bound = self.variables()?;
                self.expect(".")?;
                return Ok(Formula::Quantified(token == "all", bound, Box::new(self.formula()?)));
            }
            _ => {}
        }
        let mut arguments = Vec::new();
        let applied = self.accept("(");
        while applied {
            arguments.push(self.formula()?);
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        if let Some(definition) = self.definitions.get(&token) {
            if definition.parameters.len() != arguments.len() {
                return Err(format!("{token} has {} parameters", definition.parameters.len()));
            }
            let by_name = |name: &str| {
                let index = definition.parameters.iter().position(|(parameter, _)| parameter == name)?;
                Some(arguments[index].clone())
            };
            return Ok(definition.formula.replace(&by_name));
        }
        if let Some(symbol) = self.system.symbols.iter().position(|symbol| symbol.name == token) {
            let known = &self.system.symbols[symbol].arguments;
            let given: Vec<_> = arguments.iter().map(|argument| self.sort_of_term(argument)).collect();
            if !known.iter().map(|&sort| Some(sort)).eq(given) {
                return Err(format!("the arguments of {token} have other sorts"));
            }
            return Ok(Formula::Apply { symbol, sorts: known.clone(), arguments });
        }
        if applied || self.sort_of(&token).is_none() {
            self.at -= 1;
            return Err(format!("{token} is not declared"));
        }
        Ok(Formula::Variable(token))
    }

    fn sort_of_term(&self, term: &Formula) -> Option<usize> {
        match term {
            Formula::Variable(name) => self.sort_of(name),
            Formula::Apply { symbol, .. } => self.system.symbols[*symbol].sort,
            Formula::If(_, yes, _) => self.sort_of_term(yes),
            _ => None,
        }
    }
}

/// Collects the free variables of a formula, in order.
fn names(formula: &Formula, bound: &mut Vec<String>, free: &mut Vec<String>) {
    match formula {
        Formula::Truth(_) => {}
        Formula::Variable(name) => {
            if !bound.contains(name) && !free.contains(name) {
                free.push(name.clone());
            }
        }
        Formula::Apply { arguments: parts, .. } | Formula::And(parts) | Formula::Or(parts) => {
            parts.iter().for_each(|part| names(part, bound, free));
        }
        Formula::Not(part) => names(part, bound, free),
        Formula::Implies(a, b) | Formula::Equal(a, b) | Formula::AtMost(a, b) => {
            names(a, bound, free);
            names(b, bound, free);
        }
        Formula::If(a, b, c) => [a, b, c].into_iter().for_each(|part| names(part, bound, free)),
        Formula::Quantified(_, variables, part) => {
            let before = bound.len();
            bound.extend(variables.iter().map(|(name, _)| name.clone()));
            names(part, bound, free);
            bound.truncate(before);
        }
    }
}
