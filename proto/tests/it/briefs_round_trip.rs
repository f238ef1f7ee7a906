use proto::brief::{MAX_PODS, from_wire, to_wire};
use proto::uplink as wire;
use shared::brief::{
    Brief, BriefedContainer, BriefedPod, EnginePage, EngineTarget, PublishedDevice,
};
use shared::identity::PodKey;

fn pod(name: &str) -> BriefedPod {
    BriefedPod {
        key: PodKey::new("ai", name),
        uid: "3f2c8f0e-5d1b-4c55-9e0d-0a9b7c6d5e4f".into(),
        cgroup_uid: Some("0123456789abcdef0123456789abcdef".into()),
        containers: vec![
            BriefedContainer { name: "vllm".into(), id: Some("c0ffee00".repeat(8).into()) },
            BriefedContainer { name: "later".into(), id: None },
        ],
        finished: true,
        ip: Some("10.0.0.7".into()),
        engine: Some(EngineTarget {
            pages: vec![EnginePage { port: 8000, path: "/metrics".into() }],
            labels: vec!["".into(), "model_name=m1".into()],
            engine: Some("vllm".into()),
        }),
    }
}

#[test]
fn a_brief_arrives_as_it_was_sent() {
    let bare = BriefedPod {
        cgroup_uid: None,
        containers: Vec::new(),
        finished: false,
        ip: None,
        engine: None,
        ..pod("bare")
    };
    let published = |uuid: Option<&str>| PublishedDevice {
        driver: "gpu.nvidia.com".into(),
        pool: "n1".into(),
        name: "gpu-0".into(),
        uuid: uuid.map(Into::into),
        parent: uuid.is_none().then(|| "GPU-1".into()),
        profile: uuid.is_none().then(|| "1g.10gb".into()),
    };
    let devices = vec![published(Some("GPU-0")), published(None)];
    let brief = Brief { pods: vec![pod("full"), bare], devices };
    let message = to_wire(3, &brief);
    assert_eq!(message.version, 3);
    assert_eq!(from_wire(message), (brief, Vec::new()));
}

#[test]
fn a_bad_element_refuses_itself_alone() {
    let good = to_wire(1, &Brief { pods: vec![pod("a")], devices: Vec::new() }).pods.remove(0);
    let named = |name: &str| wire::BriefedPod { name: name.into(), ..good.clone() };
    let engine = |port, path: &str| wire::EngineTarget {
        pages: vec![wire::EnginePage { port, path: path.into() }],
        labels: vec![String::new()],
        engine: String::new(),
    };
    let with = |name: &str, engine| wire::BriefedPod { engine: Some(engine), ..named(name) };
    let pods = vec![
        named("a"),
        named("a"),
        named(""),
        wire::BriefedPod { uid: String::new(), ..named("b") },
        with("port", engine(70_000, "/metrics")),
        with("path", engine(80, "metrics")),
        with("no-selection", wire::EngineTarget { labels: Vec::new(), ..engine(80, "/") }),
    ];
    let device = wire::PublishedDevice { driver: "d".into(), ..Default::default() };
    let (brief, refusals) = from_wire(wire::Brief { version: 1, pods, devices: vec![device] });
    let names: Vec<_> = brief.pods.iter().map(|pod| &*pod.key.name).collect();
    assert_eq!(names, ["a", "port", "path", "no-selection"]);
    assert_eq!(brief.pods.iter().filter(|pod| pod.engine.is_some()).count(), 1);
    assert!(brief.devices.is_empty());
    assert_eq!(refusals.len(), 7, "{refusals:#?}");
}

#[test]
fn more_pods_than_a_node_can_have_are_cut_and_said() {
    let pods = (0..=MAX_PODS).map(|n| pod(&format!("p{n}"))).collect();
    let (brief, refusals) = from_wire(to_wire(1, &Brief { pods, devices: Vec::new() }));
    assert_eq!(brief.pods.len(), MAX_PODS);
    assert_eq!(refusals, ["1101 pods; only the first 1100 are taken"]);
}
