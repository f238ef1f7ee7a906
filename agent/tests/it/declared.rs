//! What the kubelet gave to whom, joined with the node's pods and its devices.

use agent::device::{ObservedDevice, Seat};
use agent::owner::declared::{Declaration, Grant, Granted, Listing, Resources, declare};
use agent::owner::id::Why;
use shared::brief::{Brief, BriefedPod, PublishedDevice};
use shared::frame::{HolderSource, Mig};
use shared::identity::PodKey;

use crate::owner::device;

pub(crate) const G: &str = "GPU-5a5a7118-e550-79a1-597e-7631e126c57a";
const H: &str = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448";
const M: &str = "MIG-42f0f413-f7b0-58cc-aced-c1d1fb54db26";
const N: &str = "MIG-00000000-f7b0-58cc-aced-c1d1fb54db26";

fn gpu(uuid: &str, minor: u32) -> ObservedDevice {
    let seat = Seat { minor: Some(minor), ..Seat::default() };
    ObservedDevice { seat, ..device(uuid, Vec::new()) }
}

fn instance(uuid: &str, profile: &str, gpu_instance: u32) -> ObservedDevice {
    let mig = Some(Mig { parent: H.into(), profile: profile.into() });
    let seat = Seat { minor: Some(3), gpu_instance: Some(gpu_instance), compute_instance: Some(0) };
    ObservedDevice { mig, seat, ..device(uuid, Vec::new()) }
}

/// Two GPUs whose minors are not their indices; the second one is cut in two.
fn devices() -> Vec<ObservedDevice> {
    vec![gpu(G, 1), gpu(H, 3), instance(M, "3g.40gb", 2), instance(N, "1g.10gb+me", 9)]
}

fn grant(pod: &str, what: Granted) -> Grant {
    Grant { pod: PodKey::new("ai", pod), container: "main".into(), what, uid: None }
}

fn id(pod: &str, id: &str) -> Grant {
    grant(pod, Granted::Id { resource: "nvidia.com/gpu".into(), id: id.into() })
}

fn claim(pod: &str, device: &str) -> Grant {
    claim_of(pod, "gpu.nvidia.com", device)
}

fn claim_of(pod: &str, driver: &str, device: &str) -> Grant {
    let (driver, pool, device) = (driver.into(), "node1".into(), device.into());
    grant(pod, Granted::Claimed { driver, pool, device })
}

pub(crate) fn briefed(name: &str, uid: &str) -> BriefedPod {
    BriefedPod {
        key: PodKey::new("ai", name),
        uid: uid.into(),
        cgroup_uid: None,
        containers: Vec::new(),
        finished: false,
        ip: None,
        engine: None,
    }
}

fn brief(pods: Vec<BriefedPod>) -> Brief {
    Brief { pods, devices: Vec::new() }
}

fn declared(grants: Vec<Grant>, brief: Option<&Brief>) -> Declaration {
    declare(&Listing { grants }, brief, &devices())
}

/// Pods and UIDs that hold `device`.
fn holders(declaration: &Declaration, device: &str) -> Vec<String> {
    let holders = declaration.holders.get(device).map_or(&[][..], |holders| holders);
    let one = |holder: &agent::owner::declared::DeclaredHolder| match &holder.uid {
        Some(uid) => format!("{} {uid}", holder.pod.name),
        None => holder.pod.name.to_string(),
    };
    holders.iter().map(one).collect()
}

/// The one device that `grant` gives, or why it gives none.
fn given(grant: Grant, brief: Option<&Brief>) -> Result<String, Why> {
    let declaration = declared(vec![grant], brief);
    assert!(declaration.is_known);
    match (declaration.unresolved.first(), declaration.holders.keys().next()) {
        (Some(unresolved), None) => Err(unresolved.why),
        (None, Some(device)) => Ok(device.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ids_of_every_form_give_the_device_they_name() {
    for (id, expected) in [
        (G.to_owned(), Ok(G)),
        (G.replace("5a5a", "5A5A"), Ok(G)),
        (format!("{G}::3"), Ok(G)),
        (format!("{M}::0"), Ok(M)),
        (format!("MIG-{H}/2/0"), Ok(M)),
        (format!("MIG-{H}/2/0::1"), Ok(M)),
        (format!("MIG-{H}/9/0"), Ok(N)),
        ("nvidia1".into(), Ok(G)),
        ("nvidia3".into(), Ok(H)),
        ("nvidia3/gi2/vgpu0".into(), Ok(M)),
        ("nvidia1/vgpu4".into(), Ok(G)),
        ("nvidia0".into(), Err(Why::NoDevice)),
        ("nvidia3/gi7".into(), Err(Why::NoDevice)),
        ("nvidia1/gi2".into(), Err(Why::NoDevice)),
        (format!("MIG-{H}/2/1"), Err(Why::NoDevice)),
        (format!("MIG-{G}/2/0"), Err(Why::NoDevice)),
        ("GPU-00000000-e550-79a1-597e-7631e126c57a".into(), Err(Why::NoDevice)),
        ("0".into(), Err(Why::Index)),
        (format!("{G}-0"), Err(Why::Hami)),
        ("0000:c1:00.0".into(), Err(Why::Amd)),
        ("card0-0".into(), Err(Why::Intel)),
        (format!("{M}::"), Err(Why::UnknownForm)),
    ] {
        assert_eq!(given(self::id("p", &id), None), expected.map(str::to_owned), "{id}");
    }
}

#[test]
fn two_compute_instances_of_one_gpu_instance_are_not_told_apart_by_its_number() {
    let mut devices = devices();
    devices[3].seat = Seat { compute_instance: Some(1), ..devices[2].seat };
    let grants = vec![id("p", "nvidia3/gi2"), id("q", &format!("MIG-{H}/2/1"))];
    let declaration = declare(&Listing { grants }, None, &devices);
    assert_eq!(declaration.unresolved[0].why, Why::Ambiguous);
    assert_eq!(holders(&declaration, N), ["q"]);
}

#[test]
fn a_slice_that_is_gone_is_named_and_its_holder_gets_no_other() {
    let now =
        [gpu(G, 1), gpu(H, 3), instance("MIG-11110000-f7b0-58cc-aced-c1d1fb54db26", "7g.80gb", 2)];
    let grants = vec![id("p", &format!("{M}::1"))];
    let declaration = declare(&Listing { grants }, None, &now);
    assert!(declaration.holders.is_empty());
    assert_eq!(
        declaration.unresolved[0].to_string(),
        format!("ai/p (main) was given nvidia.com/gpu \"{M}::1\": no such device is on this node")
    );
}

/// Replicas are not holders.
#[test]
fn a_pod_with_several_replicas_of_a_device_is_one_of_its_holders() {
    let mut grants = Vec::new();
    for pod in ["a", "b"] {
        grants.extend((0..2).map(|replica| id(pod, &format!("{G}::{replica}"))));
    }
    let mut second = id("b", G);
    second.container = "sidecar".into();
    grants.push(second);
    let declaration = declared(grants, None);
    assert_eq!(holders(&declaration, G), ["a", "b", "b"]);
    let holders = &declaration.holders[G];
    assert_eq!(
        holders.iter().map(|holder| &*holder.container).collect::<Vec<_>>(),
        ["main", "main", "sidecar"]
    );
    assert!(holders.iter().all(|holder| holder.source == HolderSource::Kubelet));
}

#[test]
fn uids_come_from_the_brief_and_finished_pods_hold_nothing() {
    let mut over = briefed("over", "u2");
    over.finished = true;
    let brief = brief(vec![briefed("runs", "u1"), over]);
    let grants = vec![id("new", G), id("over", G), id("runs", G)];
    let declaration = declared(grants.clone(), Some(&brief));
    assert_eq!(holders(&declaration, G), ["new", "runs u1"]);
    assert_eq!(holders(&declared(grants, None), G), ["new", "over", "runs"]);
}

#[test]
fn what_was_given_to_a_pod_is_not_its_namesakes() {
    let mut old = id("p", G);
    old.uid = Some("old".into());
    // The kubelet was asked when the old pod was there, and knows no UIDs itself.
    let brief = brief(vec![briefed("p", "new")]);
    assert!(declared(vec![old.clone()], Some(&brief)).holders.is_empty());
    let mut new = old.clone();
    new.uid = Some("new".into());
    assert_eq!(holders(&declared(vec![new], Some(&brief)), G), ["p new"]);
    // A gateway that lost it says nothing about it.
    assert_eq!(holders(&declared(vec![old], Some(&Brief::default())), G), ["p old"]);
}

fn published(name: &str) -> PublishedDevice {
    PublishedDevice {
        driver: "gpu.nvidia.com".into(),
        pool: "node1".into(),
        name: name.into(),
        uuid: None,
        parent: None,
        profile: None,
    }
}

/// And by what names say where nothing is published.
#[test]
fn claimed_devices_are_found_by_what_is_published_and_else_by_name() {
    let uuid =
        |name: &str, uuid: &str| PublishedDevice { uuid: Some(uuid.into()), ..published(name) };
    let mut elsewhere = uuid("gpu-1", H);
    elsewhere.pool = "node2".into();
    let brief = Brief {
        pods: Vec::new(),
        devices: vec![
            elsewhere,
            uuid("gpu-0", G),
            uuid("gpu-8", "GPU-99990000-e550-79a1-597e-7631e126c57a"),
            published("gpu-3"),
            PublishedDevice {
                parent: Some(H.into()),
                profile: Some("1g.10gb+me".into()),
                ..published("gpu-7-mig-1g10gb-me-20-0")
            },
        ],
    };
    for (name, expected) in [
        ("gpu-0", Ok(G)),
        ("gpu-1", Ok(G)),
        ("gpu-3", Ok(H)),
        ("gpu-8", Err(Why::NoDevice)),
        ("gpu-2", Err(Why::NoDevice)),
        ("gpu-3-mig-3g40gb-9-0", Ok(M)),
        ("gpu-3-mig-1g10gb-me-20-4", Ok(N)),
        ("gpu-7-mig-1g10gb-me-20-0", Ok(N)),
        ("gpu-3-mig-1g10gb-19-0", Err(Why::NoDevice)),
        ("gpu-1-mig-3g40gb-9-0", Err(Why::NoDevice)),
        ("gpu-3-mig-3g40gb-9", Err(Why::UnknownForm)),
        ("gpu-3-mig-3g40gb-9-x", Err(Why::UnknownForm)),
        ("gpu-x-mig-3g40gb-9-0", Err(Why::UnknownForm)),
        ("gpu-3-mig--9-0", Err(Why::UnknownForm)),
        ("gpu-vfio-0", Err(Why::UnknownForm)),
        ("gpu-", Err(Why::UnknownForm)),
        ("gpu-01", Err(Why::UnknownForm)),
        ("", Err(Why::UnknownForm)),
        (G, Err(Why::UnknownForm)),
    ] {
        let expected = expected.map(str::to_owned);
        assert_eq!(given(claim("p", name), Some(&brief)), expected, "{name}");
    }
    assert_eq!(given(claim_of("p", "gpu.amd.com", "gpu-1"), None), Err(Why::Amd));
    assert_eq!(given(claim("p", "gpu-3"), None), Ok(H.to_owned()), "the name alone does");
    let source = declared(vec![claim("p", "gpu-1")], None).holders[G][0].source;
    assert_eq!(source, HolderSource::Dra);
}

#[test]
fn of_two_alike_slices_none_is_guessed() {
    let mut devices = devices();
    devices[3] = instance(N, "3g.40gb", 9);
    let grants = vec![claim("p", "gpu-3-mig-3g40gb-9-0")];
    let declaration = declare(&Listing { grants }, None, &devices);
    assert_eq!(declaration.unresolved[0].why, Why::Ambiguous);
    assert_eq!(&*declaration.unresolved[0].id, "node1/gpu-3-mig-3g40gb-9-0");
    assert!(declaration.holders.is_empty());
}

#[test]
fn a_claim_that_pods_share_has_all_of_them() {
    let declaration = declared(vec![claim("a", "gpu-1"), claim("b", "gpu-1")], None);
    assert_eq!(holders(&declaration, G), ["a", "b"]);
}

#[test]
fn names_of_resources_that_are_gpus() {
    let resources = Resources { extra: vec!["example.com/accelerator".into()] };
    for name in [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.me.shared",
        "example.com/accelerator",
        "example.com/accelerator.shared",
        "amd.com/gpu",
        "amd.com/cpx_nps4",
        "gpu.intel.com/i915",
    ] {
        assert!(resources.has(name), "{name}");
    }
    for name in [
        "",
        "cpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/GPU",
        "nvidia.com/",
        "gpu.intel.com/i915_monitoring",
        "gpu.intel.com/monitoring",
        "nvidia.com/GA100_A100_PCIE_40GB",
        "example.com/other",
        "amd.com/nic",
    ] {
        assert!(!resources.has(name), "{name}");
    }
    assert!(resources.has_driver("gpu.nvidia.com"));
    assert!(!resources.has_driver("compute-domain.nvidia.com"));
}
