//! Projected service-account tokens of agents.
//!
//! Guarantees: a token counts only if the API server says that it is valid, meant for this
//! audience, and of the agents' service account. What was found is remembered by the token's hash,
//! for `GOOD_FOR` or `BAD_FOR`, for `MAX_REMEMBERED` tokens at most; no token is kept.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use shared::identity::PodKey;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{Identity, Refused};

/// How long a good token needs no other review.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// How long a bad token stays bad without being asked about.
const BAD_FOR: Duration = Duration::from_secs(10);
/// Tokens that are remembered.
const MAX_REMEMBERED: usize = 4_096;
/// How long a review may take, with its wait for a turn.
const REVIEW_WITHIN: Duration = Duration::from_secs(5);
/// Reviews at once.
const AT_ONCE: usize = 16;
/// Bytes of a token; those of the API server have one or two thousand.
const MAX_BYTES: usize = 8 << 10;

const NODE: &str = "authentication.kubernetes.io/node-name";
const POD: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a token must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The audience it was made for.
    pub audience: String,
    /// Whose it is.
    pub account: ServiceAccount,
}

/// Asks the API server about tokens.
pub struct Reviews {
    client: Client,
    rules: Rules,
    known: Mutex<HashMap<Vec<u8>, Known>>,
    turns: Semaphore,
}

/// What a review found; `Err` is the reason and what the agent is told.
type Found = Result<Identity, (&'static str, String)>;

struct Known {
    found: Found,
    until: Instant,
}

impl FromStr for ServiceAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
        };
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
            _ => Err("write NAMESPACE/NAME, for example gpu-gateway/gpu-agent".into()),
        }
    }
}

impl ServiceAccount {
    fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl Reviews {
    /// Reviews by the API server of `client`.
    pub fn new(client: Client, rules: Rules) -> Self {
        Self { client, rules, known: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }

    /// Whose `token` is.
    ///
    /// # Errors
    /// When it is not good, or the API server does not say.
    pub async fn admit(&self, token: &str) -> Result<Identity, Refused> {
        if token.is_empty() || token.len() > MAX_BYTES {
            let why = format!("a token of {} bytes; 1 to {MAX_BYTES} are", token.len());
            return Err(Refused::unauthenticated("bad_token", why));
        }
        let hash = digest(&SHA256, token.as_bytes()).as_ref().to_vec();
        let now = Instant::now();
        let known =
            self.known.lock().get(&hash).filter(|known| known.until > now).map(|k| k.found.clone());
        let found = match known {
            Some(found) => found,
            None => {
                let review = timeout(REVIEW_WITHIN, self.review(token));
                let status = review.await.unwrap_or_else(|_| Err("no answer in time".into()));
                let status = status.map_err(|why| {
                    let why = format!("the token cannot be reviewed now: {why}");
                    Refused::unavailable("no_review", why)
                })?;
                let found = judge(&status, &self.rules);
                self.remember(hash, found.clone());
                found
            }
        };
        found.map_err(|(reason, why)| Refused::unauthenticated(reason, why))
    }

    /// What the API server says of `token`; an error of it is put in own words.
    async fn review(&self, token: &str) -> Result<TokenReviewStatus, String> {
        let Ok(_turn) = self.turns.acquire().await else { return Err("shutting down".into()) };
        let spec = TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: Some(vec![self.rules.audience.clone()]),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &review).await {
            Ok(TokenReview { status: Some(status), .. }) => Ok(status),
            Ok(_) => Err("the API server answered without a status".into()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                Err("the gateway may not create tokenreviews.authentication.k8s.io".into())
            }
            Err(kube::Error::Api(status)) => {
                Err(format!("the API server answered {}", status.code))
            }
            Err(_) => Err("the API server cannot be reached".into()),
        }
    }

    fn remember(&self, hash: Vec<u8>, found: Found) {
        let now = Instant::now();
        let until = now + if found.is_ok() { GOOD_FOR } else { BAD_FOR };
        let mut known = self.known.lock();
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, known| known.until > now);
        }
        // Bad ones can be had by the thousand; good ones cannot.
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, known| known.found.is_ok());
        }
        if known.len() < MAX_REMEMBERED {
            known.insert(hash, Known { found, until });
        }
    }
}

/// Whose token it is, by what the API server said of it.
fn judge(status: &TokenReviewStatus, rules: &Rules) -> Found {
    if status.authenticated != Some(true) {
        let why = "the API server does not know this token, or it has expired";
        return Err(("bad_token", why.into()));
    }
    // An API server that does not know of audiences names none.
    if !status.audiences.iter().flatten().any(|audience| *audience == rules.audience) {
        return Err(("other_audience", format!("a token for {:?} is wanted", rules.audience)));
    }
    let user = status.user.clone().unwrap_or_default();
    let (account, wanted) = (user.username.unwrap_or_default(), rules.account.username());
    if account != wanted {
        let why = format!("a token of {account} where one of {wanted} is wanted");
        return Err(("other_account", why));
    }
    let extra: BTreeMap<String, Vec<String>> = user.extra.unwrap_or_default();
    let one = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([one]) if !one.is_empty() => Some(one.as_str()),
        _ => None,
    };
    match (one(NODE), one(POD)) {
        (Some(node), _) => Ok(Identity::Node(node.to_owned().into())),
        (None, Some(pod)) => {
            let pod = PodKey::new(rules.account.namespace.as_str(), pod);
            Ok(Identity::Pod(pod, one(POD_UID).map(Into::into)))
        }
        (None, None) => {
            let why = "the token names neither a node nor a pod; a projected one of a pod does";
            Err(("unbound_token", why.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};

    use super::{Identity, NODE, POD, POD_UID, Rules, judge};

    fn rules() -> Rules {
        Rules { audience: "gpu-gateway".into(), account: "gpu/agent".parse().unwrap() }
    }

    fn status(extra: &[(&str, &str)]) -> TokenReviewStatus {
        let extra = extra.iter().map(|(k, v)| ((*k).to_owned(), vec![(*v).to_owned()])).collect();
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec!["gpu-gateway".into()]),
            user: Some(UserInfo {
                username: Some("system:serviceaccount:gpu:agent".into()),
                extra: Some(extra),
                ..UserInfo::default()
            }),
            error: None,
        }
    }

    #[test]
    fn a_good_token_is_of_its_node_or_its_pods() {
        let node = judge(&status(&[(NODE, "n1"), (POD, "agent-x")]), &rules());
        assert_eq!(node, Ok(Identity::Node("n1".to_owned().into())));
        let pod = judge(&status(&[(POD, "agent-x"), (POD_UID, "u")]), &rules()).unwrap();
        assert!(matches!(pod, Identity::Pod(_, Some(uid)) if &*uid == "u"));
    }

    #[test]
    fn a_token_that_is_not_all_of_it_is_refused() {
        let reason = |status| judge(&status, &rules()).unwrap_err().0;
        let good = status(&[(NODE, "n1")]);
        let unknown = TokenReviewStatus { authenticated: None, ..good.clone() };
        assert_eq!(reason(unknown), "bad_token");
        let elsewhere = TokenReviewStatus { audiences: Some(vec!["x".into()]), ..good.clone() };
        assert_eq!(reason(elsewhere), "other_audience");
        let old_server = TokenReviewStatus { audiences: None, ..good.clone() };
        assert_eq!(reason(old_server), "other_audience");
        let user = UserInfo {
            username: Some("system:serviceaccount:gpu:x".into()),
            ..UserInfo::default()
        };
        assert_eq!(reason(TokenReviewStatus { user: Some(user), ..good }), "other_account");
        assert_eq!(reason(status(&[])), "unbound_token");
        assert_eq!(reason(status(&[(NODE, "")])), "unbound_token");
    }
}
