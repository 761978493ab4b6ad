//! Negative controls: pages with one fault each. If the checks do not find it, they find nothing.

use super::browser::{Browser, Look, Scheme};
use crate::Outcome;

/// A plot as it should be.
const GOOD: &str = r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><title>A plot that is right</title><desc>What is to be seen in it</desc><path d="M0 0H100V50" fill="none" stroke="black"></path><text x="20" y="100">one</text><text x="20" y="140">two</text></svg>"#;

/// What is wrong with a page, and what the checks have to say then.
const CONTROLS: [(&str, &str, &str); 12] = [
    ("a wide element", r#"<div style="width:3000px;height:1px"></div>"#, "past the edge"),
    (
        "an empty plot",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><title>A plot of nothing</title><desc>What is to be seen</desc><path class="axis" d="M0 0H10"></path></svg>"#,
        "an empty plot",
    ),
    (
        "a plot without words",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><path d="M0 0H10"></path></svg>"#,
        "a plot without <desc>",
    ),
    (
        "a flat plot",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="2"><title>A plot that is flat</title><desc>What is to be seen</desc><path d="M0 0H100"></path></svg>"#,
        "a plot of 360 times 2 pixels",
    ),
    (
        "a path that is no number",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><title>A plot of NaN only</title><desc>What is to be seen</desc><path d="MNaN 0H100"></path></svg>"#,
        "a path that is none",
    ),
    (
        "text over text",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><title>A plot with a heap</title><desc>What is to be seen</desc><path d="M0 0H100"></path><text x="20" y="50">one</text><text x="22" y="52">two</text></svg>"#,
        r#"text over "two""#,
    ),
    (
        "text outside",
        r#"<svg class="plot" viewBox="0 0 440 310" width="360" height="254"><title>A plot with a tail</title><desc>What is to be seen</desc><path d="M0 0H100"></path><text x="430" y="50">far away</text></svg>"#,
        "text outside of its plot",
    ),
    (
        "text that cannot be read",
        r#"<p style="color: gray; background: darkgray">pale</p>"#,
        "contrast of 1.",
    ),
    ("no figure", "<p>it takes NaN ns</p>", "is no figure"),
    (
        "a picture from elsewhere",
        r#"<img src="http://127.0.0.1:9/picture.png" alt="">"#,
        "needs something else",
    ),
    (
        "something is fetched",
        r#"<div style="background:url(http://127.0.0.1:9/fetched.png);width:9px;height:9px"></div>"#,
        "fetched: http://127.0.0.1:9/fetched.png",
    ),
    ("an error on the console", r#"<script>console.error("oh")</script>"#, "the console says"),
];

/// Each fault is found, and a page without one is not blamed.
pub fn check(browser: &Browser) -> Outcome {
    let look = Look { width: 400, scheme: Scheme::Light };
    let page = |fault: &str| {
        format!("<!doctype html><html><body><main>{GOOD}<p>text</p>{fault}</main></body></html>")
    };
    let right = browser.look(&page(""), look)?;
    if !right.findings.is_empty() || right.plots != 1 {
        return Err(format!("a page that is right is blamed: {right:?}").into());
    }
    for (name, fault, expected) in CONTROLS {
        let seen = browser.look(&page(fault), look)?;
        if !seen.findings.iter().any(|finding| finding.contains(expected)) {
            return Err(format!("control: {name} was not found: {:?}", seen.findings).into());
        }
    }
    println!("{} faults made on purpose are found", CONTROLS.len());
    Ok(())
}
