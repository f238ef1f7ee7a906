//! A gateway that is told to stop under load, and one that dies and comes back: case O15.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent::frame::Taken;
use agent::uplink::credentials::{Credentials, Files};
use agent::uplink::{Heard, Uplink};
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, ScaledObjectRef};
use shared::frame::{Device, DeviceSample, Frame, Holder, HolderSource, Inventory, Sample};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::Reading;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::processes::DIRECTORY;
use crate::support::{Gateway, PATIENCE, binaries, free_address, scaled_object};

/// Streams that are open when the gateway is told to stop.
const STREAMS: usize = 1_000;

#[tokio::test]
async fn a_thousand_streams_end_with_ok_and_nothing_holds_up_the_exit() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::start(&binaries, &folder, DIRECTORY);
    let start = Instant::now();
    let mut client = loop {
        match ExternalScalerClient::connect(format!("http://{}", gateway.keda)).await {
            Ok(client) => break client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let opened = client.stream_is_active(scaled_object("llm-so", &[])).await;
        let mut stream = opened.unwrap().into_inner();
        streams.spawn(async move {
            while stream.message().await?.is_some() {}
            Ok::<_, tonic::Status>(())
        });
    }
    // They say nothing and would stay for ever.
    let mut idle = Vec::new();
    for port in [gateway.keda, gateway.uplink, gateway.http] {
        idle.push(TcpStream::connect(port).await.unwrap());
    }
    let status = gateway.process.terminate().await;
    let log = gateway.process.log();
    assert!(status.success(), "{status}\n{log}");
    assert!(!log.contains("did not leave in time"), "somebody held it up:\n{log}");
    for ended in streams.join_all().await {
        ended.expect("every stream ends with OK");
    }
    drop(idle);
}

/// Nodes with an agent each, where the limit of open files allows, and those whose GPUs are scaled
/// by.
const AGENTS: usize = 1_000;
const BUSY: usize = 4;
/// Open files of this process for each agent: its end of the connection and both of the relay's.
const FILES_EACH: u64 = 3;
/// Files for everything else.
const OTHER_FILES: u64 = 200;
/// With fewer, the rule of the design spreads them over too short a time for the rate of the case.
const ENOUGH_FOR_RATES: usize = 700;
/// A machine that stands still for so long lets what was spread come all at once.
const STANDSTILL: Duration = Duration::from_millis(700);
/// How often each says something.
const EVERY: Duration = Duration::from_secs(2);

/// Eight pods, two on each of the first nodes.
pub(crate) fn directory() -> String {
    let pods: String = (0..2 * BUSY)
        .map(|pod| format!("{{name: llm-{pod}, node: n{}, ready: true}}, ", pod / 2))
        .collect();
    format!(
        "
workloads:
  - {{namespace: ml, kind: Deployment, name: llm, replicas: 8, pods: [{pods}]}}
scaledObjects:
  - {{namespace: ml, name: llm-so, target: {{kind: Deployment, name: llm}}, maxReplicas: 20}}
"
    )
}

/// What a node says: its two GPUs at 75 %, held by pods where it is a busy one.
fn frame(node: usize) -> Frame {
    let mut inventory = Inventory::default();
    let mut sample = Sample::default();
    for gpu in 0..2 {
        let pod = (node < BUSY).then(|| PodKey::new("ml", format!("llm-{}", 2 * node + gpu)));
        let holders = pod.map(|pod| Holder {
            pod,
            uid: None,
            container: "main".into(),
            share: Some(1.0),
            estimated: false,
            source: HolderSource::Replay,
            undeclared: false,
        });
        inventory.devices.push(Device {
            uuid: format!("GPU-{node}-{gpu}").as_str().into(),
            index: u32::try_from(gpu).unwrap(),
            name: "NVIDIA H100 80GB HBM3".into(),
            memory_total_mib: None,
            mig: None,
            holders: holders.into_iter().collect(),
            reason: None,
            health: None,
        });
        let readings = [(Metric::GpuUtilization, Reading::Ok(75.0))].into_iter().collect();
        sample.devices.push(Some(DeviceSample { readings, ..DeviceSample::default() }));
    }
    Frame { inventory: Arc::new(inventory), sample }
}

/// As many agents as this process may have connections for.
fn most_agents() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = gateway::limit::descriptors(&limits).unwrap_or(u64::MAX);
    let agents = files.saturating_sub(OTHER_FILES) / FILES_EACH;
    usize::try_from(agents).unwrap_or(AGENTS).min(AGENTS)
}

/// The longest time that this process did not get to run, as seen every 20 ms.
async fn longest_standstill(longest: watch::Sender<Duration>) {
    let tick = Duration::from_millis(20);
    loop {
        let begun = Instant::now();
        sleep(tick).await;
        let late = begun.elapsed().saturating_sub(tick);
        longest.send_if_modified(|longest| {
            *longest = late.max(*longest);
            late == *longest
        });
    }
}

/// Agents which find the gateway through `relay`.
pub(crate) fn agents(count: usize, relay: SocketAddr) -> JoinSet<()> {
    let clock = Clock::start();
    let credentials = Arc::new(Credentials::new(Files::default()));
    let mut tasks = JoinSet::new();
    for node in 0..count {
        let frame = frame(node);
        let take =
            move || Some(Arc::new(Taken { frame: frame.clone(), at: clock.now(), kubelet: None }));
        let (newest, frames) = watch::channel(take());
        let uplink = Uplink {
            node: format!("n{node}").as_str().into(),
            interval: EVERY,
            engine_interval: EVERY,
            newest: frames,
            briefs: Heard::new(watch::Sender::new(None)),
            clock,
            credentials: credentials.clone(),
            shutdown: CancellationToken::new(),
        };
        let gateway = format!("http://{relay}").parse().unwrap();
        tasks.spawn(uplink.run(gateway));
        tasks.spawn(async move {
            sleep(EVERY.mul_f64(f64::from(u32::try_from(node).unwrap()) / 1_000.0)).await;
            while newest.send(take()).is_ok() {
                sleep(EVERY).await;
            }
        });
    }
    tasks
}

/// Carries connections to the gateway, or breaks them if it is away, and tells of each.
async fn relay(listener: TcpListener, gateway: SocketAddr, tried: mpsc::UnboundedSender<Instant>) {
    let mut cables = JoinSet::new();
    while let Ok((mut agent, _)) = listener.accept().await {
        if tried.send(Instant::now()).is_err() {
            return;
        }
        cables.spawn(async move {
            if let Ok(mut gateway) = TcpStream::connect(gateway).await {
                tokio::io::copy_bidirectional(&mut agent, &mut gateway).await.ok();
            }
        });
    }
}

async fn ask(keda: SocketAddr, reference: &ScaledObjectRef) -> anyhow::Result<f64> {
    let mut client = ExternalScalerClient::connect(format!("http://{keda}")).await?;
    let request = GetMetricsRequest {
        scaled_object_ref: Some(reference.clone()),
        metric_name: "gpu_utilization".into(),
    };
    Ok(client.get_metrics(request).await?.into_inner().metric_values[0].metric_value_float)
}

/// Nodes that the gateway has heard of since it started.
async fn nodes(http: SocketAddr) -> usize {
    let page = loadtest::explain::get(http, "/api/v1/nodes").await;
    page.ok().and_then(|page| Some(page.as_array()?.len())).unwrap_or_default()
}

/// Waits until the gateway has heard of so many nodes.
async fn has_heard_of(count: usize, http: SocketAddr) {
    let start = Instant::now();
    while nodes(http).await < count {
        assert!(start.elapsed() < Duration::from_secs(120), "{} nodes", nodes(http).await);
        sleep(Duration::from_millis(500)).await;
    }
}

/// O15, in real time: whatever the gateway says on the way back, the HPA would want eight replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_agents_come_back_spread_out_and_no_answer_is_a_part() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let ports = [free_address(), free_address(), free_address()];
    let [keda, uplink, http] = ports;
    let count = most_agents();
    let gateway = Gateway::start_on(ports, &binaries, &folder, &directory(), &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tried, mut tries) = mpsc::unbounded_channel();
    let relaying = tokio::spawn(relay(listener, uplink, tried));
    let agents = agents(count, address);
    has_heard_of(count, http).await;
    let metadata = [("targetGpuUtilization".to_owned(), "75".to_owned())];
    let reference = ScaledObjectRef {
        namespace: "ml".into(),
        name: "llm-so".into(),
        scaler_metadata: metadata.into(),
    };
    while ask(keda, &reference).await.ok() != Some(600.0) {
        sleep(Duration::from_millis(100)).await;
    }
    // Those who came first are told of the others within ten seconds.
    sleep(Duration::from_secs(11)).await;
    while tries.try_recv().is_ok() {}
    let (longest, standstill) = watch::channel(Duration::ZERO);
    let watching = tokio::spawn(longest_standstill(longest));
    drop(gateway);
    let killed = Instant::now();
    let asking = async {
        let (mut again, mut looks) = (None, 0);
        loop {
            if again.is_none() && killed.elapsed() >= Duration::from_secs(5) {
                again = Some(Gateway::start_on(ports, &binaries, &folder, &directory(), &[]));
            }
            looks += 1;
            if let Ok(value) = ask(keda, &reference).await {
                assert!(value >= 545.0, "a part of the fleet was taken for all of it: {value}");
                // Within the HPA's tolerance of eight replicas at 75.
                assert!((540.0..=660.0).contains(&value), "the HPA would not want 8: {value}");
                if looks % 10 == 0 && nodes(http).await >= count {
                    return again;
                }
            }
            assert!(killed.elapsed() < Duration::from_secs(120), "not all are back");
            sleep(Duration::from_millis(100)).await;
        }
    };
    let _again = asking.await;
    println!("{count} agents are back after {:?}", killed.elapsed());
    let mut seconds = vec![0; 121];
    while let Ok(at) = tries.try_recv() {
        seconds[usize::try_from(at.duration_since(killed).as_secs()).unwrap().min(120)] += 1;
    }
    let (most, still) = (*seconds.iter().max().unwrap(), *standstill.borrow());
    println!("at most {most} tries in a second, the machine stood still for {still:?} at most");
    if count < ENOUGH_FOR_RATES || still > STANDSTILL {
        println!("not judged by rates: too few agents, or a machine that stood still");
    } else {
        assert!(most * 100 <= count * 15, "too many in one second: {seconds:?}");
    }
    drop((agents, relaying, watching));
}
