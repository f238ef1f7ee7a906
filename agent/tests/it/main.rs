//! The agent's tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test that finds no value should stop there")]

mod cli;
mod frame;
mod layering;
mod owner;
mod replay;
mod replay_file;
mod simulated;
mod support;
mod uplink;
