//! A report of figures that were taken once (`measure/bench/tests/report.data.json`, cut down), and of the kept results.

use crate::figure_text::{ns, plain, times, with};
use crate::lever_tables::Figure;
use crate::report::facts::Source;
use crate::report::page::Page;
use crate::report::published::{TEXTS, published};
use crate::report::report_data::{Data, Outcome, Part};
use crate::report::sections::{Section, sections};
use crate::report::sentences::Sentence;
use crate::sim::sim_report::Against;
use crate::threads::bench_report::Check;
use serde_json::Value;
use std::collections::BTreeSet;

const FIXTURE: &str = include_str!("../../tests/report.data.json");

fn fixture() -> Data {
    serde_json::from_str(FIXTURE).unwrap()
}

/// The kept results, as if a report had measured them.
fn kept() -> Data {
    let result = |kept: crate::registry::Kept| {
        let path = format!("{}/../results/{}-2-cores.json", env!("CARGO_MANIFEST_DIR"), kept.file);
        let bench = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        Part { command: format!("bench {}", kept.command), seconds: 1.0, outcome: Outcome::Bench(bench) }
    };
    Data { parts: crate::registry::kept().map(result).collect(), ..fixture() }
}

/// The figures that rows of a source have, and the settings of rows: computed from the rows alone.
#[derive(Default)]
struct Rows {
    figures: BTreeSet<String>,
    settings: BTreeSet<String>,
}

impl Rows {
    /// A ratio is that of its figures, or of its row, as far as it was rounded.
    fn pair(&mut self, before: Option<f64>, after: Option<f64>, unit: &str, ratio: Option<f64>) {
        self.figures.extend([before, after].into_iter().flatten().map(|value| with(value, unit)));
        let quotient = before.zip(after).map(|(before, after)| before / after);
        let near = |ratio: &f64| quotient.is_some_and(|quotient| (ratio / quotient - 1.0).abs() < 2e-3);
        self.figures.extend(ratio.filter(near).or(quotient).map(times));
    }

    fn setting(&mut self, text: &str) {
        self.settings.extend(text.split_whitespace().map(|word| word.trim_matches(['`', ',']).to_owned()));
    }

    fn of(data: &Data, from: Source) -> Self {
        let mut rows = Self::default();
        match from {
            Source::Series => {
                for fact in TEXTS.iter().flat_map(|text| published(text.series)) {
                    rows.pair(fact.before, fact.after, &fact.unit, None);
                    fact.params.values().for_each(|value| rows.setting(value));
                }
            }
            Source::Here => {
                for bench in data.benches() {
                    for row in &bench.rows {
                        rows.pair(row.baseline, Some(row.slat), &row.unit, row.ratio);
                        let settings = bench.params.values().chain(row.params.values());
                        settings.for_each(|value| rows.setting(value.to_string().trim_matches('"')));
                    }
                }
                rows.replay(data);
            }
            Source::Simulated => {
                for row in data.sims().flat_map(|sim| &sim.rows) {
                    let figures = row.figures.iter().map(|figure| with(figure.value, &figure.unit));
                    rows.figures.extend(figures.chain([with(row.waiting, "share")]));
                    row.figures.iter().for_each(|figure| rows.setting(&figure.name));
                    rows.setting(&row.vcpus.to_string());
                }
            }
        }
        rows
    }

    fn replay(&mut self, data: &Data) {
        let Some(replay) = data.replay() else { return };
        self.setting(&replay.trace);
        self.setting("p50 p99.99");
        self.figures.extend(replay.quantiles.iter().map(|(_, time)| ns(*time as f64)));
        self.figures.extend(replay.causes.iter().map(|cause| with(cause.flushes as f64, "flushes")));
        let rate = |dirty: u64, ms: f64| plain((dirty as f64 / (ms / 1e3)).round()) + " pages";
        self.figures.extend(replay.stretches.iter().map(|stretch| rate(stretch.dirty, stretch.ms)));
        let ages: Vec<f32> = replay.heat.ages.concat().into_iter().flatten().collect();
        let count =
            |young: bool| ages.iter().filter(|age| if young { **age < 1.5 } else { **age >= 7.5 }).count();
        self.figures
            .extend([true, false].map(|young| with(count(young) as f64 / ages.len() as f64, "share")));
    }

    /// Figures and settings of a sentence that no row has. Figures stand between `**`.
    fn missing(&self, sentence: &Sentence) -> Vec<String> {
        let mut missing = Vec::new();
        for (nth, part) in sentence.text.split("**").enumerate() {
            if nth % 2 == 1 {
                missing.extend((!self.figures.contains(part)).then(|| part.to_owned()));
                continue;
            }
            // Behind this the numbers of vCPUs stand where slat loses.
            let words = part.split_whitespace().map(|word| word.trim_matches([',', '.', ';', ':', '`']));
            let numbers = words.filter(|word| word.contains(|c: char| c.is_ascii_digit()));
            missing.extend(numbers.filter(|word| !self.settings.contains(*word)).map(str::to_owned));
        }
        missing
    }
}

fn all_missing(data: &Data, sections: &[Section]) -> Vec<String> {
    let sentences = sections.iter().flat_map(|section| &section.sentences);
    sentences.flat_map(|sentence| Rows::of(data, sentence.from).missing(sentence)).collect()
}

#[test]
fn every_figure_of_a_sentence_is_that_of_a_row() {
    for (data, least) in [(fixture(), 30), (kept(), 8)] {
        let sections = sections(&data);
        assert_eq!(all_missing(&data, &sections), [""; 0]);
        let sentences: usize = sections.iter().map(|section| section.sentences.len()).sum();
        assert!(sentences >= least, "{sentences}");
    }
}

#[test]
fn negative_control_a_sentence_with_a_figure_that_no_row_has_is_found() {
    let data = fixture();
    let found = |change: &dyn Fn(&mut Sentence)| {
        let mut sections = sections(&data);
        let changed =
            sections[0].sentences.iter_mut().find(|sentence| sentence.from == Source::Here).unwrap();
        change(changed);
        all_missing(&data, &sections)
    };
    assert_eq!(found(&|sentence| sentence.text += " It takes **12.3456 ms**."), ["12.3456 ms"]);
    assert_eq!(found(&|sentence| sentence.text += " With 77 vCPUs."), ["77"]);
    let text =
        |sentence: &mut Sentence| sentence.text = sentence.text.replacen("**11.4 ms**", "**11.5 ms**", 1);
    assert_eq!(found(&text), ["11.5 ms"]);
    // A row that changes after the sentences were made.
    let sections = sections(&data);
    let mut other = fixture();
    let benches = other.parts.iter_mut().filter_map(|part| match &mut part.outcome {
        Outcome::Bench(bench) => Some(bench),
        _ => None,
    });
    benches.flat_map(|bench| &mut bench.rows).for_each(|row| row.slat *= 1.1);
    assert!(all_missing(&other, &sections).len() > 5);
}

#[test]
fn both_figures_of_a_claim_are_those_of_rows() {
    for data in [fixture(), kept()] {
        let rows = [Source::Series, Source::Here].map(|from| Rows::of(&data, from).figures);
        let claims = sections(&data).into_iter().flat_map(|section| section.claims);
        let here: Vec<_> = claims.filter(|claim| claim.from == Source::Here).collect();
        assert!(here.len() >= 8, "{here:?}");
        for claim in here {
            let [published, ours] = [claim.published, claim.ours].map(|value| with(value, &claim.unit));
            // Single figures are typed beside their claims.
            assert!(
                rows[0].contains(&published) || claim.published == 0.0 || claim.unit.starts_with('%'),
                "{claim:?}"
            );
            // Two baselines of the NUMA protection series are compared, and no row has their ratio.
            assert!(rows[1].contains(&ours) || claim.what.contains("KVM with the series"), "{claim:?}");
        }
    }
}

#[test]
fn no_gain_is_said_of_factors_below_one() {
    for ideas in sections(&kept()).iter().flat_map(|section| &section.ideas) {
        let mut expected = Vec::new();
        for (at, column) in ideas.columns.iter().enumerate() {
            let loses = |row: &&(_, _, Vec<Option<Figure>>)| {
                row.2.get(at).and_then(|figure| figure.as_ref()?.factor).is_some_and(|factor| factor < 0.995)
            };
            let lost: Vec<&str> = ideas.rows.iter().filter(loses).map(|row| row.0).collect();
            if lost.len() == ideas.rows.len() {
                expected.push(format!("No gain by {column}."));
            } else if !lost.is_empty() {
                expected.push(format!("No gain by {column}: {}.", lost.join("; ")));
            }
        }
        assert_eq!(ideas.no_gain, expected);
    }
}

/// Whether `whole` has every key and every value of `part`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|has| contains(has, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

#[test]
fn no_key_and_no_figure_of_the_data_is_lost() {
    let page: Value = serde_json::from_str(&Page::new(&fixture()).json().unwrap()).unwrap();
    let mut data: Value = serde_json::from_str(FIXTURE).unwrap();
    assert!(contains(&page, &data));
    data["parts"][0]["seconds"] = 17.into();
    assert!(!contains(&page, &data), "negative control");
}

#[test]
fn the_page_has_the_same_data_and_needs_nothing_else() {
    let data = fixture();
    let [one, other] = [(); 2].map(|()| Page::new(&data).html().unwrap());
    assert_eq!(one, other);
    let (_, rest) = one.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (json, rest) = rest.split_once("</script>").unwrap();
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(read(json), read(&Page::new(&data).json().unwrap()));
    assert!(["/* page", "/* figures", "/* plots"].iter().all(|mark| !rest.contains(mark)));
    assert!(!rest.contains("src=") && !one.contains("@import") && !one.contains("url("));
}

#[test]
fn text_in_the_data_cannot_end_the_script() {
    let mut data = fixture();
    data.slat = "</script><script>alert(1)</script>".into();
    assert_eq!(Page::new(&data).html().unwrap().matches("</script>").count(), 2);
}

#[test]
fn a_sentence_has_no_quotient_by_zero() {
    let mut data = fixture();
    for part in &mut data.parts {
        match &mut part.outcome {
            Outcome::Bench(bench) => {
                bench.rows.iter_mut().for_each(|row| (row.slat, row.ratio) = (0.0, None));
            }
            Outcome::Sim(sim) => sim.rows.iter_mut().for_each(|row| (row.wall_ns, row.operations) = (0, 0)),
            Outcome::Replay(replay) => replay.stretches.iter_mut().for_each(|stretch| stretch.ms = 0.0),
            Outcome::Failed(_) => {}
        }
    }
    let text = Page::new(&data).markdown();
    assert!(["NaN", "inf ", "–**"].iter().all(|none| !text.contains(none)), "{text}");
}

#[test]
fn a_failed_check_and_missing_parts_are_alarms() {
    assert!(Page::new(&fixture()).alarms.is_empty());
    let mut data = fixture();
    data.interrupted = true;
    let outcome = Outcome::Failed("out of memory".into());
    data.parts.push(Part { command: "bench zap".into(), seconds: 1.0, outcome });
    let bench = data.parts.iter_mut().find_map(|part| match &mut part.outcome {
        Outcome::Bench(bench) => Some(bench),
        _ => None,
    });
    let check = Check { name: "every page is mapped".into(), ok: false, detail: "3 of 4".into() };
    bench.unwrap().checks.push(check);
    let page = Page::new(&data);
    assert_eq!(page.alarms.len(), 2);
    assert_eq!(page.checks.iter().filter(|(_, check)| !check.ok).count(), 2);
    for text in [page.html().unwrap(), page.markdown()] {
        for said in ["2 checks do not hold", "Interrupted", "every page is mapped", "3 of 4", "out of memory"]
        {
            assert!(text.contains(said), "{said}");
        }
    }
}

#[test]
fn a_report_of_nothing_is_a_page_too() {
    let data = Data { parts: Vec::new(), interrupted: true, ..fixture() };
    let page = Page::new(&data);
    assert!(page.markdown().contains("0 parts were measured") && page.html().unwrap().contains("change-pte"));
}

/// The data with slat and its baselines exchanged.
fn turned(mut data: Data) -> Data {
    for part in &mut data.parts {
        match &mut part.outcome {
            Outcome::Bench(bench) => {
                for row in &mut bench.rows {
                    if let Some(baseline) = row.baseline {
                        (row.baseline, row.slat) = (Some(row.slat), baseline);
                        row.ratio = row.ratio.map(|ratio| 1.0 / ratio);
                    }
                }
            }
            Outcome::Sim(sim) => {
                for row in &mut sim.rows {
                    row.figures.iter_mut().for_each(|figure| figure.value = 1e6 / figure.value.max(1e-6));
                    (row.wall_ns, row.waiting) = (1_000_000_000 / row.wall_ns.max(1), 1.0 - row.waiting);
                }
            }
            _ => {}
        }
    }
    data
}

#[test]
fn sentences_say_where_slat_loses() {
    let losses = |data: &Data| {
        let sections = sections(data);
        let sentences = sections.iter().flat_map(|section| &section.sentences);
        sentences.filter(|sentence| sentence.text.contains("slat loses")).count()
    };
    for (name, data, turned) in
        [("taken once", fixture(), turned(fixture())), ("kept", kept(), turned(kept()))]
    {
        assert!(losses(&turned) >= losses(&data) + 4, "{name}: {} of {}", losses(&turned), losses(&data));
    }
}

/// The simulated ratios of a report, beside the series'.
fn simulated_ratios(data: &mut Data) -> Vec<&mut Against> {
    let sims = data.parts.iter_mut().filter_map(|part| match &mut part.outcome {
        Outcome::Sim(sim) => Some(sim),
        _ => None,
    });
    sims.flat_map(|sim| &mut sim.against_series).filter(|one| one.unit == "ratio").collect()
}

/// `sim` prints these for every report. Without them here, no test judges the page's alarms on them.
#[test]
fn simulated_ratios_name_their_sides() {
    let mut data = fixture();
    let ratios = simulated_ratios(&mut data);
    assert!(ratios.len() >= 30 && ratios.iter().all(|one| one.sides.is_some()), "{}", ratios.len());
    assert!(crate::report::sound(&data));
}

#[test]
fn negative_control_a_ratio_without_sides_is_an_alarm_and_a_failure() {
    let mut data = fixture();
    let ratios = simulated_ratios(&mut data);
    let count = ratios.len();
    for one in ratios {
        one.sides = None;
    }
    assert!(!crate::report::sound(&data));
    assert_eq!(Page::new(&data).alarms.len(), count);
}

/// An earlier version called a published figure `seed`, and named no sides.
#[test]
fn a_report_of_an_earlier_version_is_read() {
    let data: Data = serde_json::from_str(&FIXTURE.replace("\"published\":", "\"seed\":")).unwrap();
    assert!(crate::report::sound(&data));
}
