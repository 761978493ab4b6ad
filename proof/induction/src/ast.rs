//! The terms of a transition system in many-sorted first-order logic.

/// A formula or a term. A formula is a term without a sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Formula {
    /// `true` or `false`.
    Truth(bool),
    /// A variable or a parameter of an action.
    Variable(String),
    /// A symbol, by its number in [`System::symbols`], with its arguments and their sorts.
    Apply {
        /// The symbol.
        symbol: usize,
        /// The sorts of the arguments.
        sorts: Vec<usize>,
        /// The arguments.
        arguments: Vec<Formula>,
    },
    /// Negation.
    Not(Box<Formula>),
    /// Conjunction.
    And(Vec<Formula>),
    /// Disjunction.
    Or(Vec<Formula>),
    /// Implication.
    Implies(Box<Formula>, Box<Formula>),
    /// Equality of terms or of formulas.
    Equal(Box<Formula>, Box<Formula>),
    /// The order of an ordered sort: not above.
    AtMost(Box<Formula>, Box<Formula>),
    /// `if a then b else c`.
    If(Box<Formula>, Box<Formula>, Box<Formula>),
    /// A quantifier: `true` for all, `false` for some.
    Quantified(bool, Vec<Bound>, Box<Formula>),
}

/// A bound variable, or a parameter: its name and its sort's number.
pub type Bound = (String, usize);

/// A sort: a set of any size.
#[derive(Clone, Debug)]
pub struct Sort {
    /// Its name.
    pub name: String,
    /// The first letters of its variables.
    pub letters: Vec<String>,
    /// Whether it is totally ordered.
    pub ordered: bool,
}

/// A relation or a function.
#[derive(Clone, Debug)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// The sorts of its arguments.
    pub arguments: Vec<usize>,
    /// The sort of its value; a relation has none.
    pub sort: Option<usize>,
    /// Whether no action may change it.
    pub is_static: bool,
}

/// The kind of a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A promise of the protocol.
    Promise,
    /// A step of the argument.
    Argument,
    /// The order of steps, or the shape of the state.
    Order,
}

/// A clause of the invariant, or an axiom.
#[derive(Clone, Debug)]
pub struct Clause {
    /// Its name.
    pub name: String,
    /// Why it holds, or what it means.
    pub text: String,
    /// Its kind.
    pub kind: Kind,
    /// The closed formula.
    pub formula: Formula,
}

/// An assignment: at arguments that are equal to `places` the symbol gets a new value.
#[derive(Clone, Debug)]
pub struct Update {
    /// The symbol.
    pub symbol: usize,
    /// The sorts of its arguments.
    pub sorts: Vec<usize>,
    /// The arguments: terms over parameters, or variables of `bound`, which stand for any value.
    pub places: Vec<Formula>,
    /// The variables that occur in `places`.
    pub bound: Vec<Bound>,
    /// The new value, over the state before the action.
    pub value: Formula,
}

/// A part of an action.
#[derive(Clone, Debug)]
pub enum Item {
    /// A part of the guard.
    Require(Formula),
    /// An assignment. A later one wins.
    Set(Update),
}

/// An action: one step of a thread, of the host or of the hardware.
#[derive(Clone, Debug)]
pub struct Action {
    /// Its name.
    pub name: String,
    /// The step of the model and the function of the code.
    pub text: String,
    /// Its parameters.
    pub parameters: Vec<Bound>,
    /// Its parts, with the labels that mistakes refer to.
    pub items: Vec<(String, Item)>,
}

/// A mistake: an action with changed parts.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// Its name, which is that of the model's mistake, if that has it.
    pub name: String,
    /// The mistake, in a sentence.
    pub text: String,
    /// The changed actions.
    pub actions: Vec<(usize, Action)>,
}

/// A transition system with its invariant.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// Its name.
    pub name: String,
    /// The sorts.
    pub sorts: Vec<Sort>,
    /// The symbols of a state.
    pub symbols: Vec<Symbol>,
    /// Facts about static symbols.
    pub axioms: Vec<Clause>,
    /// The initial values. Other symbols begin with any value.
    pub initial: Vec<Update>,
    /// The clauses of the invariant.
    pub clauses: Vec<Clause>,
    /// The actions.
    pub actions: Vec<Action>,
    /// The mistakes.
    pub mistakes: Vec<Mistake>,
}

impl Formula {
    /// Returns the parts of the formula.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Truth(_) | Self::Variable(_) => Vec::new(),
            Self::Apply { arguments: parts, .. } | Self::And(parts) | Self::Or(parts) => {
                parts.iter().collect()
            }
            Self::Not(part) | Self::Quantified(_, _, part) => vec![part],
            Self::Implies(a, b) | Self::Equal(a, b) | Self::AtMost(a, b) => vec![a, b],
            Self::If(a, b, c) => vec![a, b, c],
        }
    }

    /// Calls `f` for each symbol of the formula.
    pub fn each_symbol(&self, f: &mut impl FnMut(usize)) {
        if let Self::Apply { symbol, .. } = self {
            f(*symbol);
        }
        for part in self.parts() {
            part.each_symbol(f);
        }
    }

    /// Replaces variables by the formulas that `f` returns for them.
    pub fn replace(&self, f: &impl Fn(&str) -> Option<Self>) -> Self {
        let one = |part: &Self| Box::new(part.replace(f));
        let all = |parts: &[Self]| parts.iter().map(|part| part.replace(f)).collect();
        match self {
            Self::Truth(_) => self.clone(),
            Self::Variable(name) => f(name).unwrap_or_else(|| self.clone()),
            Self::Apply { symbol, sorts, arguments } => {
                Self::Apply { symbol: *symbol, sorts: sorts.clone(), arguments: all(arguments) }
            }
            Self::Not(part) => Self::Not(one(part)),
            Self::And(parts) => Self::And(all(parts)),
            Self::Or(parts) => Self::Or(all(parts)),
            Self::Implies(a, b) => Self::Implies(one(a), one(b)),
            Self::Equal(a, b) => Self::Equal(one(a), one(b)),
            Self::AtMost(a, b) => Self::AtMost(one(a), one(b)),
            Self::If(a, b, c) => Self::If(one(a), one(b), one(c)),
            Self::Quantified(all, bound, part) => Self::Quantified(*all, bound.clone(), one(part)),
        }
    }
}

impl System {
    /// Returns the number of a symbol.
    pub fn symbol(&self, name: &str) -> Option<usize> {
        self.symbols.iter().position(|symbol| symbol.name == name)
    }

    /// Returns the number of an action.
    pub fn action(&self, name: &str) -> Option<usize> {
        self.actions.iter().position(|action| action.name == name)
    }
}

impl Action {
    /// Returns the parts of the guard.
    pub fn guard(&self) -> impl Iterator<Item = &Formula> {
        self.items
            .iter()
            .filter_map(|(_, item)| if let Item::Require(part) = item { Some(part) } else { None })
    }

    /// Returns the assignments.
    pub fn updates(&self) -> impl Iterator<Item = &Update> {
        self.items
            .iter()
            .filter_map(|(_, item)| if let Item::Set(update) = item { Some(update) } else { None })
    }

    /// Returns whether it changes a symbol of the formula.
    pub fn touches(&self, formula: &Formula) -> bool {
        let mut touched = false;
        formula.each_symbol(&mut |symbol| touched |= self.updates().any(|update| update.symbol == symbol));
        touched
    }
}
