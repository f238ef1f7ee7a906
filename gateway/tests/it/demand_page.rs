//! Pages of demand that are wrong, slow, elsewhere or too large: each an error that says so.

#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use clap::Parser as _;
use gateway::config::{Cli, Command, ServeConfig};
use gateway::demand::page::{Limits, Reader};
use gateway::demand::place::Place;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tonic::Code;

use crate::demand::{AT_ZERO, TestRouter, gateway, trigger};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_are_not_followed() {
    let (router, other) = (TestRouter::start("").await, TestRouter::start("q 9\n").await);
    router.answers(StatusCode::FOUND, &format!("{}/metrics", other.origin()));
    let gateway = gateway(AT_ZERO, &[&router, &other]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    router.is_read(0).await;
    eventually("it is refused", async || match trigger.value().await {
        Err(status) if status.message().contains("302 Found: redirects are not followed") => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(other.looks(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_resolves_to_loopback_is_not_connected_to() {
    let router = TestRouter::start("q 1\n").await;
    let place = |allowed| Place {
        name: "localhost".into(),
        port: router.address.port(),
        path: "/metrics".into(),
        allowed,
    };
    let why = Reader::new(place(false), Limits::default()).read().await.unwrap_err();
    assert!(why.contains("which is loopback: not connected to"), "{why}");
    assert_eq!(router.looks(), 0);
    let page = Reader::new(place(true), Limits::default()).read().await.unwrap();
    assert_eq!(page.text(), Ok("q 1\n"));
}

/// A server that does as it likes with every connection.
async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok() {
                tokio::spawn(serve(stream));
            }
        }
    });
    address
}

fn reader(address: SocketAddr) -> Reader {
    let (name, path) = (address.ip().to_string(), "/metrics".to_owned());
    let place = Place { name, port: address.port(), path, allowed: true };
    Reader::new(place, Limits::default())
}

/// Answers with these bytes and closes.
async fn answering(bytes: impl Into<Vec<u8>>) -> Reader {
    let bytes: Arc<[u8]> = bytes.into().into();
    let address = server(move |mut stream| {
        let bytes = bytes.clone();
        async move { stream.write_all(&bytes).await }
    });
    reader(address.await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_answers_are_errors_that_say_what_is_wrong() {
    let ok = |headers: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}");
    let many: String = (0..100).map(|at| format!("x-{at}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "x".repeat(64 << 10));
    for (answer, why) in [
        (ok("content-type: text/html\r\n", "q 1\n"), "the page is \"text/html\""),
        (ok("content-encoding: gzip\r\n", "q 1\n"), "encoded as \"gzip\""),
        (ok("content-length: 100\r\n", "q 1\n"), "in the page:"),
        (ok(&many, "q 1\n"), "message head is too large"),
        (ok(&long, "q 1\n"), "message head is too large"),
        ("HTTP/1.1 503 Busy\r\n\r\n".to_owned(), "it answers 503"),
        ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), "it answers 204"),
        (
            "HTTP/1.1 301 Moved\r\nlocation: http://x/\r\n\r\n".to_owned(),
            "redirects are not followed",
        ),
        ("SSH-2.0-OpenSSH_9.9\r\n".to_owned(), "invalid HTTP version"),
        (String::new(), "connection closed"),
    ] {
        let said = answering(answer.clone()).await.read().await.unwrap_err();
        assert!(said.contains(why), "{said:?} for {:?}", &answer[..answer.len().min(60)]);
    }
    let page = answering(b"HTTP/1.1 200 OK\r\n\r\nq\xff 1\n").await.read().await.unwrap();
    assert!(page.text().unwrap_err().contains("not UTF-8 from byte 1"));
    // Before HTTP/1.1, and closed after every page.
    let mut old = answering("HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nq 1\n").await;
    for _ in 0..3 {
        assert_eq!(old.read().await.unwrap().text(), Ok("q 1\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_and_slow_servers_are_left() {
    let endless = server(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        loop {
            stream.write_all(&[b'#'; 64 << 10]).await?;
        }
    });
    let said = reader(endless.await).read().await.unwrap_err();
    assert!(said.contains("more than 2097152 bytes"), "{said}");
    let silent = server(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    });
    let said = reader(silent.await).read().await.unwrap_err();
    assert_eq!(said, "the answer takes longer than 1 s");
    let drop_by_drop = server(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        loop {
            stream.write_all(b"q 1\n").await?;
            sleep(Duration::from_millis(50)).await;
        }
    });
    let said = reader(drop_by_drop.await).read().await.unwrap_err();
    assert_eq!(said, "the page takes longer than 1 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_router_does_not_slow_another_workload() {
    let router = TestRouter::start("q 0\n").await;
    let silent = server(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    })
    .await;
    let slow = router.at(silent);
    let gateway = gateway(AT_ZERO, &[&router, &slow]).await;
    let deaf = trigger(&gateway, &slow, "ai/vllm-so", &[]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    let why = eventually("it is too slow", async || match deaf.value().await {
        Err(status) if status.message().contains("takes longer") => Ok(status),
        other => Err(other),
    })
    .await;
    assert_eq!(why.code(), Code::Unavailable);
    for demand in [1.0, 2.0, 0.0] {
        router.says(&format!("q {demand}\n"));
        trigger.becomes(demand).await;
    }
}

#[test]
fn allowed_origins_are_written_with_or_without_port_but_never_with_a_path() {
    let allowed = |text: &str| {
        let line = ["gpu-gateway", "serve", "--agent-auth", "none", "--demand-allow", text];
        match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::Serve(serve)) => Ok(ServeConfig::try_from(*serve).unwrap().demand_allow),
            Ok(_) => unreachable!("serve was asked for"),
            Err(error) => Err(error.to_string()),
        }
    };
    let expected = ["http://router.infra:80", "http://[::1]:9"].map(str::to_owned);
    assert_eq!(allowed("http://router.infra,http://[::1]:9/"), Ok(expected.to_vec()));
    for (text, why) in [
        ("http://router/metrics", "without a path"),
        ("router:9090", "write http://HOST:PORT"),
        ("https://router", "only http is supported"),
    ] {
        let said = allowed(text).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}
