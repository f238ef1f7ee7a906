//! Pure: the text of `/proc/PID/cgroup` → which pod and container the process runs in.
//!
//! Guarantees: version 1, version 2 and hybrid hosts, the systemd and the cgroupfs driver, and the
//! names that containerd, CRI-O, Docker and Podman give; anything else is `Unknown`, never a
//! guess. No text panics.

use std::sync::Arc;

use shared::identity::PodUid;

/// Prefixes that runtimes put before a container's id.
const RUNTIMES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];
/// Where the host's own processes live.
const HOST: [&str; 4] = ["system.slice", "user.slice", "init.scope", "machine.slice"];

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a pod.
    Pod {
        /// What the pod's cgroups are called after: its UID, or a static pod's config hash.
        uid: PodUid,
        /// The container's id, where the path goes that deep.
        container: Option<Arc<str>>,
    },
    /// In a container that is in no pod as far as the path says.
    Container(Arc<str>),
    /// In a service or a session of the host.
    Host,
    /// The text does not say.
    Unknown,
}

/// Where the process of this text runs. Paths may name several pods, where containers run inside
/// containers: the first that `is_known` on this node is meant, else the first of all.
pub fn place(text: &str, is_known: impl Fn(&str) -> bool) -> Place {
    for path in paths(text) {
        let pods = || segments(path).enumerate().filter_map(|(at, one)| Some((at, pod(one)?)));
        let Some((at, uid)) = pods().find(|(_, uid)| is_known(uid)).or_else(|| pods().next())
        else {
            continue;
        };
        let container = segments(path).skip(at + 1).find_map(container);
        return Place::Pod { uid: uid.into(), container: container.map(Into::into) };
    }
    if let Some(id) = paths(text).flat_map(segments).find_map(container) {
        return Place::Container(id.into());
    }
    // A private cgroup namespace shows the paths of others from its own root upwards.
    let first = |path| segments(path).find(|segment| *segment != "..");
    match paths(text).filter_map(first).any(|first| HOST.contains(&first)) {
        true => Place::Host,
        false => Place::Unknown,
    }
}

/// What follows the second colon of each line; a path may hold colons of its own. The kernel notes
/// it where a process has outlived its cgroup.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.map(|path| path.strip_suffix(" (deleted)").unwrap_or(path))
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split(['/', ':']).filter(|segment| !segment.is_empty())
}

/// The UID in a segment such as `kubepods-burstable-pod3f2c8f0e_….slice`.
fn pod(segment: &str) -> Option<String> {
    let name = segment.strip_suffix(".slice").unwrap_or(segment);
    let (prefix, uid) = [36, 32].into_iter().find_map(|length| {
        let (before, uid) = name.split_at_checked(name.len().checked_sub(length)?)?;
        Some((before.strip_suffix("pod")?, uid)).filter(|(_, uid)| is_uid(uid))
    })?;
    let is_kubelets = prefix.is_empty() || prefix.strip_suffix('-').is_some_and(is_kubepods);
    is_kubelets.then(|| uid.replace('_', "-"))
}

/// Whether it is `kubepods` with at most the parent's name before it and the class after it.
fn is_kubepods(prefix: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    prefix.rsplit_once("kubepods").is_some_and(|(root, class)| {
        root.chars().all(|c| plain(c) || c == '.') && class.chars().all(plain)
    })
}

/// 8-4-4-4-12 hexadecimal digits joined by `-` or by `_`, or 32 of them.
fn is_uid(text: &str) -> bool {
    match text.len() {
        32 => is_hex(text),
        36 => ['-', '_'].into_iter().any(|joint| {
            text.split(joint).map(str::len).eq([8, 4, 4, 4, 12]) && text.split(joint).all(is_hex)
        }),
        _ => false,
    }
}

/// The id in a segment such as `cri-containerd-a1b2….scope`.
fn container(segment: &str) -> Option<&str> {
    let name = segment.strip_suffix(".scope").unwrap_or(segment);
    let id = RUNTIMES.iter().find_map(|runtime| name.strip_prefix(runtime)).unwrap_or(name);
    (id.len() == 64 && is_hex(id)).then_some(id)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
