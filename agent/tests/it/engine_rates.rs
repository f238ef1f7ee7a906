//! Counters over an engine's scrapes: rates, means, resets.

use std::sync::Arc;
use std::time::Duration;

use agent::engine::reader::Reader;
use proptest::prelude::*;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use crate::support::at;

pub(crate) const FIRST: &str = "no earlier scrape to compare with yet";

pub(crate) fn reader() -> Reader {
    Reader::new(Duration::from_secs(30))
}

/// The readings of one page without a selection.
pub(crate) fn read(reader: &mut Reader, page: &str, millis: i64) -> Readings {
    let all: Arc<str> = "".into();
    reader.read(page, None, &[all], at(millis)).unwrap().remove(0)
}

pub(crate) fn failed(why: &str) -> Reading {
    Reading::Failed(why.into())
}

fn triton(models: &[(&str, u64, u64)]) -> String {
    let mut page = String::from("# TYPE nv_inference_request_success counter\n");
    for (model, count, _) in models {
        page +=
            &format!("nv_inference_request_success{{model=\"{model}\",version=\"1\"}} {count}\n");
    }
    page += "# TYPE nv_inference_queue_duration_us counter\n";
    for (model, _, micros) in models {
        page += &format!(
            "nv_inference_queue_duration_us{{model=\"{model}\",version=\"1\"}} {micros}\n"
        );
    }
    page
}

fn wait_and_rate(readings: &Readings) -> (Reading, Reading) {
    (readings.get(Metric::QueueWaitMs), readings.get(Metric::RequestRate))
}

#[test]
fn o12_b_means_and_rates_of_two_models_over_a_restart() {
    let mut reader = reader();
    let first = read(&mut reader, &triton(&[("x", 100, 500_000), ("y", 50, 100_000)]), 0);
    assert_eq!(wait_and_rate(&first), (failed(FIRST), failed(FIRST)));
    let second = read(&mut reader, &triton(&[("x", 140, 900_000), ("y", 60, 700_000)]), 10_000);
    assert_eq!(wait_and_rate(&second), (Reading::Ok(20.0), Reading::Ok(5.0)));
    let third = read(&mut reader, &triton(&[("y", 4, 20_000), ("x", 6, 30_000)]), 20_000);
    assert_eq!(wait_and_rate(&third), (Reading::Ok(5.0), Reading::Ok(1.0)));
}

#[test]
fn a_series_that_a_broken_line_hid_is_not_new_when_it_turns_up() {
    let page = |b: &str| {
        format!(
            "vllm:generation_tokens_total{{engine=\"0\"}} 5\n\
             vllm:generation_tokens_total{{engine=\"1\"}} {b}\n"
        )
    };
    let mut reader = reader();
    let mut rate =
        |b: &str, millis| read(&mut reader, &page(b), millis).get(Metric::TokenThroughput);
    let broken = failed("vllm:generation_tokens_total on line 2: its value is not a number");
    assert_eq!(rate("x", 0), broken);
    assert_eq!(rate("1000000", 1_000), failed(FIRST));
    assert_eq!(rate("1000002", 2_000), Reading::Ok(2.0));
    assert_eq!(rate("x", 3_000), broken);
    assert_eq!(rate("1000004", 4_000), failed(FIRST));
    assert_eq!(rate("1000005", 5_000), Reading::Ok(1.0));
}

#[test]
fn a_series_that_was_no_number_is_not_new_when_it_is_one() {
    let page = |value: &str| format!("vllm:generation_tokens_total {value}\n");
    let mut reader = reader();
    let mut rate =
        |value: &str, millis| read(&mut reader, &page(value), millis).get(Metric::TokenThroughput);
    assert_eq!(rate("NaN", 0), failed("vllm:generation_tokens_total is NaN"));
    assert_eq!(rate("1000000", 1_000), failed(FIRST));
    assert_eq!(rate("1000002", 2_000), Reading::Ok(2.0));
}

#[test]
fn figures_are_over_the_last_ten_seconds() {
    let mut reader = reader();
    // 10 requests a second of 2 ms each, then none.
    for second in 0..=20_i64 {
        let done = 10 * u64::try_from(second.min(10)).unwrap();
        let readings = read(&mut reader, &triton(&[("x", done, done * 2_000)]), second * 1_000);
        let expected = match second {
            0 => (failed(FIRST), failed(FIRST)),
            1..=10 => (Reading::Ok(2.0), Reading::Ok(10.0)),
            20 => (Reading::Ok(0.0), Reading::Ok(0.0)),
            11.. => {
                let left = f64::from(u32::try_from(20 - second).unwrap());
                (Reading::Ok(2.0), Reading::Ok(left))
            }
            ..0 => unreachable!(),
        };
        assert_eq!(wait_and_rate(&readings), expected, "after {second} s");
    }
}

#[test]
fn scrapes_that_lie_too_far_apart_are_not_compared() {
    let mut reader = reader();
    read(&mut reader, &triton(&[("x", 100, 0)]), 0);
    let after = read(&mut reader, &triton(&[("x", 900, 0)]), 31_000);
    assert_eq!(wait_and_rate(&after), (failed(FIRST), failed(FIRST)));
    let next = read(&mut reader, &triton(&[("x", 910, 10_000)]), 32_000);
    assert_eq!(wait_and_rate(&next), (Reading::Ok(1.0), Reading::Ok(10.0)));
}

#[test]
fn a_new_series_counts_in_full_and_one_that_was_away_waits_a_scrape() {
    let mut reader = reader();
    let rate = |readings: &Readings| readings.get(Metric::RequestRate);
    read(&mut reader, &triton(&[("x", 100, 0)]), 0);
    let loaded = read(&mut reader, &triton(&[("x", 100, 0), ("y", 7, 0)]), 1_000);
    assert_eq!(rate(&loaded), Reading::Ok(7.0));
    let away = read(&mut reader, &triton(&[("x", 101, 0)]), 2_000);
    assert_eq!(rate(&away), Reading::Ok(4.0));
    let back = read(&mut reader, &triton(&[("x", 101, 0), ("y", 9_999, 0)]), 3_000);
    assert_eq!(rate(&back), failed(FIRST));
    let next = read(&mut reader, &triton(&[("x", 102, 0), ("y", 10_000, 0)]), 4_000);
    assert_eq!(rate(&next), Reading::Ok(2.0));
}

#[test]
fn time_without_a_finished_request_has_no_mean() {
    let mut reader = reader();
    read(&mut reader, &triton(&[("x", 5, 1_000)]), 0);
    let odd = read(&mut reader, &triton(&[("x", 5, 3_000)]), 1_000);
    let why = failed("2 ms were counted for no finished request");
    assert_eq!(wait_and_rate(&odd), (why, Reading::Ok(0.0)));
}

#[test]
fn a_counter_that_is_no_number_fails_and_is_not_made_up_for() {
    let mut reader = reader();
    let page = |value: &str| format!("vllm:generation_tokens_total {value}\n");
    let rate = |reader: &mut Reader, value: &str, millis| {
        read(reader, &page(value), millis).get(Metric::TokenThroughput)
    };
    assert_eq!(rate(&mut reader, "100", 0), failed(FIRST));
    let nan = failed("vllm:generation_tokens_total is NaN");
    assert_eq!(rate(&mut reader, "NaN", 1_000), nan);
    assert_eq!(rate(&mut reader, "300", 2_000), failed(FIRST));
    assert_eq!(rate(&mut reader, "301", 3_000), Reading::Ok(1.0));
    let infinite = failed("vllm:generation_tokens_total is inf");
    assert_eq!(rate(&mut reader, "+Inf", 4_000), infinite);
    let negative = failed("vllm:generation_tokens_total is -1");
    assert_eq!(rate(&mut reader, "-1", 5_000), negative);
    let huge = rate(&mut reader, "1e308", 6_000);
    assert_eq!(huge, failed(FIRST));
    // As a float one more is none more.
    assert_eq!(rate(&mut reader, "1e308", 7_000), Reading::Ok(0.0));
}

#[test]
fn a_page_of_another_engine_is_not_compared_with_the_one_before() {
    let mut reader = reader();
    read(&mut reader, "vllm:request_success_total 100\n", 0);
    let other = read(&mut reader, &triton(&[("x", 5_000, 0)]), 1_000);
    assert_eq!(other.get(Metric::RequestRate), failed(FIRST));
    assert_eq!(other.get(Metric::TokenThroughput), Reading::Unsupported);
    let back = read(&mut reader, "vllm:request_success_total 101\n", 2_000);
    assert_eq!(back.get(Metric::RequestRate), failed(FIRST));
}

proptest! {
    /// Whatever counters do, figures are non-negative and finite, and lines may come in any order.
    #[test]
    fn no_figure_is_negative_and_the_order_of_lines_is_nothing(
        scrapes in proptest::collection::vec(
            (1..20_000_i64, proptest::collection::vec((0..3_usize, 0..1_000_u64, 0..1_000_000_u64), 1..5)),
            1..12,
        ),
    ) {
        let (mut reader, mut other) = (reader(), self::reader());
        let mut now = 0;
        for (pause, models) in scrapes {
            now += pause;
            let unique: std::collections::BTreeMap<_, _> = models
                .into_iter()
                .map(|(model, count, micros)| (["x", "y", "z"][model], (count, micros)))
                .collect();
            let mut models: Vec<_> =
                unique.into_iter().map(|(model, (count, micros))| (model, count, micros)).collect();
            let readings = read(&mut reader, &triton(&models), now);
            models.reverse();
            prop_assert_eq!(&readings, &read(&mut other, &triton(&models), now));
            for (metric, reading) in readings.iter() {
                if let Some(value) = reading.value() {
                    prop_assert!(value >= 0.0 && value.is_finite(), "{} {}", metric, value);
                }
            }
        }
    }
}
