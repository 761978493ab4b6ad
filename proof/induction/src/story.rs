//! A counterexample: a finite state, an action, and the clause that it breaks.

use crate::ast::{Action, Formula, Sort, Symbol, System};
use crate::code::{Code, Step};
use crate::smt::Query;
use crate::solver::{Answer, Solver};
use crate::structure::Structure;

/// A state that satisfies the invariant, an action, and a clause that is false after it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The state before.
    pub before: Structure,
    /// The parameters of the action.
    pub arguments: Vec<usize>,
    /// The state after.
    pub after: Structure,
    /// The clause.
    pub clause: usize,
}

/// Searches a state in which `action` breaks a clause. z3 chooses the sizes; its answer is checked by
/// evaluation.
pub fn counterexample(
    system: &System,
    action: &Action,
    clause: usize,
    seconds: u32,
) -> Result<Option<Counterexample>, String> {
    let mut query = Query::new(system);
    query.assume_invariant();
    query.take(action);
    query.refute(&system.clauses[clause].formula, Some(action));
    let text = query.text.clone();
    let mut tries = match Solver::Z3.ask(&format!("{text}(check-sat)\n(get-model)\n"), 1, 1) {
        Answer::Unsat => return Ok(None),
        Answer::Sat(model) => vec![sizes(system, &model)],
        Answer::Unknown(_) => Vec::new(),
    };
    // Where z3 finds no sizes at once, small ones often do.
    let equal = |size| system.sorts.iter().map(|sort| if sort.ordered { 6 } else { size }).collect();
    tries.extend([2, 3].map(equal));
    let mut answer = Answer::Unknown("no sizes".to_owned());
    let mut sizes = Vec::new();
    for next in tries {
        query.text.clone_from(&text);
        query.bound(&next, &action.parameters);
        answer = Solver::Z3.ask(&query.text, 1, seconds);
        sizes = next;
        if matches!(answer, Answer::Sat(_)) {
            break;
        }
    }
    let rest = match answer {
        Answer::Sat(rest) => rest,
        other => return Err(format!("{other:?}, in small states")),
    };
    let mut values = values(&rest).into_iter();
    // The solver's names of the elements, by sort.
    let mut names: Vec<Vec<String>> = Vec::new();
    for &size in &sizes {
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
    let before = Structure::new(system, &sizes, |symbol, _| {
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
    if let Some(broken) = known.into_iter().find(|clause| !before.holds(&Code::new(&clause.formula))) {
        return Err(format!("the solver's state violates {}", broken.name));
    }
    let mut after = before.clone();
    after.take(&Step::new(action), &arguments).map_err(|_| "the solver's step has a false guard")?;
    if after.holds(&Code::new(&system.clauses[clause].formula)) {
        return Err("the solver's step keeps the clause".to_owned());
    }
    Ok(Some(Counterexample { before, arguments, after, clause }))
}

/// The number of elements of each sort, from the comments of a model: `;; universe for sort:` and a line of elements.
fn sizes(system: &System, model: &str) -> Vec<usize> {
    let size = |name: &str| {
        let mark = format!("universe for {name}:");
        let mut lines = model.lines().skip_while(|line| !line.contains(&mark)).skip(1);
        lines.next().map_or(1, |line| line.matches("!val!").count().max(1))
    };
    system.sorts.iter().map(|sort| size(&sort.name)).collect()
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
    /// Tells it: the state before, the step, and the clause that breaks. Only symbols that the action and the clause
    /// name are told.
    pub fn tell(&self, system: &System, action: &Action) -> String {
        let clause = &system.clauses[self.clause];
        let mut named = Vec::new();
        let mut note = |symbol| named.push(symbol);
        action.guard().for_each(|part| part.each_symbol(&mut note));
        action.updates().for_each(|update| {
            note(update.symbol);
            update.value.each_symbol(&mut note);
        });
        clause.formula.each_symbol(&mut note);
        let symbols: Vec<_> = (0..system.symbols.len()).filter(|symbol| named.contains(symbol)).collect();
        let mut lines = vec!["    before:".to_owned()];
        let before = symbols.iter().filter_map(|&symbol| self.line(system, symbol));
        lines.extend(before.map(|line| format!("      {line}")));
        let named = |name: &str, sort, at| format!("{name} is {}", element(system, sort, at));
        let given = action.parameters.iter().zip(&self.arguments);
        let given: Vec<_> = given.map(|((name, sort), &at)| named(name, *sort, at)).collect();
        lines.push(format!("    step: {}, {}", action.name, given.join(", ")));
        let changes =
            symbols.iter().map(|&symbol| self.changes(system, symbol)).filter(|changes| !changes.is_empty());
        lines.extend(changes.map(|changes| format!("      now {}", changes.join(", "))));
        let bound = if let Formula::Quantified(true, bound, _) = &clause.formula { &bound[..] } else { &[] };
        let witness = bound.iter().zip(self.after.witness(&Code::new(&clause.formula)));
        let witness: Vec<_> = witness.map(|((name, sort), at)| named(name, *sort, at)).collect();
        lines.push(format!(
            "    broken: {}, where {}\n    {}\n",
            clause.name,
            witness.join(", "),
            clause.text
        ));
        lines.join("\n")
    }

    /// The places of a symbol: its arguments, its value before, and its value after.
    fn places(&self, system: &System, symbol: usize) -> impl Iterator<Item = (String, usize, usize)> {
        let sorts = &system.symbols[symbol].arguments;
        self.before.values[symbol].iter().zip(&self.after.values[symbol]).enumerate().map(
            |(index, (&old, &new))| {
                let mut rest = index;
                let mut arguments = Vec::new();
                for &sort in sorts.iter().rev() {
                    arguments.push(element(system, sort, rest % self.before.sizes[sort]));
                    rest /= self.before.sizes[sort];
                }
                arguments.reverse();
                (arguments.join(", "), old.into(), new.into())
            },
        )
    }

    /// The values of a symbol before the step; a relation that holds nowhere says nothing.
    fn line(&self, system: &System, symbol: usize) -> Option<String> {
        let Symbol { name, sort, .. } = &system.symbols[symbol];
        let said: Vec<_> = match sort {
            None => {
                let places = self.places(system, symbol).filter(|(_, old, _)| *old == 1);
                places.map(|(arguments, ..)| format!("({arguments})").replace("()", "")).collect()
            }
            Some(sort) => {
                let places = self.places(system, symbol);
                places
                    .map(|(arguments, old, _)| format!("({arguments}) = {}", element(system, *sort, old)))
                    .collect()
            }
        };
        (!said.is_empty()).then(|| format!("{name}{}", said.join(" ")))
    }

    /// The changes that the step makes.
    fn changes(&self, system: &System, symbol: usize) -> Vec<String> {
        let Symbol { name, sort, .. } = &system.symbols[symbol];
        let changed = self.places(system, symbol).filter(|(_, old, new)| old != new);
        changed
            .map(|(arguments, _, new)| match sort {
                None if new == 0 => format!("not {name}({arguments})"),
                None => format!("{name}({arguments})"),
                Some(sort) => format!("{name}({arguments}) = {}", element(system, *sort, new)),
            })
            .collect()
    }
}

/// The name of an element: the first letter of its sort's variables, and its number.
fn element(system: &System, sort: usize, at: usize) -> String {
    let Sort { letters, ordered, .. } = &system.sorts[sort];
    if *ordered { at.to_string() } else { format!("{}{at}", letters[0]) }
}
