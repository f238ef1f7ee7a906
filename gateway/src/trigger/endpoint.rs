//! Where metrics pages are, and how their series are picked: URLs, series names, labels.
//!
//! Guarantees: a path has only characters that may stand in a request line; nothing is resolved
//! or connected to here.

use shared::exposition::Matchers;

use super::engine::Engine;

/// Bytes of a list of labels, or of a path: what an agent takes.
const MAX_TEXT: usize = 1_024;

/// A page that shows demand while no pod is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandEndpoint {
    /// Host as written.
    pub host: String,
    /// Port; 80 if none is written.
    pub port: u16,
    /// Path as written; `/metrics` if none is.
    pub path: String,
}

/// What an engine URL in the metadata says about the pods' own pages; its host is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineEndpoint {
    /// Which engine runs in the pods.
    pub engine: Engine,
    /// Port of the page; the engine's usual one if `None`.
    pub port: Option<u16>,
    /// Path of the page; `/metrics` if none is written.
    pub path: String,
}

struct Url<'a> {
    host: &'a str,
    port: Option<u16>,
    path: &'a str,
}

impl DemandEndpoint {
    /// Reads `[http://]HOST[:PORT][/PATH]`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = if text.contains("://") { url(text)? } else { host_and_path(text)? };
        Ok(Self {
            host: url.host.to_owned(),
            port: url.port.unwrap_or(80),
            path: url.path.to_owned(),
        })
    }

    /// Name and namespace of the Service that the host names; no namespace means that of the
    /// ScaledObject. `None` for an IP address or a name outside the cluster.
    pub fn service(&self) -> Option<(&str, Option<&str>)> {
        let labels: Vec<&str> = self.host.split('.').collect();
        let (name, namespace) = match labels[..] {
            [name] => (name, None),
            [name, namespace]
            | [name, namespace, "svc"]
            | [name, namespace, "svc", "cluster", "local"] => (name, Some(namespace)),
            _ => return None,
        };
        // Service names begin with a letter, which also keeps out every spelling of an IPv4 address.
        let is_name = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
        (is_name && namespace.is_none_or(is_label)).then_some((name, namespace))
    }

    /// The origin, always with its port, as allow lists compare it.
    pub fn origin(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }
}

impl EngineEndpoint {
    /// Reads `http://HOST[:PORT][/PATH]`.
    pub fn parse(engine: Engine, text: &str) -> Result<Self, String> {
        let url = url(text)?;
        if url.path.len() > MAX_TEXT {
            return Err(format!("the path is longer than {MAX_TEXT} bytes"));
        }
        Ok(Self { engine, port: url.port, path: url.path.to_owned() })
    }
}

/// Reads `name=value,name=value` into pairs ordered by name.
pub(super) fn labels(text: &str) -> Result<Vec<(String, String)>, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("is longer than {MAX_TEXT} bytes"));
    }
    let matchers: Matchers = text.parse()?;
    // Nothing is written to select everything.
    if matchers.is_empty() {
        return Err("write name=value,name=value".to_owned());
    }
    Ok(matchers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Labels as one text, the same for the same labels however they were written: `a=1,b=2`.
pub(super) fn canonical(labels: &[(String, String)]) -> String {
    labels.iter().cloned().collect::<Matchers>().to_string()
}

/// Checks the name of a Prometheus series.
pub(super) fn series_name(text: &str) -> Result<String, String> {
    if text.contains('{') {
        Err("write the labels into demandLabels".to_owned())
    } else if is_series_name(text) {
        Ok(text.to_owned())
    } else {
        Err("a series name has only letters, digits, _ and :".to_owned())
    }
}

fn url(text: &str) -> Result<Url<'_>, String> {
    match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => host_and_path(rest),
        _ => Err("write http://HOST:PORT/PATH, only http is supported".to_owned()),
    }
}

fn host_and_path(text: &str) -> Result<Url<'_>, String> {
    if text.contains(['?', '#']) {
        return Err("query and fragment are not supported".to_owned());
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/[]".contains(&b)) {
        return Err("has a character that does not belong in a URL".to_owned());
    }
    let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    if authority.contains('@') {
        return Err("must not carry a user name or password".to_owned());
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.is_empty() {
        return Err("has no host".to_owned());
    }
    // A number's own reading takes a sign.
    let is_digits = port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 && is_digits => Some(port),
        Some(_) => return Err("the port must be from 1 to 65535".to_owned()),
    };
    Ok(Url { host, port, path: if path.len() > 1 { path } else { "/metrics" } })
}

fn is_series_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    text.chars().all(fits) && !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn is_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let bytes = text.as_bytes();
    text.len() <= 63 && text.bytes().all(fits) && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_hosts_name_a_service() {
        for (text, service, port, path) in [
            ("http://router:9090/metrics", Some(("router", None)), 9090, "/metrics"),
            ("http://router.ai/q", Some(("router", Some("ai"))), 80, "/q"),
            ("http://router.ai.svc/q", Some(("router", Some("ai"))), 80, "/q"),
            ("http://router.ai.svc.cluster.local:1/q", Some(("router", Some("ai"))), 1, "/q"),
            ("router", Some(("router", None)), 80, "/metrics"),
            ("router:9090/a/b", Some(("router", None)), 9090, "/a/b"),
            ("http://127.0.0.1:9/q", None, 9, "/q"),
            ("http://127.1/q", None, 80, "/q"),
            ("http://2130706433/q", None, 80, "/q"),
            ("http://[::1]:9/q", None, 9, "/q"),
            ("http://[::1]/q", None, 80, "/q"),
            ("http://example.com.evil/q", None, 80, "/q"),
            ("http://Router/q", None, 80, "/q"),
        ] {
            let endpoint = DemandEndpoint::parse(text).unwrap();
            assert_eq!(endpoint.service(), service, "{text}");
            assert_eq!((endpoint.port, endpoint.path.as_str()), (port, path), "{text}");
        }
    }

    #[test]
    fn an_origin_always_has_its_port() {
        let origin = |text| DemandEndpoint::parse(text).unwrap().origin();
        assert_eq!(origin("http://router.ai/q"), "http://router.ai:80");
        assert_eq!(origin("http://127.0.0.1:9900"), "http://127.0.0.1:9900");
    }

    #[test]
    fn broken_urls_say_what_is_wrong() {
        for (text, reason) in [
            ("https://router/q", "write http://HOST:PORT/PATH, only http is supported"),
            ("file:///etc/passwd", "write http://HOST:PORT/PATH, only http is supported"),
            ("http://router/q?a=b", "query and fragment are not supported"),
            ("http://me:secret@router/q", "must not carry a user name or password"),
            ("http://router:0/q", "the port must be from 1 to 65535"),
            ("http://router:65536/q", "the port must be from 1 to 65535"),
            ("http://router:+80/q", "the port must be from 1 to 65535"),
            ("http://router:/q", "the port must be from 1 to 65535"),
            ("http:///q", "has no host"),
            ("http://router/q\r\nX: y", "has a character that does not belong in a URL"),
            ("http://röuter/q", "has a character that does not belong in a URL"),
        ] {
            assert_eq!(DemandEndpoint::parse(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_engine_url_gives_port_and_path() {
        let parse = |text| EngineEndpoint::parse(Engine::Vllm, text).map(|e| (e.port, e.path));
        assert_eq!(parse("http://vllm-svc:8000/metrics"), Ok((Some(8000), "/metrics".to_owned())));
        assert_eq!(parse("http://10.0.0.1"), Ok((None, "/metrics".to_owned())));
        assert!(parse("vllm-svc:8000").is_err());
    }

    #[test]
    fn labels_are_pairs_in_order() {
        let pairs = labels("b=2, a = x=1").unwrap();
        assert_eq!(pairs, [("a".into(), "x=1".into()), ("b".into(), "2".into())]);
        for (text, reason) in [
            ("a", "write name=value,name=value"),
            ("a=1,", "write name=value,name=value"),
            ("=1", "a label name is empty"),
            ("a-b=1", "a label name has only letters, digits and _"),
            ("a=\"1\"", "write label values without quotes"),
            ("a=1,a=2", "label a is there twice"),
        ] {
            assert_eq!(labels(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn series_names_have_no_labels() {
        assert_eq!(series_name("nginx:requests_total"), Ok("nginx:requests_total".to_owned()));
        assert_eq!(series_name("q{a=1}"), Err("write the labels into demandLabels".to_owned()));
        assert!(series_name("9q").is_err());
    }
}
