//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod attribution;
mod demo;
#[path = "../../../agent/tests/it/fake_nvml.rs"]
mod fake_nvml;
mod mig;
mod night;
mod nvml;
mod processes;
mod recordings;
mod restarts;
mod silences;
mod support;
mod workspace;
