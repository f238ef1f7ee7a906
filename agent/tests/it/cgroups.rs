//! Texts of `/proc/PID/cgroup` and the pod they name.

use agent::owner::cgroup::{Place, place};
use proptest::prelude::*;

pub(crate) const A: &str = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90";
pub(crate) const B: &str = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";
const C: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";
pub(crate) const P1: &str = "3f2c8f0e-5d1b-4c55-9e0d-0a9b7c6d5e4f";
pub(crate) const P2: &str = "7d9f2a64-1c3e-4b8a-a0f5-6e2d1c0b9a88";
pub(crate) const P3: &str = "1e8a9c2d-77b4-4f0e-8d3a-5c6b7a8f9e01";
/// The config hash of a static pod.
const HASH: &str = "b1946ac92492d2347c6235b4d2611184";

/// A text with the names above put in: `{P1_}` is P1 with underscores.
fn text(template: &str) -> String {
    let mut text = template.to_owned();
    for (name, value) in
        [("A", A), ("B", B), ("C", C), ("P1", P1), ("P2", P2), ("P3", P3), ("HASH", HASH)]
    {
        text = text.replace(&format!("{{{name}}}"), value);
        text = text.replace(&format!("{{{name}_}}"), &value.replace('-', "_"));
    }
    text
}

fn pod(uid: &str, container: Option<&str>) -> Place {
    Place::Pod { uid: uid.into(), container: container.map(Into::into) }
}

fn stranger(template: &str) -> Place {
    place(&text(template), |_| false)
}

#[test]
fn every_runtime_and_both_versions_lead_to_the_pod_and_its_container() {
    for (template, expected) in [
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{P1_}.slice/cri-containerd-{A}.scope",
            pod(P1, Some(A)),
        ),
        ("0::/kubepods.slice/kubepods-pod{P2_}.slice/crio-{B}.scope/container", pod(P2, Some(B))),
        (
            "12:pids:/kubepods/besteffort/pod{P3}/{A}\n11:memory:/kubepods/besteffort/pod{P3}/{A}\n0::/\n",
            pod(P3, Some(A)),
        ),
        (
            "0::/system.slice/containerd.service/kubepods-burstable-pod{P1_}.slice:cri-containerd:{C}",
            pod(P1, Some(C)),
        ),
        ("0::/system.slice/docker-{B}.scope", Place::Container(B.into())),
        (
            "0::/../../kubepods-besteffort.slice/kubepods-besteffort-pod{P3_}.slice/cri-containerd-{A}.scope",
            pod(P3, Some(A)),
        ),
        ("0::/system.slice/kubelet.service", Place::Host),
        // Beyond the table.
        ("0::/\n12:pids:/kubepods/pod{P1}/{B}", pod(P1, Some(B))),
        ("0::/kubepods/burstable/pod{HASH}/{A}", pod(HASH, Some(A))),
        (
            "0::/kubelet-kubepods-burstable-pod{HASH}.slice/cri-containerd-{A}.scope",
            pod(HASH, Some(A)),
        ),
        ("0::/kubelet.slice/kubelet.kubepods-pod{P1_}.slice/docker-{B}.scope", pod(P1, Some(B))),
        ("0::/kubepods.slice/kubepods-pod{P2_}.slice", pod(P2, None)),
        ("0::/kubepods.slice/kubepods-pod{P2_}.slice/crio-conmon-{B}.scope", pod(P2, None)),
        ("0::/kubepods/pod{P1}/{A}/docker/{B}", pod(P1, Some(A))),
        ("0::/kubepods/pod{P1}/{A} (deleted)", pod(P1, Some(A))),
        ("0::/kubepods/pod{P1} (deleted)", pod(P1, None)),
        ("0::/libpod-{B}.scope", Place::Container(B.into())),
        ("0::/docker/{B}/init", Place::Container(B.into())),
        ("0::/user.slice/user-1000.slice/session-3.scope", Place::Host),
        ("0::/../../init.scope", Place::Host),
        ("4:memory:/\n1:name=systemd:/machine.slice/vm.scope\n0::/", Place::Host),
        ("0::/system.slice/crio-conmon-{B}.scope", Place::Host),
        ("0::/", Place::Unknown),
        ("0::/kubepods.slice", Place::Unknown),
    ] {
        assert_eq!(stranger(template), expected, "{template}");
    }
}

#[test]
fn of_several_pods_in_a_path_the_one_of_this_node_is_meant_else_the_first() {
    // A node that is a container, in a pod of another cluster.
    let nested = text("0::/kubepods/burstable/pod{P1}/{A}/kubepods/besteffort/pod{P2}/{B}");
    assert_eq!(place(&nested, |uid| uid == P2), pod(P2, Some(B)));
    assert_eq!(place(&nested, |uid| uid == P1), pod(P1, Some(A)));
    assert_eq!(place(&nested, |_| false), pod(P1, Some(A)));
    let hash = text("0::/kubepods/pod{P3}/kubepods/pod{HASH}/{B}");
    assert_eq!(place(&hash, |uid| uid == HASH), pod(HASH, Some(B)));
}

#[test]
fn what_only_looks_like_a_pod_is_none() {
    for template in [
        "",
        "\n\n",
        "no colons at all",
        "0:",
        "0::",
        ":::::::",
        "0:kubepods",
        "0::/kubepods/pod",
        "0::/kubepods/pod{P1}x/y",
        "0::/kubepods/tripod{HASH}x",
        "0::/Kubepods-pod{P1_}.slice",
        "0::/mypod{P1_}.slice",
        "0::/x-pod{P1_}.slice",
        "0::/kubepods/pod3f2c8f0e-5d1b_4c55-9e0d-0a9b7c6d5e4f",
        "0::/kubepods/pod3f2c8f0e-5d1b-4c55-9e0d-0a9b7c6d5e4g",
        "0::/kubepods/podäöü2c8f0e-5d1b-4c55-9e0d-0a9b7c6d5e",
        "0::/../../..",
        "0::/cri-containerd-{A}x.scope",
    ] {
        assert_eq!(stranger(template), Place::Unknown, "{template}");
    }
}

#[test]
fn long_and_deep_texts_are_read_to_their_end() {
    let deep = format!("0::{}/kubepods/pod{P1}/{A}", "/..".repeat(100_000));
    assert_eq!(place(&deep, |_| false), pod(P1, Some(A)));
    let long = format!("0::/{}", "x".repeat(1 << 20));
    assert_eq!(place(&long, |_| false), Place::Unknown);
    let many = "0::/kubepods\n".repeat(100_000) + &format!("0::/kubepods/pod{P1}");
    assert_eq!(place(&many, |_| false), pod(P1, None));
}

proptest! {
    #[test]
    fn no_text_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "0::", "/", ":", "pod", "kubepods", "-", "_", ".slice", ".scope", "..", "\n", "ß",
                "crio-", P1, HASH, A, "docker-", "kubepods-pod", "\u{fffd}",
            ]),
            0..40,
        ),
    ) {
        place(&String::from_utf8_lossy(&bytes), |_| false);
        place(&pieces.concat(), |uid| uid == P1);
    }
}
