//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod attribution;
mod client;
mod demo;
#[path = "../../../agent/tests/it/fake_nvml.rs"]
mod fake_nvml;
mod faults;
mod mig;
mod night;
mod nvml;
mod processes;
mod proxy;
mod recordings;
mod replicas;
mod support;
mod workspace;
