//! `top`: the node in the terminal until somebody has seen enough, or as plain frames.
//!
//! Guarantees: the terminal is taken over only once there is something to show, and given back
//! before anything else is said; where it is no terminal nothing but text is printed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Duration, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::alone::{Running, once};
use super::follow;
use crate::config::alone::TopConfig;
use crate::frame::Taken;
use crate::local::stale_after;
use crate::local::top::history::History;
use crate::local::top::state::{Key, State};
use crate::local::top::terminal::{self, Heard, Terminal};
use crate::local::top::{Head, WIDTH};
use crate::local::view::View;

/// How long ages may stand still.
const AGES: Duration = Duration::from_secs(1);

/// One plain frame of the node.
///
/// # Errors
/// When the source cannot be opened or there is nothing to show.
pub async fn frame(config: TopConfig) -> anyhow::Result<String> {
    let (head, stale_after) = (head(&config, false), stale_after(config.read.interval));
    let taken = match &config.from {
        Some(address) => follow::once(address).await?,
        None => once(config.read).await?,
    };
    Ok(head.plain(&View::of(&taken, taken.at, stale_after), columns()))
}

/// Hands a plain frame of every sample to `show` until `shutdown`, or until the source has
/// finished.
///
/// # Errors
/// When the source cannot be opened, there is nothing to show, or it cannot be shown.
pub async fn frames(
    config: TopConfig,
    shutdown: CancellationToken,
    mut show: impl FnMut(&str) -> io::Result<()>,
) -> anyhow::Result<()> {
    let (head, stale_after) = (head(&config, false), stale_after(config.read.interval));
    let Some(mut running) = start(config, &shutdown).await? else { return Ok(()) };
    let mut shown = Ok(());
    while shown.is_ok() && running.newest.changed().await.is_ok() {
        let Some(taken) = running.newest.borrow_and_update().clone() else { continue };
        // A page of another agent that cannot be read any more stays, and grows old.
        let view = View::of(&taken, running.clock.now(), stale_after);
        shown = show(&(head.plain(&view, columns()) + "\n"));
    }
    running.end().await?;
    shown.context("standard output")
}

/// Shows the node in the terminal until a key or `shutdown` ends it, or the source has finished.
///
/// # Errors
/// When the source cannot be opened, there is nothing to show, or the terminal is none.
pub async fn live(config: TopConfig, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP handler")?;
    let (head, stale_after) =
        (head(&config, config.has_colours), stale_after(config.read.interval));
    let Some(mut running) = start(config, &shutdown).await? else { return Ok(()) };
    let mut looked = Looked {
        head,
        stale_after,
        clock: running.clock,
        history: History::default(),
        newest: None,
        still: None,
        state: State::default(),
        height: 0,
        is_whole: true,
    };
    let mut terminal = Terminal::enter().context("terminal")?;
    let mut heard = terminal::listen();
    let mut ages = tokio::time::interval(AGES);
    ages.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !looked.state.is_over {
        tokio::select! {
            () = shutdown.cancelled() => break,
            _ = hangup.recv() => break,
            changed = running.newest.changed() => {
                if changed.is_err() {
                    break;
                }
                looked.take(running.newest.borrow_and_update().clone());
            }
            said = heard.recv() => {
                // Without a terminal nobody looks.
                let Some(said) = said else { break };
                let mut all = Some(said);
                while let Some(said) = all {
                    match said {
                        Heard::Key(key) => looked.press(key),
                        Heard::Redraw => looked.is_whole = false,
                    }
                    all = heard.try_recv().ok();
                }
            }
            _ = ages.tick() => {}
        }
        // A terminal that is gone may not have said so yet, and there is nobody to be told.
        if looked.draw(&mut terminal).is_err() {
            break;
        }
    }
    drop(terminal);
    running.end().await
}

/// None if `shutdown` came first.
async fn start(config: TopConfig, shutdown: &CancellationToken) -> anyhow::Result<Option<Running>> {
    let Some(address) = config.from else { return Running::start(config.read, shutdown).await };
    let followed = follow::follow(address, config.read.interval, shutdown);
    shutdown.run_until_cancelled(followed).await.transpose()
}

fn head(config: &TopConfig, colours: bool) -> Head {
    let of = match &config.from {
        Some(address) => format!("agent at {}", SocketAddr::new(address.ip, address.page.port)),
        None => config.read.node.to_string(),
    };
    Head { of, interval: config.read.interval, colours }
}

fn columns() -> u16 {
    terminal::columns().unwrap_or(WIDTH)
}

/// What is on the screen, and what it is drawn from.
struct Looked {
    head: Head,
    stale_after: Duration,
    clock: Clock,
    history: History,
    newest: Option<Arc<Taken>>,
    /// What is shown while the screen stands still.
    still: Option<(Arc<Taken>, Timestamp, History)>,
    state: State,
    /// Lines of the screen.
    height: u16,
    /// Whether the screen still has what was drawn.
    is_whole: bool,
}

impl Looked {
    fn take(&mut self, newest: Option<Arc<Taken>>) {
        let Some(taken) = newest else { return };
        self.history.add(&View::of(&taken, taken.at, self.stale_after));
        self.newest = Some(taken);
    }

    /// What is shown, and the moment it is seen from.
    fn shown(&self) -> Option<(Arc<Taken>, Timestamp)> {
        match &self.still {
            Some((taken, at, _)) => Some((taken.clone(), *at)),
            None => Some((self.newest.clone()?, self.clock.now())),
        }
    }

    fn press(&mut self, key: Key) {
        let Some((taken, at)) = self.shown() else { return };
        let view = View::of(&taken, at, self.stale_after);
        self.head.press(&view, &mut self.state, key, self.height);
        drop(view);
        self.still = match (self.state.is_paused, self.still.take()) {
            (false, _) => None,
            (true, Some(still)) => Some(still),
            (true, None) => Some((taken, at, self.history.clone())),
        };
    }

    fn draw(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        let Some((taken, at)) = self.shown() else { return Ok(()) };
        if !self.is_whole {
            terminal.forget()?;
            self.is_whole = true;
        }
        let view = View::of(&taken, at, self.stale_after);
        let history = self.still.as_ref().map_or(&self.history, |(_, _, history)| history);
        let (head, state) = (&self.head, &mut self.state);
        self.height = terminal.draw(|buffer| head.draw(&view, history, state, buffer))?;
        Ok(())
    }
}
