//! Colours and glyphs that the terminal supports.

use ratatui_core::style::{Color, Modifier, Style};

/// The terminal's own colours, by number.
const GREEN: u8 = 2;
const YELLOW: u8 = 3;
const BLUE: u8 = 4;
const MAGENTA: u8 = 5;
const CYAN: u8 = 6;

/// Number of colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    None,
    Sixteen,
    Many,
}

/// Colours and glyphs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    pub depth: Depth,
    /// ASCII glyphs only.
    pub ascii: bool,
}

/// The role of a piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// Name of a panel.
    Title,
    /// Label of a figure.
    Label,
    /// A figure.
    Figure,
    /// Lines between panels.
    Rule,
    /// Bars of faults, flushes, memory and vCPUs.
    Faults,
    Flushes,
    Memory,
    Vcpus,
    /// A warning.
    Alert,
}

impl Look {
    /// Reads the environment variables.
    pub fn of_terminal() -> Self {
        let var = |name| std::env::var(name).unwrap_or_default();
        let many =
            var("TERM").contains("256color") || ["truecolor", "24bit"].contains(&var("COLORTERM").as_str());
        let depth = match (var("NO_COLOR").is_empty(), many) {
            (false, _) => Depth::None,
            (true, true) => Depth::Many,
            (true, false) => Depth::Sixteen,
        };
        // The first of these variables that is set decides.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(var).find(|value| !value.is_empty());
        let utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self { depth, ascii: !utf8 }
    }

    /// The style of a role.
    pub fn style(self, ink: Ink) -> Style {
        let style = Style::new();
        let style = match ink {
            Ink::Title | Ink::Figure => style.add_modifier(Modifier::BOLD),
            Ink::Label | Ink::Rule => style.add_modifier(Modifier::DIM),
            Ink::Alert => style.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            _ => style,
        };
        let colour = match (self.depth, ink) {
            (Depth::None, _) | (_, Ink::Label | Ink::Figure | Ink::Rule) => return style,
            (_, Ink::Title) => CYAN,
            (_, Ink::Faults | Ink::Alert) => YELLOW,
            (_, Ink::Flushes) => MAGENTA,
            (_, Ink::Memory) => BLUE,
            (_, Ink::Vcpus) => GREEN,
        };
        style.fg(Color::Indexed(colour))
    }

    /// The style of a map cell of warmth 0 to 9.
    pub fn heat(self, warmth: u8) -> (&'static str, Style) {
        const MANY: [u8; 10] = [240, 55, 56, 91, 127, 162, 197, 203, 209, 221];
        const SIXTEEN: [u8; 10] = [8, BLUE, BLUE, CYAN, CYAN, GREEN, YELLOW, YELLOW, 9, 9];
        let warmth = usize::from(warmth.min(9));
        let glyphs = if self.ascii { ["-", ".", ":", "+", "#"] } else { ["·", "░", "▒", "▓", "█"] };
        let glyph = glyphs[[0, 1, 1, 2, 2, 3, 3, 3, 4, 4][warmth]];
        let style = match self.depth {
            Depth::None => Style::new(),
            Depth::Sixteen => Style::new().fg(Color::Indexed(SIXTEEN[warmth])),
            Depth::Many => Style::new().fg(Color::Indexed(MANY[warmth])),
        };
        (glyph, style)
    }

    /// The glyph of a cell filled from the bottom, in eighths.
    pub fn column(self, eighths: usize) -> &'static str {
        let glyphs = if self.ascii {
            [" ", ".", ".", ":", ":", "|", "|", "#", "#"]
        } else {
            [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
        };
        glyphs[eighths.min(8)]
    }

    /// The glyph of a cell filled from the left, in eighths.
    pub fn bar(self, eighths: usize) -> &'static str {
        let glyphs = if self.ascii {
            [" ", " ", " ", " ", "=", "=", "=", "=", "="]
        } else {
            [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"]
        };
        glyphs[eighths.min(8)]
    }

    /// The glyph of a horizontal line.
    pub fn rule(self) -> &'static str {
        if self.ascii { "-" } else { "─" }
    }

    /// The separator between two items.
    pub fn dot(self) -> &'static str {
        if self.ascii { "-" } else { "·" }
    }

    /// The "at most" sign.
    pub fn within(self) -> &'static str {
        if self.ascii { "<" } else { "≤" }
    }
}
