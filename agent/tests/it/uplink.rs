//! The uplink and the whole agent against a real server of the real service.

use std::sync::Arc;
use std::time::Duration;

use agent::app::App;
use agent::collector::Newest;
use agent::config::RunConfig;
use agent::device::replay::ReplayEnd;
use agent::frame::Taken;
use agent::uplink::backoff::{CAP, delay};
use agent::uplink::{Heard, Uplink};
use proptest::prelude::*;
use proto::convert::Link;
use proto::uplink::agent_message::Body;
use proto::uplink::{Hello, Inventory, Sample};
use shared::frame::{self, DeviceSample, Frame};
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::Reading;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{Gateway, Mood};

fn config(gateway: &Gateway, source: &str) -> RunConfig {
    let mut config = RunConfig::new(gateway.url(), "node-a".into(), source.parse().unwrap());
    config.interval = Duration::from_millis(100);
    config
}

struct Running {
    shutdown: CancellationToken,
    app: tokio::task::JoinHandle<anyhow::Result<()>>,
}

fn start(config: RunConfig) -> Running {
    let shutdown = CancellationToken::new();
    let app = App::build(config).unwrap().run(shutdown.clone());
    Running { shutdown, app: tokio::spawn(app) }
}

impl Gateway {
    async fn hello(&mut self, expected: u32) -> Hello {
        match self.next().await {
            (stream, Some(Body::Hello(hello))) if stream == expected => hello,
            other => panic!("not the hello of stream {expected}: {other:?}"),
        }
    }

    async fn inventory(&mut self) -> Inventory {
        match self.next().await {
            (_, Some(Body::Inventory(inventory))) => inventory,
            other => panic!("not an inventory: {other:?}"),
        }
    }

    async fn sample(&mut self) -> Sample {
        match self.next().await {
            (_, Some(Body::Sample(sample))) => sample,
            other => panic!("not a sample: {other:?}"),
        }
    }

    /// The next message of another kind than a sample.
    async fn after_samples(&mut self) -> Option<Body> {
        loop {
            match self.next().await {
                (_, Some(Body::Sample(_))) => {}
                (_, other) => return other,
            }
        }
    }
}

#[tokio::test]
async fn hello_comes_first_then_the_inventory_once_then_samples() {
    let mut gateway = Gateway::start().await;
    let agent = start(config(&gateway, "sim:gpus=2,pods=ai/vllm-0,shape=constant:60"));
    let hello = gateway.hello(0).await;
    assert_eq!((hello.node.as_str(), hello.interval_ms), ("node-a", 100));
    assert_eq!(hello.engine_interval_ms, 1_000);
    let (link, refusals) = Link::open(gateway.inventory().await).unwrap();
    assert_eq!(refusals, Vec::<String>::new());
    for _ in 0..4 {
        let (sample, refusals) = link.sample(gateway.sample().await).unwrap();
        assert_eq!(refusals, Vec::<String>::new());
        let device = sample.devices[0].as_ref().unwrap();
        assert_eq!(device.readings.value(Metric::GpuUtilization), Some(60.0));
    }
    agent.shutdown.cancel();
    agent.app.await.unwrap().unwrap();
    assert_eq!(gateway.after_samples().await, None, "the stream ends cleanly");
}

#[tokio::test]
async fn a_gateway_is_found_by_its_name_and_another_that_is_away_does_not_matter() {
    let mut gateway = Gateway::start().await;
    let mut config = config(&gateway, "sim:gpus=1");
    let absent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = format!("http://{}", absent.local_addr().unwrap());
    drop(absent);
    let port = gateway.address.port();
    config.gateways = vec![refusing, format!("http://localhost:{port}")];
    let agent = start(config);
    gateway.hello(0).await;
    gateway.inventory().await;
    agent.shutdown.cancel();
    agent.app.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_changed_inventory_is_sent_again_under_a_new_number() {
    let mut gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let line = |pod| {
        format!(
            "{{\"at_ms\":0,\"devices\":[{{\"uuid\":\"a\",\"holders\":[{{\"namespace\":\"n\",\"pod\":\"{pod}\"}}]}}]}}\n"
        )
    };
    std::fs::write(&path, line("p")).unwrap();
    let agent = start(config(&gateway, &format!("replay:{}", path.display())));
    gateway.hello(0).await;
    assert_eq!(gateway.inventory().await.generation, 1);
    for _ in 0..3 {
        assert_eq!(gateway.sample().await.generation, 1);
    }
    std::fs::write(&path, line("p") + &line("q")).unwrap();
    let Some(Body::Inventory(changed)) = gateway.after_samples().await else {
        panic!("no second inventory");
    };
    assert_eq!(changed.generation, 2);
    assert_eq!(changed.devices[0].holders[0].pod, "q");
    assert_eq!(gateway.sample().await.generation, 2);
    agent.shutdown.cancel();
    agent.app.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stream_that_broke_comes_back_and_sends_the_inventory_first() {
    let mut gateway = Gateway::start().await;
    let agent = start(config(&gateway, "sim:gpus=1"));
    gateway.hello(0).await;
    gateway.inventory().await;
    gateway.hang_up.notify_one();
    let again = gateway.after_samples().await;
    assert!(matches!(again, Some(Body::Hello(_))), "{again:?}");
    assert_eq!(gateway.inventory().await.generation, 1);
    gateway.sample().await;
    agent.shutdown.cancel();
    agent.app.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_agent_ends_with_its_recording_after_the_last_line_was_sent() {
    let mut gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let line = |at, load| {
        format!("{{\"at_ms\":{at},\"devices\":[{{\"uuid\":\"a\",\"temperature\":{load}}}]}}\n")
    };
    std::fs::write(&path, line(0, 1) + &line(300, 2)).unwrap();
    let mut config = config(&gateway, &format!("replay:{}", path.display()));
    config.replay_end = ReplayEnd::Exit;
    start(config).app.await.unwrap().unwrap();
    gateway.hello(0).await;
    gateway.inventory().await;
    let mut last = None;
    while let (_, Some(body)) = gateway.next().await {
        last = Some(body);
    }
    let Some(Body::Sample(sample)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(sample.devices[0].values, [2.0]);
}

/// A frame of `devices` devices that all show `load`.
fn frame(inventory: &Arc<frame::Inventory>, load: f64) -> Frame {
    let device = DeviceSample {
        readings: [(Metric::GpuUtilization, Reading::Ok(load))].into_iter().collect(),
        ..DeviceSample::default()
    };
    let devices = vec![Some(device); inventory.devices.len()];
    Frame {
        inventory: inventory.clone(),
        sample: frame::Sample { devices, ..frame::Sample::default() },
    }
}

fn inventory(devices: usize) -> Arc<frame::Inventory> {
    let device = |number: usize| frame::Device {
        uuid: DeviceUuid::from(number.to_string()),
        index: 0,
        name: "test".into(),
        memory_total_mib: None,
        mig: None,
        holders: Vec::new(),
        reason: None,
        health: None,
    };
    Arc::new(frame::Inventory {
        devices: (0..devices).map(device).collect(),
        ..frame::Inventory::default()
    })
}

fn uplink(gateway: &Gateway, clock: Clock) -> (watch::Sender<Newest>, Running) {
    let (send, newest) = watch::channel(None);
    let shutdown = CancellationToken::new();
    let uplink = Uplink {
        credentials: Arc::default(),
        node: "node-a".into(),
        interval: Duration::from_secs(1),
        engine_interval: Duration::from_secs(1),
        newest,
        briefs: Heard::new(watch::Sender::new(None)),
        clock,
        shutdown: shutdown.clone(),
    };
    let run = uplink.run(gateway.url().parse().unwrap());
    let app = tokio::spawn(async {
        run.await;
        Ok(())
    });
    (send, Running { shutdown, app })
}

#[tokio::test]
async fn ages_grow_by_the_time_a_frame_has_waited() {
    let mut gateway = Gateway::start().await;
    let clock = Clock::start();
    let (send, running) = uplink(&gateway, clock);
    let mut waiting = frame(&inventory(1), 1.0);
    waiting.sample.devices[0].as_mut().unwrap().age = Duration::from_millis(40);
    let taken = Taken { frame: waiting, at: clock.now() - Duration::from_secs(3), kubelet: None };
    send.send_replace(Some(Arc::new(taken)));
    gateway.hello(0).await;
    gateway.inventory().await;
    let age = gateway.sample().await.devices[0].age_ms;
    assert!((3_040..60_000).contains(&age), "{age}");
    drop(send);
    running.shutdown.cancel();
    running.app.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_frame_and_not_a_queue() {
    const FRAMES: u32 = 300;
    let mut gateway = Gateway::start().await;
    let clock = Clock::start();
    let (send, running) = uplink(&gateway, clock);
    let inventory = inventory(1_000);
    let publish = |load: u32| {
        let taken = Taken {
            frame: frame(&inventory, f64::from(load) / 10.0),
            at: clock.now(),
            kubelet: None,
        };
        send.send_replace(Some(Arc::new(taken)));
    };
    publish(0);
    gateway.hello(0).await;
    gateway.inventory().await;
    gateway.sample().await;
    gateway.mood.send_replace(Mood::Deaf);
    for load in 1..=FRAMES {
        publish(load);
        // Time for the connection to take what it has room for: it is a real one.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    gateway.mood.send_replace(Mood::Reading);
    let mut heard = Vec::new();
    while heard.last() != Some(&(f64::from(FRAMES) / 10.0)) {
        heard.push(gateway.sample().await.devices[0].values[0]);
    }
    assert!(heard.is_sorted_by(|a, b| a < b), "{heard:?}");
    assert!(heard.len() < FRAMES as usize / 2, "{} samples", heard.len());
    drop(send);
    running.shutdown.cancel();
    running.app.await.unwrap().unwrap();
}

#[test]
fn delays_follow_the_rule_of_the_design() {
    let most = |failures, sessions| delay(failures, sessions, 1.0).as_secs_f64();
    for (failures, sessions, expected) in [
        (0, Some(0), 0.5),
        (0, Some(35), 0.5),
        (0, Some(700), 10.0),
        (0, Some(1_000_000), 15.0),
        (1, Some(700), 10.0),
        (3, Some(35), 2.0),
        (2, Some(700), 10.0),
        (0, None, 0.5),
        (1, None, 1.0),
        (4, None, 8.0),
        (5, None, 15.0),
        (u32::MAX, None, 15.0),
        (u32::MAX, Some(1), 15.0),
    ] {
        let most = most(failures, sessions);
        assert!((most - expected).abs() < 1e-9, "{failures} {sessions:?}: {most}");
    }
    assert_eq!(delay(0, Some(700), 0.5), Duration::from_secs(5));
}

proptest! {
    #[test]
    fn no_delay_is_longer_than_the_cap(
        failures: u32, sessions: Option<u32>, random in 0.0..=1.0_f64,
    ) {
        prop_assert!(delay(failures, sessions, random) <= CAP);
    }
}
