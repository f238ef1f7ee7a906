//! Bounds that a client meets: connections, silence, age, headers, messages per second.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gateway::config::ServeConfig;
use gateway::limit::Connections;
use proto::uplink::AgentMessage;
use proto::uplink::uplink_client::UplinkClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use crate::support::{Keda, Node, ONE_POD, TestGateway, Uplink, eventually, gpu, soon};

/// A gateway with these settings beside its directory.
async fn gateway(set: impl FnOnce(&mut ServeConfig)) -> TestGateway {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, ONE_POD).unwrap();
    let mut config = ServeConfig::local(file);
    set(&mut config);
    TestGateway::try_start_with(folder, config).await.unwrap()
}

/// A connection from the loopback address that ends with `last`, which says nothing by itself.
async fn silent(to: SocketAddr, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))).unwrap();
    soon("a connection", socket.connect(to)).await.unwrap()
}

/// Waits until the gateway has closed it.
async fn is_closed(connection: &mut TcpStream) {
    let mut said = Vec::new();
    // A reset is an end too.
    soon("the connection is closed", connection.read_to_end(&mut said)).await.ok();
}

async fn refused(gateway: &TestGateway, port: &str, why: &str) -> f64 {
    let labels = format!("port=\"{port}\",why=\"{why}\"");
    gateway.metric("gpu_gateway_connections_refused_total", &labels).await
}

async fn shed(gateway: &TestGateway, part: &str, why: &str) -> f64 {
    let labels = format!("part=\"{part}\",why=\"{why}\"");
    gateway.metric("gpu_gateway_calls_shed_total", &labels).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_silent_connections_starves_neither_other_peers_nor_the_ports() {
    let connections = Connections { keda: 16, agents: 16, http: 64 };
    let gateway = gateway(|config| config.connections = connections).await;
    let agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let mut flood = Vec::new();
    for port in [gateway.keda, gateway.agents] {
        for _ in 0..20 {
            flood.push(silent(port, 2).await);
        }
    }
    // One peer has a quarter; the rest was closed at once.
    for port in ["keda", "agents"] {
        eventually("one peer's part", async || match refused(&gateway, port, "peer").await {
            16.0 => Ok(()),
            other => Err(other),
        })
        .await;
    }
    assert_eq!(trigger.value().await.unwrap(), 60.0);
    assert_eq!(gateway.trigger("ai/vllm-so", &[]).await.value().await.unwrap(), 60.0, "a new one");
    // Silence has an end, and then the peer may come again.
    for connection in &mut flood {
        is_closed(connection).await;
    }
    assert_eq!(refused(&gateway, "keda", "silent").await, 4.0);
    assert_eq!(refused(&gateway, "agents", "silent").await, 4.0);
    let open = gateway.metric("gpu_gateway_connections", "port=\"agents\"").await;
    assert_eq!(open, 1.0, "the agent's own");
    drop(agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_holds_so_many_connections_and_no_more() {
    let connections = Connections { keda: 16, agents: 16, http: 64 };
    let gateway = gateway(|config| config.connections = connections).await;
    let mut held = Vec::new();
    for peer in 2..6 {
        for _ in 0..4 {
            held.push(silent(gateway.agents, peer).await);
        }
    }
    let mut one_more = silent(gateway.agents, 6).await;
    is_closed(&mut one_more).await;
    assert_eq!(refused(&gateway, "agents", "full").await, 1.0);
    assert_eq!(gateway.metric("gpu_gateway_connections_limit", "port=\"agents\"").await, 16.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_heads_and_idle_connections_do_not_keep_a_probe_out() {
    let connections = Connections { keda: 16, agents: 16, http: 16 };
    let gateway = gateway(|config| config.connections = connections).await;
    let mut held = Vec::new();
    for peer in 1..6 {
        for _ in 0..6 {
            let mut half_head = silent(gateway.http, peer).await;
            half_head.write_all(b"GET /healthz HTTP/1.1\r\nHost:").await.unwrap();
            held.push(half_head);
        }
    }
    assert_eq!(gateway.get("/healthz").await.0, 200, "a peer that has its part");
    for peer in 1..6 {
        for _ in 0..6 {
            let mut done = silent(gateway.http, peer).await;
            done.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut said = [0; 15];
            soon("an answer", done.read_exact(&mut said)).await.unwrap();
            assert_eq!(&said, b"HTTP/1.1 200 OK");
            held.push(done);
        }
    }
    assert_eq!(gateway.get("/healthz").await.0, 200);
    assert!(refused(&gateway, "http", "idle").await >= 30.0);
    assert_eq!(refused(&gateway, "http", "peer").await, 0.0);
    assert_eq!(refused(&gateway, "http", "full").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_to_speak_and_stops_is_closed_too() {
    let gateway = TestGateway::start(ONE_POD).await;
    let mut half_preface = silent(gateway.keda, 2).await;
    half_preface.write_all(b"PRI * HTTP/2").await.unwrap();
    let mut half_head = silent(gateway.http, 2).await;
    half_head.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
    is_closed(&mut half_preface).await;
    is_closed(&mut half_head).await;
    for port in ["keda", "http"] {
        eventually("it is counted", async || match refused(&gateway, port, "silent").await {
            1.0 => Ok(()),
            other => Err((port, other)),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_costs_its_connection_and_is_counted() {
    let gateway = TestGateway::start(ONE_POD).await;
    let mut large = silent(gateway.http, 2).await;
    let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n", "x".repeat(20_000));
    // The server may close it before all of it is written.
    large.write_all(head.as_bytes()).await.ok();
    is_closed(&mut large).await;
    eventually("it is counted", async || match refused(&gateway, "http", "head").await {
        1.0 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(gateway.get("/healthz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_connection_has_so_many_streams_and_one_more_is_refused() {
    let gateway = TestGateway::start(ONE_POD).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", gateway.agents)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut held = Vec::new();
    for node in 0..16 {
        let mut uplink = Uplink::on(channel.clone()).await;
        uplink.say(Node::new(&format!("n{node}")).hello()).await;
        uplink.welcome().await.unwrap();
        held.push(uplink);
    }
    let (_messages, stream) = mpsc::channel::<AgentMessage>(1);
    let mut client = UplinkClient::new(channel.clone());
    let push = async { client.push(ReceiverStream::new(stream)).await };
    let status = soon("an answer", push).await.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(shed(&gateway, "agents", "streams").await, 1.0);
    // One leaves, and there is room again.
    held.remove(0).end().await.unwrap();
    eventually("there is room", async || {
        let mut uplink = Uplink::on(channel.clone()).await;
        uplink.say(Node::new("n16").hello()).await;
        uplink.welcome().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_connection_ends_gently_streams_with_ok_and_no_call_fails() {
    let gateway = gateway(|config| config.connection_age = Duration::from_secs(1)).await;
    let _agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let asking = async {
        loop {
            assert_eq!(sent(async || trigger.value().await).await, 60.0);
            sleep(Duration::from_millis(5)).await;
        }
    };
    let streaming = async {
        for _ in 0..3 {
            let mut stream = sent(async || trigger.stream().await).await;
            soon("the stream ends", async {
                while stream.message().await.expect("OK at the end").is_some() {}
            })
            .await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = streaming => {}
    }
}

/// One address for replicas: each new connection goes to the newest of them.
async fn service(replica: watch::Receiver<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = *replica.borrow();
            tokio::spawn(async move {
                let mut replica = TcpStream::connect(to).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut replica).await.ok();
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_leaves_meets_a_new_replica_and_no_call_fails() {
    let node = || Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0));
    let old = gateway(|config| config.connection_age = Duration::from_secs(1)).await;
    let _agent = old.agent(node()).await;
    old.is_ready().await;
    let (newest, replica) = watch::channel(old.keda);
    let client = Keda::connect(service(replica).await).await;
    let trigger = client.trigger("ai/vllm-so", &[]);
    assert_eq!(sent(async || trigger.value().await).await, 60.0);
    let new = gateway(|_| {}).await;
    let _agent_of_new = new.agent(node()).await;
    new.is_ready().await;
    newest.send_replace(new.keda);
    eventually("the new replica is asked", async || {
        assert_eq!(sent(async || trigger.value().await).await, 60.0);
        let labels = "method=\"GetMetrics\",code=\"OK\"";
        match new.metric("gpu_gateway_rpc_duration_seconds_count", labels).await {
            0.0 => Err(()),
            _ => Ok(()),
        }
    })
    .await;
}

/// Makes a call, and again if the client's own transport never sent it because the connection was
/// just ending, or the gateway never took it up, which a GOAWAY says: this client leaves that to
/// its caller, KEDA's does it by itself.
async fn sent<T: Debug>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    loop {
        match call().await {
            Err(status) if status.message() == "operation was canceled" => {}
            Err(status) if format!("{status:?}").contains("GoAway(b\"\", NO_ERROR, Remote)") => {}
            answer => return answer.expect("no call fails"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_are_too_large_cost_their_call_only() {
    let gateway = TestGateway::start(ONE_POD).await;
    let _agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    trigger.becomes(60.0).await;
    let mut request = Request::new(trigger.reference.clone());
    let large: AsciiMetadataValue = "x".repeat(20_000).parse().unwrap();
    request.metadata_mut().insert("x-large", large);
    let call = async { trigger.client.clone().is_active(request).await };
    let status = soon("it is refused", call).await.expect_err("20 kB of headers");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(shed(&gateway, "keda", "headers").await, 1.0);
    assert_eq!(trigger.value().await.unwrap(), 60.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_floods_is_slowed_down_and_keeps_its_stream() {
    let gateway = TestGateway::start(ONE_POD).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let node = |load| Node::new("n1").with(gpu("u1", "ai/vllm-0", load));
    let mut agent = Uplink::open(gateway.agents).await;
    agent.say(node(1.0).hello()).await;
    agent.say(node(1.0).inventory_message(1)).await;
    for load in 0..250 {
        agent.say(node(f64::from(load % 50)).sample_message(1)).await;
    }
    // Paused for a moment, it says the next as if nothing had been.
    agent.say(node(77.0).sample_message(1)).await;
    trigger.becomes(77.0).await;
    assert!(gateway.metric("gpu_gateway_uplink_slowed_total", "").await > 0.0);
    assert_eq!(gateway.refused().await, 0.0);
    assert_eq!(gateway.metric("gpu_gateway_agent_sessions", "").await, 1.0);
}
