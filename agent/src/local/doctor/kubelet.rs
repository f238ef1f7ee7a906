//! Pure: what the kubelet said → whether it tells who holds what.

use std::collections::HashSet;
use std::path::Path;

use super::{Broken, quoted};
use crate::owner::declared::Declaration;
use crate::owner::kubelet::Fault;

/// Where the kubelet is asked.
#[derive(Clone, Copy, Debug)]
pub struct Socket<'a> {
    /// Its socket.
    pub path: &'a Path,
    /// Whether at least the folder of the socket is there.
    pub has_folder: bool,
}

/// Whether the kubelet at `socket` tells who holds what; `fault` is of its newest answer.
///
/// # Errors
/// When it does not, or the first thing that it gave away and that names no device here.
pub fn kubelet(
    declaration: &Declaration,
    fault: Option<Fault>,
    socket: Socket<'_>,
) -> Result<String, Broken> {
    if let Some(trouble) = &declaration.trouble {
        let hint = match fault {
            Some(Fault::Missing) => "; where there is no Kubernetes, write --kubelet-socket none",
            _ => "",
        };
        return Err(Broken::new(format!("{trouble}{hint}"), next(fault, socket)));
    }
    if let Some(first) = declaration.unresolved.first() {
        let more = match declaration.unresolved.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more"),
        };
        return Err(Broken::new(format!("{first}{more}"), "nvidia-smi -L"));
    }
    let holders = declaration.holders.values().flatten();
    let pods: HashSet<_> = holders.map(|holder| &holder.pod).collect();
    let count = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let (devices, pods) = (count(declaration.holders.len(), "device"), count(pods.len(), "pod"));
    Ok(match declaration.holders.len() {
        0 => "it answers, and gave none of these devices to anybody".into(),
        _ => format!("it answers, and gave {devices} to {pods}"),
    })
}

/// The command that tells more.
fn next(fault: Option<Fault>, Socket { path, has_folder }: Socket<'_>) -> String {
    match (fault, path.parent()) {
        (Some(Fault::Missing), Some(folder)) if has_folder => format!("ls -l {}", quoted(folder)),
        // Nothing of Kubernetes is to be seen here.
        (Some(Fault::Missing), _) => "gpu-agent doctor --kubelet-socket none".into(),
        (Some(Fault::Denied | Fault::NoSocket), _) => format!("ls -l {}", quoted(path)),
        _ => "journalctl -u kubelet".into(),
    }
}
