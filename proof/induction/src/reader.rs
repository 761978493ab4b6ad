//! Reads words and formulas of the rules.

use crate::ast::{Bound, Formula, System};
use std::collections::HashMap;

const OPERATORS: [&str; 7] = ["<->", "->", ":=", "!=", "<=", ">=", "//"];

/// A token, with its line.
pub(crate) type Token = (String, usize);

/// A definition: a formula with parameters, which replaces its uses.
pub(crate) struct Definition {
    pub(crate) parameters: Vec<Bound>,
    pub(crate) formula: Formula,
}

pub(crate) struct Reader {
    pub(crate) tokens: Vec<Token>,
    pub(crate) at: usize,
    /// The comment above the statement that is read.
    pub(crate) comment: String,
    pub(crate) system: System,
    pub(crate) definitions: HashMap<String, Definition>,
    /// The file, for messages.
    pub(crate) file: String,
}

/// Splits a text. A run of comment lines is one token.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut rest = text.trim();
        if let Some(comment) = rest.strip_prefix('#') {
            match tokens.last_mut() {
                Some((last, _)) if last.starts_with('#') => {
                    last.extend([" ", comment.trim()]);
                }
                _ => tokens.push((format!("#{}", comment.trim()), line)),
            }
            continue;
        }
        while !rest.is_empty() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let length =
                if let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
                    operator.len()
                } else if let Some(text) = rest.strip_prefix('"') {
                    2 + text.find('"').unwrap_or(0)
                } else if tokens.last().is_some_and(|(last, _)| last == "mistake") {
                    // The name of a mistake has hyphens; those of formulas have none.
                    rest.find(|c| !word(c) && c != '-').unwrap_or(rest.len())
                } else {
                    rest.find(|c| !word(c)).unwrap_or(rest.len()).max(1)
                };
            tokens.push((rest[..length].to_owned(), line));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

impl Reader {
    pub(crate) fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |(token, _)| token)
    }

    pub(crate) fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).map_or(String::new(), |(token, _)| token.clone())
    }

    pub(crate) fn accept(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(format!("`{token}` is missing")) }
    }

    /// The sort of a variable, by its letters.
    pub(crate) fn sort_of(&self, variable: &str) -> Option<usize> {
        let letters = variable.trim_end_matches(|c: char| c.is_ascii_digit());
        self.system.sorts.iter().position(|sort| sort.letters.iter().any(|known| known == letters))
    }

    /// Variables, separated by commas.
    pub(crate) fn variables(&mut self) -> Result<Vec<Bound>, String> {
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

    /// A closed formula: variables that are no parameters are quantified.
    pub(crate) fn closed(&mut self, parameters: &[Bound]) -> Result<Formula, String> {
        let formula = self.formula()?;
        let free = self.free(&formula, parameters);
        Ok(if free.is_empty() { formula } else { Formula::Quantified(true, free, Box::new(formula)) })
    }

    pub(crate) fn free(&self, formula: &Formula, parameters: &[Bound]) -> Vec<Bound> {
        let mut free = Vec::new();
        names(formula, &mut parameters.iter().map(|(name, _)| name.clone()).collect(), &mut free);
        free.into_iter().map(|name| (name.clone(), self.sort_of(&name).expect("checked"))).collect()
    }

    pub(crate) fn formula(&mut self) -> Result<Formula, String> {
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

    pub(crate) fn atom(&mut self) -> Result<Formula, String> {
        let start = self.at;
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
        if applied {
            arguments.push(self.formula()?);
            while self.accept(",") {
                arguments.push(self.formula()?);
            }
            self.expect(")")?;
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
        if let Some(symbol) = self.system.symbol(&token) {
            let known = &self.system.symbols[symbol].arguments;
            let given: Vec<_> = arguments.iter().map(|argument| self.sort_of_term(argument)).collect();
            if !known.iter().map(|&sort| Some(sort)).eq(given) {
                return Err(format!("the arguments of {token} have other sorts"));
            }
            return Ok(Formula::Apply { symbol, sorts: known.clone(), arguments });
        }
        if applied || self.sort_of(&token).is_none() {
            self.at = start;
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
    let before = bound.len();
    match formula {
        Formula::Variable(name) if !bound.contains(name) && !free.contains(name) => free.push(name.clone()),
        Formula::Quantified(_, variables, _) => bound.extend(variables.iter().map(|(name, _)| name.clone())),
        _ => {}
    }
    for part in formula.parts() {
        names(part, bound, free);
    }
    bound.truncate(before);
}
