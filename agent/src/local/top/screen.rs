//! Pure: rows and what is looked at → the cells of a screen of any size.
//!
//! Guarantees: every size down to one cell is drawn without a complaint, the table last to go;
//! colours only repeat what words and marks say.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::cell::Tone;
use super::column::{Column, Columns, Wishes, choose};
use super::detail::Line;
use super::help;
use super::history::{History, Whose};
use super::row::{Id, Row};
use super::state::State;
use super::text::{cut, cut_inside, put, sparkline, width};

/// Cells in front of a name, for the mark of the selected row.
const MARK: u16 = 2;
/// Rows of the table that an open detail leaves.
const LEAST_ROWS: u16 = 3;

/// What is drawn.
pub struct Screen<'a> {
    /// The first line.
    pub title: String,
    /// The second line.
    pub summary: String,
    /// The table.
    pub rows: &'a [Row],
    /// What is looked at; none where nobody presses keys.
    pub state: Option<&'a State>,
    /// The past of the devices.
    pub history: &'a History,
    /// Whether any engine is read.
    pub engines: bool,
    /// What there is to say of the selected row.
    pub detail: &'a [Line],
    /// Whether the terminal is to have colours.
    pub colours: bool,
}

/// Which lines of a screen are for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    head: u16,
    /// Rows of the table.
    pub rows: u16,
    detail: u16,
    foot: u16,
}

/// The parts of a screen of `height` lines; `detail` is how many lines are asked for below.
pub fn parts(height: u16, has_keys: bool, detail: Option<usize>) -> Parts {
    let foot = u16::from(has_keys && height >= 5);
    let head = match height {
        0 | 1 => 0,
        2..=4 => 1,
        5..=7 => 2,
        _ => 3,
    };
    let body = height - head - foot;
    let asked = detail.map_or(0, |lines| u16::try_from(lines + 1).unwrap_or(u16::MAX));
    let detail = asked.min((body * 3 / 5).min(body.saturating_sub(LEAST_ROWS)));
    Parts { head, rows: body - detail, detail, foot }
}

impl Screen<'_> {
    /// Draws all of it.
    pub fn draw(&self, buffer: &mut Buffer) {
        let area = buffer.area;
        let detail = self.state.is_some_and(|state| state.is_detailed).then_some(self.detail.len());
        let parts = parts(area.height, self.state.is_some(), detail);
        let mut y = 0;
        if parts.head > 1 {
            self.line(buffer, y, &self.title, Tone::Strong);
            y += 1;
        }
        if parts.head > 2 {
            self.line(buffer, y, &self.summary, Tone::Plain);
            y += 1;
        }
        let columns = self.columns(area);
        if parts.head > 0 {
            self.titles(buffer, y, &columns);
            y += 1;
        }
        let from = self.state.map_or(0, |state| state.from);
        let selected = self.state.map(|state| state.place(self.rows));
        for (place, row) in self.rows.iter().enumerate().skip(from).take(parts.rows.into()) {
            self.row(buffer, y, row, &columns, selected == Some(place));
            y += 1;
        }
        if self.rows.is_empty() && parts.rows > 0 {
            let said = match self.state {
                Some(state) if !state.filter.is_empty() => {
                    "nothing has the filter in it; Esc clears it"
                }
                _ => "nothing to show",
            };
            self.line(buffer, y, said, Tone::Faint);
        }
        self.detail(buffer, parts);
        if let Some(state) = self.state {
            if parts.foot > 0 {
                self.foot(buffer, state, parts);
            }
            if state.is_helping {
                self.help(buffer, parts);
            }
        }
    }

    fn columns(&self, area: Rect) -> Columns {
        let names = self.rows.iter().filter(|row| !matches!(row.id, Id::Reason(..)));
        let names = names.map(|row| width(&row.name)).max().unwrap_or(0);
        let wishes = Wishes {
            name: names + usize::from(MARK),
            engines: self.engines,
            trend: self.state.is_some(),
        };
        choose(area.width.into(), wishes)
    }

    fn line(&self, buffer: &mut Buffer, y: u16, text: &str, tone: Tone) {
        let room = buffer.area.width;
        put(buffer, (0, y), room, &cut(text, room.into()), self.style(tone));
    }

    fn titles(&self, buffer: &mut Buffer, y: u16, columns: &Columns) {
        let style = self.style(Tone::Strong).add_modifier(Modifier::UNDERLINED);
        if self.state.is_some() {
            buffer.set_style(Rect { y, height: 1, ..buffer.area }.intersection(buffer.area), style);
        }
        let room = u16::try_from(columns.name).unwrap_or(0).saturating_sub(MARK);
        put(buffer, (MARK, y), room, "DEVICE / HOLDER", style);
        let mut x = u16::try_from(columns.name).unwrap_or(0);
        for &(column, cells) in &columns.others {
            x = cell(buffer, (x, y), (column, cells), column.title(), style);
        }
    }

    fn row(&self, buffer: &mut Buffer, y: u16, row: &Row, columns: &Columns, is_selected: bool) {
        let chosen = |style: Style| match is_selected {
            true => style.add_modifier(Modifier::REVERSED),
            false => style,
        };
        let area = buffer.area;
        let whole = Rect { y, height: 1, ..area }.intersection(area);
        if is_selected {
            buffer.set_style(whole, chosen(Style::new()));
            put(buffer, (0, y), MARK, ">", chosen(Style::new()));
        }
        let room = match row.id {
            // A reason has no figures beside it.
            Id::Reason(..) => usize::from(area.width),
            Id::Engine(..) | Id::Device(_) | Id::Holder(..) | Id::Nobody(_) => columns.name,
        };
        let room = room.saturating_sub(MARK.into());
        let name = match row.id {
            Id::Holder(..) => cut_inside(&row.name, room),
            _ => cut(&row.name, room),
        };
        let style = chosen(self.style(row.tone));
        put(buffer, (MARK, y), u16::try_from(room).unwrap_or(u16::MAX), &name, style);
        if matches!(row.id, Id::Reason(..)) {
            return;
        }
        let mut x = u16::try_from(columns.name).unwrap_or(0);
        for &(column, cells) in &columns.others {
            let known = &row.cells[column as usize];
            let style = chosen(self.style(known.tone));
            match (&row.id, column) {
                (Id::Device(uuid), Column::Trend) => {
                    let whose = Whose::Device(uuid.clone());
                    let trend = sparkline(self.history.of(&whose, 0), 100.0, cells);
                    x = cell(buffer, (x, y), (column, cells), &trend, style);
                }
                _ => x = cell(buffer, (x, y), (column, cells), &known.text, style),
            }
        }
    }

    fn detail(&self, buffer: &mut Buffer, parts: Parts) {
        let Some(state) = self.state.filter(|_| parts.detail > 0) else { return };
        let mut y = parts.head + parts.rows;
        let room = usize::from(parts.detail - 1);
        let from = state.detail_from.min(self.detail.len().saturating_sub(room));
        let hidden = self.detail.len().saturating_sub(from + room);
        let more = match (from, hidden) {
            (0, 0) => String::new(),
            (above, below) => format!(" {above} lines above, {below} below: [ and ] "),
        };
        let rule = format!("── selected{more} ").to_owned();
        let rest = usize::from(buffer.area.width).saturating_sub(width(&rule));
        self.line(buffer, y, &format!("{rule}{}", "─".repeat(rest)), Tone::Faint);
        for (text, tone) in self.detail.iter().skip(from).take(room) {
            y += 1;
            self.line(buffer, y, text, *tone);
        }
    }

    fn foot(&self, buffer: &mut Buffer, state: &State, parts: Parts) {
        let y = buffer.area.height - 1;
        if state.is_typing {
            let typed = format!("filter: {}_   Enter keeps it, Esc clears it", state.filter);
            return self.line(buffer, y, &typed, Tone::Strong);
        }
        let order = if state.reversed { " reversed" } else { "" };
        let below = self.rows.len().saturating_sub(state.from + usize::from(parts.rows));
        let mut said = vec![format!("sort: {}{order}", state.sort.key().1)];
        if !state.filter.is_empty() {
            said.push(format!("filter: {}", state.filter));
        }
        if state.from > 0 || below > 0 {
            said.push(format!("{} above, {below} below", state.from));
        }
        if state.is_paused {
            said.insert(0, "PAUSED".into());
        }
        said.push("h help  s sort  / filter  Enter details  Space pause  q quit".into());
        self.line(buffer, y, &said.join(" · "), Tone::Faint);
    }

    fn help(&self, buffer: &mut Buffer, parts: Parts) {
        let area = buffer.area;
        let rows = (parts.head..parts.head + parts.rows + parts.detail).zip(
            help::lines(area.width.into()).into_iter().map(Some).chain(std::iter::repeat(None)),
        );
        for (y, line) in rows {
            let whole = Rect { y, height: 1, ..area }.intersection(area);
            for at in whole.positions() {
                buffer[at].reset();
            }
            let Some((text, tone)) = line else { continue };
            self.line(buffer, y, &text, tone);
        }
    }

    fn style(&self, tone: Tone) -> Style {
        let (style, colour) = match tone {
            Tone::Plain => return Style::new(),
            Tone::Strong => return Style::new().add_modifier(Modifier::BOLD),
            Tone::Faint => return Style::new().add_modifier(Modifier::DIM),
            Tone::Warning => (Style::new(), Color::Yellow),
            Tone::Broken => (Style::new().add_modifier(Modifier::BOLD), Color::Red),
        };
        if self.colours { style.fg(colour) } else { style }
    }
}

/// One cell of the table, and where the next one starts.
fn cell(
    buffer: &mut Buffer,
    (x, y): (u16, u16),
    (column, cells): (Column, usize),
    text: &str,
    style: Style,
) -> u16 {
    let room = u16::try_from(cells).unwrap_or(u16::MAX);
    let text = cut(text, cells);
    let used = u16::try_from(width(&text)).unwrap_or(0);
    let at = if column.is_text() { x + 1 } else { x + 1 + room - used.min(room) };
    put(buffer, (at, y), used, &text, style);
    x + 1 + room
}
