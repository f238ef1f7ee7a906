//! Where a demand page is looked up.
//!
//! Guarantees: pure. A Service is looked up by its absolute name, so that no search list can lead
//! elsewhere. Unless its origin is allowed, a page is in the ScaledObject's own namespace.

use crate::trigger::spec::DemandEndpoint;

/// The domain of a cluster where nothing else is known of it.
pub const DEFAULT_DOMAIN: &str = "cluster.local";

/// What the gateway's operator settled.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Origins outside the rules, as [`DemandEndpoint::origin`] writes them.
    pub allowed: Vec<String>,
    /// The cluster's domain.
    pub domain: String,
}

/// One page, and how it is come by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// What the resolver is asked for.
    pub name: String,
    /// TCP port.
    pub port: u16,
    /// Path of the page.
    pub path: String,
    /// Whether its origin is allowed, whatever its address.
    pub allowed: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { allowed: Vec::new(), domain: DEFAULT_DOMAIN.into() }
    }
}

impl Rules {
    /// Where the page of a trigger in `namespace` is.
    ///
    /// # Errors
    /// When it may not be read: what was written, and what would be right.
    pub fn place(&self, endpoint: &DemandEndpoint, namespace: &str) -> Result<Place, String> {
        let DemandEndpoint { host, port, path } = endpoint;
        let place = |name, allowed| Place { name, port: *port, path: path.clone(), allowed };
        let origin = endpoint.origin();
        if self.allowed.contains(&origin) {
            let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            return Ok(place(name, true));
        }
        match endpoint.service() {
            Some((name, other)) if other.is_none_or(|other| other == namespace) => {
                Ok(place(format!("{name}.{namespace}.svc.{}.", self.domain), false))
            }
            Some((_, other)) => Err(format!(
                "demandEndpoint is in namespace {}, the trigger in {namespace}; other namespaces \
                 are read only where the gateway has --demand-allow {origin}",
                other.unwrap_or_default()
            )),
            None => Err(format!(
                "demandEndpoint host {host:?} is no Service of namespace {namespace}; others are \
                 read only where the gateway has --demand-allow {origin}"
            )),
        }
    }
}

/// The cluster's domain, from the text of a pod's `/etc/resolv.conf`.
pub fn domain(resolv_conf: &str) -> Option<&str> {
    let searches = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("search"));
    let domains = searches.flat_map(str::split_ascii_whitespace);
    let domain = domains.filter_map(|search| search.strip_prefix("svc.")).next();
    domain.map(|domain| domain.trim_end_matches('.')).filter(|domain| !domain.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, allowed: &[&str]) -> Result<String, String> {
        let allowed = allowed.iter().map(|origin| (*origin).to_owned()).collect();
        let rules = Rules { allowed, domain: "cluster.local".into() };
        let endpoint = DemandEndpoint::parse(text).unwrap();
        let place = rules.place(&endpoint, "ai")?;
        let mark = if place.allowed { "!" } else { "" };
        Ok(format!("{mark}{} {}{}", place.name, place.port, place.path))
    }

    #[test]
    fn a_service_is_looked_up_absolutely_and_in_the_own_namespace_only() {
        let own = "router.ai.svc.cluster.local. 9090/q";
        for host in ["router", "router.ai", "router.ai.svc", "router.ai.svc.cluster.local"] {
            assert_eq!(place(&format!("http://{host}:9090/q"), &[]).as_deref(), Ok(own), "{host}");
        }
        let other = place("http://router.infra/q", &[]).unwrap_err();
        assert!(other.contains("is in namespace infra, the trigger in ai"), "{other}");
        assert!(other.ends_with("--demand-allow http://router.infra:80"), "{other}");
        for host in ["10.0.0.1", "127.1", "2130706433", "[::1]", "example.com.evil", "Router"] {
            let refused = place(&format!("http://{host}/q"), &[]).unwrap_err();
            assert!(refused.contains("is no Service of namespace ai"), "{refused}");
        }
    }

    #[test]
    fn an_allowed_origin_is_looked_up_as_written_and_no_other_is() {
        let allowed = ["http://router.infra:80", "http://127.0.0.1:9", "http://[::1]:9"];
        let at = |text| place(text, &allowed);
        assert_eq!(at("http://router.infra/q").as_deref(), Ok("!router.infra 80/q"));
        assert_eq!(at("http://127.0.0.1:9/q").as_deref(), Ok("!127.0.0.1 9/q"));
        assert_eq!(at("http://[::1]:9/q").as_deref(), Ok("!::1 9/q"));
        assert!(at("http://router.infra:81/q").is_err() && at("http://127.0.0.1/q").is_err());
        assert!(at("http://router.infra.svc/q").is_err(), "written differently");
    }

    #[test]
    fn the_domain_is_that_of_the_pod_s_search_list() {
        let conf =
            "search keda.svc.corp.example svc.corp.example corp.example\nnameserver 10.0.0.10\n";
        assert_eq!(domain(conf), Some("corp.example"));
        assert_eq!(domain("nameserver 10.0.0.10\nsearch example.com svc.\n"), None);
    }
}
