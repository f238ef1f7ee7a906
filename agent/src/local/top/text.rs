//! Pure: texts of others → cells of a screen.
//!
//! Guarantees: what is put on the screen is one cell or two for each character and nothing else;
//! control characters, escapes, marks without a width and marks that turn the direction of writing
//! are shown as U+FFFD; nothing is written outside the room that is given.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use unicode_width::UnicodeWidthChar as _;

/// What stands for a character that would steer the terminal.
pub const REPLACED: char = '\u{fffd}';
/// What stands for the part of a text that has no room.
const CUT: &str = "…";
/// Levels of a sparkline, from nothing to all.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A moment of which a sparkline knows nothing.
const UNKNOWN: char = '·';

/// The character, or [`REPLACED`] where it would not stay in its cell.
fn clean(c: char) -> char {
    // Flags and skin tones merge with their neighbours.
    let is_joined = matches!(c, '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}');
    let has_cell = c.width().is_some_and(|width| width > 0);
    let is_break = matches!(c, '\u{2028}' | '\u{2029}');
    match c.is_control() || is_break || is_joined || !has_cell || is_private(c) {
        true => REPLACED,
        false => c,
    }
}

/// Terminals disagree about what is private.
fn is_private(c: char) -> bool {
    matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..)
}

/// Cells that `c` takes on the screen.
fn cells(c: char) -> usize {
    clean(c).width().unwrap_or(1)
}

/// Cells that `text` takes on the screen.
pub fn width(text: &str) -> usize {
    text.chars().map(cells).sum()
}

/// The start of `text` that has room in `room` cells.
fn start(text: &str, room: usize) -> String {
    let mut used = 0;
    let fits = text.chars().take_while(|&c| {
        used += cells(c);
        used <= room
    });
    fits.collect()
}

/// `text`, its end cut off where it needs more than `room` cells.
pub fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    match room.checked_sub(width(CUT)) {
        Some(room) => start(text, room) + CUT,
        None => String::new(),
    }
}

/// `text`, its middle cut out where it needs more than `room` cells: pods of one workload differ
/// in how their names end.
pub fn cut_inside(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let Some(kept) = room.checked_sub(width(CUT)) else { return String::new() };
    let end: String = text.chars().rev().collect();
    let end: String = start(&end, kept / 2).chars().rev().collect();
    start(text, kept - width(&end)) + CUT + &end
}

/// `text` in lines of at most `room` cells, broken between words where that is possible.
pub fn wrapped(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest = word.to_owned();
        loop {
            let line = lines.last_mut().expect("there is always one");
            let gap = usize::from(!line.is_empty());
            if width(line) + gap + width(&rest) <= room {
                line.push_str(&" "[..gap]);
                line.push_str(&rest);
                break;
            }
            if line.is_empty() {
                // A single wide character in a single cell has no room at all.
                let fits = start(&rest, room);
                let taken = fits.len().max(rest.chars().next().map_or(0, char::len_utf8));
                line.push_str(&fits);
                rest.drain(..taken);
                if rest.is_empty() {
                    break;
                }
            }
            lines.push(String::new());
        }
    }
    lines
}

/// The newest `room` values between 0 and `most`; nothing that is unknown looks like a zero.
pub fn sparkline(
    values: impl DoubleEndedIterator<Item = Option<f64>>,
    most: f64,
    room: usize,
) -> String {
    let newest = values.rev().take(room).map(|value| match value {
        Some(value) if most > 0.0 => {
            let level = (value / most * LEVELS.len() as f64).floor().max(0.0) as usize;
            LEVELS[level.min(LEVELS.len() - 1)]
        }
        Some(_) => LEVELS[0],
        None => UNKNOWN,
    });
    let newest: Vec<char> = newest.collect();
    newest.into_iter().rev().collect()
}

/// Writes `text` from (`x`, `y`) into at most `room` cells; returns the cells it took.
pub fn put(buffer: &mut Buffer, (x, y): (u16, u16), room: u16, text: &str, style: Style) -> u16 {
    let end = x.saturating_add(room).min(buffer.area.right());
    let mut at = x;
    for c in text.chars().map(clean) {
        let Ok(wide) = u16::try_from(cells(c)) else { break };
        if at.saturating_add(wide) > end || y >= buffer.area.bottom() {
            break;
        }
        buffer[(at, y)].set_char(c).set_style(style);
        for behind in 1..wide {
            buffer[(at + behind, y)].reset();
            buffer[(at + behind, y)].set_style(style);
        }
        at += wide;
    }
    at - x
}

/// The buffer's lines as text, without spaces at their ends.
pub fn plain(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut skip = 0;
        for x in buffer.area.left()..buffer.area.right() {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let symbol = buffer[(x, y)].symbol();
            skip = width(symbol).saturating_sub(1);
            line.push_str(symbol);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::layout::Rect;

    #[test]
    fn what_would_steer_a_terminal_is_shown_as_one_cell() {
        for hostile in
            ['\u{1b}', '\u{9b}', '\n', '\u{7f}', '\u{202e}', '\u{200b}', '\u{301}', '\u{2028}']
        {
            assert_eq!(clean(hostile), REPLACED, "{hostile:?}");
        }
        for good in ['a', '…', 'é', '語', 'א', '█'] {
            assert_eq!(clean(good), good);
        }
    }

    #[test]
    fn texts_are_cut_to_their_room() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("語語語", 4), "語…");
        assert_eq!(cut_inside("vllm-7f9c-x2x9z", 9), "vllm…2x9z");
        for room in 0..9 {
            for text in ["abcdefgh", "語語語語語", "a\u{1b}[31m語\u{202e}"] {
                assert!(width(&cut(text, room)) <= room && width(&cut_inside(text, room)) <= room);
            }
        }
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert!(wrapped("語", 1).iter().all(|line| width(line) <= 1));
    }

    #[test]
    fn a_sparkline_tells_zero_from_unknown() {
        let values = [Some(9.0), Some(0.0), None, Some(50.0), Some(100.0)];
        assert_eq!(sparkline(values.into_iter(), 100.0, 4), "▁·▅█");
        assert_eq!(sparkline([Some(0.0)].into_iter(), 0.0, 4), "▁");
    }

    #[test]
    fn nothing_is_written_outside_its_room() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 1));
        assert_eq!(put(&mut buffer, (0, 0), 3, "a語語", Style::new()), 3);
        assert_eq!(put(&mut buffer, (5, 0), 9, "語", Style::new()), 0);
        assert_eq!(put(&mut buffer, (0, 7), 9, "x", Style::new()), 0);
        assert_eq!(plain(&buffer), "a語\n");
    }
}
