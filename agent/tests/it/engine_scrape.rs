//! One GET against servers that behave, and servers that do not.

use std::io::Write as _;
use std::time::Duration;

use agent::engine::address::PageAddress;
use agent::engine::scrape::{Limits, fetch};
use agent::local::doctor::engines;
use flate2::Compression;
use flate2::write::GzEncoder;
use shared::brief::EnginePage;

use crate::site::{Answer, Site, page, response};

const PAGE: &str = "vllm:num_requests_waiting 3\n";

/// Long enough for a busy machine where the time is not what the test is about.
const PATIENT: Limits = Limits { within: Duration::from_secs(20), bytes: 2 << 20 };
const HASTY: Limits = Limits { within: Duration::from_millis(200), bytes: 2 << 20 };

async fn got(answer: Answer) -> Result<String, String> {
    let site = Site::start(answer).await;
    fetch(site.ip(), &site.page(), PATIENT).await
}

fn raw(text: impl AsRef<[u8]>) -> Answer {
    Answer::Bytes(text.as_ref().to_vec())
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn gzip(body: &[u8]) -> Answer {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    Answer::Bytes([head.as_bytes(), body].concat())
}

#[tokio::test]
async fn a_page_is_asked_for_in_the_plain_format_and_read_in_any_frame() {
    let site = Site::start(page(PAGE)).await;
    assert_eq!(fetch(site.ip(), &site.page(), PATIENT).await.as_deref(), Ok(PAGE));
    let request = site.requests().remove(0);
    assert!(request.starts_with("GET /metrics HTTP/1.1\r\n"), "{request}");
    for line in [
        format!("host: {}\r\n", site.address),
        "accept: text/plain;version=0.0.4, ".to_owned(),
        "user-agent: gpu-agent/".to_owned(),
    ] {
        assert!(request.contains(&line), "{request}");
    }
    assert!(!request.contains("accept-encoding"), "{request}");
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                   c\r\nvllm:num_req\r\n10\r\nuests_waiting 3\n\r\n0\r\n\r\n";
    let until_closed = format!("HTTP/1.0 200 OK\r\n\r\n{PAGE}");
    for whole in [
        raw(chunked),
        raw(until_closed),
        response("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", PAGE),
        response("200 OK", "Text/Plain", PAGE),
        gzip(&packed(PAGE.as_bytes())),
    ] {
        assert_eq!(got(whole).await.as_deref(), Ok(PAGE));
    }
}

#[tokio::test]
async fn a_page_of_an_ipv6_pod_is_read() {
    let Ok(site) = Site::start_on("[::1]:0", page(PAGE)).await else {
        // This machine has no IPv6.
        return;
    };
    assert_eq!(fetch(site.ip(), &site.page(), PATIENT).await.as_deref(), Ok(PAGE));
    assert!(site.requests()[0].contains(&format!("host: {}\r\n", site.address)));
}

#[tokio::test]
async fn what_is_no_page_is_said_in_a_sentence() {
    let moved = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest\r\ncontent-length: 0\r\n\r\n";
    for (answer, why) in [
        (response("503 Service Unavailable", "text/plain", "no"), "HTTP 503 Service Unavailable"),
        (response("404 Not Found", "text/html", "no"), "HTTP 404 Not Found"),
        (response("204 No Content", "text/plain", ""), "HTTP 204 No Content"),
        (
            raw(moved),
            "HTTP 302 Found to \"http://169.254.169.254/latest\"; redirects are not followed",
        ),
        (
            response("200 OK", "text/html; charset=utf-8", "<html>"),
            "content type \"text/html; charset=utf-8\", which is no page of metrics",
        ),
        (
            response("200 OK", "application/vnd.google.protobuf", "x"),
            "content type \"application/vnd.google.protobuf\", which is no page of metrics",
        ),
        (
            raw("HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx"),
            "content encoding \"br\"; only gzip is read",
        ),
        (
            response("200 OK", "text/plain", b"ab 1\n\xff 2\n"),
            "the page is not UTF-8 from byte 5 on",
        ),
        (
            raw("HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n"),
            "the page is longer than 2097152 bytes",
        ),
        (
            Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b"a 1\n".repeat(1_000)),
            "the page is longer than 2097152 bytes",
        ),
        (
            gzip(&packed(&vec![b'\n'; 8 << 20])),
            "the page is longer than 2097152 bytes once it is unpacked",
        ),
        (gzip(b"plain after all"), "the page is no gzip: invalid gzip header"),
    ] {
        assert_eq!(got(answer).await, Err(why.to_owned()));
    }
}

#[tokio::test]
async fn what_breaks_off_or_is_no_http_fails() {
    let long = [b"HTTP/1.1 200 OK\r\n".to_vec(), b"x: y\r\n".repeat(100_000)].concat();
    for (answer, part) in [
        (raw("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\na 1\n"), "the page broke off: "),
        (raw(""), "connection closed"),
        (raw("SSH-2.0-OpenSSH_9.9\r\n"), "invalid HTTP"),
        (raw(long), "message head is too large"),
        (Answer::Endless(Vec::new(), b"HTTP/1.1 200 OK\r\nx: y".repeat(100)), ""),
    ] {
        let why = got(answer).await.unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = EnginePage { port: address.port(), path: "/metrics".into() };
    let why = fetch(address.ip(), &nobody, PATIENT).await.unwrap_err();
    assert!(why.starts_with("Connection refused"), "{why}");
    let site = Site::start(page(PAGE)).await;
    let odd = EnginePage { path: "/a b".into(), ..site.page() };
    let why = fetch(site.ip(), &odd, PATIENT).await.unwrap_err();
    assert_eq!(why, "path \"/a b\": invalid uri character");
}

#[tokio::test]
async fn nobody_is_waited_for_longer_than_the_limit() {
    let whole = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{PAGE}", PAGE.len());
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n".to_vec();
    for slow in [
        Answer::Drip(whole.repeat(100).into_bytes()),
        Answer::Late(Duration::from_secs(600), head.clone()),
        Answer::Drip([head, vec![b'#'; 999]].concat()),
    ] {
        let site = Site::start(slow).await;
        let why = fetch(site.ip(), &site.page(), HASTY).await;
        assert_eq!(why, Err("it took longer than 200ms".to_owned()));
    }
}

#[test]
fn a_page_that_a_person_names_is_an_address() {
    for (written, read) in [
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000/metrics"),
        ("http://10.0.0.7:8000/", "http://10.0.0.7:8000/metrics"),
        ("HTTP://[fd00::7]:8000/v1/metrics?a=b", "http://[fd00::7]:8000/v1/metrics?a=b"),
    ] {
        assert_eq!(written.parse::<PageAddress>().unwrap().to_string(), read);
    }
    for (written, why) in [
        ("https://10.0.0.7:8000/", "it does not begin with http://"),
        ("10.0.0.7:8000", "it does not begin with http://"),
        ("http://10.0.0.7/metrics", "it does not name an IP address and a port"),
        ("http://vllm:8000/metrics", "it does not name an IP address and a port"),
        ("http://10.0.0.7:0/metrics", "0 is no port"),
        ("http://", "not a URL"),
    ] {
        let error = written.parse::<PageAddress>().unwrap_err().to_string();
        assert_eq!(error, format!("engine page {written:?}: {why}; write http://IP:PORT/PATH"));
    }
}

#[tokio::test]
async fn the_doctor_looks_at_engine_pages() {
    let site =
        Site::start(page("vllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.5\n")).await;
    let address: PageAddress = format!("http://{}", site.address).parse().unwrap();
    let pages = [address.clone(), address.clone()];
    let found = format!("{address}: vLLM, requests_waiting 3, kv_cache_usage 50%");
    assert_eq!(engines(&pages).await, Ok(format!("{found}; {found}")));
    site.says(response("503 Service Unavailable", "text/plain", ""));
    let broken = engines(&pages).await.unwrap_err();
    assert_eq!(broken.said, format!("{address}: HTTP 503 Service Unavailable"));
    assert_eq!(broken.next, format!("curl -sS -i -H 'Accept: text/plain' {address}"));
}
