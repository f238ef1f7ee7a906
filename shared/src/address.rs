//! Addresses that are nobody's pod or Service, in whatever spelling.
//!
//! Guarantees: pure. What is refused is this machine, its link, groups, and the metadata services
//! of clouds; an IPv4 address inside an IPv6 one counts as itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services that are not link-local: Alibaba Cloud's, Oracle Cloud's and Azure's (whose
/// platform also answers there). Addresses like any other, but for what is there.
const CLOUD_METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// AWS's metadata service, likewise.
const CLOUD_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

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
    } else if CLOUD_METADATA_V4.contains(&address) {
        Some("a cloud's metadata service")
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
            ("100.100.100.200", "a cloud's metadata service"),
            ("192.0.0.192", "a cloud's metadata service"),
            ("168.63.129.16", "a cloud's metadata service"),
            ("::ffff:100.100.100.200", "a cloud's metadata service"),
            ("64:ff9b::a83f:8110", "a cloud's metadata service"),
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
