use super::*;

// cases.md O13
#[test]
#[rustfmt::skip]
fn typing_mistakes_are_named_with_the_nearest_good_word() {
    for (key, value, message) in [
        ("profil", "vllm", r#"unknown key "profil", nearest is profile"#),
        ("targetvalue", "70", r#"unknown key "targetvalue", nearest is targetValue"#),
        ("agregation", "avg", r#"unknown key "agregation", nearest is aggregation"#),
    ] {
        refused_but_specified(&[("scalerAddress", "gw:6000"), (key, value)], message, "gpu_utilization", 80.0);
    }
    let mean =
        r#"aggregation "mean": not one of total max min avg sum p50 p90 p95 p99, nearest is avg"#;
    refused_but_specified(&[("aggregation", "mean")], mean, "gpu_utilization", 80.0);
    let profile = r#"no profile "vllm-inferense", nearest is vllm-inference"#;
    refused_everywhere(&[("profile", "vllm-inferense")], profile);
    let metric =
        r#"metricType "gpu_utilisation": no metric "gpu_utilisation", nearest is gpu_utilization"#;
    refused_everywhere(&[("metricType", "gpu_utilisation")], metric);
}

// cases.md O13 (7)
#[test]
fn from_env_stands_for_the_key_without_it() {
    assert_eq!(trigger(&[("targetValueFromEnv", "70"), ("somethingFromEnv", "x")]).target, 70.0);
    assert_eq!(trigger(&[("targetValueFromEnv", "70"), ("targetValue", " 70")]).target, 70.0);
    assert_eq!(trigger(&[("FromEnv", "x"), ("scalerAddressFromEnv", "")]), trigger(&[]));
    let both = [("targetValueFromEnv", "70"), ("targetValue", "60")];
    refused_everywhere(&both, "targetValue and targetValueFromEnv differ, keep one");
}

#[test]
fn a_value_from_the_environment_may_be_a_secret_and_is_not_quoted() {
    refused_everywhere(
        &[("targetValueFromEnv", "80%")],
        "targetValueFromEnv (value from an environment variable) is wrong, it takes 0.001 to 9e15",
    );
    for key in KEYS {
        let (name, secret) = (format!("{}FromEnv", key.name), "SEC+RET88");
        let pairs = [(name.as_str(), secret), ("demandMetric", "q")];
        let pairs = &pairs[..if key.name == "demandMetric" { 1 } else { 2 }];
        let Err(error) = parse(&map(pairs), &PROFILES) else { continue };
        assert!(!error.to_string().contains("RET88"), "{error}");
    }
}

// cases.md O14; peer.md rows of targetValue
#[test]
#[rustfmt::skip]
fn targets_from_hell() {
    for good in ["80", " 80 ", "80.0", "\t80\n", "+80", "8e1", "80.0001"] {
        assert_eq!(trigger(&[("targetValue", good)]).target, 80.0, "{good}");
    }
    for (bad, message) in [
        ("80%", r#"targetValue "80%": write 80"#),
        ("0", r#"targetValue "0": must be at least 0.001"#),
        ("-5", r#"targetValue "-5": must be at least 0.001"#),
        ("NaN", r#"targetValue "NaN": must be a finite number"#),
        ("inf", r#"targetValue "inf": must be a finite number"#),
        ("Inf", r#"targetValue "Inf": must be a finite number"#),
        ("1e400", r#"targetValue "1e400": out of range"#),
        ("9223372036854775808", r#"targetValue "9223372036854775808": out of range, at most 9000000000000000"#),
        ("0.0001", r#"targetValue "0.0001": must be at least 0.001"#),
        ("", "targetValue is empty"),
        ("  ", "targetValue is empty"),
        ("0,8", r#"targetValue "0,8": write 0.8"#),
        ("1_000", r#"targetValue "1_000": write 1000"#),
        ("８０", r#"targetValue "８０": use the ASCII digits 0 to 9"#),
        ("0x50", r#"targetValue "0x50": hexadecimal, write 80"#),
    ] {
        refused_everywhere(&[("targetValue", bad)], message);
    }
    assert_eq!(trigger(&[("targetValue", "640"), ("aggregation", "sum")]).target, 640.0);
    assert_eq!(trigger(&[("targetValue", "640"), ("metricType", "power_draw")]).target, 640.0);
}

// cases.md O14; peer.md rows of activationThreshold, gpuIndex and the poll interval
#[test]
#[rustfmt::skip]
fn other_numbers_from_hell_leave_the_spec_answerable() {
    for (key, bad, reason) in [
        ("activationThreshold", "-1", "must be 0 or more"),
        ("activationThreshold", "NaN", "must be a finite number"),
        ("gpuIndex", "-2", "must be from 0 to 1023, or -1 for all"),
        ("gpuIndex", "0.5", "must be a whole number, or -1 for all"),
        ("gpuIndex", "99999999999999999999", "must be from 0 to 1023, or -1 for all"),
        ("pollIntervalSeconds", "0", "must be from 1 to 86400"),
        ("pollIntervalSeconds", "-1", "must be from 1 to 86400"),
        ("pollIntervalSeconds", "9223372037", "must be from 1 to 86400"),
        ("pollIntervalSeconds", "9999999999999", "must be from 1 to 86400"),
        ("window", "30", "has no unit, write 30s for seconds"),
        ("window", "2h", "must be from 0s to 1h"),
        ("windowFunction", "p95", "not one of avg max min p90, nearest is p90"),
        ("staleAfter", "50ms", "must be from 100ms to 10m"),
        ("coldStartTimeout", "soon", "not a duration such as 500ms, 30s or 1m30s"),
        ("engineLabels", "=x", "a label name is empty"),
        ("demandAbsent", "none", "not one of error zero, nearest is zero"),
        ("vllmEndpoint", "https://vllm:8000", "write http://HOST:PORT/PATH, only http is supported"),
    ] {
        let message = format!("{key} {bad:?}: {reason}");
        let pairs = [(key, bad), ("targetValue", "70"), ("demandEndpoint", "q"), ("demandMetric", "q")];
        refused_but_specified(&pairs, &message, "gpu_utilization", 70.0);
        refused_but_specified(&[(key, "")], &format!("{key} is empty"), "gpu_utilization", 80.0);
    }
    assert_eq!(trigger(&[("gpuIndex", "9")]).gpu_index, Some(9));
    assert_eq!(trigger(&[("gpuIndex", "-1")]).gpu_index, None);
    trigger(&[("pollIntervalSeconds", "30")]);
}

#[test]
fn every_problem_is_told_at_once_and_in_one_order() {
    refused(
        &[("windw", "1"), ("targetValue", "80%"), ("aggregation", "mean"), ("gpuIndex", "x")],
        "aggregation \"mean\": not one of total max min avg sum p50 p90 p95 p99, nearest is avg; \
         gpuIndex \"x\": not a number; targetValue \"80%\": write 80; \
         unknown key \"windw\", nearest is window",
    );
    let names: Vec<String> = (10..30).map(|n| format!("key{n}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let error = parse(&map(&pairs), &PROFILES).unwrap_err();
    assert_eq!(error.problems().len(), 9);
    assert_eq!(error.problems()[8], "12 more unknown keys");
}
