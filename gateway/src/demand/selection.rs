//! A page's text → what one trigger reads from it.
//!
//! Guarantees: pure. Gauges are summed as they are, counters become a rate per second over the
//! page's own readings, whose resets count from zero. What is absent, no number, below zero, there
//! twice with two values, on a broken line, or behind the end of a page that is cut off is said,
//! never counted as zero.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use shared::exposition::{Broken, Kind, Labels, Matchers, Series, parse};
use shared::time::Timestamp;

/// Which series of a page are summed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Their name.
    pub metric: String,
    /// Labels they have.
    pub labels: Matchers,
}

/// What a page says of a selection.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// The sum of its series, or of their rates per second.
    Value(f64),
    /// No series is selected; in words.
    Absent(Arc<str>),
    /// It is there and not known; why.
    Unknown(Arc<str>),
}

/// The selected counters of one page, to be compared with the next.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    taken_at: Timestamp,
    values: HashMap<Box<str>, f64>,
}

/// What is selected of a page, as it stands there.
#[derive(Default)]
struct Selected {
    values: HashMap<Box<str>, f64>,
    counts: bool,
    /// Series with that name and other labels.
    others: usize,
    trouble: Option<Arc<str>>,
}

/// What is on a page beside what is selected.
#[derive(Default)]
struct Rest {
    series: usize,
    /// The first broken line.
    broken: Option<String>,
    /// Where the page is cut off.
    end: Option<String>,
}

/// What the page `text`, taken at `now`, says of each selection, read in one go.
///
/// The counters are those of the page before and become those of this one; a page without any of
/// the series is remembered as well, so that a counter that appears counts from zero.
pub fn read_all<'a>(
    text: &str,
    selections: impl IntoIterator<Item = (&'a Selection, &'a mut Option<Counters>)>,
    now: Timestamp,
) -> Vec<Said> {
    let mut looks: Vec<_> = selections
        .into_iter()
        .map(|(selection, before)| (selection, before, Selected::default()))
        .collect();
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, (selection, ..)) in looks.iter().enumerate() {
        by_name.entry(&selection.metric).or_default().push(at);
    }
    let mut rest = Rest::default();
    for series in parse(text) {
        match series {
            Ok(series) => {
                rest.series += 1;
                for at in by_name.get(&*series.name).into_iter().flatten() {
                    let (selection, _, selected) = &mut looks[*at];
                    selection.take(&series, selected);
                }
            }
            Err(broken) => {
                rest.take(&broken);
                // The sum of the others would be too small.
                let is_own = |metric: &&str| broken.may_be(metric);
                let own: Vec<_> = match broken.is_end {
                    true => by_name.keys().copied().filter(is_own).collect(),
                    false => vec![&*broken.name],
                };
                for at in own.iter().filter_map(|metric| by_name.get(metric)).flatten() {
                    looks[*at].2.trouble = Some(of_page(&broken).into());
                }
            }
        }
    }
    looks
        .into_iter()
        .map(|(selection, before, selected)| selection.conclude(selected, &rest, before, now))
        .collect()
}

fn of_page(broken: &Broken<'_>) -> String {
    format!("line {} of the page: {}", broken.line, broken.what)
}

impl Rest {
    fn take(&mut self, broken: &Broken<'_>) {
        self.broken.get_or_insert_with(|| broken.to_string());
        if broken.is_end {
            self.end = Some(format!("the page ends within {}", of_page(broken)));
        }
    }
}

impl Selection {
    fn conclude(
        &self,
        selected: Selected,
        rest: &Rest,
        before: &mut Option<Counters>,
        now: Timestamp,
    ) -> Said {
        if let Some(why) = selected.trouble {
            *before = None;
            return Said::Unknown(why);
        }
        if selected.values.is_empty() {
            // What was not reached is not absent.
            if let Some(why) = &rest.end {
                *before = None;
                return Said::Unknown(why.as_str().into());
            }
            // An error page is not one that leaves the series out.
            if rest.series == 0 && rest.broken.is_some() {
                *before = None;
                return Said::Unknown(self.absence(selected.others, rest));
            }
            *before = Some(Counters { taken_at: now, values: HashMap::new() });
            return Said::Absent(self.absence(selected.others, rest));
        }
        if !selected.counts {
            return finite(total(selected.values.into_values()));
        }
        let counters = Counters { taken_at: now, values: selected.values };
        let rate = before.as_ref().map(|before| counters.rate_since(before));
        *before = Some(counters);
        rate.map_or_else(
            || Said::Unknown("a counter's rate is known from its second reading on".into()),
            finite,
        )
    }

    fn take(&self, series: &Series<'_>, selected: &mut Selected) {
        if !self.labels.admit(series.labels) {
            selected.others += 1;
            return;
        }
        let value = series.value;
        if !value.is_finite() || value < 0.0 {
            selected.trouble = Some(format!("{} is {value} on line {}", self, series.line).into());
            return;
        }
        selected.counts |= counts(series);
        match selected.values.entry(identity(series.labels)) {
            Entry::Vacant(new) => {
                new.insert(value);
            }
            Entry::Occupied(known) if *known.get() == value => {}
            Entry::Occupied(known) => {
                let why = format!(
                    "{self} is there twice, as {} and {value}, on line {}",
                    known.get(),
                    series.line
                );
                selected.trouble = Some(why.into());
            }
        }
    }

    fn absence(&self, others: usize, rest: &Rest) -> Arc<str> {
        let more = match (others, rest.series, &rest.broken) {
            (0, 0, Some(broken)) => format!("; it is no page of metrics ({broken})"),
            (0, series, _) => format!(" among its {series} series"),
            (others, ..) => format!("; {others} of that name have other labels"),
        };
        format!("no series {self}{more}").into()
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.metric)?;
        if self.labels.is_empty() { Ok(()) } else { write!(f, "{{{}}}", self.labels) }
    }
}

impl Counters {
    /// What they grew by per second; one that fell began anew, one that is new began at zero.
    fn rate_since(&self, before: &Self) -> f64 {
        let grown = self.values.iter().map(|(series, value)| {
            let then = before.values.get(series).copied().filter(|then| then <= value);
            value - then.unwrap_or(0.0)
        });
        let seconds = self.taken_at.since(before.taken_at).as_secs_f64();
        if seconds > 0.0 { total(grown) / seconds } else { f64::NAN }
    }
}

/// The sum, to a billionth: the same whatever the order, and 0.3 for 0.1 and 0.2.
fn total(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let sum: f64 = values.into_iter().sum();
    if sum.abs() < 1e6 { (sum * 1e9).round() / 1e9 } else { sum }
}

fn finite(value: f64) -> Said {
    if value.is_finite() {
        Said::Value(value)
    } else {
        Said::Unknown(format!("its series add up to {value}").into())
    }
}

/// Whether a series only grows. What is declared counts; else its name does.
fn counts(series: &Series<'_>) -> bool {
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| series.name.ends_with(suffix));
    match series.kind {
        Kind::Counter => true,
        Kind::Gauge => false,
        Kind::Histogram | Kind::Summary => ends(&["_count", "_sum", "_bucket"]),
        Kind::Unknown => ends(&["_total"]),
    }
}

/// The labels of a series, the same in whatever order they are written.
fn identity(labels: Labels<'_>) -> Box<str> {
    let mut pairs: Vec<_> = labels.iter().collect();
    pairs.sort_unstable();
    let mut text = String::new();
    for (name, value) in pairs {
        text.extend([&name, "\0", &value, "\0"]);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(metric: &str, labels: &str) -> Selection {
        Selection { metric: metric.into(), labels: labels.parse().unwrap() }
    }

    fn read(selection: &Selection, page: &str, before: &mut Option<Counters>, now: i64) -> Said {
        read_all(page, [(selection, before)], Timestamp::from_millis(now)).remove(0)
    }

    fn once(page: &str, metric: &str, labels: &str) -> Said {
        read(&selection(metric, labels), page, &mut None, 0)
    }

    fn text(said: &Said) -> String {
        match said {
            Said::Value(value) => value.to_string(),
            Said::Absent(why) | Said::Unknown(why) => why.to_string(),
        }
    }

    #[test]
    fn gauges_with_the_labels_are_summed() {
        let page =
            "# TYPE q gauge\nq{m=\"a\",z=\"1\"} 1\nq{m=\"a\",z=\"2\"} 2\nq{m=\"b\"} 4\nqq 9\n";
        assert_eq!(once(page, "q", ""), Said::Value(7.0));
        assert_eq!(once(page, "q", "m=a"), Said::Value(3.0));
        assert_eq!(once(page, "q", "m=a,z=2"), Said::Value(2.0));
    }

    #[test]
    fn the_order_of_series_changes_no_digit() {
        let lines =
            ["q{a=\"1\"} 0.1\n", "q{a=\"2\"} 0.2\n", "q{a=\"3\"} 1e5\n", "q{a=\"4\"} 0.7\n"];
        for first in 0..lines.len() {
            let (front, back) = lines.split_at(first);
            let page: String = back.iter().chain(front.iter().rev()).copied().collect();
            assert_eq!(once(&page, "q", ""), Said::Value(100_001.0), "{page}");
        }
        assert_eq!(once(&lines[..2].concat(), "q", ""), Said::Value(0.3));
    }

    #[test]
    fn what_is_not_there_is_absent_and_said() {
        let page = "q{m=\"a\"} 1\nother 2\n";
        let absent = |said: Said| match said {
            Said::Absent(why) => why.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(absent(once(page, "r", "")), "no series r among its 2 series");
        assert_eq!(
            absent(once(page, "q", "m=b")),
            "no series q{m=b}; 1 of that name have other labels"
        );
        let html = once("<html>\n", "r", "");
        let why = "no series r; it is no page of metrics (line 1: ";
        assert!(matches!(&html, Said::Unknown(said) if said.starts_with(why)), "{html:?}");
        assert_eq!(absent(once("", "r", "")), "no series r among its 0 series");
    }

    #[test]
    fn what_is_no_number_or_two_numbers_is_unknown() {
        for (page, why) in [
            ("q NaN\n", "q is NaN on line 1"),
            ("q{a=\"1\"} 1\nq{a=\"2\"} +Inf\n", "q is inf on line 2"),
            // It would cancel the demand of the other.
            ("q{a=\"1\"} 5\nq{a=\"2\"} -5\n", "q is -5 on line 2"),
            ("q -0.5\n", "q is -0.5 on line 1"),
            (
                "q{a=\"1\",b=\"2\"} 1\nq{b=\"2\",a=\"1\"} 2\n",
                "q is there twice, as 1 and 2, on line 2",
            ),
            ("q{a=\"1\"} 1.7e308\nq{a=\"2\"} 1.7e308\n", "its series add up to inf"),
        ] {
            assert_eq!(once(page, "q", ""), Said::Unknown(why.into()), "{page}");
        }
        assert_eq!(once("q 2\nq 2\n", "q", ""), Said::Value(2.0), "the same word twice");
        let broken = once("q{a=\"1\"} 1\nq{a=\"2 2\nother x\n", "q", "");
        assert!(
            matches!(&broken, Said::Unknown(why) if why.starts_with("line 2 of the page: ")),
            "{broken:?}"
        );
        assert_eq!(once("q 1\nother x\n", "q", ""), Said::Value(1.0), "another's line");
        assert_eq!(once("q -0\n", "q", ""), Said::Value(0.0));
    }

    #[test]
    fn a_page_that_is_cut_off_leaves_in_doubt_what_may_have_followed() {
        let why = |page| match once(page, "queue", "") {
            Said::Unknown(why) => why.to_string(),
            other => panic!("{other:?} for {page}"),
        };
        for page in ["queue{a=\"1\"} 1\nqueue{a=\"2", "queue{a=\"1\"} 1\nque"] {
            assert!(why(page).starts_with("line 2 of the page: "), "{page}");
        }
        let said = why("other 1\nfurther{a=\"");
        assert!(said.starts_with("the page ends within line 2 of the page: "), "{said}");
        assert_eq!(once("queue 1\nother", "queue", ""), Said::Value(1.0), "it was reached");
        assert_eq!(once("other 1\nqueue 1", "queue", ""), Said::Value(1.0), "only the newline");
    }

    #[test]
    fn counters_are_a_rate_over_their_own_readings_and_resets_count_from_zero() {
        let selection = selection("r_total", "");
        let mut before = None;
        let mut read = |look: i64, page: &str| {
            text(&super::tests::read(&selection, page, &mut before, look * 500))
        };
        let first = "a counter's rate is known from its second reading on";
        assert_eq!(read(0, "r_total{m=\"a\"} 100\nr_total{m=\"b\"} 7\n"), first);
        assert_eq!(read(1, "r_total{m=\"a\"} 101\nr_total{m=\"b\"} 9\n"), "6");
        assert_eq!(read(2, "r_total{m=\"a\"} 101\nr_total{m=\"b\"} 9\n"), "0");
        assert_eq!(read(3, "r_total{m=\"a\"} 2\nr_total{m=\"b\"} 9\n"), "4", "begun anew");
        assert_eq!(read(4, "r_total{m=\"b\"} 9\nr_total{m=\"c\"} 1\n"), "2", "one is new");
        assert_eq!(read(5, "r_total{m=\"b\"} NaN\n"), "r_total is NaN on line 1");
        assert_eq!(read(6, "r_total{m=\"b\"} 9\n"), first, "not over a gap");
        assert_eq!(read(7, "other 1\n"), "no series r_total among its 1 series");
        assert_eq!(read(8, "r_total{m=\"z\"} 1\n"), "2", "the first request ever");
    }

    #[test]
    fn what_is_declared_decides_before_the_name_does() {
        let rate = |page: &str, metric: &str| {
            let (selection, mut before) = (selection(metric, ""), None);
            read(&selection, page, &mut before, 0);
            text(&read(&selection, page, &mut before, 500))
        };
        assert_eq!(rate("# TYPE jobs_total gauge\njobs_total 3\n", "jobs_total"), "3");
        assert_eq!(rate("# TYPE served counter\nserved 3\n", "served"), "0");
        assert_eq!(rate("# TYPE h histogram\nh_count 3\n", "h_count"), "0");
        assert_eq!(rate("queue 3\n", "queue"), "3");
    }
}
