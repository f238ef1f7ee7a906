//! Everything that is asked of the API server; `deploy/manifests/rbac.yaml` allows exactly this.

use kube::core::{ApiResource, GroupVersionKind};

use crate::directory::ScaledKind;

/// KEDA's API group.
pub const KEDA: &str = "keda.sh";

/// API group (`""` is core, `*` is any), resource and verb of every call. Besides these only
/// discovery is read, which every authenticated client may.
pub const CALLS: [(&str, &str, &str); 7] = [
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("keda.sh", "scaledobjects", "list"),
    ("keda.sh", "scaledobjects", "watch"),
    ("keda.sh", "scaledjobs", "list"),
    ("keda.sh", "scaledjobs", "watch"),
    ("*", "*/scale", "get"),
];

/// The resource that ScaledObjects or ScaledJobs are.
pub fn scaled(kind: ScaledKind) -> ApiResource {
    let (kind, plural) = match kind {
        ScaledKind::Object => ("ScaledObject", "scaledobjects"),
        ScaledKind::Job => ("ScaledJob", "scaledjobs"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(KEDA, "v1alpha1", kind), plural)
}
