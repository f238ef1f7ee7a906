//! Pure: what was pressed → what is looked at.
//!
//! Guarantees: the selection stays on what it is about through every change of order; a key that
//! means nothing changes nothing; texts that are typed are bounded.

use super::row::{Id, Row};

/// Characters of a filter.
const LONGEST_FILTER: usize = 100;

/// What rows are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The index of the device, the lowest first.
    #[default]
    Index,
    /// `gpu_utilization`, the highest first.
    Utilization,
    /// `memory_used_mib`, the highest first.
    Memory,
    /// `temperature`, the highest first.
    Temperature,
    /// `power_draw`, the highest first.
    Power,
    /// Names of the pods that hold it.
    Pod,
    /// `requests_waiting`, the highest first.
    Waiting,
}

impl Sort {
    /// Every order, in that of `s`.
    pub const ALL: [Self; 7] = [
        Self::Index,
        Self::Utilization,
        Self::Memory,
        Self::Temperature,
        Self::Power,
        Self::Pod,
        Self::Waiting,
    ];

    /// The key that asks for it, and its name.
    pub fn key(self) -> (char, &'static str) {
        match self {
            Self::Index => ('i', "index"),
            Self::Utilization => ('u', "utilisation"),
            Self::Memory => ('m', "memory"),
            Self::Temperature => ('t', "temperature"),
            Self::Power => ('p', "power"),
            Self::Pod => ('n', "pod name"),
            Self::Waiting => ('w', "waiting requests"),
        }
    }
}

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Yes.
    Enter,
    /// Back.
    Escape,
    /// One character less.
    Backspace,
    /// All of the line less.
    Erase,
    /// Ctrl-C.
    Interrupt,
}

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The order of devices.
    pub sort: Sort,
    /// Whether that order is turned round.
    pub reversed: bool,
    /// What rows must have in them.
    pub filter: String,
    /// Whether the filter is being typed.
    pub is_typing: bool,
    /// Whether the screen stands still.
    pub is_paused: bool,
    /// Whether the keys are explained.
    pub is_helping: bool,
    /// Whether the selected row is explained.
    pub is_detailed: bool,
    /// The first line of that explanation that is shown.
    pub detail_from: usize,
    /// What is selected.
    pub selected: Option<Id>,
    /// The first row that is shown.
    pub from: usize,
    /// Whether the end was asked for.
    pub is_over: bool,
}

impl State {
    /// Takes `key`; `rows` are those of the table and `page` is how many are seen at once.
    pub fn press(&mut self, key: Key, rows: &[Row], page: usize) {
        match key {
            Key::Interrupt => self.is_over = true,
            _ if self.is_typing => self.type_filter(key),
            Key::Up => self.step(rows, -1),
            Key::Down => self.step(rows, 1),
            Key::PageUp => self.step(rows, -steps(page)),
            Key::PageDown => self.step(rows, steps(page)),
            Key::Home => self.step(rows, isize::MIN),
            Key::End => self.step(rows, isize::MAX),
            Key::Enter => self.toggle_detail(),
            Key::Escape => self.back(),
            Key::Backspace | Key::Erase => {}
            Key::Char(c) => self.letter(c, rows),
        }
    }

    fn letter(&mut self, c: char, rows: &[Row]) {
        if let Some(sort) = Sort::ALL.into_iter().find(|sort| sort.key().0 == c) {
            // The same key again turns the order round.
            self.reversed = self.sort == sort && !self.reversed;
            self.sort = sort;
            return;
        }
        match c {
            'q' => self.is_over = true,
            'h' | '?' => self.is_helping = !self.is_helping,
            ' ' => self.is_paused = !self.is_paused,
            'r' => self.reversed = !self.reversed,
            's' => {
                let place = Sort::ALL.iter().position(|sort| *sort == self.sort);
                let next = place.map_or(0, |place| (place + 1) % Sort::ALL.len());
                (self.sort, self.reversed) = (Sort::ALL[next], false);
            }
            '/' => self.is_typing = true,
            'd' => self.toggle_detail(),
            'k' => self.step(rows, -1),
            'j' => self.step(rows, 1),
            '[' => self.detail_from = self.detail_from.saturating_sub(1),
            ']' => self.detail_from = self.detail_from.saturating_add(1),
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter | Key::Up | Key::Down => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Erase => self.filter.clear(),
            Key::Char(c) if !c.is_control() && self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    /// Closes what was opened last, and then clears the filter.
    fn back(&mut self) {
        if self.is_helping {
            self.is_helping = false;
        } else if self.is_detailed {
            self.is_detailed = false;
        } else {
            self.filter.clear();
        }
    }

    fn toggle_detail(&mut self) {
        self.is_detailed = !self.is_detailed;
        self.detail_from = 0;
    }

    /// The place of the selected row; the first where what was selected is gone.
    pub fn place(&self, rows: &[Row]) -> usize {
        let selected = self.selected.as_ref();
        rows.iter().position(|row| Some(&row.id) == selected).unwrap_or(0)
    }

    fn step(&mut self, rows: &[Row], by: isize) {
        let Some(last) = rows.len().checked_sub(1) else { return };
        let place = self.place(rows).saturating_add_signed(by).min(last);
        self.selected = Some(rows[place].id.clone());
        self.detail_from = 0;
    }

    /// Moves what is seen so that the selected row is in it, and no place is left empty.
    pub fn follow(&mut self, rows: &[Row], page: usize) {
        let place = self.place(rows);
        let lowest = (place + 1).saturating_sub(page);
        let highest = place.min(rows.len().saturating_sub(page));
        self.from = self.from.min(highest).max(lowest);
    }
}

fn steps(page: usize) -> isize {
    isize::try_from(page.saturating_sub(1).max(1)).unwrap_or(isize::MAX)
}
