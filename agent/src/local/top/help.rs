//! Pure: the keys and marks, explained in lines.

use super::cell::Tone;
use super::detail::Line;
use super::state::Sort;
use super::text::wrapped;

const KEYS: [(&str, &str); 10] = [
    ("↑ ↓ j k", "the row above, below"),
    ("PgUp PgDn", "a screen up, down; Home and End: the first, the last"),
    ("Enter d", "all that is known of the selected row; [ and ] scroll it"),
    (
        "/",
        "show only what has this text in it: pod, container, UUID, model, source, \"no holder\", \"undeclared\", \"failed\"",
    ),
    ("s r", "the next order; turn it round"),
    ("Space", "stand still, go on"),
    ("h ?", "this page"),
    ("Esc", "close, then clear the filter"),
    ("Ctrl-L", "draw everything anew"),
    ("q Ctrl-C", "quit"),
];

const MARKS: [(&str, &str); 6] = [
    ("-", "this device or engine does not have it"),
    ("!", "it could not be read; the reason stands below or in the details"),
    ("~", "the share is a guess: an equal split"),
    ("*", "undeclared: it uses the device without having been given it"),
    ("?", "its part of the device cannot be told"),
    ("·", "in a trend: nothing was read at that moment"),
];

const COLUMN: usize = 12;

/// The page, in lines of at most `width` cells.
pub fn lines(width: usize) -> Vec<Line> {
    let mut lines = vec![("KEYS (h closes)".to_owned(), Tone::Strong)];
    let orders = Sort::ALL.map(|sort| format!("{} {}", sort.key().0, sort.key().1)).join(", ");
    let mut all = KEYS.map(|(key, what)| (key, what.to_owned())).to_vec();
    all.push(("sort by", orders));
    explain(&mut lines, all, width);
    lines.push(("MARKS".into(), Tone::Strong));
    explain(&mut lines, MARKS.map(|(mark, what)| (mark, what.to_owned())).to_vec(), width);
    let engines = "Engines are read by an agent that a gateway briefs. To see its view: \
                   gpu-agent top --from http://127.0.0.1:9400 (its --http-listen).";
    lines.extend(wrapped(engines, width).into_iter().map(|line| (line, Tone::Faint)));
    lines
}

fn explain(lines: &mut Vec<Line>, all: Vec<(&str, String)>, width: usize) {
    for (key, what) in all {
        let mut said = wrapped(&what, width.saturating_sub(COLUMN)).into_iter();
        lines.push((format!("{key:COLUMN$}{}", said.next().unwrap_or_default()), Tone::Plain));
        lines.extend(said.map(|line| (format!("{:COLUMN$}{line}", ""), Tone::Plain)));
    }
}
