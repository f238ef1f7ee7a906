//! The terminal: raw while it is drawn on, and as it was afterwards.
//!
//! Guarantees: whatever ends the view, a panic too, leaves the terminal with its screen, cursor and
//! line discipline; what cannot be written any more is nobody's loss.

use std::io::{self, IsTerminal as _, Stdout};
use std::mem::ManuallyDrop;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Terminal as Drawn;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{
    self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui_crossterm::crossterm::{cursor, execute, terminal};
use tokio::sync::mpsc;

use super::state::Key;

/// Keys that wait to be taken; more are dropped, as from one that lies on the keyboard.
const MAX_WAITING: usize = 64;

/// What came from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A key.
    Key(Key),
    /// It has another size, or is to be drawn anew.
    Redraw,
}

/// The terminal of this process, drawn on.
pub struct Terminal {
    // Never dropped: it would complain on a terminal that is gone, and that panics.
    drawn: ManuallyDrop<Drawn<CrosstermBackend<Stdout>>>,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When standard output is no terminal.
    pub fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // What it has to say is to be read afterwards.
            leave();
            hook(panic);
        }));
        // It is given back, whatever fails.
        let drawn = Drawn::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| leave())?;
        let mut terminal = Self { drawn: ManuallyDrop::new(drawn) };
        execute!(terminal.drawn.backend_mut(), EnterAlternateScreen, cursor::Hide)?;
        terminal.forget()?;
        Ok(terminal)
    }

    /// Draws with `draw` on a buffer of the terminal's size; returns its lines.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<u16> {
        let frame = self.drawn.draw(|frame| draw(frame.buffer_mut()))?;
        Ok(frame.area.height)
    }

    /// Forgets what was drawn, so that all of it is drawn anew.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forget(&mut self) -> io::Result<()> {
        // `clear` would ask the terminal where its cursor is, and some never answer.
        let size = self.drawn.size()?;
        self.drawn.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Gives the terminal back; as often as one likes.
fn leave() {
    // Where the terminal is gone there is nothing to give back.
    drop(execute!(io::stdout(), LeaveAlternateScreen, cursor::Show));
    drop(disable_raw_mode());
}

/// Columns of the terminal that is printed to, if it is one.
pub fn columns() -> Option<u16> {
    let (columns, _) = io::stdout().is_terminal().then(terminal::size)?.ok()?;
    (columns > 0).then_some(columns)
}

/// What comes from the terminal; ends with it.
pub fn listen() -> mpsc::Receiver<Heard> {
    let (say, heard) = mpsc::channel(MAX_WAITING);
    // Reading blocks for ever; the thread ends with the process.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let Some(heard) = meaning(&event) else { continue };
            if let Err(mpsc::error::TrySendError::Closed(_)) = say.try_send(heard) {
                return;
            }
        }
    });
    heard
}

fn meaning(event: &Event) -> Option<Heard> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => match (key.code, control(key)) {
            (KeyCode::Char('l'), true) => Some(Heard::Redraw),
            _ => key_of(key).map(Heard::Key),
        },
        Event::Resize(..) => Some(Heard::Redraw),
        _ => None,
    }
}

fn control(key: &KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL)
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    let key = match (key.code, control(key)) {
        (KeyCode::Char('c' | 'd'), true) => Key::Interrupt,
        (KeyCode::Char('u'), true) => Key::Erase,
        (KeyCode::Char('f'), true) | (KeyCode::PageDown, _) => Key::PageDown,
        (KeyCode::Char('b'), true) | (KeyCode::PageUp, _) => Key::PageUp,
        (KeyCode::Char(_), true) => return None,
        (KeyCode::Char(c), false) => Key::Char(c),
        (KeyCode::Up, _) => Key::Up,
        (KeyCode::Down, _) => Key::Down,
        (KeyCode::Home, _) => Key::Home,
        (KeyCode::End, _) => Key::End,
        (KeyCode::Enter, _) => Key::Enter,
        (KeyCode::Esc, _) => Key::Escape,
        (KeyCode::Backspace, _) => Key::Backspace,
        _ => return None,
    };
    Some(key)
}
