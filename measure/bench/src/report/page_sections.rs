//! The content of the page, from the data alone: the same data make the same page.

use crate::report::page_model::{
    Block, Doc, Filled, Mark, Section, Source, Table, cell, marked, number, words,
};
use crate::report::report_data::{Data, Outcome};
use crate::report::series::answers;
use crate::report::series::series_answer::Answer;
use crate::report::simulation_trust;
use crate::report::verdict::Says;

/// The whole page.
pub fn doc(data: &Data) -> Doc {
    let answers = answers(data);
    let mut sections = vec![summary(data, &answers)];
    sections.extend(answers.into_iter().map(|answer| answer.section));
    sections.extend(simulation_trust::section(data));
    sections.push(checks(data));
    sections.push(commands(data));
    Doc { title: "slat: the report".into(), sections }
}

/// The simulated ratios that do not name what they divide by what, each in a sentence. No verdict is possible on them.
pub fn ratios_without_sides(data: &Data) -> Vec<String> {
    let ratios = data.sims().flat_map(|(_, sim)| &sim.against_series).filter(|one| one.unit == "ratio");
    let unnamed = ratios.filter(|one| one.sides.is_none());
    unnamed.map(|one| format!("A ratio does not name what it divides by what: {}", one.what)).collect()
}

fn summary(data: &Data, answers: &[Answer]) -> Section {
    let machine = &data.machine;
    let mut blocks = vec![Block::Text(
        "slat keeps the page tables that hardware walks for a guest's memory. Five patch series for Linux asked for it to be quick with \
         hundreds of vCPUs; here each series' own table stands beside ours. A figure that one machine can show is measured on it; a figure that takes \
         hundreds of CPUs is simulated, in virtual time, with the engine as it ships. Every figure says which it is."
            .into(),
    )];
    let failed = data.checks().filter(|(_, check)| !check.ok).count();
    if failed > 0 {
        let checks = if failed == 1 { "1 check does" } else { &format!("{failed} checks do") };
        blocks.push(Block::Alarm(format!(
            "{checks} not hold: the figures of those benches mean nothing. See Checks."
        )));
    }
    if data.interrupted {
        let measured = data.parts.len();
        blocks.push(Block::Alarm(format!(
            "Interrupted: {measured} parts were measured, and the others are missing here."
        )));
    }
    blocks.extend(ratios_without_sides(data).into_iter().map(Block::Alarm));
    blocks.push(Block::Cards(answers.iter().map(|answer| answer.card.clone()).collect()));
    let cpu = machine.cpu.as_deref().unwrap_or("unknown CPU");
    let verdicts = || answers.iter().flat_map(|answer| &answer.verdicts);
    let say = |says: Says| verdicts().filter(|verdict| verdict.says() == says).count();
    let checks = data.checks().count();
    let size = if data.quick { "quick: small sizes, few rounds" } else { "full" };
    let facts = [
        ("machine", format!("{cpu}, {} CPUs, {}, {}", machine.cores, machine.arch, machine.os)),
        ("version", format!("slat {}; {size}; measured in {:.0} s", data.slat, data.seconds)),
        (
            "the series' claims",
            format!(
                "{} reproduced, {} better, {} not reproduced, {} without a verdict; of all {}, {} by simulation",
                say(Says::Reproduced),
                say(Says::Better),
                say(Says::NotReproduced),
                say(Says::Nothing),
                verdicts().count(),
                verdicts().filter(|verdict| verdict.from == Source::Simulated).count()
            ),
        ),
        ("checks", format!("{} of {checks} hold", checks - failed)),
        ("to make it again", format!("`slat report{}`", if data.quick { " --quick" } else { "" })),
    ];
    let columns: [Filled<'_, (&str, String)>; 2] =
        [(words(""), &|(name, _)| cell(*name)), (words(""), &|(_, value)| cell(value))];
    blocks.push(Block::Table(Table::of("This report", facts, columns)));
    Section {
        id: "summary".into(),
        title: "slat: second-level address translation, measured".into(),
        short: "Summary".into(),
        blocks,
    }
}

fn checks(data: &Data) -> Section {
    let all: Vec<_> = data.checks().collect();
    let table = |caption: &str, ok: bool| {
        let (verdict, mark) = if ok { ("holds", Mark::Good) } else { ("does not hold", Mark::Bad) };
        Table::of(
            caption,
            all.iter().filter(|(_, check)| check.ok == ok),
            [
                (words("command"), &|(command, _)| cell(format!("`slat {command}`"))),
                (words("condition"), &|(_, check)| cell(&check.name)),
                (words("verdict"), &|_| marked(verdict, mark)),
                (words("evidence"), &|(_, check)| cell(&check.detail)),
            ],
        )
    };
    let (held, failed) = (table("Checks that hold", true), table("Checks that do not hold", false));
    let mut blocks = vec![Block::Text(
        "Figures count only if the engine did what was asked: every page mapped to its frame, nothing lost, every byte what the guest had \
         stored. These conditions are checked in every round."
            .into(),
    )];
    blocks.extend(failed.unless_empty());
    let title = format!("{} checks that hold", held.rows.len());
    blocks.extend(held.unless_empty().map(|table| Block::Fold(title, vec![table])));
    Section { id: "checks".into(), title: "Checks".into(), short: "Checks".into(), blocks }
}

fn commands(data: &Data) -> Section {
    let lines = data.parts.iter().map(|part| match &part.outcome {
        Outcome::Replay(_) => format!(
            "slat run --dirty-log bitmap --swap mem   # like the watched replay, with every vCPU: {}",
            part.command
        ),
        _ => format!("slat {}", part.command),
    });
    let table = Table::of(
        "How long each part took",
        &data.parts,
        [
            (words("command"), &|part| cell(format!("`slat {}`", part.command))),
            (number("seconds"), &|part| cell(format!("{:.1}", part.seconds))),
        ],
    );
    let blocks = vec![
        Block::Text("Each part by itself; with `--json`, the figures that this page is made of, which are in `data.json`, too.".into()),
        Block::Commands(lines.collect()),
        Block::Fold("How long each part took".into(), vec![Block::Table(table)]),
    ];
    Section { id: "commands".into(), title: "The commands".into(), short: "Commands".into(), blocks }
}
