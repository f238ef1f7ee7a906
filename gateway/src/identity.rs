//! Which node an agent may speak for.
//!
//! Guarantees: an agent is let in only if the port asks for no proof, or its proof was found good;
//! it may then speak for the node that the proof is for and no other. What cannot be checked now
//! is not let in. No token and no certificate is logged, kept or told.

/// Service-account tokens, reviewed by the API server.
pub mod token;

use std::sync::Arc;

use shared::identity::{NodeName, PodKey};
use tonic::Status;
use tonic::metadata::MetadataMap;

use self::token::Reviews;
use crate::accept::Peer;
use crate::directory::Directory;

/// In a URI name, what comes before the node's name.
const IN_URI: &str = "/node/";

/// What the agents' port asks for.
pub enum Guard {
    /// Nothing.
    Open,
    /// A client certificate; the handshake has checked it.
    Certificates,
    /// A token.
    Tokens(Arc<Reviews>),
}

/// What a proof is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Any node.
    Anyone,
    /// The names of a certificate.
    Names(Arc<[String]>),
    /// A node.
    Node(NodeName),
    /// The node of this pod; its UID where the token tells it.
    Pod(PodKey, Option<Arc<str>>),
}

/// Why an agent is turned away.
#[derive(Debug)]
pub struct Refused {
    /// For the counter.
    pub reason: &'static str,
    /// For the agent.
    pub status: Status,
}

impl Refused {
    fn unauthenticated(reason: &'static str, why: impl Into<String>) -> Self {
        Self { reason, status: Status::unauthenticated(why) }
    }

    /// The agent may be right, but that cannot be found out now.
    fn unavailable(reason: &'static str, why: impl Into<String>) -> Self {
        Self { reason, status: Status::unavailable(why) }
    }
}

impl Guard {
    /// Who is calling.
    ///
    /// # Errors
    /// When there is no proof, it is not good, or it cannot be checked now.
    pub async fn admit(
        &self,
        peer: Option<&Peer>,
        metadata: &MetadataMap,
    ) -> Result<Identity, Refused> {
        match self {
            Self::Open => Ok(Identity::Anyone),
            Self::Certificates => match peer.and_then(|peer| peer.names.clone()) {
                Some(names) => Ok(Identity::Names(names)),
                None => Err(Refused::unauthenticated(
                    "no_certificate",
                    "this port wants a client certificate with the node's name",
                )),
            },
            Self::Tokens(reviews) => reviews.admit(bearer(metadata)?).await,
        }
    }
}

/// The token in `authorization: Bearer TOKEN`.
fn bearer(metadata: &MetadataMap) -> Result<&str, Refused> {
    let missing = || {
        let why =
            "this port wants authorization: Bearer TOKEN, a token of the agent's service account";
        Refused::unauthenticated("no_token", why)
    };
    let value = metadata.get("authorization").ok_or_else(missing)?;
    let (scheme, token) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token.trim()) } else { Err(missing()) }
}

impl Identity {
    /// Whether it may speak for `node`.
    ///
    /// # Errors
    /// When it is somebody else's, or its pod is not known.
    pub fn may_speak_for(&self, node: &str, directory: &Directory) -> Result<(), Refused> {
        let other = |whose: String| {
            let why = format!("an agent of {whose} cannot speak for node {node:?}");
            Err(Refused { reason: "other_node", status: Status::permission_denied(why) })
        };
        match self {
            Self::Anyone => Ok(()),
            Self::Names(names) if names.iter().any(|name| is_name_of(name, node)) => Ok(()),
            Self::Names(names) => other(format!("a certificate for {names:?}")),
            Self::Node(own) if own.as_str() == node => Ok(()),
            Self::Node(own) => other(format!("node {own}")),
            Self::Pod(pod, uid) => {
                let Some(snapshot) = directory.snapshot() else {
                    let why = "the token names only its pod, and no pods are known yet";
                    return Err(Refused::unavailable("directory", why));
                };
                let of_node = snapshot.node(&node.to_owned().into());
                let is_here = of_node.pods().iter().any(|known| {
                    let known_uid = known.uid.as_ref().map(|uid| uid.as_str());
                    let is_same = uid.is_none() || uid.as_deref() == known_uid;
                    known.key == *pod && is_same && known.exists()
                });
                if is_here { Ok(()) } else { other(format!("pod {pod}")) }
            }
        }
    }
}

/// A DNS name is the node's name itself; the path of a URI, such as `spiffe://DOMAIN/node/NAME`, ends
/// with it.
fn is_name_of(name: &str, node: &str) -> bool {
    if node.is_empty() {
        return false;
    }
    match name.split_once("://") {
        None => name == node,
        // A query or fragment is no path, and who may set one may not name a node.
        Some((_, rest)) if rest.contains(['?', '#']) => false,
        Some((_, rest)) => rest
            .rsplit_once(IN_URI)
            .is_some_and(|(before, last)| !before.is_empty() && last == node),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tonic::Code;
    use tonic::metadata::MetadataMap;

    use super::{Directory, Identity, bearer, is_name_of};

    #[test]
    fn a_name_is_the_whole_node_name_or_the_end_of_a_uri() {
        assert!(is_name_of("n1", "n1"));
        assert!(is_name_of("spiffe://cluster.local/node/n1", "n1"));
        for other in [
            "n10",
            "n1.example",
            "*",
            "*.n1",
            "",
            "spiffe://n1",
            "spiffe://c/node/n1/x",
            "http://e/?q=/node/n1",
            "http://e/a#/node/n1",
            "spiffe://c/node/n1?a",
            "spiffe:///node/n1",
        ] {
            assert!(!is_name_of(other, "n1"), "{other}");
        }
        assert!(!is_name_of("spiffe://c/node/a", ""));
        assert!(!is_name_of("", ""));
    }

    #[test]
    fn nobody_speaks_for_another_node() {
        let directory = Directory::default();
        let names = Identity::Names(Arc::new(["n1".into(), "localhost".into()]));
        assert!(names.may_speak_for("n1", &directory).is_ok());
        let refused = names.may_speak_for("n2", &directory).unwrap_err();
        assert_eq!(refused.status.code(), Code::PermissionDenied);
        assert_eq!(refused.reason, "other_node");
        let node = Identity::Node("n1".to_owned().into());
        assert!(node.may_speak_for("n1", &directory).is_ok());
        assert!(node.may_speak_for("n2", &directory).is_err());
        assert!(Identity::Names(Arc::new([])).may_speak_for("n1", &directory).is_err());
    }

    #[test]
    fn a_token_is_taken_from_its_header_only() {
        let mut metadata = MetadataMap::new();
        assert_eq!(bearer(&metadata).unwrap_err().reason, "no_token");
        metadata.insert("authorization", "Basic abc".parse().unwrap());
        assert!(bearer(&metadata).is_err());
        metadata.insert("authorization", "bearer abc".parse().unwrap());
        assert_eq!(bearer(&metadata).unwrap(), "abc");
    }
}
