//! What DRA drivers publish: from a fake API server's ResourceSlices to the agent's brief.

use serde_json::json;
use shared::brief::Brief;

use crate::api_server::{ApiServer, Break, pod, resource_slice, scaled_object};
use crate::kube;
use crate::support::{Node, TestGateway, Uplink, eventually};

async fn agent(gateway: &TestGateway, node: &str) -> Uplink {
    let mut uplink = Uplink::open(gateway.agents).await;
    uplink.say(Node::new(node).hello()).await;
    uplink.welcome().await.expect("the agent is welcome");
    uplink
}

/// Device names and UUIDs of a brief.
fn devices(brief: &Brief) -> Vec<String> {
    let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let devices = brief.devices.iter().map(|device| {
        let uuid = text(device.uuid.as_ref().map(|uuid| uuid.as_str()));
        let parent = text(device.parent.as_ref().map(|uuid| uuid.as_str()));
        format!("{} {uuid} {parent} {}", device.name, text(device.profile.as_deref()))
    });
    devices.collect()
}

/// Reads briefs until one has these devices.
async fn becomes(agent: &mut Uplink, expected: &[&str]) {
    loop {
        let (_, brief) = agent.brief().await.expect("the stream goes on");
        if devices(&brief) == expected {
            return;
        }
    }
}

const GPU: (&str, &[(&str, &str)]) = ("gpu-0", &[("uuid", "GPU-0"), ("type", "gpu")]);
const MIG: (&str, &[(&str, &str)]) =
    ("gpu-1-mig-3g40gb-9-0", &[("uuid", "MIG-1"), ("parentUUID", "GPU-1"), ("profile", "3g.40gb")]);

#[tokio::test]
async fn devices_are_told_in_every_served_version_and_the_higher_generation_wins() {
    for version in ["v1", "v1beta2", "v1beta1"] {
        let api = ApiServer::start().await;
        api.serves_slices(&[version, "v1alpha3"]);
        let slice = |name: &str, node: &str, generation, devices: &[_]| {
            let slice = resource_slice(version, name, (node, generation), devices);
            api.apply("resourceslices", slice);
        };
        slice("n1-old", "n1", 9, &[("gpu-5", &[("uuid", "GPU-5")])]);
        slice("n1-new", "n1", 10, &[MIG, GPU]);
        slice("n2", "n2", 1, &[("gpu-0", &[("uuid", "GPU-2")])]);
        let gateway = kube::gateway(&api).await;
        let (mut n1, mut n2) = (agent(&gateway, "n1").await, agent(&gateway, "n2").await);
        let both = ["gpu-0 GPU-0 - -", "gpu-1-mig-3g40gb-9-0 MIG-1 GPU-1 3g.40gb"];
        becomes(&mut n1, &both).await;
        becomes(&mut n2, &["gpu-0 GPU-2 - -"]).await;
        // The driver writes a new generation, and takes the old ones away.
        slice("n1-newest", "n1", 11, &[GPU]);
        becomes(&mut n1, &["gpu-0 GPU-0 - -"]).await;
        api.delete("resourceslices", "", "n1-newest");
        becomes(&mut n1, &both).await;
        // A watch that broke and is too old lists again.
        api.forget();
        api.delete("resourceslices", "", "n1-new");
        api.break_watches(Break::Abrupt);
        becomes(&mut n1, &["gpu-5 GPU-5 - -"]).await;
    }
}

#[tokio::test]
async fn the_best_served_version_is_asked_for() {
    let api = ApiServer::start().await;
    api.serves_slices(&["v1beta1", "v1"]);
    api.apply("resourceslices", resource_slice("v1", "n1", ("n1", 1), &[GPU]));
    let gateway = kube::gateway(&api).await;
    becomes(&mut agent(&gateway, "n1").await, &["gpu-0 GPU-0 - -"]).await;
    assert!(api.versions().contains("resource.k8s.io/v1"), "{:?}", api.versions());
    assert!(!api.versions().contains("resource.k8s.io/v1beta1"), "{:?}", api.versions());
}

#[tokio::test]
async fn without_the_api_or_without_the_right_everything_else_works() {
    for is_forbidden in [false, true] {
        let api = ApiServer::start().await;
        if is_forbidden {
            api.serves_slices(&["v1"]);
            api.forbid("resourceslices");
            api.apply("resourceslices", resource_slice("v1", "n1", ("n1", 1), &[GPU]));
        }
        api.scale("apps/v1/deployments", "ml", "llm", (0, "app=llm"));
        let target = json!({"name": "llm"});
        api.apply("scaledobjects", scaled_object("ml", "so", target, json!({"targetValue": "70"})));
        api.apply("pods", pod("ml", "other-0", json!({"app": "other"})));
        let gateway = kube::gateway(&api).await;
        gateway.is_ready().await;
        let (_, brief) = agent(&gateway, "n1").await.brief().await.unwrap();
        assert_eq!((brief.pods.len(), devices(&brief)), (1, vec![]));
        let asked = |verb: &str| {
            let call = ("resource.k8s.io".to_owned(), "resourceslices".to_owned(), verb.to_owned());
            api.calls().contains_key(&call)
        };
        if is_forbidden {
            eventually("it is asked for", async || if asked("list") { Ok(()) } else { Err(()) })
                .await;
        }
        assert_eq!((asked("list"), asked("watch")), (is_forbidden, false));
        let status = gateway.json("/api/v1/scaledobjects/ml/so/explain").await;
        let age = status["directoryAgeSeconds"].as_f64().expect("a number");
        assert!(age < 60.0, "it is confirmed all the same: {age}");
    }
}
