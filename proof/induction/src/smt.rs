//! Writes queries in SMT-LIB.

use crate::ast::{Action, Bound, Formula, System, Update};
use std::fmt::Write as _;

/// A query in SMT-LIB, without its last command.
pub struct Query<'a> {
    pub(crate) system: &'a System,
    /// The text so far.
    pub text: String,
}

impl<'a> Query<'a> {
    /// Declares sorts and symbols, and assumes the axioms.
    pub fn new(system: &'a System) -> Self {
        let mut query = Self { system, text: "(set-logic ALL)\n".to_owned() };
        for sort in &system.sorts {
            query.line(format_args!("(declare-sort {} 0)", sort.name));
            if sort.ordered {
                let (name, le) = (&sort.name, format!("{}<=", sort.name));
                query.line(format_args!("(declare-fun {le} ({name} {name}) Bool)"));
                query.line(format_args!("(assert (forall ((a {name})) ({le} a a)))"));
                query.line(format_args!(
                    "(assert (forall ((a {name}) (b {name})) (or ({le} a b) ({le} b a))))"
                ));
                query.line(format_args!(
                    "(assert (forall ((a {name}) (b {name})) (=> (and ({le} a b) ({le} b a)) (= a b))))"
                ));
                query.line(format_args!(
                    "(assert (forall ((a {name}) (b {name}) (c {name})) (=> (and ({le} a b) ({le} b c)) ({le} a c))))"
                ));
            }
        }
        for (index, symbol) in system.symbols.iter().enumerate() {
            let arguments: Vec<_> =
                symbol.arguments.iter().map(|&sort| system.sorts[sort].name.as_str()).collect();
            let line =
                format!("(declare-fun {} ({}) {})", symbol.name, arguments.join(" "), query.sort_of(index));
            query.line(format_args!("{line}"));
        }
        for axiom in &system.axioms {
            query.assume(&axiom.formula);
        }
        query
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all");
    }

    fn sort_of(&self, symbol: usize) -> &'a str {
        self.system.symbols[symbol].sort.map_or("Bool", |sort| &self.system.sorts[sort].name)
    }

    /// Assumes a formula.
    pub fn assume(&mut self, formula: &Formula) {
        let line = self.formula(formula, &|_| false);
        self.line(format_args!("(assert {line})"));
    }

    /// Assumes all clauses.
    pub fn assume_invariant(&mut self) {
        let system = self.system;
        system.clauses.iter().for_each(|clause| self.assume(&clause.formula));
    }

    /// Assumes that the state is an initial one.
    pub fn assume_initial(&mut self) {
        for update in &self.system.initial {
            let place = Formula::Apply {
                symbol: update.symbol,
                sorts: update.sorts.clone(),
                arguments: update.places.clone(),
            };
            let mut formula = Formula::Equal(Box::new(place), Box::new(update.value.clone()));
            if !update.bound.is_empty() {
                formula = Formula::Quantified(true, update.bound.clone(), Box::new(formula));
            }
            self.assume(&formula);
        }
    }

    /// Takes an action: assumes its guard, and defines the state after it.
    pub fn take(&mut self, action: &Action) {
        for (name, sort) in &action.parameters {
            let sort = &self.system.sorts[*sort].name;
            self.line(format_args!("(declare-const {name} {sort})"));
        }
        action.guard().for_each(|part| self.assume(part));
        for index in 0..self.system.symbols.len() {
            let updates: Vec<_> = action.updates().filter(|update| update.symbol == index).collect();
            if updates.is_empty() {
                continue;
            }
            let symbol = &self.system.symbols[index];
            let places: Vec<_> = (0..symbol.arguments.len()).map(|place| format!("x{place}")).collect();
            let mut body = if places.is_empty() {
                symbol.name.clone()
            } else {
                format!("({} {})", symbol.name, places.join(" "))
            };
            for update in updates {
                body = self.updated(update, &places, &body);
            }
            let declared = places.iter().zip(&symbol.arguments);
            let declared: Vec<_> = declared
                .map(|(place, &sort)| format!("({place} {})", self.system.sorts[sort].name))
                .collect();
            let declared = declared.join(" ");
            let line = format!("(define-fun {}! ({declared}) {} {body})", symbol.name, self.sort_of(index));
            self.line(format_args!("{line}"));
        }
    }

    /// The value after an assignment, where `old` is the value before it.
    fn updated(&self, update: &Update, places: &[String], old: &str) -> String {
        let mut conditions = Vec::new();
        let mut names: Vec<(&str, &str)> = Vec::new();
        for (given, place) in update.places.iter().zip(places) {
            match given {
                Formula::Variable(name) if update.bound.iter().any(|(bound, _)| bound == name) => {
                    names.push((name, place));
                }
                term => conditions.push(format!("(= {place} {})", self.formula(term, &|_| false))),
            }
        }
        let rename = |name: &str| {
            names.iter().find(|(from, _)| *from == name).map(|(_, to)| Formula::Variable((*to).to_owned()))
        };
        let value = self.formula(&update.value.replace(&rename), &|_| false);
        if conditions.is_empty() {
            value
        } else {
            format!("(ite (and {}) {value} {old})", conditions.join(" "))
        }
    }

    /// Assumes that a formula is false: after an action, or now.
    pub fn refute(&mut self, formula: &Formula, action: Option<&Action>) {
        let changed =
            |symbol| action.is_some_and(|action| action.updates().any(|update| update.symbol == symbol));
        let line = self.formula(formula, &changed);
        self.line(format_args!("(assert (not {line}))"));
    }

    /// Bounds each sort that has no order, and asks for the values of all symbols. Returns the values' questions: a
    /// symbol and its arguments.
    pub fn bound(&mut self, sizes: &[usize], parameters: &[Bound]) {
        for (sort, &size) in self.system.sorts.iter().zip(sizes) {
            let name = &sort.name;
            for element in 0..size {
                self.line(format_args!("(declare-const {name}.{element} {name})"));
            }
            let elements: Vec<_> = (0..size).map(|element| format!("{name}.{element}")).collect();
            self.line(format_args!("(assert (distinct {}))", elements.join(" ")));
            let one: Vec<_> = elements.iter().map(|element| format!("(= x {element})")).collect();
            self.line(format_args!("(assert (forall ((x {name})) (or {})))", one.join(" ")));
            if sort.ordered {
                for pair in elements.windows(2) {
                    self.line(format_args!("(assert ({name}<= {} {}))", pair[0], pair[1]));
                }
            }
        }
        self.line(format_args!("(check-sat)"));
        let names: Vec<_> = (0..self.system.sorts.len())
            .flat_map(|sort| (0..sizes[sort]).map(move |element| (sort, element)))
            .map(|(sort, element)| format!("{}.{element}", self.system.sorts[sort].name))
            .collect();
        self.line(format_args!("(get-value ({}))", names.join(" ")));
        for symbol in &self.system.symbols {
            let mut terms = vec![String::new()];
            for &sort in &symbol.arguments {
                let name = &self.system.sorts[sort].name;
                let next = |term: &String| {
                    (0..sizes[sort]).map(|at| format!("{term} {name}.{at}")).collect::<Vec<_>>()
                };
                terms = terms.iter().flat_map(next).collect();
            }
            let term = |arguments: &String| match arguments.as_str() {
                "" => symbol.name.clone(),
                _ => format!("({}{arguments})", symbol.name),
            };
            let terms: Vec<_> = terms.iter().map(term).collect();
            self.line(format_args!("(get-value ({}))", terms.join(" ")));
        }
        for (name, _) in parameters {
            self.line(format_args!("(get-value ({name}))"));
        }
    }

    /// Writes a formula. Symbols for which `after` holds have their values after the action.
    fn formula(&self, formula: &Formula, after: &dyn Fn(usize) -> bool) -> String {
        let one = |part: &Formula| self.formula(part, after);
        let all = |parts: &[Formula]| parts.iter().map(one).collect::<Vec<_>>().join(" ");
        match formula {
            Formula::Truth(truth) => truth.to_string(),
            Formula::Variable(name) => name.clone(),
            Formula::Apply { symbol, arguments: parts, .. } => {
                let name = &self.system.symbols[*symbol].name;
                let mark = if after(*symbol) { "!" } else { "" };
                if parts.is_empty() {
                    format!("{name}{mark}")
                } else {
                    format!("({name}{mark} {})", all(parts))
                }
            }
            Formula::Not(part) => format!("(not {})", one(part)),
            Formula::And(parts) => format!("(and {})", all(parts)),
            Formula::Or(parts) => format!("(or {})", all(parts)),
            Formula::Implies(a, b) => format!("(=> {} {})", one(a), one(b)),
            Formula::Equal(a, b) => format!("(= {} {})", one(a), one(b)),
            Formula::AtMost(a, b) => {
                let sort = self.system.sorts.iter().find(|sort| sort.ordered).expect("numbers have an order");
                format!("({}<= {} {})", sort.name, one(a), one(b))
            }
            Formula::If(a, b, c) => format!("(ite {} {} {})", one(a), one(b), one(c)),
            Formula::Quantified(for_all, bound, part) => {
                let word = if *for_all { "forall" } else { "exists" };
                let named = |(name, sort): &Bound| format!("({name} {})", self.system.sorts[*sort].name);
                let bound: Vec<_> = bound.iter().map(named).collect();
                format!("({word} ({}) {})", bound.join(" "), one(part))
            }
        }
    }
}
