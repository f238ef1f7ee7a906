//! What an agent shows a gateway, and what it refuses to show.

use std::path::PathBuf;

use agent::app::App;
use agent::config::RunConfig;
use agent::uplink::credentials::Files;
use proto::uplink::agent_message::Body;
use tokio_util::sync::CancellationToken;

use crate::support::Gateway;

fn config(url: impl Into<String>, credentials: Files) -> RunConfig {
    let mut config = RunConfig::new(url, "node-a".into(), "sim:gpus=1".parse().unwrap());
    config.credentials = credentials;
    config
}

#[tokio::test]
async fn every_stream_brings_the_token_that_is_in_the_file_then() {
    let mut gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "first\n").unwrap();
    let files = Files { token: Some(token.clone()), ..Files::default() };
    let shutdown = CancellationToken::new();
    let app = App::build(config(gateway.url(), files)).unwrap();
    let app = tokio::spawn(app.run(shutdown.clone()));
    let mut heard = Vec::new();
    for next in ["second", "third"] {
        while !matches!(gateway.next().await, (_, Some(Body::Hello(_)))) {}
        heard.push(gateway.authorizations.lock().last().unwrap().clone());
        std::fs::write(&token, next).unwrap();
        gateway.hang_up.notify_one();
    }
    assert_eq!(heard, [Some("Bearer first".to_owned()), Some("Bearer second".to_owned())]);
    shutdown.cancel();
    app.await.unwrap().unwrap();
}

#[test]
fn what_is_wrong_with_credentials_is_said_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let token = Some(file("token", "secret-token"));
    let two = Some(file("two", "secret-token another"));
    let junk = file("junk", "-----BEGIN CERTIFICATE-----\nsecret\n");
    let pair = Some((junk.clone(), junk.clone()));
    let none = Files::default;
    for (url, files, word) in [
        ("https://gw:6001", none(), "https needs --gateway-ca"),
        ("http://gw:6001", Files { token: token.clone(), ..none() }, "a token needs https://"),
        ("http://gw:6001", Files { certificate: pair, ..none() }, "needs https://"),
        ("http://127.0.0.1:1", Files { token: two, ..none() }, "two: not a token"),
        (
            "http://[::1]:1",
            Files { token: Some("/none".into()), ..none() },
            "--token-file /none: No such file",
        ),
        ("https://gw:1", Files { gateway_ca: Some(junk), ..none() }, "junk: no PEM certificate"),
        (
            "https://gw:1",
            Files { gateway_ca: Some("/none".into()), ..none() },
            "--gateway-ca /none: No such",
        ),
    ] {
        let error = App::build(config(url, files)).err().expect(word);
        let said = format!("{error:#}");
        assert!(said.contains(word), "{url}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let local = Files { token, ..none() };
    assert!(App::build(config("http://localhost:1", local)).is_ok());
}
