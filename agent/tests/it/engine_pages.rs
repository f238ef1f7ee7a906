//! Pages in each engine's own format, and what is read of them.

use std::sync::Arc;

use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use crate::engine_rates::{FIRST, failed, read, reader};
use crate::support::at;

const LIBRARY: &str = include_str!("../../../shared/tests/it/fixtures/prometheus_client.txt");

/// The readings of one page, scraped for the first time.
pub(crate) fn once(page: &str) -> Readings {
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

pub(crate) fn selected(page: &str, labels: &str) -> Readings {
    let labels: Arc<str> = labels.into();
    reader().read(page, None, &[labels], at(0)).unwrap().remove(0)
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
