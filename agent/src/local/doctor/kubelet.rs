//! Pure: what the kubelet said → whether it tells who holds what.

use std::collections::HashSet;
use std::path::Path;

use super::{Broken, quoted};
use crate::owner::declared::Declaration;
use crate::owner::kubelet::Fault;

/// Whether the kubelet at `socket` tells who holds what; `fault` is of its newest answer.
///
/// # Errors
/// When it does not, or the first thing that it gave away and that names no device here.
pub fn kubelet(
    declaration: &Declaration,
    fault: Option<Fault>,
    socket: &Path,
) -> Result<String, Broken> {
    if let Some(trouble) = &declaration.trouble {
        return Err(Broken::new(&**trouble, next(fault, socket)));
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
fn next(fault: Option<Fault>, socket: &Path) -> String {
    match fault {
        Some(Fault::Missing) => format!("ls -l {}", quoted(socket.parent().unwrap_or(socket))),
        Some(Fault::Denied) => format!("ls -l {}", quoted(socket)),
        _ => "journalctl -u kubelet".into(),
    }
}
