//! What holds for any page.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use shared::exposition::{parse, text};

type Written = (String, Vec<(String, String)>, f64, Option<i64>);

fn written() -> impl Strategy<Value = Written> {
    let labels = btree_map("[a-zA-Z_][a-zA-Z0-9_]{0,8}", any::<String>(), 0..6);
    ("[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", labels, any::<f64>(), any::<Option<i64>>())
        .prop_map(|(name, labels, value, at)| (name, labels.into_iter().collect(), value, at))
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn line((name, labels, value, at): &Written, quoted: bool) -> String {
    let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
    let at = at.map_or_else(String::new, |at| format!(" {at}"));
    if quoted {
        let all = std::iter::once(format!("\"{}\"", escaped(name))).chain(labels);
        return format!("{{{}}} {value}{at}", all.collect::<Vec<_>>().join(","));
    }
    let labels: Vec<_> = labels.collect();
    let braces =
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    format!("{name}{braces} {value}{at}")
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in vec(written(), 0..8), quoted: bool, crlf: bool) {
        let end = if crlf { "\r\n" } else { "\n" };
        let page: String = all.iter().map(|one| line(one, quoted) + end).collect();
        let read: Vec<_> = parse(&page).map(|series| series.unwrap()).collect();
        prop_assert_eq!(read.len(), all.len());
        for (read, (name, labels, value, _)) in read.iter().zip(&all) {
            prop_assert_eq!(read.name.as_ref(), name);
            let found: Vec<_> = read
                .labels
                .iter()
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect();
            prop_assert_eq!(&found, labels);
            prop_assert!(read.value == *value || read.value.is_nan() && value.is_nan());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn nothing_written_makes_it_panic(page in "[a1_:{}\"\\\\=,# \t\r\nENüTYPOF+.-]{0,60}") {
        look(&page);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn no_bytes_make_it_panic(page in vec(any::<u8>(), 0..200)) {
        if let Ok(page) = text(&page) {
            look(page);
        }
        look(&String::from_utf8_lossy(&page));
    }
}

/// Reads everything there is to read; a line is a series or broken, never both.
fn look(page: &str) {
    let lines = page.split('\n').count();
    let mut last = 0;
    for read in parse(page) {
        let line = match &read {
            Ok(series) => {
                assert!(!series.name.is_empty());
                for (label, _) in series.labels.iter() {
                    assert!(series.labels.get(&label).is_some());
                }
                series.line
            }
            Err(broken) => broken.line,
        };
        assert!(last < line && line <= lines);
        last = line;
    }
}

const LIBRARY: &str = include_str!("fixtures/prometheus_client.txt");

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Bytes changed, put in or taken out in a page of the library that engines use.
    #[test]
    fn damage_costs_the_lines_that_have_it_only(
        hits in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8),
    ) {
        let mut page = LIBRARY.as_bytes().to_vec();
        for (place, byte, how) in hits {
            let place = place.index(page.len());
            match how {
                0 => page[place] = byte,
                1 => page.insert(place, byte),
                _ => drop(page.remove(place)),
            }
        }
        let page = String::from_utf8_lossy(&page);
        look(&page);
        // A new end mark may hide the rest.
        if page.lines().any(|line| line.trim() == "# EOF") {
            return Ok(());
        }
        let read: Vec<_> = parse(&page).flatten().collect();
        for whole in parse(LIBRARY).map(|series| series.unwrap()) {
            let line = LIBRARY.lines().nth(whole.line - 1).unwrap();
            if page.lines().any(|other| other == line) {
                let same = read.iter().find(|series| {
                    series.name == whole.name && series.labels == whole.labels
                });
                prop_assert!(same.is_some(), "{line}");
            }
        }
    }
}
