//! Everything that is asked of the API server; `deploy/manifests/rbac.yaml` allows exactly this.

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};

use crate::directory::ScaledKind;

/// KEDA's API group.
pub const KEDA: &str = "keda.sh";
/// The API group of ResourceSlices, and its versions that are understood, the best first.
pub const RESOURCE: &str = "resource.k8s.io";
const SLICES: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// API group (`""` is core, `*` is any), resource and verb of every call. Besides these only
/// discovery is read, which every authenticated client may.
pub const CALLS: [(&str, &str, &str); 9] = [
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("keda.sh", "scaledobjects", "list"),
    ("keda.sh", "scaledobjects", "watch"),
    ("keda.sh", "scaledjobs", "list"),
    ("keda.sh", "scaledjobs", "watch"),
    ("*", "*/scale", "get"),
    ("resource.k8s.io", "resourceslices", "list"),
    ("resource.k8s.io", "resourceslices", "watch"),
];

/// What is called besides with `--agent-auth token`: API group, resource and verb.
pub const TOKEN_REVIEW: (&str, &str, &str) = ("authentication.k8s.io", "tokenreviews", "create");

/// The resource that ScaledObjects or ScaledJobs are.
pub fn scaled(kind: ScaledKind) -> ApiResource {
    let (kind, plural) = match kind {
        ScaledKind::Object => ("ScaledObject", "scaledobjects"),
        ScaledKind::Job => ("ScaledJob", "scaledjobs"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(KEDA, "v1alpha1", kind), plural)
}

/// The ResourceSlices that the cluster serves, in the best version that is understood; `None` where
/// it serves none.
///
/// # Errors
/// When the API server does not say.
pub async fn slices(client: &Client) -> kube::Result<Option<ApiResource>> {
    let groups = client.list_api_groups().await?.groups;
    let group = groups.into_iter().find(|group| group.name == RESOURCE);
    let served = group.map_or_else(Vec::new, |group| group.versions);
    let is_served = |version: &&&str| served.iter().any(|known| known.version == ***version);
    for version in SLICES.iter().filter(is_served) {
        let resources = client.list_api_group_resources(&format!("{RESOURCE}/{version}")).await?;
        if resources.resources.iter().any(|resource| resource.name == "resourceslices") {
            let kind = GroupVersionKind::gvk(RESOURCE, version, "ResourceSlice");
            return Ok(Some(ApiResource::from_gvk_with_plural(&kind, "resourceslices")));
        }
    }
    Ok(None)
}
