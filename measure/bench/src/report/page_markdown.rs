//! The page as Markdown, with plots in files beside it: for reviews of text.

use crate::report::page_model::{Block, Card, Cell, Column, Doc, Plot, Table};
use std::fmt::{self, Write as _};

/// The whole page.
pub fn page(doc: &Doc) -> String {
    let mut out = String::new();
    for (nth, section) in doc.sections.iter().enumerate() {
        let heading = writeln!(out, "{} {}\n", if nth == 0 { "#" } else { "##" }, section.title);
        // Writing to a string cannot fail.
        let _ = heading.and_then(|()| section.blocks.iter().try_for_each(|one| block(&mut out, one)));
    }
    out
}

fn block(out: &mut String, block_of: &Block) -> fmt::Result {
    match block_of {
        Block::Heading(title) => writeln!(out, "### {title}\n"),
        Block::Text(words) => writeln!(out, "{words}\n"),
        Block::Alarm(words) => writeln!(out, "> **{words}**\n"),
        Block::Cards(cards) => cards.iter().try_for_each(|one| card(out, one)),
        Block::Table(all) => table(out, all),
        Block::Plots(plots) => plots.iter().try_for_each(|one| plot(out, one)),
        Block::Commands(lines) => writeln!(out, "```console\n{}\n```\n", lines.join("\n")),
        Block::Fold(title, blocks) => {
            fold(out, title, |out| blocks.iter().try_for_each(|one| block(out, one)))
        }
    }
}

fn fold(out: &mut String, title: &str, inside: impl Fn(&mut String) -> fmt::Result) -> fmt::Result {
    // Here Markdown wants HTML, and an empty line after it.
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(out, "<details><summary>{title}</summary>\n")?;
    inside(out)?;
    writeln!(out, "</details>\n")
}

fn card(out: &mut String, card: &Card) -> fmt::Result {
    writeln!(out, "- **{}**", card.title)?;
    for line in &card.lines {
        writeln!(out, "  - {} ({}): {}", line.figure, line.from.name(), line.about)?;
    }
    writeln!(out)
}

fn plot(out: &mut String, plot: &Plot) -> fmt::Result {
    let from: Vec<&str> = plot.from.iter().map(|from| from.name()).collect();
    writeln!(out, "**{}** ({})\n", plot.title, from.join("; "))?;
    writeln!(out, "![{}]({}.svg)\n", plot.about.replace(['[', ']'], ""), plot.id)?;
    match &plot.figures {
        Some(figures) => fold(out, "The figures", |out| table(out, figures)),
        None => Ok(()),
    }
}

fn table(out: &mut String, table: &Table) -> fmt::Result {
    writeln!(out, "{}\n", table.caption)?;
    line(out, table.columns.iter().map(head))?;
    line(out, table.columns.iter().map(|column| if column.numeric { "---:" } else { "---" }.into()))?;
    let cell = |cell: &Cell| format!("{}{}", cell.mark.sign(), cell.text);
    table.rows.iter().try_for_each(|row| line(out, row.iter().map(cell)))?;
    writeln!(out)
}

fn head(column: &Column) -> String {
    column.from.map_or_else(|| column.label.clone(), |from| format!("{} ({})", column.label, from.name()))
}

fn line(out: &mut String, cells: impl Iterator<Item = String>) -> fmt::Result {
    let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
    writeln!(out, "| {} |", cells.join(" | "))
}
