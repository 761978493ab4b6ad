//! The page as one HTML file that needs nothing else: no script, no font, no picture from elsewhere.

use crate::report::page_model::{Block, Card, Cell, Column, Doc, Mark, Plot, Source, Table};
use crate::report::plot;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub fn page(doc: &Doc) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (doc.title) }
                // Browsers ask for one otherwise.
                link rel="icon" href="data:,";
                style { (PreEscaped(plot::STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                nav aria-label="Contents" {
                    @for section in &doc.sections { a href={ "#" (section.id) } { (section.short) } }
                }
                main {
                    @for (nth, section) in doc.sections.iter().enumerate() {
                        section id=(section.id) {
                            @if nth == 0 { h1 { (text(&section.title)) } } @else { h2 { (text(&section.title)) } }
                            @for block in &section.blocks { (block_of(block)) }
                        }
                    }
                }
            }
        }
    };
    markup.into_string()
}

fn block_of(block: &Block) -> Markup {
    html! {
        @match block {
            Block::Heading(title) => h3 { (text(title)) },
            Block::Text(words) => p { (text(words)) },
            Block::Alarm(words) => p class="alarm" role="alert" { (text(words)) },
            Block::Cards(cards) => div class="cards" { @for one in cards { (card(one)) } },
            Block::Table(all) => (table(all)),
            Block::Plots(plots) => div class="plots" { @for one in plots { (figure(one)) } },
            Block::Commands(lines) => pre tabindex="0" { code { @for line in lines { (line) "\n" } } },
            Block::Fold(title, blocks) => details {
                summary { (text(title)) }
                @for block in blocks { (block_of(block)) }
            },
        }
    }
}

fn card(card: &Card) -> Markup {
    html! {
        a class="card" href={ "#" (card.to) } {
            strong { (text(&card.title)) }
            @for line in &card.lines {
                span class="figure" { (line.figure) }
                span class="about" { (badge(line.from)) " " (text(&line.about)) }
            }
        }
    }
}

fn badge(from: Source) -> Markup {
    let class = match from {
        Source::Series => "series",
        Source::Here => "here",
        Source::Simulated => "simulated",
    };
    html! { span class={ "badge " (class) } { (from.name()) } }
}

fn figure(plot: &Plot) -> Markup {
    html! {
        figure id=(plot.id) {
            figcaption { @for from in &plot.from { (badge(*from)) " " } (text(&plot.title)) }
            (plot.svg)
            @if let Some(figures) = &plot.figures {
                details { summary { "The figures" } (table(figures)) }
            }
        }
    }
}

fn table(table: &Table) -> Markup {
    let class = |column: &Column| if column.numeric { "n" } else { "w" };
    html! {
        // Wide tables are scrolled, by keyboard too.
        div class="scroller" tabindex="0" role="region" aria-label=(table.caption.replace('`', "")) {
            table {
                caption { (text(&table.caption)) }
                @if table.columns.iter().any(|column| !column.label.is_empty()) {
                    thead { tr { @for column in &table.columns { (head(column, class(column))) } } }
                }
                tbody { @for row in &table.rows { tr {
                    @for (one, column) in row.iter().zip(&table.columns) { (cell(one, class(column))) }
                } } }
            }
        }
    }
}

fn head(column: &Column, class: &str) -> Markup {
    html! {
        th scope="col" class=(class) {
            @if let Some(from) = column.from { (badge(from)) }
            @if column.from.is_some() && !column.label.is_empty() { br; }
            (text(&column.label))
        }
    }
}

fn cell(cell: &Cell, class: &str) -> Markup {
    let mark = match cell.mark {
        Mark::None => "",
        Mark::Strong => " strong",
        Mark::Good => " good",
        Mark::Bad => " bad",
        Mark::Open => " open",
    };
    html! { td class={ (class) (mark) } { (cell.mark.sign()) (text(&cell.text)) } }
}

/// Text between backquotes is code.
fn text(words: &str) -> Markup {
    html! {
        @for (nth, part) in words.split('`').enumerate() {
            @if nth % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}
