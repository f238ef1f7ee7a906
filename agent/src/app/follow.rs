//! The frames of an agent that runs already, from its own local port.
//!
//! Guarantees: the newest page that could be read stays, and grows old, while later ones cannot be;
//! why that is stands in the frame.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use shared::brief::EnginePage;
use shared::process::Clock;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::alone::Running;
use crate::collector::Newest;
use crate::device;
use crate::engine::address::PageAddress;
use crate::engine::scrape::{Limits, fetch};
use crate::frame::Taken;
use crate::local::top::page::frame;

/// What a page may take: one of 1,024 devices has some 2 MiB.
const LIMITS: Limits = Limits { within: Duration::from_secs(2), bytes: 16 << 20 };
/// The page, where the address names none.
const PATH: &str = "/api/v1/devices";
/// The page that an address of an engine names unasked.
const UNASKED: &str = "/metrics";

/// The page of devices of the agent at `address`.
fn page(address: &PageAddress) -> PageAddress {
    let path = if &*address.page.path == UNASKED { PATH } else { &*address.page.path };
    let page = EnginePage { port: address.page.port, path: path.into() };
    PageAddress { ip: address.ip, page }
}

/// Reads the page at `address` every `interval`.
///
/// # Errors
/// When the first page cannot be read.
pub(super) async fn follow(
    address: PageAddress,
    interval: Duration,
    shutdown: &CancellationToken,
) -> anyhow::Result<Running> {
    let (clock, page) = (Clock::start(), page(&address));
    let first = read(&page, clock, None).await;
    let first = first.map_err(|why| anyhow!("the agent at {page}: {why}"))?;
    let (sender, newest) = watch::channel(None);
    let stop = shutdown.child_token();
    let task = tokio::spawn(reading(page, clock, interval, first, sender, stop.clone()));
    Ok(Running::of(clock, newest, task, stop))
}

/// What the agent at `address` shows now.
///
/// # Errors
/// When its page cannot be read.
pub(super) async fn once(address: &PageAddress) -> anyhow::Result<Taken> {
    let page = page(address);
    let taken = read(&page, Clock::start(), None).await;
    taken.map_err(|why| anyhow!("the agent at {page}: {why}"))
}

/// Whatever answers without the page is something else.
fn no_agent(why: String) -> String {
    if why.starts_with("HTTP 404") { format!("{why}; no agent's --http-listen") } else { why }
}

async fn read(page: &PageAddress, clock: Clock, before: Option<&Taken>) -> Result<Taken, String> {
    let text = fetch(page.ip, &page.page, LIMITS).await.map_err(no_agent)?;
    let at = clock.now();
    let frame = frame(&text, before.map(|taken| &taken.frame.inventory))?;
    Ok(Taken { frame, at, kubelet: None })
}

async fn reading(
    page: PageAddress,
    clock: Clock,
    interval: Duration,
    mut last: Taken,
    newest: watch::Sender<Newest>,
    stop: CancellationToken,
) -> Result<(), device::Error> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    newest.send_replace(Some(Arc::new(last.clone())));
    // The first tick is the page that was read already.
    ticks.tick().await;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let read = read(&page, clock, Some(&last));
        match stop.run_until_cancelled(read).await {
            None => break,
            Some(Ok(taken)) => last = taken,
            Some(Err(why)) => {
                let mut inventory = (*last.frame.inventory).clone();
                inventory.reason = Some(format!("{page}: {why}").into());
                last.frame.inventory = Arc::new(inventory);
            }
        }
        newest.send_replace(Some(Arc::new(last.clone())));
    }
    Ok(())
}
