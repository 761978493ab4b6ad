//! A counterexample: a finite state, an action, and the clause that it breaks.

use crate::ast::{Action, System};
use crate::smt::Query;
use crate::solver::{Answer, Solver};
use crate::structure::Structure;

/// A state that satisfies the invariant, an action, and the clause that is false after it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The state before.
    pub before: Structure,
    /// The parameters of the action.
    pub arguments: Vec<usize>,
    /// The state after.
    pub after: Structure,
}

/// Searches a small state in which `action` breaks a clause, or just happens. The solver's answer is checked by
/// evaluation.
pub fn counterexample(
    system: &System,
    action: &Action,
    clause: Option<usize>,
    sizes: &[usize],
    seconds: u32,
) -> Result<Option<Counterexample>, String> {
    let mut query = Query::new(system);
    query.assume_invariant(|_| false);
    query.take(action);
    if let Some(clause) = clause {
        query.refute(&system.clauses[clause].formula, Some(action));
    }
    query.bound(sizes, &action.parameters);
    let rest = match Solver::Z3.ask(&query.text, 1, seconds) {
        Answer::Unsat => return Ok(None),
        Answer::Unknown(why) => return Err(why),
        Answer::Sat(rest) => rest,
    };
    let mut values = values(&rest).into_iter();
    // The solver's names of the elements, by sort.
    let mut names: Vec<Vec<String>> = Vec::new();
    for &size in sizes {
        names.push(values.by_ref().take(size).collect());
    }
    let mut number = |sort: Option<usize>| -> Result<usize, String> {
        let value = values.next().ok_or("the solver's answer is too short")?;
        match sort {
            None => Ok(usize::from(value == "true")),
            Some(sort) => {
                let found = names[sort].iter().position(|name| *name == value);
                found.ok_or_else(|| format!("{value} is no element"))
            }
        }
    };
    let mut wrong = None;
    let before = Structure::new(system, sizes, |symbol, _| {
        number(system.symbols[symbol].sort).unwrap_or_else(|why| {
            wrong = Some(why);
            0
        })
    });
    if let Some(why) = wrong {
        return Err(why);
    }
    let arguments: Vec<_> =
        action.parameters.iter().map(|(_, sort)| number(Some(*sort))).collect::<Result<_, _>>()?;
    let known = system.axioms.iter().chain(&system.clauses);
    if let Some(broken) = known.into_iter().find(|clause| !before.holds(&clause.formula)) {
        return Err(format!("the solver's state violates {}", broken.name));
    }
    let after = before.step(action, &arguments).ok_or("the solver's step has a false guard")?;
    if clause.is_some_and(|clause| after.holds(&system.clauses[clause].formula)) {
        return Err("the solver's step keeps the clause".to_owned());
    }
    Ok(Some(Counterexample { before, arguments, after }))
}

/// The values of answers like `((term value) (term value))`.
fn values(text: &str) -> Vec<String> {
    let mut values = Vec::new();
    let mut depth = 0;
    let mut last = String::new();
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => {
                if depth == 2 {
                    values.push(std::mem::take(&mut last));
                }
                depth -= 1;
            }
            _ => {}
        }
        if c.is_whitespace() || c == '(' {
            last.clear();
        } else if c != ')' {
            last.push(c);
        } else if depth >= 2 {
            last.clear();
        }
    }
    values
}

impl Counterexample {
    /// Dumps.
    pub fn dump(&self, system: &System, action: &Action, clause: usize) -> String {
        let name = |sort: usize, e: usize| format!("{}{e}", system.sorts[sort].letters[0]);
        let mut out = format!("  {}({})\n", action.name, action.parameters.iter().zip(&self.arguments).map(|((n, s), a)| format!("{n}={}", name(*s, *a))).collect::<Vec<_>>().join(", "));
        for (at, symbol) in system.symbols.iter().enumerate() {
            let mut text = vec![];
            for (i, v) in self.before.values[at].iter().enumerate() {
                let mut i2 = i;
                let mut args = vec![];
                for &s in symbol.arguments.iter().rev() { args.push(name(s, i2 % self.before.sizes[s])); i2 /= self.before.sizes[s]; }
                args.reverse();
                let a = self.after.values[at][i];
                let ch = if a != *v { "*" } else { "" };
                match symbol.sort { Some(s) => text.push(format!("{}={}{}{}", args.join(","), name(s, *v), ch, if a != *v { name(s, a) } else { String::new() })),
                    None if *v == 1 || a == 1 => text.push(format!("{}{}", args.join(","), if a == *v { "" } else if a == 1 { "+" } else { "-" })), _ => {} }
            }
            out += &format!("    {}: {}\n", symbol.name, text.join(" "));
        }
        let _ = clause;
        out
    }
}
