//! Who may connect: TLS on both gRPC ports, certificates and tokens of agents, the HTTP token.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway::config::ServeConfig;
use gateway::config::identity::AgentAuth;
use gateway::identity::token::Rules;
use gateway::tls::Files;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::uplink::AgentMessage;
use proto::uplink::uplink_client::UplinkClient;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::api_server::{ApiServer, pod};
use crate::kube;
use crate::pki::{Authority, Pair};
use crate::support::{Keda, Node, ONE_POD, TestGateway, Uplink, eventually, get, gpu, soon};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A folder with a gateway's certificate, and the CA that issued it.
struct Pki {
    folder: TempDir,
    authority: Authority,
}

impl Pki {
    fn new() -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("first"));
        authority.write(folder.path(), "ca.crt");
        authority.issue(&["gateway.test"]).write(folder.path(), "gateway");
        Self { folder, authority }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn files(&self, client_ca: bool) -> Files {
        Files {
            certificate: self.path("gateway.crt"),
            key: self.path("gateway.key"),
            client_ca: client_ca.then(|| self.path("ca.crt")),
        }
    }
}

/// A client that trusts the CA in `ca`, and may show a certificate.
fn client(
    ca: &Path,
    own: Option<&Pair>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn handshake(
    address: SocketAddr,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("gateway.test").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // With TLS 1.3 a server's refusal comes after the client's end of the handshake; a gRPC
    // server speaks first, so that one byte tells.
    let mut byte = [0];
    match stream.read(&mut byte).await? {
        0 => Err(std::io::Error::other("closed")),
        _ => Ok(stream),
    }
}

async fn dial(
    address: SocketAddr,
    config: ClientConfig,
) -> Result<Channel, tonic::transport::Error> {
    let tls = TlsConnector::from(Arc::new(config));
    let connector = tower::service_fn(move |_| {
        let tls = tls.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("gateway.test").unwrap();
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    soon("the connection", endpoint.connect_with_connector(connector)).await
}

/// A gateway with `tweak`ed settings and the directory `ONE_POD`.
async fn gateway_with(tweak: impl FnOnce(&mut ServeConfig)) -> anyhow::Result<TestGateway> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, ONE_POD)?;
    let mut config = ServeConfig::local(file);
    tweak(&mut config);
    TestGateway::try_start_with(folder, config).await
}

async fn refused(gateway: &TestGateway, labels: &str) -> f64 {
    gateway.metric("gpu_gateway_peers_refused_total", labels).await
}

async fn is_refused(gateway: &TestGateway, labels: &str, times: f64) {
    eventually(&format!("{labels} is counted"), async || {
        let count = refused(gateway, labels).await;
        if count >= times { Ok(()) } else { Err(count) }
    })
    .await;
}

// === KEDA's port ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keda_is_answered_over_tls_1_2_and_1_3_with_alpn_h2() {
    let pki = Pki::new();
    let gateway =
        gateway_with(|config| config.identity.keda_tls = Some(pki.files(false))).await.unwrap();
    for (version, number) in
        VERSIONS.iter().zip([ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3])
    {
        let config = client(&pki.path("ca.crt"), None, &[version]);
        let stream = soon("a handshake", handshake(gateway.keda, config.clone())).await.unwrap();
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(number));
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        let channel = dial(gateway.keda, config.clone()).await.unwrap();
        let keda = Keda { client: ExternalScalerClient::new(channel.clone()), channel };
        let spec = keda.trigger("ai/vllm-so", &[("targetValue", "70")]).spec().await.unwrap();
        assert_eq!(spec.target_size_float, 70.0);
        let mut other = config;
        other.alpn_protocols = vec![b"http/1.1".to_vec()];
        handshake(gateway.keda, other).await.unwrap_err();
    }
    is_refused(&gateway, "reason=\"not_h2\"", 2.0).await;
    let plain = Endpoint::from_shared(format!("http://{}", gateway.keda)).unwrap();
    let channel = plain.connect_lazy();
    let keda = Keda { client: ExternalScalerClient::new(channel.clone()), channel };
    let plain = keda.trigger("ai/vllm-so", &[("targetValue", "70")]).spec().await;
    assert!(plain.is_err(), "{plain:?}");
    is_refused(&gateway, "port=\"keda\",reason=\"not_tls\"", 1.0).await;
    let ends = gateway.metric("gpu_gateway_certificate_expiry_timestamp_seconds", "keda").await;
    assert_eq!(ends, 64_060_588_800.0, "the year 4000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_client_ca_keda_needs_a_certificate_of_it() {
    let pki = Pki::new();
    let gateway =
        gateway_with(|config| config.identity.keda_tls = Some(pki.files(true))).await.unwrap();
    let (ca, good) = (pki.path("ca.crt"), pki.authority.issue(&["keda"]));
    let stranger = Authority::new("stranger").issue(&["keda"]);
    let expired = pki.authority.issue_until(&["keda"], 2020);
    for version in VERSIONS {
        let dial = |own| soon("a handshake", handshake(gateway.keda, client(&ca, own, &[version])));
        dial(Some(&good)).await.unwrap();
        dial(None).await.unwrap_err();
        dial(Some(&stranger)).await.unwrap_err();
        dial(Some(&expired)).await.unwrap_err();
    }
    for reason in ["no_certificate", "unknown_issuer", "expired_certificate"] {
        is_refused(&gateway, &format!("port=\"keda\",reason=\"{reason}\""), 2.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_used_and_streams_stay() {
    let pki = Pki::new();
    let gateway =
        gateway_with(|config| config.identity.keda_tls = Some(pki.files(true))).await.unwrap();
    let _agent = gateway.agent(Node::new("n1").with(gpu("u0", "ai/vllm-0", 60.0))).await;
    let (old_ca, old) = (pki.path("old.crt"), pki.authority.issue(&["keda"]));
    std::fs::copy(pki.path("ca.crt"), &old_ca).unwrap();
    let channel = dial(gateway.keda, client(&old_ca, Some(&old), &VERSIONS)).await.unwrap();
    let keda = Keda { client: ExternalScalerClient::new(channel.clone()), channel };
    let trigger = keda.trigger("ai/vllm-so", &[("targetValue", "70")]);
    trigger.becomes(60.0).await;
    let mut stream = trigger.stream().await.unwrap();
    assert!(soon("the first word", stream.message()).await.unwrap().unwrap().result);

    // What is broken changes nothing.
    let reloads = async |result: &str| {
        let labels = format!("what=\"keda\",result=\"{result}\"");
        gateway.metric("gpu_gateway_credential_reloads_total", &labels).await
    };
    std::fs::write(pki.path("gateway.crt"), "-----BEGIN CERTIFICATE-----\nAA").unwrap();
    eventually("it is seen to be broken", async || {
        if reloads("failed").await >= 1.0 { Ok(()) } else { Err(()) }
    })
    .await;
    handshake(gateway.keda, client(&old_ca, Some(&old), &VERSIONS)).await.unwrap();

    // Another CA, for the gateway and for its clients.
    let second = Authority::new("second");
    let new_ca = second.write(pki.folder.path(), "ca.crt");
    second.issue(&["gateway.test"]).write(pki.folder.path(), "gateway");
    let new = second.issue(&["keda"]);
    eventually("the new certificate is used", async || {
        handshake(gateway.keda, client(&new_ca, Some(&new), &VERSIONS)).await.map(drop)
    })
    .await;
    handshake(gateway.keda, client(&old_ca, Some(&new), &VERSIONS)).await.unwrap_err();
    handshake(gateway.keda, client(&new_ca, Some(&old), &VERSIONS)).await.unwrap_err();
    assert!(reloads("taken").await >= 1.0);

    assert_eq!(trigger.value().await.unwrap(), 60.0, "over the connection from before");
    let silent = tokio::time::timeout(std::time::Duration::from_millis(50), stream.message()).await;
    assert!(silent.is_err(), "the stream is open, and has nothing to say: {silent:?}");
    gateway.begin_shutdown();
    while soon("the stream ends", stream.message()).await.unwrap().is_some() {}
}

#[tokio::test]
async fn what_cannot_be_used_is_said_before_the_start_and_quotes_no_file() {
    let pki = Pki::new();
    let other = pki.authority.issue(&["x"]);
    let start = async || {
        let files = pki.files(true);
        let started = gateway_with(|config| config.identity.keda_tls = Some(files)).await;
        format!("{:#}", started.err().expect("it does not start"))
    };
    let whole = std::fs::read_to_string(pki.path("gateway.key")).unwrap();
    for (file, text, word) in [
        ("gateway.key", other.key.clone(), "certificate and key cannot be used"),
        ("gateway.key", whole.replace("-----BEGIN", "----BEGIN"), "no PEM private key"),
        ("gateway.crt", "nothing".into(), "no PEM certificate"),
        ("ca.crt", String::new(), "the CA of clients"),
    ] {
        let kept = std::fs::read(pki.path(file)).unwrap();
        std::fs::write(pki.path(file), &text).unwrap();
        let said = start().await;
        assert!(said.contains("--keda-tls-cert") && said.contains(word), "{said}");
        let secret = whole.lines().nth(1).unwrap();
        assert!(!said.contains(secret) && !said.contains("BEGIN"), "{said}");
        std::fs::write(pki.path(file), kept).unwrap();
    }
    std::fs::remove_file(pki.path("gateway.key")).unwrap();
    assert!(start().await.contains("gateway.key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_finishes_a_handshake_keeps_nobody_waiting() {
    let pki = Pki::new();
    let gateway =
        gateway_with(|config| config.identity.keda_tls = Some(pki.files(false))).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(gateway.keda).await.unwrap());
    }
    let config = client(&pki.path("ca.crt"), None, &VERSIONS);
    soon("a handshake", handshake(gateway.keda, config)).await.unwrap();
    is_refused(&gateway, "port=\"keda\",reason=\"slow\"", 200.0).await;
}

/// Who has a certificate, or needs none, gets no more places and no more time than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_are_given_before_the_handshake_and_silence_after_it_has_an_end() {
    let pki = Pki::new();
    let gateway = gateway_with(|config| {
        config.identity.keda_tls = Some(pki.files(false));
        config.connections.keda = 16;
    })
    .await
    .unwrap();
    let config = client(&pki.path("ca.crt"), None, &VERSIONS);
    let mut silent = Vec::new();
    for _ in 0..4 {
        let stream = handshake(gateway.keda, config.clone());
        silent.push(soon("a handshake", stream).await.unwrap());
    }
    soon("an end", handshake(gateway.keda, config)).await.unwrap_err();
    let name = "gpu_gateway_connections_refused_total";
    assert_eq!(gateway.metric(name, "port=\"keda\",why=\"peer\"").await, 1.0);
    eventually("silence has an end", async || {
        match gateway.metric(name, "port=\"keda\",why=\"silent\"").await {
            4.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(gateway.metric("gpu_gateway_connections", "port=\"keda\"").await, 0.0);
}

// === The agents' port ===

/// An agent over `channel`, with a token: how its stream is answered.
async fn push(channel: Channel, node: &Node, token: Option<&str>) -> Result<Uplink, Status> {
    let (messages, stream) = mpsc::channel(16);
    let body = Some(node.hello());
    messages.send(AgentMessage { body }).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(stream));
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let replies = soon("Push is answered", UplinkClient::new(channel).push(request)).await?;
    let mut uplink = Uplink { messages: Some(messages), replies: replies.into_inner() };
    uplink.welcome().await?;
    Ok(uplink)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_speaks_for_the_node_it_names() {
    let pki = Pki::new();
    let gateway = gateway_with(|config| {
        config.identity.agent_tls = Some(pki.files(true));
        config.identity.agent_auth = AgentAuth::Mtls;
    })
    .await
    .unwrap();
    let ca = pki.path("ca.crt");
    let push = async |names: &[&str], node: &str| {
        let own = pki.authority.issue(names);
        let channel = dial(gateway.agents, client(&ca, Some(&own), &VERSIONS)).await.unwrap();
        push(channel, &Node::new(node), None).await.map(drop)
    };
    push(&["n1"], "n1").await.unwrap();
    push(&["spiffe://cluster.local/node/n2"], "n2").await.unwrap();
    push(&["agent.example", "n3"], "n3").await.unwrap();
    for (names, node) in [
        (&["n1"][..], "n2"),
        (&["spiffe://cluster.local/node/n1"], "n2"),
        (&["*.example"], "a.example"),
        (&["10.0.0.1"], "10.0.0.1"),
        (&[], "n1"),
    ] {
        let status = push(names, node).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{names:?} for {node}: {status:?}");
    }
    assert_eq!(refused(&gateway, "port=\"agents\",reason=\"other_node\"").await, 5.0);
    let nodes = gateway.json("/api/v1/nodes").await.to_string();
    assert!(!nodes.contains("a.example"), "{nodes}");
}

/// What a review says of a token of `account`, with these extras.
fn reviewed(account: &str, audience: &str, extra: &[(&str, &str)]) -> Value {
    let extra: serde_json::Map<String, Value> = extra
        .iter()
        .map(|(key, value)| (format!("authentication.kubernetes.io/{key}"), json!([value])))
        .collect();
    let username = format!("system:serviceaccount:{account}");
    json!({"authenticated": true, "audiences": [audience], "user": {"username": username, "extra": extra}})
}

async fn gateway_with_tokens(api: &ApiServer) -> TestGateway {
    let gateway = kube::gateway_with(api, |config| {
        let account = "gpu/gpu-agent".parse().unwrap();
        config.identity.agent_auth =
            AgentAuth::Token(Rules { audience: "gpu-gateway".into(), account });
    })
    .await;
    gateway.is_ready().await;
    gateway
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_speaks_for_its_node_or_the_node_of_its_pod() {
    let api = ApiServer::start().await;
    // The test's pods are on n1.
    api.apply("pods", pod("gpu", "agent-x", json!({})));
    let gateway = gateway_with_tokens(&api).await;
    let agent = "gpu:gpu-agent";
    let of_pod = [("pod-name", "agent-x"), ("pod-uid", "gpu-agent-x")];
    for (token, status) in [
        ("of-n1", reviewed(agent, "gpu-gateway", &[("node-name", "n1")])),
        ("of-pod", reviewed(agent, "gpu-gateway", &of_pod)),
        (
            "of-namesake",
            reviewed(agent, "gpu-gateway", &[("pod-name", "agent-x"), ("pod-uid", "other")]),
        ),
        ("of-other", reviewed("gpu:other", "gpu-gateway", &[("node-name", "n1")])),
        ("for-api", reviewed(agent, "https://kubernetes.default.svc", &[("node-name", "n1")])),
        ("unbound", reviewed(agent, "gpu-gateway", &[])),
    ] {
        api.knows_token(token, status);
    }
    let push = async |token: Option<&str>, node: &str| {
        let endpoint = Endpoint::from_shared(format!("http://{}", gateway.agents)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        push(channel, &Node::new(node), token).await.map(drop)
    };
    push(Some("of-n1"), "n1").await.unwrap();
    push(Some("of-pod"), "n1").await.unwrap();
    for (token, node, code, reason) in [
        (None, "n1", Code::Unauthenticated, "no_token"),
        (Some("made-up"), "n1", Code::Unauthenticated, "bad_token"),
        (Some("of-other"), "n1", Code::Unauthenticated, "other_account"),
        (Some("for-api"), "n1", Code::Unauthenticated, "other_audience"),
        (Some("unbound"), "n1", Code::Unauthenticated, "unbound_token"),
        (Some("of-n1"), "n2", Code::PermissionDenied, "other_node"),
        (Some("of-pod"), "n2", Code::PermissionDenied, "other_node"),
        (Some("of-namesake"), "n1", Code::PermissionDenied, "other_node"),
    ] {
        let status = push(token, node).await.unwrap_err();
        assert_eq!(status.code(), code, "{token:?} for {node}: {status:?}");
        assert!(refused(&gateway, &format!("reason=\"{reason}\"")).await >= 1.0, "{reason}");
        assert!(!token.is_some_and(|token| status.message().contains(token)), "{status:?}");
    }
    let reviews = || {
        let call = ("authentication.k8s.io".into(), "tokenreviews".into(), "create".into());
        api.calls().get(&call).copied().unwrap_or_default()
    };
    let before = reviews();
    for _ in 0..10 {
        push(Some("of-n1"), "n1").await.unwrap();
    }
    assert_eq!(reviews(), before, "a good token is remembered");
    api.forbid("tokenreviews");
    let status = push(Some("new"), "n1").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("may not create tokenreviews"), "{status:?}");
    let (_, metrics) = gateway.get("/metrics").await;
    assert!(!metrics.contains("of-n1") && !metrics.contains("made-up"));
}

// === HTTP ===

async fn get_with(gateway: &TestGateway, path: &str, authorization: &str) -> StatusCode {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{}{path}", gateway.http))
        .header("authorization", authorization)
        .body(Empty::new())
        .unwrap();
    soon(path, client.request(request)).await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_http_token_guards_the_api_and_leaves_probes_and_metrics_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first-token-of-the-api\n").unwrap();
    let gateway =
        gateway_with(|config| config.identity.http_token = Some(file.clone())).await.unwrap();
    let guarded = [
        "/api",
        "/api/v1/events",
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/workloads",
        "/api/v1/scaledobjects/ai/vllm-so/explain",
    ];
    for path in guarded {
        let (status, body) = get(gateway.http, path).await;
        assert_eq!(status, 401, "{path}");
        assert!(!body.contains("first-token"), "{body}");
        assert_eq!(get_with(&gateway, path, "Bearer wrong-token-of-the-api").await, 401, "{path}");
        assert_eq!(get_with(&gateway, path, "Basic first-token-of-the-api").await, 401, "{path}");
        assert_eq!(get_with(&gateway, path, "Bearer first-token-of-the-api").await, 200, "{path}");
    }
    for path in ["/healthz", "/metrics", "/", "/assets/main.js"] {
        assert_eq!(get(gateway.http, path).await.0, 200, "{path}");
    }
    assert_ne!(get(gateway.http, "/readyz").await.0, 401);
    let server = format!("http://{}", gateway.http);
    let token_file = file.to_str().unwrap().to_owned();
    let explain = ["explain", "ai/vllm-so", "-o", "json", "--server", server.as_str()];
    let (code, _, said) = crate::http::run(&explain).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("wants a token: give --token-file FILE"), "{said}");
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "wrong-token-of-the-api").unwrap();
    let with = [&explain[..], &["--token-file", wrong.to_str().unwrap()]].concat();
    let (code, _, said) = crate::http::run(&with).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("wrong is not the gateway's"), "{said}");
    let with = [&explain[..], &["--token-file", "/nope"]].concat();
    let (_, _, said) = crate::http::run(&with).await;
    assert!(said.contains("--token-file: /nope: No such file"), "{said}");
    let with = [&explain[..], &["--token-file", &token_file]].concat();
    let (code, _, said) = crate::http::run(&with).await;
    assert_eq!(code, Some(0), "{said}");
    // A new one takes its place, and who came with the old one is sent away.
    let opened = Request::get(format!("http://{}/api/v1/events", gateway.http))
        .header("authorization", "Bearer first-token-of-the-api");
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let stream = client.request(opened.body(Empty::new()).unwrap());
    let mut stream = soon("the stream", stream).await.unwrap().into_body();
    soon("an event", stream.frame()).await.unwrap().unwrap();
    std::fs::write(&file, "second-token-of-the-api").unwrap();
    soon("the stream ends", async { while stream.frame().await.is_some() {} }).await;
    eventually("the new token counts", async || {
        let status = get_with(&gateway, "/api/v1/nodes", "Bearer second-token-of-the-api").await;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    assert_eq!(get_with(&gateway, "/api", "Bearer first-token-of-the-api").await, 401);
}

#[tokio::test]
async fn flags_that_leave_a_door_open_are_refused() {
    let beside: &[(&[&str], &str)] = &[
        (&[], "; to try it out, --agent-listen 127.0.0.1:6001"),
        (&["--agent-auth", "mtls"], "--agent-auth mtls needs --agent-tls-cert"),
        (&["--agent-auth", "token"], "whoever reads a token on its way can use it"),
        (&["--agent-auth", "none", "--agent-client-ca", "x"], "--agent-client-ca needs"),
        (&["--agent-auth", "none", "--agent-tls-cert", "x"], "go together"),
        (
            &[
                "--agent-auth",
                "none",
                "--agent-tls-cert",
                "x",
                "--agent-tls-key",
                "y",
                "--agent-client-ca",
                "z",
            ],
            "--agent-client-ca is for --agent-auth mtls",
        ),
        (
            &["--agent-auth", "token", "--agent-tls-cert", "x", "--agent-tls-key", "y"],
            "needs --agent-service-account",
        ),
        (&["--agent-auth", "none", "--keda-client-ca", "x"], "--keda-client-ca needs"),
    ];
    for (arguments, word) in beside {
        let (code, _, said) = crate::http::run(&[&["serve"], *arguments].concat()).await;
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
