//! One line of a recording: what is taken, what is refused, and in which words.

use agent::device::replay::line::{Line, parse};
use shared::identity::PodKey;
use shared::metric::{Metric, Scope};
use shared::reading::Reading;

fn good(text: &str) -> Line {
    parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match parse(text.as_bytes()) {
        Ok(_) => panic!("{text} was taken"),
        Err(error) => error,
    }
}

#[test]
fn the_line_of_the_design_is_taken_as_it_is_meant() {
    let line = good(
        r#"{"at_ms":0,"devices":[{"uuid":"GPU-5a1c","index":0,"name":"NVIDIA H100 80GB HBM3","memory_total_mib":81559,"gpu_utilization":93.0,"memory_utilization":41.0,"memory_used_mib":70000,"temperature":64,"power_draw":512.5,"holders":[{"namespace":"ai","pod":"vllm-0","container":"vllm","share":1.0}]}],"engines":[{"namespace":"ai","pod":"vllm-0","metrics":{"requests_waiting":12,"requests_running":30,"kv_cache_usage":71.5}}]}"#,
    );
    assert!(line.unknown.is_empty());
    let device = &line.observation.devices[0];
    assert_eq!(device.uuid.as_str(), "GPU-5a1c");
    assert_eq!(device.memory_total_mib, Some(81_559.0));
    assert_eq!(device.readings.value(Metric::GpuUtilization), Some(93.0));
    let percent = device.readings.value(Metric::MemoryUsedPercent).unwrap();
    assert!((percent - 85.827_4).abs() < 1e-3, "{percent}");
    assert_eq!(device.readings.get(Metric::SmActivity), Reading::Unsupported);
    assert_eq!(device.holders[0].pod, PodKey::new("ai", "vllm-0"));
    assert_eq!(device.holders[0].share, Some(1.0));
    let engine = &line.observation.engines[0];
    assert_eq!(engine.readings.value(Metric::RequestsWaiting), Some(12.0));
    assert_eq!(engine.readings.get(Metric::RequestRate), Reading::Unsupported);
}

#[test]
fn every_metric_is_known_under_its_name_and_null_is_a_failure() {
    for &metric in Metric::ALL {
        let name = metric.name();
        let write = |value: &str| match metric.scope() {
            Scope::Device => {
                format!(r#"{{"at_ms":0,"devices":[{{"uuid":"GPU-a","{name}":{value}}}]}}"#)
            }
            Scope::Engine => format!(
                r#"{{"at_ms":0,"engines":[{{"namespace":"n","pod":"p","metrics":{{"{name}":{value}}}}}]}}"#
            ),
        };
        let read = |text: &str| {
            let line = good(text);
            assert!(line.unknown.is_empty(), "{:?}", line.unknown);
            match metric.scope() {
                Scope::Device => line.observation.devices[0].readings.get(metric),
                Scope::Engine => line.observation.engines[0].readings.get(metric),
            }
        };
        assert_eq!(read(&write("7.5")), Reading::Ok(7.5));
        assert_eq!(read(&write("null")), Reading::Failed("null in the recording".into()));
    }
}

#[test]
fn an_engine_without_metrics_failed_in_every_metric() {
    let line =
        good(r#"{"at_ms":0,"engines":[{"namespace":"n","pod":"p","uid":"u","metrics":null}]}"#);
    let engine = &line.observation.engines[0];
    assert_eq!(engine.engine.uid.as_ref().unwrap().as_str(), "u");
    for &metric in Metric::ALL {
        let expected = match metric.scope() {
            Scope::Engine => Reading::Failed("scrape failed".into()),
            Scope::Device => Reading::Unsupported,
        };
        assert_eq!(engine.readings.get(metric), expected);
    }
}

#[test]
fn an_engine_may_be_there_once_for_each_selection_of_its_series() {
    let engine = |labels: &str| {
        format!(r#"{{"namespace":"n","pod":"p","labels":"{labels}","metrics":{{}}}}"#)
    };
    let line = |all: &[&str]| {
        let all: Vec<_> = all.iter().map(|labels| engine(labels)).collect();
        format!(r#"{{"at_ms":0,"engines":[{}]}}"#, all.join(","))
    };
    let both = good(&line(&["", "engine=1", "b=2 , a=x=y"]));
    let labels: Vec<_> =
        both.observation.engines.iter().map(|one| one.engine.labels.to_string()).collect();
    assert_eq!(labels, ["", "engine=1", "a=x=y,b=2"]);
    let twice = "engine of n/p is there twice; write each pod once a line, or with other labels";
    assert_eq!(refusal(&line(&["a=1,b=2", "b=2,a=1"])), twice);
    assert_eq!(refusal(&line(&["a"])), "labels of n/p: write name=value,name=value");
}

#[test]
fn used_memory_in_percent_is_computed_where_it_can_be() {
    let percent = |fields: &str| {
        let line = good(&format!(r#"{{"at_ms":0,"devices":[{{"uuid":"a",{fields}}}]}}"#));
        line.observation.devices[0].readings.get(Metric::MemoryUsedPercent)
    };
    let failed = Reading::Failed("null in the recording".into());
    for (fields, expected) in [
        (r#""memory_total_mib":200,"memory_used_mib":50"#, Reading::Ok(25.0)),
        (
            r#""memory_total_mib":200,"memory_used_mib":50,"memory_used_percent":99"#,
            Reading::Ok(25.0),
        ),
        (r#""memory_total_mib":200,"memory_used_percent":99"#, Reading::Ok(99.0)),
        (r#""memory_used_mib":50"#, Reading::Unsupported),
        (r#""memory_total_mib":200,"memory_used_mib":null"#, failed.clone()),
        (r#""memory_total_mib":null,"memory_used_mib":50"#, failed),
        (
            r#""memory_total_mib":200,"memory_used_mib":null,"memory_used_percent":9"#,
            Reading::Ok(9.0),
        ),
    ] {
        assert_eq!(percent(fields), expected, "{fields}");
    }
}

#[test]
fn what_a_snapshot_adds_is_taken_without_a_word() {
    let line = good(
        r#"{"at_ms":0,"devices":[{"uuid":"MIG-a","mig":{"parent":"GPU-a","profile":"3g.40gb"},"unattributed":0.5,"reason":"kubelet is slow","holders":[{"namespace":"n","pod":"p","share":0.5,"source":"kubelet","estimated":true,"undeclared":true,"gpu_utilization":10,"memory_used_mib":5}]}]}"#,
    );
    assert_eq!(line.unknown, Vec::<String>::new());
    let device = &line.observation.devices[0];
    assert_eq!(device.mig.as_ref().unwrap().profile.as_ref(), "3g.40gb");
    assert_eq!(device.reason.as_deref(), Some("kubelet is slow"));
    assert!(device.holders[0].estimated);
    let own = [(Metric::GpuUtilization, 10.0), (Metric::MemoryUsedMib, 5.0)];
    assert_eq!(device.holders[0].own, own);
}

#[test]
fn unknown_keys_are_named_with_the_one_that_was_meant() {
    let line = good(
        r#"{"at_ms":0,"devices":[{"uuid":"a","gpu_utilisation":1,"holders":[{"namespace":"n","pod":"p","shares":1}]}],"xyz":1}"#,
    );
    assert_eq!(
        line.unknown,
        [
            r#"unknown key "shares" of a holder; did you mean "share"?"#,
            r#"unknown key "gpu_utilisation" of a device; did you mean "gpu_utilization"?"#,
            r#"unknown key "xyz" of a line"#,
        ]
    );
}

#[test]
fn a_broken_line_is_refused_with_what_is_wrong() {
    let device = |fields: &str| format!(r#"{{"at_ms":0,"devices":[{{"uuid":"a",{fields}}}]}}"#);
    let holders = |holders: &str| device(&format!(r#""holders":[{holders}]"#));
    for (text, expected) in [
        ("{".into(), "not JSON at column 1: EOF while parsing an object; write one object a line"),
        ("[]".into(), "the line is []; write an object {…}"),
        ("{}".into(), "the line has no at_ms; write \"at_ms\":MILLISECONDS"),
        (r#"{"at_ms":"0"}"#.into(), r#"at_ms is "0"; write a number"#),
        (r#"{"at_ms":0,"devices":{}}"#.into(), "devices is {}; write a list […]"),
        (r#"{"at_ms":0,"devices":[{"index":0}]}"#.into(), "device 0 has no uuid; write \"uuid\":\"GPU-…\""),
        (r#"{"at_ms":0,"devices":[{"uuid":""}]}"#.into(), "device 0 has no uuid"),
        (r#"{"at_ms":0,"devices":[{"uuid":"a"},{"uuid":"a"}]}"#.into(), "device a is there twice"),
        (device(r#""gpu_utilization":"93""#), r#"device a: gpu_utilization is "93"; write a number, or null"#),
        (device(r#""gpu_utilization":140"#), "device a: gpu_utilization 140 is out of range (0 to 100 %)"),
        (device(r#""temperature":-1"#), "temperature -1 is out of range"),
        (device(r#""memory_total_mib":0"#), "memory_total_mib 0 is out of range"),
        (device(r#""memory_total_mib":5,"memory_used_mib":6"#), "memory_used_mib 6 is more than memory_total_mib 5"),
        (device(r#""index":1.5"#), "index is 1.5; write a whole number from 0"),
        (device(r#""mig":{"parent":"GPU-a"}"#), "device a: mig has no profile"),
        (holders(r#"{"pod":"p"}"#), "device a: holder 0 has no namespace"),
        (holders(r#"{"namespace":"n","pod":"p","share":1.5}"#), "share 1.5 is not within 0 to 1"),
        (
            holders(r#"{"namespace":"n","pod":"p","share":0.7},{"namespace":"n","pod":"q","share":0.5}"#),
            "device a: the shares of its pods add up to 1.2; write shares of at most 1 together",
        ),
        (holders(r#"{"namespace":"n","pod":"p","gpu_utilization":101}"#), "gpu_utilization 101 is out of range"),
        (
            r#"{"at_ms":0,"engines":[{"namespace":"n","pod":"p"}]}"#.into(),
            "engine of n/p has no metrics; write an object, or null",
        ),
        (
            r#"{"at_ms":0,"engines":[{"namespace":"n","pod":"p","metrics":{}},{"namespace":"n","pod":"p","metrics":{}}]}"#.into(),
            "engine of n/p is there twice",
        ),
        (
            r#"{"at_ms":0,"engines":[{"namespace":"n","pod":"p","metrics":{"kv_cache_usage":101}}]}"#.into(),
            "metrics of n/p: kv_cache_usage 101 is out of range",
        ),
    ] {
        let refusal = refusal(&text);
        assert!(refusal.contains(expected), "{text}\n  said {refusal}\n  not  {expected}");
    }
}

#[test]
fn shares_may_miss_one_by_a_rounding_and_containers_of_one_pod_may_share_it_all() {
    for holders in [
        r#"{"namespace":"n","pod":"p","share":0.3333334},{"namespace":"n","pod":"q","share":0.3333333},{"namespace":"n","pod":"r","share":0.3333334}"#,
        r#"{"namespace":"n","pod":"p","container":"a","share":1},{"namespace":"n","pod":"p","container":"b","share":1}"#,
    ] {
        good(&format!(r#"{{"at_ms":0,"devices":[{{"uuid":"a","holders":[{holders}]}}]}}"#));
    }
}
