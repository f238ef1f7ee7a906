//! Pure: what each stream says of this node → one brief.
//!
//! Guarantees: pods and devices are those of the newest brief; an engine is read as any of the
//! streams asks for it, so that replicas of which one is asked about it and another is not do not
//! take turns. A stream that has ended counts for a minute more, and the last word for as long as
//! nobody speaks.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::brief::{MAX_PAGES, MAX_SELECTIONS};
use shared::brief::{Brief, EngineTarget};
use shared::identity::{PodKey, PodUid};
use shared::time::Timestamp;

use super::address::Gateway;

/// How long a stream's word counts after its end: streams come back within seconds.
const KEEP: Duration = Duration::from_secs(60);

/// What tells streams apart.
pub type Stream = (Gateway, SocketAddr);

/// The newest brief of each stream.
#[derive(Debug, Default)]
pub struct Briefs {
    /// In the order in which they first spoke.
    parts: Vec<Part>,
    heard: u64,
}

#[derive(Debug)]
struct Part {
    stream: Stream,
    brief: Arc<Brief>,
    /// Grows from brief to brief.
    heard: u64,
    /// When the stream ended, if it did.
    ended: Option<Timestamp>,
}

impl Briefs {
    /// `stream` says so.
    pub fn hear(&mut self, stream: &Stream, brief: Brief) {
        self.heard += 1;
        let (brief, heard, ended) = (Arc::new(brief), self.heard, None);
        match self.parts.iter_mut().find(|part| part.stream == *stream) {
            Some(part) => (part.brief, part.heard, part.ended) = (brief, heard, ended),
            None => self.parts.push(Part { stream: stream.clone(), brief, heard, ended }),
        }
    }

    /// `stream` has ended at `now`.
    pub fn end(&mut self, stream: &Stream, now: Timestamp) {
        let part = self.parts.iter_mut().find(|part| part.stream == *stream);
        if let Some(part) = part {
            part.ended.get_or_insert(now);
        }
    }

    /// Drops what no stream stands for any more.
    pub fn forget(&mut self, now: Timestamp) {
        let is_over = |part: &Part| part.ended.is_some_and(|ended| now.since(ended) >= KEEP);
        let last = self.parts.iter().map(|part| part.heard).max();
        let is_silent = self.parts.iter().all(is_over);
        self.parts.retain(|part| !is_over(part) || (is_silent && Some(part.heard) == last));
    }

    /// All of it together; none before the first brief.
    pub fn together(&self) -> Option<Brief> {
        let newest = self.parts.iter().max_by_key(|part| part.heard)?;
        let mut brief = (*newest.brief).clone();
        if self.parts.len() > 1 {
            let asked: Vec<HashMap<_, _>> = self.parts.iter().map(|part| engines(part)).collect();
            for pod in &mut brief.pods {
                let key = (&pod.key, &pod.uid);
                pod.engine = union(asked.iter().filter_map(|of_part| of_part.get(&key).copied()));
            }
        }
        Some(brief)
    }
}

/// How each pod's engine is to be read, by the pod's key and UID.
fn engines(part: &Part) -> HashMap<(&PodKey, &PodUid), &EngineTarget> {
    let pods = part.brief.pods.iter();
    pods.filter_map(|pod| Some(((&pod.key, &pod.uid), pod.engine.as_ref()?))).collect()
}

/// Every page and every selection once, as many as a brief may have.
fn union<'a>(mut targets: impl Iterator<Item = &'a EngineTarget>) -> Option<EngineTarget> {
    let mut union = targets.next()?.clone();
    for EngineTarget { pages, labels, engine } in targets {
        let new = pages.iter().filter(|page| !union.pages.contains(page));
        let new: Vec<_> = new.cloned().collect();
        union.pages.extend(new);
        let new = labels.iter().filter(|selection| !union.labels.contains(selection));
        let new: Vec<_> = new.cloned().collect();
        union.labels.extend(new);
        union.engine = union.engine.or_else(|| engine.clone());
    }
    union.pages.truncate(MAX_PAGES);
    union.labels.truncate(MAX_SELECTIONS);
    Some(union)
}
