//! Texts of `/proc/PID/cgroup`.
//!
//! Guarantees: a pod's UID and a container's id have the form of one; a pod that is known on the
//! node wins over one that is not, and knowing the one that was meant anyway changes nothing.

use agent::owner::cgroup::{Place, place};

/// Reads `data` as the text of one process.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let stranger = place(text, |_| false);
    assert_eq!(place(text, |_| true), stranger);
    match &stranger {
        Place::Pod { uid, container } => {
            let uid = uid.as_str();
            is_uid(uid);
            container.iter().for_each(|id| is_container(id));
            assert_eq!(place(text, |known| known == uid), stranger);
            let path = format!("0::/kubepods/pod{uid}/{}", container.as_deref().unwrap_or(""));
            assert_eq!(place(&path, |_| false), stranger);
        }
        Place::Container(id) => is_container(id),
        Place::Host | Place::Unknown => {}
    }
}

/// It is written with `-`, or without any joint.
fn is_uid(uid: &str) {
    let joints: Vec<_> = uid.match_indices('-').map(|(at, _)| at).collect();
    assert!(matches!((uid.len(), &joints[..]), (36, [8, 13, 18, 23]) | (32, [])), "{uid}");
    assert!(uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{uid}");
}

fn is_container(id: &str) {
    assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
}
