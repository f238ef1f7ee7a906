//! Pages that are not what they should be, and pages of which only some series count.

use std::sync::Arc;

use shared::metric::Metric;
use shared::reading::Reading;

use crate::engine_pages::{once, selected};
use crate::engine_rates::{failed, reader};
use crate::support::at;

fn refused(page: &str, expected: Option<&str>) -> String {
    reader().read(page, expected, &["".into()], at(0)).unwrap_err()
}

#[test]
fn the_engine_that_a_trigger_names_is_read_and_no_other() {
    let both = "nv_inference_pending_request_count 4\nvllm:num_requests_waiting 3\n";
    assert_eq!(once(both).get(Metric::RequestsWaiting), Reading::Ok(3.0));
    let triton = reader().read(both, Some("Triton"), &["".into()], at(0)).unwrap();
    assert_eq!(triton[0].get(Metric::RequestsWaiting), Reading::Ok(4.0));
    let vllm = "vllm:num_requests_waiting 3\n";
    let why = "it has no series of SGLang; it has vllm:num_requests_waiting";
    assert_eq!(refused(vllm, Some("sglang")), why);
    let why = "engine \"vlm\" is none of: vllm, sglang, trtllm, tgi, triton, llamacpp, nim";
    assert_eq!(refused(vllm, Some("vlm")), why);
}

#[test]
fn a_page_of_no_engine_says_what_it_is_instead() {
    let titles = "it has no series of vLLM, SGLang, TensorRT-LLM, Text Generation Inference, \
                  Triton, llama.cpp, NIM; ";
    for (page, instead) in [
        ("", "it is empty"),
        ("# only comments\n", "it is empty"),
        ("go_threads 1\ngo_threads 2\nup 1\n", "it has go_threads, up"),
        ("a 1\nb 1\nc 1\nd 1\n", "it has a, b, c, …"),
        ("[{\"iter\": 1}]", "line 1: it does not begin with a series name"),
        ("\"\\u00fc", "line 1: it does not begin with a series name"),
        ("num_requests_waiting_by_reason 3\n", "it has num_requests_waiting_by_reason"),
    ] {
        assert_eq!(refused(page, None), format!("{titles}{instead}"), "{page}");
    }
}

#[test]
fn a_selection_that_nothing_has_names_what_there_is() {
    let page = "vllm:num_requests_waiting{engine=\"0\",model_name=\"a\"} 1\n\
                vllm:num_requests_waiting{engine=\"1\",model_name=\"b, c\"} 2\n\
                vllm:num_requests_running{engine=\"1\",model_name=\"b, c\"} 9\n";
    let waiting = |labels| selected(page, labels).get(Metric::RequestsWaiting);
    assert_eq!(waiting("engine=1"), Reading::Ok(2.0));
    assert_eq!(waiting("engine=0,model_name=a"), Reading::Ok(1.0));
    let why = "no series of vLLM has engine=2,x=y; engine is one of: 0, 1; no series has a label x";
    assert_eq!(waiting("engine=2,x=y"), failed(why));
    let running = selected(page, "engine=0").get(Metric::RequestsRunning);
    let why = "vLLM has no vllm:num_requests_running with engine=0 here; \
               found vllm:num_requests_waiting, vllm:num_requests_running";
    assert_eq!(running, failed(why));
    let why = "engine labels \"engine\": write name=value,name=value";
    assert_eq!(waiting("engine"), failed(why));
}

#[test]
fn selections_are_read_side_by_side_and_a_new_one_waits_for_its_own_second_scrape() {
    let page = |a: u32, b: u32| {
        format!(
            "vllm:generation_tokens_total{{model_name=\"a\"}} {a}\n\
             vllm:generation_tokens_total{{model_name=\"b\"}} {b}\n"
        )
    };
    let labels = |all: &[&str]| -> Vec<Arc<str>> { all.iter().map(|one| (*one).into()).collect() };
    let mut reader = reader();
    let mut rates = |page: &str, selections: &[Arc<str>], millis| -> Vec<Reading> {
        let readings = reader.read(page, None, selections, at(millis)).unwrap();
        readings.iter().map(|one| one.get(Metric::TokenThroughput)).collect()
    };
    let two = labels(&["", "model_name=a"]);
    rates(&page(0, 0), &two, 0);
    assert_eq!(rates(&page(1, 10), &two, 1_000), [Reading::Ok(11.0), Reading::Ok(1.0)]);
    let three = labels(&["model_name=b", "", "model_name=a"]);
    let read = rates(&page(2, 30), &three, 2_000);
    assert_eq!(read, [Reading::Ok(20.0), Reading::Ok(16.0), Reading::Ok(1.0)]);
}

#[test]
fn a_series_that_is_there_twice_is_read_once_or_not_at_all() {
    let line = "vllm:num_requests_waiting{a=\"1\",b=\"2\"} 3\n";
    let same = format!("{line}vllm:num_requests_waiting{{b=\"2\",a=\"1\"}} 3.0\n");
    assert_eq!(once(&same).get(Metric::RequestsWaiting), Reading::Ok(3.0));
    let other = format!("{line}vllm:num_requests_waiting{{b=\"2\",a=\"1\"}} 4\n");
    let why = "vllm:num_requests_waiting is on the page twice, with two values";
    assert_eq!(once(&other).get(Metric::RequestsWaiting), failed(why));
}

#[test]
fn numbers_that_nobody_can_count_to_are_no_readings() {
    for (value, why) in [
        ("1e308", "requests_waiting 1e308 is out of range (0 to 1000000000)"),
        ("+Inf", "vllm:num_requests_waiting is inf"),
        ("-1", "vllm:num_requests_waiting is -1"),
        ("NaN", "vllm:num_requests_waiting is NaN"),
    ] {
        let page = format!("vllm:num_requests_waiting {value}\n");
        assert_eq!(once(&page).get(Metric::RequestsWaiting), failed(why));
    }
    let page =
        "vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"1\"} NaN\n";
    let why = "vllm:num_requests_waiting is NaN";
    assert_eq!(once(page).get(Metric::RequestsWaiting), failed(why));
    assert_eq!(selected(page, "engine=0").get(Metric::RequestsWaiting), Reading::Ok(1.0));
}

#[test]
fn a_broken_line_is_named_where_its_series_is_missed() {
    let page = "vllm:num_requests_running 1\n-\n";
    let why = "vLLM has no vllm:num_requests_waiting here; found vllm:num_requests_running; \
               line 2: it does not begin with a series name";
    assert_eq!(once(page).get(Metric::RequestsWaiting), failed(why));
}

#[test]
fn a_broken_line_of_a_series_that_is_read_leaves_no_sum_of_the_rest() {
    for (line, what) in [
        ("vllm:num_requests_waiting{engine=\"1\"} oops", "its value is not a number"),
        ("vllm:num_requests_waiting{engine=\"1} 3", "a label's value is not closed"),
        ("{\"vllm:num_requests_waiting\",engine=\"1\"} 3 x", "its timestamp is not a number"),
    ] {
        let page = format!(
            "vllm:num_requests_waiting{{engine=\"0\"}} 4\n{line}\nvllm:num_requests_running 2\n"
        );
        let why = failed(&format!("vllm:num_requests_waiting on line 2: {what}"));
        assert_eq!(once(&page).get(Metric::RequestsWaiting), why);
        assert_eq!(selected(&page, "engine=0").get(Metric::RequestsWaiting), why, "whose is it?");
        assert_eq!(once(&page).get(Metric::RequestsRunning), Reading::Ok(2.0));
    }
    let longer = "vllm:num_requests_waiting 4\nvllm:num_requests_waiting_by_reason{a=\"b\"} x\n";
    assert_eq!(once(longer).get(Metric::RequestsWaiting), Reading::Ok(4.0), "another's line");
}

#[test]
fn a_page_that_is_cut_off_leaves_in_doubt_what_may_have_followed() {
    let cut = |page: &str| {
        let readings = once(page);
        [Metric::RequestsWaiting, Metric::RequestsRunning].map(|metric| readings.get(metric))
    };
    let whole = "vllm:num_requests_running 2\nvllm:num_requests_waiting{engine=\"0\"} 4\n";
    assert_eq!(cut(whole.trim_end()), [Reading::Ok(4.0), Reading::Ok(2.0)], "only the newline");
    let space = "there is no space between name and value, or a character no name has";
    for (end, what) in [
        ("vllm:num_requests_wai", space),
        ("vllm:num_requests_waiting{engine=\"1", "a label's value is not closed"),
        ("vllm:num_requests_waiting{engine=\"1\"}", "there is no value"),
    ] {
        let why = format!("vllm:num_requests_waiting on line 3: {what}");
        assert_eq!(cut(&format!("{whole}{end}")), [failed(&why), Reading::Ok(2.0)], "{end}");
    }
    let [waiting, running] = cut(&format!("{whole}vllm:num_req"));
    assert!(matches!((waiting, running), (Reading::Failed(_), Reading::Failed(_))));
    // Without failures TGI has no such series: unless it only was not reached.
    let tgi = "tgi_queue_size 1\ntgi_request_fail";
    let why = format!("tgi_request_failure on line 2: {space}");
    assert_eq!(once(tgi).get(Metric::ErrorRate), failed(&why));
    let why = format!("the page ends within line 2: {space}");
    assert_eq!(once("tgi_queue_size 1\npython_info").get(Metric::ErrorRate), failed(&why));
}

#[test]
fn a_page_with_a_hundred_thousand_series_is_read_or_refused_whole() {
    let foreign: String = (0..100_000).map(|at| format!("other{{at=\"{at}\"}} 1\n")).collect();
    let page = foreign + "vllm:num_requests_waiting 3\n";
    assert_eq!(once(&page).get(Metric::RequestsWaiting), Reading::Ok(3.0));
    let line = |at: u32| format!("vllm:num_requests_waiting{{engine=\"{at}\"}} 1\n");
    let own: String = (0..100_000).map(line).collect();
    let why = "it has more than 8192 series of what is read of vLLM";
    assert_eq!(refused(&own, None), why);
}

#[test]
fn a_reason_is_a_sentence_however_long_the_page() {
    let long = "ü".repeat(1 << 19);
    let page = format!("vllm:num_requests_waiting{{engine=\"{long}\"}} 1\n");
    let Reading::Failed(why) = selected(&page, "engine=0").get(Metric::RequestsWaiting) else {
        panic!("not selected");
    };
    assert!(why.starts_with("no series of vLLM has engine=0; engine is one of: ü"), "{why}");
    assert!(why.len() <= 512, "{}", why.len());
}
