//! Where a demand page is looked up, and which addresses may be connected to.
//!
//! Guarantees: pure. A Service is looked up by its absolute name, so that no search list can lead
//! elsewhere. Unless its origin is allowed, a page is in the ScaledObject's own namespace, and no
//! address of the node, of a cloud's metadata service or of nobody in particular is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::trigger::spec::DemandEndpoint;

/// The domain of a cluster where nothing else is known of it.
pub const DEFAULT_DOMAIN: &str = "cluster.local";

/// AWS's metadata service: a private address like any other, but for what is there.
const CLOUD_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

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

/// Why `address` is not connected to; `None` if it may be.
pub fn refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refusal_v4(address),
        IpAddr::V6(address) => refusal_v6(address),
    }
}

fn refusal_v4(address: Ipv4Addr) -> Option<&'static str> {
    if address.octets()[0] == 0 {
        Some("unspecified")
    } else if address.is_loopback() {
        Some("loopback")
    } else if address.is_link_local() {
        Some("link-local")
    } else if address.is_multicast() {
        Some("multicast")
    } else if address.is_broadcast() {
        Some("broadcast")
    } else {
        None
    }
}

fn refusal_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        Some("unspecified")
    } else if address.is_loopback() {
        Some("loopback")
    } else if address.is_unicast_link_local() {
        Some("link-local")
    } else if address.is_multicast() {
        Some("multicast")
    } else if address == CLOUD_METADATA {
        Some("a cloud's metadata service")
    } else {
        embedded(address).and_then(refusal_v4)
    }
}

/// The IPv4 address that packets to `address` end at: mapped, compatible, NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => from(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => from(high, low),
        [0x2002, high, low, ..] => from(high, low),
        _ => None,
    }
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

    #[test]
    fn addresses_of_the_node_and_of_nobody_are_refused_in_every_spelling() {
        for (address, why) in [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.169.254", "link-local"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("ff02::1", "multicast"),
            ("fd00:ec2::254", "a cloud's metadata service"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:169.254.169.254", "link-local"),
            ("::ffff:0.0.0.0", "unspecified"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::a9fe:a9fe", "link-local"),
            ("2002:7f00:1::", "loopback"),
        ] {
            assert_eq!(refusal(address.parse().unwrap()), Some(why), "{address}");
        }
        for address in [
            "10.96.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "8.8.8.8",
            "fd00::1",
            "fec0::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(refusal(address.parse().unwrap()), None, "{address}");
        }
    }
}
