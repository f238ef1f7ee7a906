//! The terminal view of a node: which pod is this?
//!
//! Guarantees: the same view of the same frame as every other form; what is drawn follows from a
//! frame, the keys that were pressed and the size of the terminal alone.

use std::time::Duration;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use shared::metric::Metric;

use crate::local::view::View;

/// Texts of others as cells of a screen.
pub mod text;

/// The cells of the table.
pub mod cell;
/// The columns of a width.
pub mod column;
/// The past, for sparklines.
pub mod history;

/// The rows of devices.
pub mod row;

/// What is looked at.
pub mod state;

/// Order and filter.
pub mod arrange;
/// All that is known of one row.
pub mod detail;
/// The keys, explained.
pub mod help;

/// The cells of a screen.
pub mod screen;

/// The page of a running agent.
pub mod page;
/// The terminal itself.
pub mod terminal;

use history::History;
use row::{Row, groups};
use screen::{Screen, parts};
use state::{Key, State};
use text::plain;

/// Columns of a frame that is printed where no terminal says how wide it is.
pub const WIDTH: u16 = 120;
/// Rows that are printed of one frame; more than any node has.
const MOST_ROWS: usize = 20_000;

/// What never changes while it is looked at.
#[derive(Clone, Debug)]
pub struct Head {
    /// The node or the page that is shown.
    pub of: String,
    /// Time between two frames.
    pub interval: Duration,
    /// Whether the terminal is to have colours.
    pub colours: bool,
}

impl Head {
    /// How old a reading may be until its age is shown.
    fn aged(&self) -> Duration {
        Duration::from_secs(2).max(self.interval.saturating_mul(2))
    }

    fn title(&self) -> String {
        let interval = humantime::format_duration(self.interval);
        format!("gpu-agent top · {} · every {interval}", self.of)
    }

    /// The rows of `view` as `state` looks at them.
    pub fn rows(&self, view: &View<'_>, state: &State) -> Vec<Row> {
        arrange::arrange(groups(view, self.aged()), state)
    }

    /// One frame as plain text, with every row, `width` cells wide.
    pub fn plain(&self, view: &View<'_>, width: u16) -> String {
        let mut rows = self.rows(view, &State::default());
        rows.truncate(MOST_ROWS);
        let screen = Screen {
            title: self.title(),
            summary: summary(view),
            rows: &rows,
            state: None,
            history: &History::default(),
            engines: !view.engines.is_empty(),
            detail: &[],
            colours: false,
        };
        let height = u16::try_from(rows.len()).unwrap_or(u16::MAX).max(5).saturating_add(3);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        screen.draw(&mut buffer);
        plain(&buffer).trim_end().to_owned() + "\n"
    }

    /// Draws `view` as `state` looks at it.
    pub fn draw(&self, view: &View<'_>, history: &History, state: &mut State, buffer: &mut Buffer) {
        let rows = self.rows(view, state);
        let mut detail = Vec::new();
        if state.is_detailed
            && let Some(row) = rows.get(state.place(&rows))
        {
            detail = detail::lines(view, history, &row.id, buffer.area.width.into());
        }
        state.detail_from = state.detail_from.min(detail.len());
        let asked = state.is_detailed.then_some(detail.len());
        state.follow(&rows, parts(buffer.area.height, true, asked).rows.into());
        let screen = Screen {
            title: self.title(),
            summary: summary(view),
            rows: &rows,
            state: Some(state),
            history,
            engines: !view.engines.is_empty(),
            detail: &detail,
            colours: self.colours,
        };
        screen.draw(buffer);
    }

    /// Lets `state` take `key` on a screen of `height` lines.
    pub fn press(&self, view: &View<'_>, state: &mut State, key: Key, height: u16) {
        let rows = self.rows(view, state);
        let page = parts(height, true, state.is_detailed.then_some(usize::MAX / 2)).rows;
        state.press(key, &rows, page.into());
    }
}

/// The node in one line.
fn summary(view: &View<'_>) -> String {
    if let (true, Some(why)) = (view.is_empty(), view.reason) {
        return format!("! {why}");
    }
    let instances = view.devices.iter().filter(|view| view.device.mig.is_some()).count();
    // What is wrong first: the end of the line may have no room.
    let mut said: Vec<_> = view.reason.map(|why| format!("! {why}")).into_iter().collect();
    said.push(counted(view.devices.len() - instances, "GPU"));
    said.extend((instances > 0).then(|| format!("{instances} MIG")));
    let held = view.devices.iter().flat_map(|view| &view.device.holders);
    let mut pods: Vec<_> = held.map(|of| &of.pod).collect();
    pods.sort_unstable();
    pods.dedup();
    said.push(counted(pods.len(), "pod"));
    let unheld = view.devices.iter().filter(|of| row::is_unheld(view, of)).count();
    said.extend((unheld > 0).then(|| format!("{unheld} without a holder")));
    let of = |metric| view.devices.iter().filter_map(move |view| view.readings.value(metric));
    let (busy, power) = (of(Metric::GpuUtilization), of(Metric::PowerDraw));
    let (count, sum) = busy.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count > 0 {
        said.push(format!("mean util {} % ({count} read)", cell::figure(sum / f64::from(count))));
    }
    let (count, sum) = power.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count > 0 {
        said.push(format!("{sum:.0} W ({count} read)"));
    }
    let failed = view.devices.iter().filter(|view| view.reason().is_some()).count();
    if failed > 0 {
        said.push(format!("! {failed} with a reason"));
    }
    said.push(match view.engines.len() {
        0 => "no engine is read here".into(),
        engines => counted(engines, "engine"),
    });
    said.extend(
        view.kubelet
            .filter(|kubelet| kubelet.age.is_none())
            .map(|_| "! the kubelet does not answer".into()),
    );
    said.join(" · ")
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
