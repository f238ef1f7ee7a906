//! The folder of the pods' logs → what the pods are called, for nodes that nobody briefs.
//!
//! Guarantees: a bounded look; names that are not `NAMESPACE_NAME_UID` are passed over.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use shared::identity::{PodKey, PodUid};

/// Folders looked at: ten times what the kubelet allows by default.
const MAX_FOLDERS: usize = 1_100;

/// The pods that have a folder in `folder`.
///
/// # Errors
/// When it cannot be listed.
pub fn names(folder: &Path) -> io::Result<HashMap<PodUid, PodKey>> {
    let mut names = HashMap::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_FOLDERS) {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(pod));
    }
    Ok(names)
}

/// Names and namespaces of Kubernetes have no `_`.
fn pod(name: &str) -> Option<(PodUid, PodKey)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && ![namespace, pod, uid].contains(&"");
    is_whole.then(|| (uid.into(), PodKey::new(namespace, pod)))
}
