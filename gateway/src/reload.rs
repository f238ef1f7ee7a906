//! Files that are read again when they change: certificates, keys, CAs and tokens.
//!
//! Guarantees: what was read last and was good stays until something else is good; a change is
//! taken when two looks see the same, so that files caught half written change nothing; what is
//! wrong is said once and counted. Contents are neither kept here nor told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use ring::digest::{Context, Digest, SHA256};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that one file may have.
const MAX_BYTES: u64 = 1 << 20;

/// Makes something of the bytes of all its files, in the order they were named.
pub type Parse<T> = fn(&[Vec<u8>]) -> anyhow::Result<T>;

/// Something that was read from files.
pub struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    parse: Parse<T>,
    current: ArcSwap<T>,
    seen: Mutex<Seen>,
}

/// What the last looks saw.
struct Seen {
    /// What `current` was made of.
    taken: Vec<u8>,
    last: Vec<u8>,
    /// What was found wrong, so that it is said once.
    wrong: Option<Vec<u8>>,
}

/// How files fared that were read again.
#[derive(Clone, Default)]
pub struct Counts {
    reloads: Family<Reload, Counter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    what: &'static str,
    result: &'static str,
}

impl Counts {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Certificates, keys, CAs and tokens read again after a change, by result";
        registry.register("credential_reloads", help, self.reloads.clone());
    }

    fn count(&self, what: &'static str, result: &'static str) {
        self.reloads.get_or_create(&Reload { what, result }).inc();
    }
}

#[cfg(test)]
impl reference::Specimens for Counts {
    fn specimens(&self) {
        self.reloads.specimens();
    }
}

impl<T> Reloaded<T> {
    /// Reads `files` for the first time; `what` names them in logs and metrics.
    ///
    /// # Errors
    /// When one of them cannot be read, or is not what it should be.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        parse: Parse<T>,
    ) -> anyhow::Result<Arc<Self>> {
        let contents = read(&files)?;
        let current = ArcSwap::from_pointee(parse(&contents)?);
        let taken = digest(&Ok(contents)).as_ref().to_vec();
        let seen = Mutex::new(Seen { last: taken.clone(), taken, wrong: None });
        Ok(Arc::new(Self { what, files, parse, current, seen }))
    }

    /// What was good last.
    pub fn get(&self) -> Arc<T> {
        self.current.load_full()
    }
}

/// Something whose files can be looked at.
pub trait Look: Send + Sync {
    /// Looks at the files once.
    fn look(&self, counts: &Counts);
}

impl<T: Send + Sync> Look for Reloaded<T> {
    fn look(&self, counts: &Counts) {
        let contents = read(&self.files);
        let now = digest(&contents).as_ref().to_vec();
        let mut seen = self.seen.lock();
        let is_settled = seen.last == now;
        seen.last.clone_from(&now);
        if now == seen.taken {
            seen.wrong = None;
            return;
        }
        if !is_settled || seen.wrong.as_ref() == Some(&now) {
            return;
        }
        let what = self.what;
        match contents.and_then(|contents| (self.parse)(&contents)) {
            Ok(new) => {
                self.current.store(Arc::new(new));
                seen.taken = now;
                seen.wrong = None;
                counts.count(what, "taken");
                info!(what, "read again after a change");
            }
            Err(error) => {
                seen.wrong = Some(now);
                counts.count(what, "failed");
                let error = format!("{error:#}");
                warn!(what, error, "changed, but not usable: what was read before stays");
            }
        }
    }
}

/// Looks at all of `files` again and again until `shutdown`.
pub async fn watch(files: Vec<Arc<dyn Look>>, counts: Counts, shutdown: CancellationToken) {
    if files.is_empty() {
        return shutdown.cancelled().await;
    }
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        let (files, counts) = (files.clone(), counts.clone());
        let look = move || files.iter().for_each(|file| file.look(&counts));
        if tokio::task::spawn_blocking(look).await.is_err() {
            warn!("a look at certificates and tokens broke off");
        }
    }
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut contents = Vec::new();
    for path in files {
        let name = || path.display().to_string();
        if std::fs::metadata(path).with_context(name)?.len() > MAX_BYTES {
            bail!("{}: more than {MAX_BYTES} bytes", path.display());
        }
        contents.push(std::fs::read(path).with_context(name)?);
    }
    Ok(contents)
}

fn digest(contents: &anyhow::Result<Vec<Vec<u8>>>) -> Digest {
    let mut digest = Context::new(&SHA256);
    match contents {
        Ok(contents) => {
            for content in contents {
                digest.update(&content.len().to_be_bytes());
                digest.update(content);
            }
        }
        Err(error) => digest.update(format!("{error:#}").as_bytes()),
    }
    digest.finish()
}
