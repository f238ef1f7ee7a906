//! Pages of metrics, line by line.

use shared::exposition::{Kind, Matchers, NotText, Series, parse, text};

const CLASSIC: &str = include_str!("fixtures/prometheus_client.txt");
const OPENMETRICS: &str = include_str!("fixtures/prometheus_client.openmetrics.txt");

/// The label that the fixtures' script gives everything that has to be escaped.
const ODD: &str = "a \"b\" \\ c\nd, {e}=f # g";

fn only(page: &str) -> Series<'_> {
    let found: Vec<_> = parse(page).collect();
    let [Ok(series)] = found.as_slice() else { panic!("{page:?}: {found:?}") };
    series.clone()
}

fn labels(series: &Series<'_>) -> Vec<(String, String)> {
    series.labels.iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_form_of_a_line_is_read() {
    type Line<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], f64);
    let lines: &[Line<'_>] = &[
        ("up 1", "up", &[], 1.0),
        ("vllm:num_requests_waiting 3.0", "vllm:num_requests_waiting", &[], 3.0),
        ("a{} 1", "a", &[], 1.0),
        ("a{b=\"c\"} 1e3", "a", &[("b", "c")], 1_000.0),
        ("a{b=\"c\",} -2", "a", &[("b", "c")], -2.0),
        ("a{b=\"c\"}1", "a", &[("b", "c")], 1.0),
        ("  a\t{ b = \"c\" , d=\"e\" , }  +Inf\t", "a", &[("b", "c"), ("d", "e")], f64::INFINITY),
        ("a -Inf 1700000000000", "a", &[], f64::NEG_INFINITY),
        ("a 1 1.7e9\r", "a", &[], 1.0),
        ("a 1 -5", "a", &[], 1.0),
        (
            "a{b=\"}\",c=\",\",d=\"{\",e=\"=\",f=\"# 1\"} 2",
            "a",
            &[("b", "}"), ("c", ","), ("d", "{"), ("e", "="), ("f", "# 1")],
            2.0,
        ),
        (r#"a{b="\"\\\n\\n",c="ü \x"} 2"#, "a", &[("b", "\"\\\n\\n"), ("c", "ü \\x")], 2.0),
        ("a_bucket{le=\"0.1\"} 8 # {trace_id=\"x}\"} 0.05 1.5", "a_bucket", &[("le", "0.1")], 8.0),
        ("a_bucket{le=\"0.1\"} 8 1.7 # {} 0.05", "a_bucket", &[("le", "0.1")], 8.0),
        ("{\"my.name\"} 1", "my.name", &[], 1.0),
        ("{\"my.name\", \"my.label\"=\"x\",} 1", "my.name", &[("my.label", "x")], 1.0),
        ("a{\"my.label\"=\"x\"} 1", "a", &[("my.label", "x")], 1.0),
        ("a 1e308", "a", &[], 1e308),
        ("a 1e999", "a", &[], f64::INFINITY),
    ];
    for (line, name, expected, value) in lines {
        let series = only(line);
        assert_eq!(series.name, *name, "{line}");
        assert_eq!(labels(&series), pairs(expected), "{line}");
        assert_eq!(series.value, *value, "{line}");
    }
    assert!(only("a NaN").value.is_nan());
}

#[test]
fn a_broken_line_is_named_and_costs_itself_only() {
    let broken = [
        ("1a 1", "a series name begins with a digit"),
        ("-", "it does not begin with a series name"),
        ("a", "there is no space between name and value, or a character no name has"),
        ("a-b 1", "there is no space between name and value, or a character no name has"),
        ("a ", "there is no space between name and value, or a character no name has"),
        ("a{} ", "there is no value"),
        ("a x", "its value is not a number"),
        ("a 0x1p3", "its value is not a number"),
        ("a 1 x", "its timestamp is not a number"),
        ("a 1 2 3", "there is something after its timestamp"),
        ("a{b=\"c\" 1", "there is no comma between two labels"),
        ("a{b=\"c\"", "the braces are not closed"),
        ("a{b=\"c} 1", "a label's value is not closed"),
        ("a{b=\"c\\", "a label's value is not closed"),
        ("a{b=c} 1", "a label's value is not in quotes"),
        ("a{b} 1", "a label has no ="),
        ("a{=\"c\"} 1", "a label has no name, or one with a character no name has"),
        ("a{,} 1", "a label has no name, or one with a character no name has"),
        ("a{b=\"c\"d=\"e\"} 1", "there is no comma between two labels"),
        ("a{b=\"c\",b=\"d\"} 1", "a label is there twice"),
        ("a{b=\"c\",\"b\"=\"d\"} 1", "a label is there twice"),
        (r#"a{"\x"="c","\\x"="d"} 1"#, "a label is there twice"),
        ("{b=\"c\"} 1", "there is no series name before or in the braces"),
        ("{\"\"} 1", "the series name is empty"),
        ("<html><body>404</body></html>", "it does not begin with a series name"),
    ];
    for (line, what) in broken {
        let page = format!("before 1\n\n{line}\nafter 2\n");
        let read: Vec<_> = parse(&page).collect();
        assert_eq!(read.len(), 3, "{line}");
        let Err(broken) = &read[1] else { panic!("{line}") };
        assert_eq!((broken.line, broken.what, broken.is_end), (3, what, false), "{line}");
        let after = read[2].as_ref().unwrap();
        assert_eq!((after.name.as_ref(), after.line), ("after", 4), "{line}");
    }
    let many: String = (0..65).map(|at| format!("l{at}=\"\",")).collect();
    let many = format!("a{{{many}}} 1");
    let error = parse(&many).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 1: it has more than 64 labels");
}

#[test]
fn a_broken_line_tells_whose_it_may_be() {
    let only = |page: &'static str| parse(page).find_map(Result::err).unwrap();
    for (page, is, is_not) in [
        ("ab{c=\"d\"} x\n", "ab", "abc"),
        ("a:b_1 1 x\n", "a:b_1", "a:b"),
        ("a-b 1\n", "a", "a-b"),
        ("{ \"a.b\",c=\"d\"} x\n", "a.b", "a"),
        ("<html>\n", "", "a"),
        // Cut off: the name may go on.
        ("x 1\nab", "abc", "a"),
        ("x 1\nab{c=\"", "ab", "a"),
        ("x 1\n{\"a.b", "a.bc", "a"),
    ] {
        let broken = only(page);
        assert!(broken.may_be(is) && !broken.may_be(is_not), "{broken:?}");
        assert_eq!(broken.is_end, !page.ends_with('\n'), "{page}");
    }
}

#[test]
fn a_series_is_of_the_kind_of_the_family_above_it() {
    let page = "undeclared 1\n\
                # HELP a_total what \\n it \"is\"\n# TYPE a_total counter\na_total 1\n\
                # TYPE b counter\n# UNIT b seconds\nb_total 1\nb_created 1\nbc 1\n\
                # TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n\
                #\tTYPE not a declaration\n# a comment\n#\n\
                # TYPE g gauge\ng 1\n# TYPE s summary\ns{quantile=\"0.5\"} 1\n\
                # TYPE \"my.g\" gauge\n{\"my.g\"} 1\n# TYPE x info\nx_info 1\n# TYPE\ny 1\n";
    let kinds: Vec<_> = parse(page)
        .map(|series| series.unwrap())
        .map(|series| (series.name.into_owned(), series.kind))
        .collect();
    let expected = [
        ("undeclared", Kind::Unknown),
        ("a_total", Kind::Counter),
        ("b_total", Kind::Counter),
        ("b_created", Kind::Unknown),
        ("bc", Kind::Unknown),
        ("h_bucket", Kind::Histogram),
        ("h_sum", Kind::Histogram),
        ("h_count", Kind::Histogram),
        ("g", Kind::Gauge),
        ("s", Kind::Summary),
        ("my.g", Kind::Gauge),
        ("x_info", Kind::Unknown),
        ("y", Kind::Unknown),
    ];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn a_page_ends_at_its_end_mark_and_may_be_empty() {
    assert_eq!(parse("").count(), 0);
    assert_eq!(parse("\r\n\r\n \n").count(), 0);
    assert_eq!(parse("a 1\r\n# EOF\r\nb 2\r\n").count(), 1);
    assert_eq!(parse("a 1\n# EOF of what\nb 2").count(), 2);
}

#[test]
fn bytes_that_are_no_characters_are_named_by_their_place() {
    assert_eq!(text(b"a{b=\"\xc3\xbc\"} 1"), Ok("a{b=\"ü\"} 1"));
    let error = text(b"a{b=\"\xff\"} 1").unwrap_err();
    assert_eq!(error, NotText { offset: 5 });
    assert_eq!(error.to_string(), "the page is not UTF-8 from byte 5 on");
}

#[test]
fn pages_of_the_library_that_engines_use_are_read_whole() {
    // As OpenMetrics the library writes colons in names as underscores, except in comments.
    for (page, prefix) in [(CLASSIC, "vllm:"), (OPENMETRICS, "vllm_")] {
        let series: Vec<_> = parse(page).map(|series| series.unwrap()).collect();
        let lines = page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(series.len(), lines);
        let value = |name: &str, matchers: &str| {
            let matchers: Matchers = matchers.parse().unwrap();
            let mut found = series.iter().filter(|series| {
                series.name.strip_prefix(prefix) == Some(name) && matchers.admit(series.labels)
            });
            let value = found.next().map(|series| series.value);
            assert!(found.next().is_none(), "{name}");
            value
        };
        assert_eq!(value("num_requests_waiting", "engine=0"), Some(3.0));
        assert_eq!(value("num_requests_waiting", "engine=1"), Some(6.0));
        assert_eq!(value("num_requests_waiting", "model_name=m1, engine=1"), None);
        assert_eq!(value("kv_cache_usage_perc", "model_name=m1"), Some(0.3));
        assert_eq!(value("generation_tokens_total", "engine=1"), Some(24_690.0));
        assert_eq!(value("request_queue_time_seconds_sum", "engine=0"), Some(2.2));
        let inf = "engine=0,le=+Inf";
        assert_eq!(value("request_queue_time_seconds_bucket", inf), Some(2.0));
        let odd = series.iter().filter(|series| {
            series.labels.get("model_name").as_deref() == Some(ODD) && series.value == 6.0
        });
        assert_eq!(odd.count(), 1);
    }
    let kind = |wanted: &str| {
        let mut all = parse(CLASSIC).map(|series| series.unwrap());
        all.find(|series| series.name == wanted).unwrap().kind
    };
    assert_eq!(kind("vllm:num_requests_waiting"), Kind::Gauge);
    assert_eq!(kind("vllm:generation_tokens_total"), Kind::Counter);
    assert_eq!(kind("vllm:request_queue_time_seconds_sum"), Kind::Histogram);
}

#[test]
fn matchers_have_one_form_and_one_meaning() {
    let matchers: Matchers = "model_name=a=b , engine=0".parse().unwrap();
    assert_eq!(matchers.to_string(), "engine=0,model_name=a=b");
    assert_eq!(matchers.to_string().parse(), Ok(matchers.clone()));
    let admits = |line: &str| matchers.admit(only(line).labels);
    assert!(admits("a{engine=\"0\",x=\"y\",model_name=\"a=b\"} 1"));
    assert!(!admits("a{engine=\"1\",model_name=\"a=b\"} 1"));
    assert!(!admits("a{engine=\"0\"} 1"));
    let all: Matchers = "".parse().unwrap();
    assert!(all.is_empty() && all.admit(only("a 1").labels));
    assert_eq!(all.to_string(), "");
    let absent: Matchers = "x=".parse().unwrap();
    assert!(absent.admit(only("a 1").labels) && !absent.admit(only("a{x=\"y\"} 1").labels));
    let made: Matchers = pairs(&[("b", "2"), ("a", "1")]).into_iter().collect();
    assert_eq!(made.to_string(), "a=1,b=2");
    for (text, reason) in [
        ("a", "write name=value,name=value"),
        ("a=b,", "write name=value,name=value"),
        ("=b", "a label name is empty"),
        ("a-b=c", "a label name has only letters, digits and _"),
        ("a=\"b\"", "write label values without quotes"),
        ("a=b,a=c", "label a is there twice"),
    ] {
        assert_eq!(text.parse::<Matchers>(), Err(reason.to_owned()), "{text}");
    }
}
