//! Pages in each engine's own format, and what is read of them.

use std::sync::Arc;

use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use crate::engine_rates::{FIRST, failed, read, reader};
use crate::support::at;

const LIBRARY: &str = include_str!("../../../shared/tests/it/fixtures/prometheus_client.txt");

/// The readings of one page, scraped for the first time.
fn once(page: &str) -> Readings {
    read(&mut reader(), page, 0)
}

/// The readings of two pages, a second apart.
fn twice(before: &str, after: &str) -> Readings {
    let mut reader = reader();
    read(&mut reader, before, 0);
    read(&mut reader, after, 1_000)
}

fn check(readings: &Readings, expected: &[(Metric, f64)]) {
    for (metric, value) in expected {
        assert_eq!(readings.get(*metric), Reading::Ok(*value), "{metric}");
    }
    assert_eq!(readings.known().iter().count(), expected.len(), "{readings:?}");
}

fn selected(page: &str, labels: &str) -> Readings {
    let labels: Arc<str> = labels.into();
    reader().read(page, None, &[labels], at(0)).unwrap().remove(0)
}

fn refused(page: &str, expected: Option<&str>) -> String {
    reader().read(page, expected, &["".into()], at(0)).unwrap_err()
}

fn kv(page: &str) -> Reading {
    once(page).get(Metric::KvCacheUsage)
}

#[test]
fn o11_a_gauge_is_read_under_either_name_and_once_under_both() {
    let a = "vllm:gpu_cache_usage_perc{model_name=\"m1\"} 0.42\n";
    let b = "vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n\
             vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n";
    let c = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n";
    for page in [a, b, c] {
        assert_eq!(kv(page), Reading::Ok(42.0), "{page}");
    }
    let d = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} NaN\n";
    assert_eq!(kv(d), failed("vllm:kv_cache_usage_perc is NaN"));
    let e = "vllm:num_requests_running{engine=\"0\",model_name=\"m1\"} 3.0\n";
    let why = "vLLM has no vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc here; \
               found vllm:num_requests_running";
    assert_eq!(kv(e), failed(why));
    assert_eq!(once(e).get(Metric::RequestsRunning), Reading::Ok(3.0));
}

#[test]
fn o12_a_queues_add_up_and_ratios_are_averaged_in_any_order() {
    let mut lines = [
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"m1\"} 3.0",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"m1\"} 7.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.30",
        "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m1\"} 0.90",
    ];
    for _ in 0..2 {
        let readings = once(&lines.join("\n"));
        assert_eq!(readings.get(Metric::RequestsWaiting), Reading::Ok(10.0));
        assert_eq!(readings.get(Metric::KvCacheUsage), Reading::Ok(60.0));
        lines.reverse();
    }
}

#[test]
fn o07_idle_is_zero_in_every_form() {
    let page = "vllm:num_requests_waiting 0.0\nvllm:num_requests_running 0.0\n\
                vllm:kv_cache_usage_perc 0.0\nvllm:request_success_total{finished_reason=\"stop\"} 812\n\
                vllm:request_success_total{finished_reason=\"error\"} 2\n\
                vllm:request_queue_time_seconds_sum 91.5\nvllm:request_queue_time_seconds_count 812\n";
    check(
        &twice(page, page),
        &[
            (Metric::RequestsWaiting, 0.0),
            (Metric::RequestsRunning, 0.0),
            (Metric::KvCacheUsage, 0.0),
            (Metric::RequestRate, 0.0),
            (Metric::ErrorRate, 0.0),
            (Metric::QueueWaitMs, 0.0),
        ],
    );
}

#[test]
fn a_page_of_the_library_that_engines_use_is_read() {
    let readings = once(LIBRARY);
    // 3 + 6: not the same again by reason, of which there are as many.
    assert_eq!(readings.get(Metric::RequestsWaiting), Reading::Ok(9.0));
    assert_eq!(readings.get(Metric::RequestsRunning), Reading::Ok(24.0));
    assert_eq!(readings.get(Metric::KvCacheUsage), Reading::Ok(45.0));
    assert_eq!(readings.get(Metric::TokenThroughput), failed(FIRST));
    let one = selected(LIBRARY, "engine=1");
    assert_eq!(one.get(Metric::RequestsWaiting), Reading::Ok(6.0));
    let more = LIBRARY.replace("24690.0", "25690.0").replace("\"} 200.0", "\"} 205.0");
    let readings = twice(LIBRARY, &more);
    assert_eq!(readings.get(Metric::TokenThroughput), Reading::Ok(1_000.0));
    assert_eq!(readings.get(Metric::RequestRate), Reading::Ok(5.0));
    assert_eq!(readings.get(Metric::QueueWaitMs), Reading::Ok(0.0));
}

#[test]
fn vllm_counts_and_times_requests() {
    let page = |done: u32, failed: u32| {
        let of = |seconds: f64| seconds * f64::from(done + failed);
        format!(
            "vllm:generation_tokens_total{{engine=\"0\"}} {}\n\
             vllm:request_success_total{{engine=\"0\",finished_reason=\"stop\"}} {done}\n\
             vllm:request_success_total{{engine=\"0\",finished_reason=\"error\"}} {failed}\n\
             vllm:request_queue_time_seconds_sum{{engine=\"0\"}} {}\n\
             vllm:request_queue_time_seconds_count{{engine=\"0\"}} {total}\n\
             vllm:time_to_first_token_seconds_sum{{engine=\"0\"}} {}\n\
             vllm:time_to_first_token_seconds_count{{engine=\"0\"}} {total}\n\
             vllm:e2e_request_latency_seconds_sum{{engine=\"0\"}} {}\n\
             vllm:e2e_request_latency_seconds_count{{engine=\"0\"}} {total}\n",
            done * 100,
            of(0.25),
            of(0.5),
            of(4.0),
            total = done + failed,
        )
    };
    check(
        &twice(&page(4, 0), &page(10, 2)),
        &[
            (Metric::TokenThroughput, 600.0),
            (Metric::RequestRate, 8.0),
            (Metric::ErrorRate, 2.0),
            (Metric::QueueWaitMs, 250.0),
            (Metric::TimeToFirstTokenMs, 500.0),
            (Metric::RequestLatencyMs, 4_000.0),
        ],
    );
    // The name that old releases have.
    let old = |tokens: u32| format!("vllm:generation_tokens {tokens}\n");
    assert_eq!(twice(&old(0), &old(7)).get(Metric::TokenThroughput), Reading::Ok(7.0));
}

#[test]
fn sglang_ranks_of_one_replica_count_once_and_replicas_add_up() {
    let page = |tokens: u32| {
        let mut page = String::new();
        for (dp, queue, usage) in [(0, 3, 0.2), (1, 5, 0.6)] {
            for tp in 0..2 {
                // The second rank has not heard of the newest request yet.
                let late = queue - tp;
                page += &format!(
                    "sglang:num_queue_reqs{{model_name=\"m\",tp_rank=\"{tp}\",pp_rank=\"0\",dp_rank=\"{dp}\"}} {late}\n\
                     sglang:num_grammar_queue_reqs{{model_name=\"m\",tp_rank=\"{tp}\",pp_rank=\"0\",dp_rank=\"{dp}\"}} 1\n\
                     sglang:num_running_reqs{{model_name=\"m\",tp_rank=\"{tp}\",pp_rank=\"0\",dp_rank=\"{dp}\"}} 10\n\
                     sglang:token_usage{{model_name=\"m\",tp_rank=\"{tp}\",pp_rank=\"0\",dp_rank=\"{dp}\"}} {usage}\n\
                     sglang:queue_time_seconds_sum{{tp_rank=\"{tp}\",dp_rank=\"{dp}\"}} {}\n\
                     sglang:queue_time_seconds_count{{tp_rank=\"{tp}\",dp_rank=\"{dp}\"}} {tokens}\n",
                    f64::from(tokens) * 0.5,
                );
            }
        }
        page + &format!(
            "sglang:generation_tokens_total{{model_name=\"m\"}} {tokens}\n\
             sglang:num_requests_total{{model_name=\"m\"}} {}\n\
             sglang:time_to_first_token_seconds_sum {tokens}\nsglang:time_to_first_token_seconds_count {tokens}\n\
             sglang:e2e_request_latency_seconds_sum {tokens}\nsglang:e2e_request_latency_seconds_count {tokens}\n",
            tokens / 10,
        )
    };
    check(
        &twice(&page(100), &page(160)),
        &[
            (Metric::RequestsWaiting, 10.0),
            (Metric::RequestsRunning, 20.0),
            (Metric::KvCacheUsage, 40.0),
            (Metric::TokenThroughput, 60.0),
            (Metric::RequestRate, 6.0),
            (Metric::QueueWaitMs, 500.0),
            (Metric::TimeToFirstTokenMs, 1_000.0),
            (Metric::RequestLatencyMs, 1_000.0),
        ],
    );
}

#[test]
fn tgi_has_no_cache_and_no_failures_until_one_happens() {
    let page = |done: u32| {
        format!(
            "# TYPE tgi_queue_size gauge\ntgi_queue_size 4\ntgi_batch_current_size 16\n\
             # TYPE tgi_request_success counter\ntgi_request_success {done}\n\
             tgi_request_generated_tokens_sum {}\ntgi_request_generated_tokens_count {done}\n\
             tgi_request_queue_duration_bucket{{le=\"+Inf\"}} {done}\n\
             tgi_request_queue_duration_sum {}\ntgi_request_queue_duration_count {done}\n\
             tgi_request_duration_sum {}\ntgi_request_duration_count {done}\n",
            done * 50,
            f64::from(done) * 0.125,
            done * 2,
        )
    };
    let readings = twice(&page(8), &page(12));
    check(
        &readings,
        &[
            (Metric::RequestsWaiting, 4.0),
            (Metric::RequestsRunning, 16.0),
            (Metric::TokenThroughput, 200.0),
            (Metric::RequestRate, 4.0),
            (Metric::ErrorRate, 0.0),
            (Metric::QueueWaitMs, 125.0),
            (Metric::RequestLatencyMs, 2_000.0),
        ],
    );
    assert_eq!(readings.get(Metric::KvCacheUsage), Reading::Unsupported);
    assert_eq!(readings.get(Metric::TimeToFirstTokenMs), Reading::Unsupported);
    let fails = page(12) + "tgi_request_failure{err=\"overloaded\"} 3\n";
    assert_eq!(twice(&page(12), &fails).get(Metric::ErrorRate), Reading::Ok(3.0));
}

#[test]
fn triton_has_a_gauge_for_its_queue_and_counters_for_the_rest() {
    let page = |done: u32| {
        let mut page = String::new();
        for model in ["x", "y"] {
            page += &format!(
                "nv_inference_pending_request_count{{model=\"{model}\",version=\"1\"}} 6\n\
                 nv_inference_request_success{{model=\"{model}\",version=\"1\"}} {done}\n\
                 nv_inference_request_failure{{model=\"{model}\",reason=\"OTHER\",version=\"1\"}} {}\n\
                 nv_inference_queue_duration_us{{model=\"{model}\",version=\"1\"}} {}\n\
                 nv_inference_request_duration_us{{model=\"{model}\",version=\"1\"}} {}\n",
                done / 10,
                done * 3_000,
                done * 40_000,
            );
        }
        page
    };
    let readings = twice(&page(100), &page(110));
    check(
        &readings,
        &[
            (Metric::RequestsWaiting, 12.0),
            (Metric::RequestRate, 20.0),
            (Metric::ErrorRate, 2.0),
            (Metric::QueueWaitMs, 3.0),
            (Metric::RequestLatencyMs, 40.0),
        ],
    );
    assert_eq!(readings.get(Metric::RequestsRunning), Reading::Unsupported);
    let backend = page(1)
        + "nv_trt_llm_request_metrics{model=\"x\",request_type=\"waiting\",version=\"1\"} 9\n\
           nv_trt_llm_request_metrics{model=\"x\",request_type=\"scheduled\",version=\"1\"} 5\n\
           nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"x\",version=\"1\"} 900\n\
           nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"x\",version=\"1\"} 0.25\n";
    assert_eq!(once(&backend).get(Metric::RequestsRunning), Reading::Ok(5.0));
    assert_eq!(once(&backend).get(Metric::KvCacheUsage), Reading::Ok(25.0));
}

#[test]
fn tensorrt_nim_and_llama_cpp_are_known_by_their_names() {
    let labels = "{model_name=\"m\",engine_type=\"trtllm\"}";
    let trtllm = format!(
        "trtllm_num_requests_waiting{labels} 2\ntrtllm_num_requests_running{labels} 7\n\
         trtllm_kv_cache_utilization{labels} 0.5\n"
    );
    check(
        &once(&trtllm),
        &[
            (Metric::RequestsWaiting, 2.0),
            (Metric::RequestsRunning, 7.0),
            (Metric::KvCacheUsage, 50.0),
        ],
    );
    let nim = "num_requests_waiting{model_name=\"m\"} 2\nnum_requests_running{model_name=\"m\"} 7\n\
               gpu_cache_usage_perc{model_name=\"m\"} 0.5\n";
    check(
        &once(nim),
        &[
            (Metric::RequestsWaiting, 2.0),
            (Metric::RequestsRunning, 7.0),
            (Metric::KvCacheUsage, 50.0),
        ],
    );
    let llama = |tokens: u32| {
        format!(
            "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 2\n\
             llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total {tokens}\n"
        )
    };
    let expected = [
        (Metric::RequestsWaiting, 2.0),
        (Metric::RequestsRunning, 1.0),
        (Metric::TokenThroughput, 30.0),
    ];
    check(&twice(&llama(10), &llama(40)), &expected);
    // One release quotes the whole page.
    let quoted = |tokens| serde_json::to_string(&llama(tokens)).unwrap();
    check(&twice(&quoted(10), &quoted(40)), &expected);
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
    let page = "vllm:num_requests_running 1\nvllm:num_requests_waiting{x=\"} 3\n";
    let why = "vLLM has no vllm:num_requests_waiting here; found vllm:num_requests_running; \
               line 2: a label's value is not closed";
    assert_eq!(once(page).get(Metric::RequestsWaiting), failed(why));
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
