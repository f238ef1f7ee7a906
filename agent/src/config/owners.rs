//! Flags about who holds what, beside the source and the holders file.

use std::path::PathBuf;

use clap::Args;

use super::SourceArgs;
use crate::device::SourceSpec;
use crate::owner::kubelet::SOCKET;

/// Where the kernel's files usually are.
const PROC: &str = "/proc";
/// Written instead of a socket: the kubelet is not asked.
const NONE: &str = "none";

/// What tells who holds what, beside the source and the holders file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerConfig {
    /// The kubelet's socket; none where the kubelet is not asked.
    pub kubelet_socket: Option<PathBuf>,
    /// Resources that are GPUs, beside the ones everybody uses.
    pub gpu_resources: Vec<String>,
    /// Where the kernel's files are mounted.
    pub proc_root: PathBuf,
    /// The folder of the pods' logs, which tells pods' names where no gateway does.
    pub pod_logs: Option<PathBuf>,
}

impl OwnerConfig {
    /// The defaults for readings of `source`: what is replayed or made up happens on no node, so
    /// that no kubelet is asked about it.
    pub fn of(source: &SourceSpec) -> Self {
        let kubelet_socket = match source {
            SourceSpec::Nvml { .. } => Some(SOCKET.into()),
            SourceSpec::Replay(_) | SourceSpec::Simulated(_) => None,
        };
        Self { kubelet_socket, gpu_resources: Vec::new(), proc_root: PROC.into(), pod_logs: None }
    }
}

/// Flags about who holds what.
#[derive(Clone, Debug, Args)]
pub struct OwnerArgs {
    /// The kubelet's socket of pod resources, or none [default:
    /// /var/lib/kubelet/pod-resources/kubelet.sock with --source nvml and no --holders, else none].
    #[arg(long, value_name = "PATH", env = "GPU_AGENT_KUBELET_SOCKET")]
    kubelet_socket: Option<PathBuf>,
    /// Resource whose devices are GPUs, beside nvidia.com/gpu and nvidia.com/mig-…. Repeatable.
    #[arg(
        long = "gpu-resource",
        value_name = "NAME",
        env = "GPU_AGENT_GPU_RESOURCES",
        value_delimiter = ','
    )]
    gpu_resources: Vec<String>,
    /// Where the kernel's files are mounted.
    #[arg(long, value_name = "DIR", env = "GPU_AGENT_PROC_ROOT", default_value = PROC)]
    proc_root: PathBuf,
    /// Folder of the pods' logs (/var/log/pods), for pods' names where no gateway tells them.
    #[arg(long, value_name = "DIR", env = "GPU_AGENT_POD_LOGS")]
    pod_logs: Option<PathBuf>,
}

impl OwnerArgs {
    /// The resolved form of the flags, for what `source` says.
    pub fn resolve(self, source: &SourceArgs) -> OwnerConfig {
        let kubelet_socket = match self.kubelet_socket {
            Some(none) if none.as_os_str() == NONE => None,
            Some(socket) => Some(socket),
            // The file stands for the kubelet.
            None if source.holders.is_some() => None,
            None => OwnerConfig::of(&source.spec()).kubelet_socket,
        };
        OwnerConfig {
            kubelet_socket,
            gpu_resources: self.gpu_resources,
            proc_root: self.proc_root,
            pod_logs: self.pod_logs,
        }
    }
}
