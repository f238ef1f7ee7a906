//! What each engine publishes, as the reference lists it.

use reference::{compare, table};

use super::{Across, DIALECTS, Entry, How};

fn how(entry: &Entry) -> String {
    let what = match entry.how {
        How::Level { across: Across::Sum, .. } => "as it is, summed over its series",
        How::Level { across: Across::Mean, .. } => "0 to 1 as percent, mean over its series",
        How::PerSecond { .. } => "growth a second",
        How::MeanOf { .. } => "growth of the sum by that of the count, in milliseconds",
    };
    let plus = match entry.how {
        How::Level { plus: [_, ..], .. } => "; the first and all others that are there are added",
        _ => "",
    };
    let with =
        entry.with.map_or(String::new(), |(label, value)| format!("; `{label}=\"{value}\"`"));
    format!("{what}{plus}{with}")
}

#[test]
fn the_reference_says_where_readings_of_engines_come_from() {
    let rows = DIALECTS.iter().flat_map(|engine| {
        engine.entries.iter().map(|entry| {
            let names: Vec<String> = entry.names().map(|name| format!("`{name}`")).collect();
            assert!(!names.is_empty(), "{} of {} has no series", entry.metric, engine.title);
            let metric = format!("`{}`", entry.metric);
            [engine.title.into(), metric, names.join("<br>"), how(entry)]
        })
    });
    compare("metadata.md", "engines", &table(["engine", "metric", "series", "how"], rows));
}
