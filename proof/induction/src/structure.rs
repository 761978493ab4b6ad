//! A finite state: it evaluates formulas, and takes actions.

use crate::ast::{Action, Item, System};
use crate::code::{Assignment, Code, Loop, Step, Term, VARIABLES};

/// A state with finite sorts. Elements are numbers from 0; those of an ordered sort have the order of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Structure {
    /// The number of elements of each sort: from 1 to 256.
    pub sizes: Vec<usize>,
    /// The values of each symbol. A truth is 0 or 1. The last argument changes fastest.
    pub values: Vec<Vec<u8>>,
}

/// The values of the variables, by number.
type Scope = [usize; VARIABLES];

impl Structure {
    /// Makes a state in which each symbol has the values that `value` returns, by symbol and number of values.
    ///
    /// ```
    /// use slat_proof::{Code, Structure, parse};
    /// let text = "sort thread t s\n state holds(thread)\n promise one: holds(t) & holds(s) -> s = t";
    /// let system = parse("lock", &[("lock", text)]).unwrap();
    /// let promise = Code::new(&system.clauses[0].formula);
    /// let mut state = Structure::new(&system, &[2], |_, _| 0);
    /// state.set(&system, 0, &[1], 1);
    /// assert!(state.holds(&promise));
    /// state.set(&system, 0, &[0], 1);
    /// assert!(!state.holds(&promise));
    /// ```
    pub fn new(system: &System, sizes: &[usize], mut value: impl FnMut(usize, usize) -> usize) -> Self {
        assert!(sizes.iter().all(|size| (1..=256).contains(size)), "a sort has from 1 to 256 elements");
        let values = system.symbols.iter().enumerate().map(|(index, symbol)| {
            let places: usize = symbol.arguments.iter().map(|&sort| sizes[sort]).product();
            let most = symbol.sort.map_or(2, |sort| sizes[sort]);
            (0..places).map(|_| value(index, most) as u8).collect()
        });
        Self { sizes: sizes.to_vec(), values: values.collect() }
    }

    fn place(&self, sorts: &[usize], arguments: &[usize]) -> usize {
        sorts.iter().zip(arguments).fold(0, |at, (&sort, &argument)| at * self.sizes[sort] + argument)
    }

    /// Sets a value.
    pub fn set(&mut self, system: &System, symbol: usize, arguments: &[usize], value: usize) {
        let place = self.place(&system.symbols[symbol].arguments, arguments);
        self.values[symbol][place] = value as u8;
    }

    /// Returns a value.
    pub fn get(&self, system: &System, symbol: usize, arguments: &[usize]) -> usize {
        self.values[symbol][self.place(&system.symbols[symbol].arguments, arguments)].into()
    }

    /// Returns whether a closed formula holds.
    pub fn holds(&self, code: &Code) -> bool {
        self.truth(&code.term, &mut [0; VARIABLES])
    }

    /// Returns values of the variables for which a closed formula is false, the outermost first. A variable that does
    /// not matter has any value.
    pub fn witness(&self, code: &Code) -> [usize; VARIABLES] {
        let mut scope = [0; VARIABLES];
        self.truth(&code.term, &mut scope);
        scope
    }

    /// Makes this state an initial one, where the system says so.
    pub fn begin(&mut self, system: &System) {
        let items = system.initial.iter().map(|update| (String::new(), Item::Set(update.clone()))).collect();
        let begin = Action { name: String::new(), text: String::new(), parameters: Vec::new(), items };
        self.take(&Step::new(&begin), &[]).expect("it has no guard");
    }

    /// Takes an action with these parameters. Returns the symbols that it changes, or the item of the action whose
    /// requirement is false.
    pub fn take(&mut self, step: &Step, arguments: &[usize]) -> Result<Vec<usize>, usize> {
        let mut scope = [0; VARIABLES];
        scope[..arguments.len()].copy_from_slice(arguments);
        if let Some((item, _)) = step.guard.iter().find(|(_, part)| !self.truth(part, &mut scope)) {
            return Err(*item);
        }
        let mut values = Vec::new();
        step.updates.iter().for_each(|update| self.assign(update, &update.bound, &mut scope, &mut values));
        let mut changed = Vec::new();
        for (symbol, place, value) in values {
            let old = std::mem::replace(&mut self.values[symbol][place], value);
            if old != value && !changed.contains(&symbol) {
                changed.push(symbol);
            }
        }
        Ok(changed)
    }

    /// Notes the values of an assignment: symbol, place and value.
    fn assign(
        &self,
        update: &Assignment,
        bound: &[(usize, usize)],
        scope: &mut Scope,
        values: &mut Vec<(usize, usize, u8)>,
    ) {
        let Some(((variable, sort), rest)) = bound.split_first() else {
            let place = self.at(&update.places, scope);
            values.push((update.symbol, place, self.value(&update.value, scope) as u8));
            return;
        };
        for element in 0..self.sizes[*sort] {
            scope[*variable] = element;
            self.assign(update, rest, scope, values);
        }
    }

    /// The place of a symbol's value.
    fn at(&self, arguments: &[(usize, Term)], scope: &mut Scope) -> usize {
        arguments.iter().fold(0, |at, (sort, argument)| at * self.sizes[*sort] + self.value(argument, scope))
    }

    fn truth(&self, term: &Term, scope: &mut Scope) -> bool {
        self.value(term, scope) != 0
    }

    fn value(&self, term: &Term, scope: &mut Scope) -> usize {
        match term {
            Term::Value(value) => *value,
            Term::Variable(variable) => scope[*variable],
            Term::Apply(symbol, arguments) => self.values[*symbol][self.at(arguments, scope)].into(),
            Term::Not(part) => (!self.truth(part, scope)).into(),
            Term::Every(parts) => parts.iter().all(|part| self.truth(part, scope)).into(),
            Term::Any(parts) => parts.iter().any(|part| self.truth(part, scope)).into(),
            Term::Equal(pair) => (self.value(&pair[0], scope) == self.value(&pair[1], scope)).into(),
            Term::AtMost(pair) => (self.value(&pair[0], scope) <= self.value(&pair[1], scope)).into(),
            Term::If(parts) => {
                let part = if self.truth(&parts[0], scope) { &parts[1] } else { &parts[2] };
                self.value(part, scope)
            }
            Term::All(loops) => self.all(loops, scope).into(),
        }
    }

    /// Returns whether a case holds for all values of the variables; if not, leaves those for which none does.
    fn all(&self, loops: &[Loop], scope: &mut Scope) -> bool {
        let Some((Loop { variable, sort, cases }, rest)) = loops.split_first() else { return false };
        for element in 0..self.sizes[*sort] {
            scope[*variable] = element;
            if !cases.iter().any(|case| self.truth(case, scope)) && !self.all(rest, scope) {
                return false;
            }
        }
        true
    }
}
