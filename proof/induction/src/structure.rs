//! A finite state: it evaluates formulas, and takes actions.

use crate::ast::{Action, Bound, Formula, System, Update};

/// A state with finite sorts. Elements are numbers from 0; those of an ordered sort have the order of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Structure {
    /// The number of elements of each sort.
    pub sizes: Vec<usize>,
    /// The values of each symbol. A truth is 0 or 1. The last argument changes fastest.
    pub values: Vec<Vec<usize>>,
}

/// Variables with their values; the newest is last.
type Scope<'a> = Vec<(&'a str, usize)>;

impl Structure {
    /// Makes a state in which each symbol has the values that `value` returns, by symbol and number of values.
    ///
    /// ```
    /// use slat_proof::{Structure, parse};
    /// let text = "sort thread t s\n state holds(thread)\n promise one: holds(t) & holds(s) -> s = t";
    /// let system = parse("lock", &[("lock", text)]).unwrap();
    /// let mut state = Structure::new(&system, &[2], |_, _| 0);
    /// state.set(&system, 0, &[1], 1);
    /// assert!(state.holds(&system.clauses[0].formula));
    /// state.set(&system, 0, &[0], 1);
    /// assert!(!state.holds(&system.clauses[0].formula));
    /// ```
    pub fn new(system: &System, sizes: &[usize], mut value: impl FnMut(usize, usize) -> usize) -> Self {
        let values = system.symbols.iter().enumerate().map(|(index, symbol)| {
            let places: usize = symbol.arguments.iter().map(|&sort| sizes[sort]).product();
            let most = symbol.sort.map_or(2, |sort| sizes[sort]);
            (0..places).map(|_| value(index, most)).collect()
        });
        Self { sizes: sizes.to_vec(), values: values.collect() }
    }

    fn place(&self, system_arguments: &[usize], arguments: &[usize]) -> usize {
        system_arguments
            .iter()
            .zip(arguments)
            .fold(0, |at, (&sort, &argument)| at * self.sizes[sort] + argument)
    }

    /// Sets a value.
    pub fn set(&mut self, system: &System, symbol: usize, arguments: &[usize], value: usize) {
        let place = self.place(&system.symbols[symbol].arguments, arguments);
        self.values[symbol][place] = value;
    }

    /// Returns a value.
    pub fn get(&self, system: &System, symbol: usize, arguments: &[usize]) -> usize {
        self.values[symbol][self.place(&system.symbols[symbol].arguments, arguments)]
    }

    /// Returns whether a closed formula holds.
    pub fn holds(&self, formula: &Formula) -> bool {
        self.value(formula, &mut Vec::new()) != 0
    }

    /// Returns the values of the outermost variables for which a closed formula is false: names, sorts, elements.
    pub fn witness(&self, formula: &Formula) -> Vec<(String, usize, usize)> {
        let Formula::Quantified(true, bound, part) = formula else { return Vec::new() };
        let mut chosen: Scope<'_> = Vec::new();
        if self.quantified_at(bound, part, &mut chosen) {
            return Vec::new();
        }
        bound.iter().zip(chosen).map(|((name, sort), (_, element))| (name.clone(), *sort, element)).collect()
    }

    /// Evaluates for all values of the variables, and leaves those for which the part is false.
    fn quantified_at<'a>(&self, bound: &'a [Bound], part: &'a Formula, scope: &mut Scope<'a>) -> bool {
        let Some(((name, sort), rest)) = bound.split_first() else { return self.value(part, scope) != 0 };
        for element in 0..self.sizes[*sort] {
            scope.push((name, element));
            if !self.quantified_at(rest, part, scope) {
                return false;
            }
            scope.pop();
        }
        true
    }

    /// Makes this state an initial one, where the system says so.
    pub fn begin(&mut self, system: &System) {
        let before = self.clone();
        for update in &system.initial {
            self.assign(&before, update, &mut Vec::new());
        }
    }

    /// Takes an action with these parameters. `None`: its guard is false.
    pub fn step(&self, action: &Action, arguments: &[usize]) -> Option<Self> {
        let mut scope: Scope<'_> =
            action.parameters.iter().map(|(name, _)| name.as_str()).zip(arguments.iter().copied()).collect();
        if !action.guard().all(|part| self.value(part, &mut scope) != 0) {
            return None;
        }
        let mut after = self.clone();
        for update in action.updates() {
            after.assign(self, update, &mut scope);
        }
        Some(after)
    }

    fn assign<'a>(&mut self, before: &Self, update: &'a Update, scope: &mut Scope<'a>) {
        let known = scope.len();
        self.each(&update.bound, scope, &mut |this, scope| {
            let mut at = 0;
            for (place, size) in update.places.iter().zip(&before.place_sizes(update)) {
                at = at * size + before.value(place, scope);
            }
            this.values[update.symbol][at] = before.value(&update.value, scope);
        });
        scope.truncate(known);
    }

    /// The sizes of the sorts of an assignment's places.
    fn place_sizes(&self, update: &Update) -> Vec<usize> {
        update.sorts.iter().map(|&sort| self.sizes[sort]).collect()
    }

    /// Calls `f` for all values of some variables.
    fn each<'a>(
        &mut self,
        bound: &'a [(String, usize)],
        scope: &mut Scope<'a>,
        f: &mut impl FnMut(&mut Self, &mut Scope<'a>),
    ) {
        let Some(((name, sort), rest)) = bound.split_first() else { return f(self, scope) };
        for element in 0..self.sizes[*sort] {
            scope.push((name, element));
            self.each(rest, scope, f);
            scope.pop();
        }
    }

    fn value<'a>(&self, formula: &'a Formula, scope: &mut Scope<'a>) -> usize {
        let mut truth = |part: &'a Formula| self.value(part, scope) != 0;
        match formula {
            Formula::Truth(truth) => usize::from(*truth),
            Formula::Variable(name) => {
                scope.iter().rev().find(|(known, _)| known == name).expect("the parser checks variables").1
            }
            Formula::Apply { symbol, sorts, arguments } => {
                let place = sorts
                    .iter()
                    .zip(arguments)
                    .fold(0, |at, (&sort, argument)| at * self.sizes[sort] + self.value(argument, scope));
                self.values[*symbol][place]
            }
            Formula::Not(part) => usize::from(!truth(part)),
            Formula::And(parts) => usize::from(parts.iter().all(truth)),
            Formula::Or(parts) => usize::from(parts.iter().any(truth)),
            Formula::Implies(a, b) => usize::from(!truth(a) || truth(b)),
            Formula::Equal(a, b) => usize::from(self.value(a, scope) == self.value(b, scope)),
            Formula::AtMost(a, b) => usize::from(self.value(a, scope) <= self.value(b, scope)),
            Formula::If(a, b, c) => {
                let part = if truth(a) { b } else { c };
                self.value(part, scope)
            }
            Formula::Quantified(all, bound, part) => usize::from(self.quantified(*all, bound, part, scope)),
        }
    }

    fn quantified<'a>(
        &self,
        all: bool,
        bound: &'a [(String, usize)],
        part: &'a Formula,
        scope: &mut Scope<'a>,
    ) -> bool {
        let Some(((name, sort), rest)) = bound.split_first() else { return self.value(part, scope) != 0 };
        // The answer is found as soon as one value differs from the rest.
        for element in 0..self.sizes[*sort] {
            scope.push((name, element));
            let found = self.quantified(all, rest, part, scope);
            scope.pop();
            if found != all {
                return !all;
            }
        }
        all
    }
}
