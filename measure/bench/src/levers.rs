//! Tables of one figure in which a column, or a row, changes one thing: [`Grid`].
//!
//! slat answers a patch series with the idea of the series and with ideas of its own. A ratio between Linux before the series and slat
//! mixes both. A [`Grid`] separates them: its cells are figures of one run, and the factor beside a cell is against the first column
//! of its row. [`crate::lever_tables`] fills it.

/// Parameters that tell a row of a result from others of the same name.
pub type Params = &'static [(&'static str, &'static str)];

/// One table.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The measurement.
    pub what: &'static str,
    /// One way to do it each: its name, and where its figure is. The first is what the others are compared with.
    pub columns: &'static [(&'static str, Cell)],
    /// One setting each: its name, the parameters of its rows, and their unit.
    pub rows: &'static [(&'static str, Params, &'static str)],
    /// The meaning of the table, and the source of each idea.
    pub says: &'static str,
}

/// Where a figure is in a result.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The name of the row.
    pub row: &'static str,
    /// The figure is the baseline's, not slat's.
    pub baseline: bool,
    /// Parameters of the row.
    pub params: Params,
}

impl Cell {
    /// The baseline of the row of this name.
    pub const fn baseline(row: &'static str) -> Self {
        Self { row, baseline: true, params: &[] }
    }

    /// slat's figure in the row of this name.
    pub const fn slat(row: &'static str) -> Self {
        Self { row, baseline: false, params: &[] }
    }

    /// Of the row with these parameters, too.
    #[must_use]
    pub const fn with(self, params: Params) -> Self {
        Self { params, ..self }
    }
}
