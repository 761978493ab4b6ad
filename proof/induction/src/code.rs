//! Formulas and actions with numbered variables, which are evaluated often.

use crate::ast::{Action, Bound, Formula, Item, Update};

/// Most variables of a formula, those of nested quantifiers included.
pub(crate) const VARIABLES: usize = 24;

/// A formula whose variables are numbers: the outermost ones come first.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    Value(usize),
    Variable(usize),
    /// A symbol; the sort of each argument, and the argument.
    Apply(usize, Vec<(usize, Self)>),
    Not(Box<Self>),
    Every(Vec<Self>),
    Any(Vec<Self>),
    Equal(Box<[Self; 2]>),
    AtMost(Box<[Self; 2]>),
    If(Box<[Self; 3]>),
    /// For all values of the loops' variables, one of the cases holds.
    All(Vec<Loop>),
}

/// A bound variable: its number, its sort, and the cases of which it is the last variable.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub(crate) variable: usize,
    pub(crate) sort: usize,
    pub(crate) cases: Vec<Term>,
}

/// A closed formula, ready to be evaluated by [`Structure::holds`](crate::Structure::holds).
#[derive(Clone, Debug)]
pub struct Code {
    pub(crate) term: Term,
    reads: Vec<usize>,
}

impl Code {
    /// Numbers the variables of a closed formula.
    pub fn new(formula: &Formula) -> Self {
        let mut reads = Vec::new();
        formula.each_symbol(&mut |symbol| reads.push(symbol));
        reads.sort_unstable();
        reads.dedup();
        Self { term: term(formula, &mut Vec::new()), reads }
    }

    /// Returns the symbols whose values it reads.
    pub fn reads(&self) -> &[usize] {
        &self.reads
    }
}

/// An action, ready to be taken by [`Structure::take`](crate::Structure::take).
#[derive(Clone, Debug)]
pub struct Step {
    /// Each part of the guard, with its place among the items of the action.
    pub(crate) guard: Vec<(usize, Term)>,
    pub(crate) updates: Vec<Assignment>,
}

/// An assignment with numbered variables.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) symbol: usize,
    /// The variables that stand for any value: numbers and sorts.
    pub(crate) bound: Vec<(usize, usize)>,
    pub(crate) places: Vec<(usize, Term)>,
    pub(crate) value: Term,
}

impl Step {
    /// Numbers the variables of an action: its parameters are the first ones.
    pub fn new(action: &Action) -> Self {
        let mut scope: Vec<&str> = action.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let mut step = Self { guard: Vec::new(), updates: Vec::new() };
        for (at, (_, item)) in action.items.iter().enumerate() {
            match item {
                Item::Require(part) => step.guard.push((at, term(part, &mut scope))),
                Item::Set(update) => step.updates.push(assignment(update, &mut scope)),
            }
        }
        step
    }
}

pub(crate) fn assignment<'a>(update: &'a Update, scope: &mut Vec<&'a str>) -> Assignment {
    let known = scope.len();
    scope.extend(update.bound.iter().map(|(name, _)| name.as_str()));
    let places = update.places.iter().map(|place| term(place, scope));
    let places = update.sorts.iter().copied().zip(places).collect();
    let value = term(&update.value, scope);
    scope.truncate(known);
    let bound = (known..).zip(&update.bound).map(|(variable, (_, sort))| (variable, *sort)).collect();
    Assignment { symbol: update.symbol, bound, places, value }
}

fn term<'a>(formula: &'a Formula, scope: &mut Vec<&'a str>) -> Term {
    match formula {
        Formula::Truth(truth) => Term::Value((*truth).into()),
        Formula::Variable(name) => {
            let known = scope.iter().rposition(|known| known == name);
            Term::Variable(known.expect("the parser checks variables"))
        }
        Formula::Apply { symbol, sorts, arguments } => {
            let arguments = arguments.iter().map(|argument| term(argument, scope));
            Term::Apply(*symbol, sorts.iter().copied().zip(arguments).collect())
        }
        Formula::Not(part) => not(term(part, scope)),
        Formula::And(parts) => Term::Every(parts.iter().map(|part| term(part, scope)).collect()),
        Formula::Or(_) | Formula::Implies(..) => {
            let mut cases = Vec::new();
            split(formula, true, &mut cases);
            Term::Any(cases.into_iter().map(|case| signed(case, scope)).collect())
        }
        Formula::Equal(a, b) => Term::Equal(Box::new([term(a, scope), term(b, scope)])),
        Formula::AtMost(a, b) => Term::AtMost(Box::new([term(a, scope), term(b, scope)])),
        Formula::If(a, b, c) => Term::If(Box::new([term(a, scope), term(b, scope), term(c, scope)])),
        Formula::Quantified(is_all, bound, part) => {
            let known = scope.len();
            scope.extend(bound.iter().map(|(name, _)| name.as_str()));
            assert!(scope.len() <= VARIABLES, "a formula has too many variables");
            let quantified = match &**part {
                // Each part has fewer variables than all of them.
                Formula::And(parts) if *is_all => {
                    Term::Every(parts.iter().map(|part| all(bound, known, part, true, scope)).collect())
                }
                _ => all(bound, known, part, *is_all, scope),
            };
            scope.truncate(known);
            if *is_all { quantified } else { not(quantified) }
        }
    }
}

fn not(term: Term) -> Term {
    Term::Not(Box::new(term))
}

/// A formula, and whether it or its negation is meant.
type Signed<'a> = (&'a Formula, bool);

fn signed<'a>((formula, is_positive): Signed<'a>, scope: &mut Vec<&'a str>) -> Term {
    let term = term(formula, scope);
    if is_positive { term } else { not(term) }
}

/// Splits a formula, or its negation, into cases of which one must hold.
fn split<'a>(formula: &'a Formula, is_positive: bool, cases: &mut Vec<Signed<'a>>) {
    match formula {
        Formula::Or(parts) if is_positive => parts.iter().for_each(|part| split(part, true, cases)),
        Formula::And(parts) if !is_positive => parts.iter().for_each(|part| split(part, false, cases)),
        Formula::Implies(a, b) if is_positive => {
            split(a, false, cases);
            split(b, true, cases);
        }
        Formula::Not(part) => split(part, !is_positive, cases),
        _ => cases.push((formula, is_positive)),
    }
}

/// `part`, or its negation, for all values of the variables. The case with the fewest variables is looked at first, as
/// soon as they have values: where it holds, the other variables do not matter.
fn all<'a>(
    bound: &'a [Bound],
    known: usize,
    part: &'a Formula,
    is_positive: bool,
    scope: &mut Vec<&'a str>,
) -> Term {
    let mut cases = Vec::new();
    split(part, is_positive, &mut cases);
    let mut left: Vec<usize> = (0..bound.len()).collect();
    let missing = |case: &Signed<'_>, left: &[usize]| -> Vec<usize> {
        left.iter().copied().filter(|&variable| mentions(case.0, &bound[variable].0)).collect()
    };
    let (mut first, mut loops) = (Vec::new(), Vec::<Loop>::new());
    while !cases.is_empty() {
        let next = (0..cases.len()).min_by_key(|&at| missing(&cases[at], &left).len()).expect("there is one");
        let case = cases.remove(next);
        for variable in missing(&case, &left) {
            left.retain(|&other| other != variable);
            let sort = bound[variable].1;
            loops.push(Loop { variable: known + variable, sort, cases: Vec::new() });
        }
        let case = signed(case, scope);
        loops.last_mut().map_or(&mut first, |last| &mut last.cases).push(case);
    }
    if !loops.is_empty() {
        first.push(Term::All(loops));
    }
    Term::Any(first)
}

fn mentions(formula: &Formula, name: &str) -> bool {
    matches!(formula, Formula::Variable(known) if known == name)
        || formula.parts().iter().any(|part| mentions(part, name))
}
