//! The page as a value, before it is HTML or Markdown. Both are made from this and nothing else, so both say the same.
//!
//! Text has one kind of markup: what stands between backquotes is code. It is Markdown as it is.

use crate::report::plot::Drawing;
use maud::Markup;
use std::fmt;

/// A page.
#[derive(Debug)]
pub struct Doc {
    pub title: String,
    pub sections: Vec<Section>,
}

/// A part of a page that can be linked to.
#[derive(Debug)]
pub struct Section {
    pub id: String,
    pub title: String,
    /// Its name in the table of contents.
    pub short: String,
    pub blocks: Vec<Block>,
}

/// The parts of a section.
#[derive(Debug)]
pub enum Block {
    /// A heading below the section's.
    Heading(String),
    Text(String),
    /// Something that a reader must not overlook.
    Alarm(String),
    Cards(Vec<Card>),
    Table(Table),
    Plots(Vec<Plot>),
    Commands(Vec<String>),
    /// Shown when it is asked for.
    Fold(String, Vec<Block>),
}

/// One figure in large type.
#[derive(Clone, Debug)]
pub struct Card {
    pub title: String,
    /// The section that it leads to.
    pub to: String,
    pub lines: Vec<CardLine>,
}

/// A figure of a card.
#[derive(Clone, Debug)]
pub struct CardLine {
    pub from: Source,
    pub figure: String,
    pub about: String,
}

/// The dividend and the divisor of a ratio. Two ratios are compared only where both their sides have the same names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sides {
    pub before: String,
    pub after: String,
}

/// Sides of these names.
pub fn sides(before: impl Into<String>, after: impl Into<String>) -> Sides {
    Sides { before: before.into(), after: after.into() }
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}", self.before, self.after)
    }
}

/// Where a figure comes from. Every figure says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The patch series.
    Series,
    /// This machine.
    Here,
    /// Simulated CPUs in virtual time.
    Simulated,
}

impl Source {
    /// As badges and tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Series => "series",
            Self::Here => "real, here",
            Self::Simulated => "simulated",
        }
    }
}

/// A table.
#[derive(Debug, Default)]
pub struct Table {
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

/// A column's head.
#[derive(Debug)]
pub struct Column {
    pub label: String,
    pub from: Option<Source>,
    /// Numbers stand to the right.
    pub numeric: bool,
}

/// A table's cell.
#[derive(Debug)]
pub struct Cell {
    pub text: String,
    pub mark: Mark,
}

/// The colour and the sign of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    None,
    /// The figure that a reader looks for first.
    Strong,
    Good,
    Bad,
    /// Neither: it was fitted, or there is nothing to compare.
    Open,
}

impl Mark {
    /// So that colours are not needed.
    pub fn sign(self) -> &'static str {
        match self {
            Self::None | Self::Strong => "",
            Self::Good => "✓ ",
            Self::Bad => "✗ ",
            Self::Open => "○ ",
        }
    }
}

/// A plot. Its title says what is to be seen.
#[derive(Debug)]
pub struct Plot {
    /// Also the name of its file.
    pub id: String,
    pub title: String,
    /// Where its figures come from.
    pub from: Vec<Source>,
    /// A description for readers who cannot see the plot.
    pub about: String,
    pub svg: Markup,
    /// The figures that are drawn.
    pub figures: Option<Table>,
}

impl Plot {
    /// A plot, with the figures that are drawn.
    pub fn new(
        id: impl Into<String>,
        (title, about): (String, String),
        from: &[Source],
        drawing: &Drawing,
        figures: Option<Table>,
    ) -> Self {
        let svg = drawing.svg(&title, &about);
        Self { id: id.into(), title, from: from.into(), about, svg, figures }
    }
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    Less,
    More,
}

impl Better {
    /// Whether `one` is worse than `other`.
    pub fn is_worse(self, one: f64, other: f64) -> bool {
        match self {
            Self::Less => one > other,
            Self::More => one < other,
        }
    }
}

/// A column of a table whose rows are all made alike: its head, and its cell of a row.
pub type Filled<'f, T> = (Column, &'f dyn Fn(&T) -> Cell);

impl Table {
    /// A row for each of these.
    pub fn of<T, const N: usize>(
        caption: impl Into<String>,
        rows: impl IntoIterator<Item = T>,
        columns: [Filled<'_, T>; N],
    ) -> Self {
        let (heads, cells): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let row = |row: T| cells.iter().map(|cell| cell(&row)).collect();
        Self { caption: caption.into(), columns: heads, rows: rows.into_iter().map(row).collect() }
    }

    /// One more column: its head, and its cell of each row.
    pub fn add(&mut self, column: Column, cells: impl IntoIterator<Item = Cell>) {
        self.columns.push(column);
        self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }

    /// The block, unless there are no rows.
    pub fn unless_empty(self) -> Option<Block> {
        (!self.rows.is_empty()).then_some(Block::Table(self))
    }
}

/// A column of text.
pub fn words(label: impl Into<String>) -> Column {
    Column { label: label.into(), from: None, numeric: false }
}

/// A column of numbers from nowhere in particular: a setting.
pub fn number(label: impl Into<String>) -> Column {
    Column { label: label.into(), from: None, numeric: true }
}

/// A column of figures.
pub fn figures(label: impl Into<String>, from: Source) -> Column {
    Column { label: label.into(), from: Some(from), numeric: true }
}

/// A cell like the others.
pub fn cell(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), mark: Mark::None }
}

/// A cell with a mark.
pub fn marked(text: impl Into<String>, mark: Mark) -> Cell {
    Cell { text: text.into(), mark }
}

/// A value as text; a dash if there is none.
pub fn dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> Cell {
    cell(value.map_or_else(|| "–".into(), text))
}

/// A cell that a reader looks for first.
pub fn strong(text: impl Into<String>) -> Cell {
    marked(text, Mark::Strong)
}
