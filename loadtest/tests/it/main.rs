//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod attribution;
mod demo;
#[path = "../../../agent/tests/it/fake_nvml.rs"]
mod fake_nvml;
mod identity;
mod mig;
mod night;
mod nvml;
#[path = "../../../gateway/tests/it/pki.rs"]
mod pki;
mod processes;
mod recordings;
mod support;
mod workspace;
