//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod demo;
mod processes;
mod workspace;
