//! Colours and glyphs, as the terminal has them.

use ratatui_core::style::{Color, Modifier, Style};

/// How many colours there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    None,
    Sixteen,
    Many,
}

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    pub depth: Depth,
    /// No other glyphs.
    pub ascii: bool,
}

/// What something is drawn for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// The name of a panel.
    Title,
    /// What a figure is.
    Label,
    /// A figure.
    Figure,
    /// Lines between panels.
    Rule,
    /// Bars of faults, flushes, memory, vCPUs.
    Faults,
    Flushes,
    Memory,
    Vcpus,
    /// Something that must not be overlooked.
    Alert,
}

impl Look {
    /// As the environment tells.
    pub fn of_terminal() -> Self {
        let var = |name| std::env::var(name).unwrap_or_default();
        let many =
            var("TERM").contains("256color") || ["truecolor", "24bit"].contains(&var("COLORTERM").as_str());
        let depth = match (var("NO_COLOR").is_empty(), many) {
            (false, _) => Depth::None,
            (true, true) => Depth::Many,
            (true, false) => Depth::Sixteen,
        };
        // The first that is set counts.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(var).find(|value| !value.is_empty());
        let utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self { depth, ascii: !utf8 }
    }

    /// How something is drawn.
    pub fn style(self, ink: Ink) -> Style {
        let style = Style::new();
        let style = match ink {
            Ink::Title | Ink::Figure => style.add_modifier(Modifier::BOLD),
            Ink::Label | Ink::Rule => style.add_modifier(Modifier::DIM),
            Ink::Alert => style.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            _ => style,
        };
        match (self.depth, ink) {
            (Depth::None, _) | (_, Ink::Label | Ink::Figure | Ink::Rule) => style,
            (_, Ink::Title) => style.fg(Color::Cyan),
            (_, Ink::Faults | Ink::Alert) => style.fg(Color::Yellow),
            (_, Ink::Flushes) => style.fg(Color::Magenta),
            (_, Ink::Memory) => style.fg(Color::Blue),
            (_, Ink::Vcpus) => style.fg(Color::Green),
        }
    }

    /// How a cell of the map is drawn that is so warm, from 0 to 9.
    pub fn heat(self, warmth: u8) -> (&'static str, Style) {
        const MANY: [u8; 10] = [240, 55, 56, 91, 127, 162, 197, 203, 209, 221];
        const SIXTEEN: [Color; 10] = [
            Color::DarkGray,
            Color::Blue,
            Color::Blue,
            Color::Cyan,
            Color::Cyan,
            Color::Green,
            Color::Yellow,
            Color::Yellow,
            Color::LightRed,
            Color::LightRed,
        ];
        let warmth = usize::from(warmth.min(9));
        let glyphs = if self.ascii { ["-", ".", ":", "+", "#"] } else { ["·", "░", "▒", "▓", "█"] };
        let glyph = glyphs[[0, 1, 1, 2, 2, 3, 3, 3, 4, 4][warmth]];
        let style = match self.depth {
            Depth::None => Style::new(),
            Depth::Sixteen => Style::new().fg(SIXTEEN[warmth]),
            Depth::Many => Style::new().fg(Color::Indexed(MANY[warmth])),
        };
        (glyph, style)
    }

    /// A part of a cell, in eighths from the bottom.
    pub fn column(self, eighths: usize) -> &'static str {
        let glyphs = if self.ascii {
            [" ", ".", ".", ":", ":", "|", "|", "#", "#"]
        } else {
            [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
        };
        glyphs[eighths.min(8)]
    }

    /// The same from the left.
    pub fn bar(self, eighths: usize) -> &'static str {
        let glyphs = if self.ascii {
            [" ", " ", " ", " ", "=", "=", "=", "=", "="]
        } else {
            [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"]
        };
        glyphs[eighths.min(8)]
    }

    /// A line from left to right.
    pub fn rule(self) -> &'static str {
        if self.ascii { "-" } else { "─" }
    }

    /// Between two things.
    pub fn dot(self) -> &'static str {
        if self.ascii { "-" } else { "·" }
    }

    /// At most.
    pub fn within(self) -> &'static str {
        if self.ascii { "<" } else { "≤" }
    }
}
