//! Pure: how many series a scrape shows.
//!
//! Guarantees: of one metric no more than `MAX_SERIES` are shown, whole lines and in their order;
//! the others are left out, never made up, and the page says of itself how many it shows and how
//! many it does not.

use std::fmt::Write as _;

/// Series of one metric: a device's on 25,000 nodes with 8 GPUs each.
pub const MAX_SERIES: usize = 200_000;

/// A page in the text format, with at most `most` series of each metric.
pub fn bounded(page: String, most: usize) -> String {
    let lines = page.bytes().filter(|byte| *byte == b'\n').count();
    let (mut page, left_out) = if lines <= most { (page, 0) } else { cut(&page, most) };
    let comments = page.lines().filter(|line| line.starts_with('#')).count();
    let shown = page.bytes().filter(|byte| *byte == b'\n').count() - comments + OWN.len();
    for ((name, help), value) in OWN.iter().zip([shown, left_out]) {
        // Writing to a String does not fail.
        write!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n").ok();
    }
    page
}

/// What the page says of itself: a name and what it means.
pub(super) const OWN: [(&str, &str); 2] = [
    ("gpu_gateway_metrics_series", "Series on this page"),
    (
        "gpu_gateway_metrics_series_left_out",
        "Series left out of this page because their metric has too many",
    ),
];

fn cut(page: &str, most: usize) -> (String, usize) {
    let (mut kept, mut left_out) = (String::with_capacity(page.len()), 0);
    let mut shown = 0;
    for line in page.split_inclusive('\n') {
        if line.starts_with('#') {
            // A metric begins with its comments.
            shown = 0;
        } else if shown == most {
            left_out += 1;
            continue;
        } else {
            shown += 1;
        }
        kept.push_str(line);
    }
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use super::{OWN, bounded};

    const PAGE: &str = "# HELP a A\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\na{x=\"3\"} 3\n\
                        # HELP b B\n# TYPE b gauge\nb 4\n";

    fn own(page: &str) -> Vec<&str> {
        let values = OWN.iter().map(|(name, _)| {
            let line = page.lines().find(|line| line.split(' ').next() == Some(name));
            line.and_then(|line| line.split(' ').nth(1)).unwrap()
        });
        values.collect()
    }

    #[test]
    fn a_page_within_its_bounds_is_whole_and_counts_itself() {
        let page = bounded(PAGE.into(), 8);
        assert!(page.starts_with(PAGE));
        assert_eq!(own(&page), ["6", "0"]);
    }

    #[test]
    fn a_metric_with_too_many_is_cut_and_the_others_are_not() {
        let page = bounded(PAGE.into(), 2);
        assert!(page.contains("a{x=\"2\"} 2\n") && !page.contains("a{x=\"3\"}"), "{page}");
        assert!(page.contains("\nb 4\n"), "{page}");
        assert_eq!(own(&page), ["5", "1"]);
    }
}
