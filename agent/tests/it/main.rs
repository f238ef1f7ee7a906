//! The agent's tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test that finds no value should stop there")]

mod attribution;
mod attribution_any;
mod cgroups;
mod cli;
mod condition;
mod credentials;
mod declared;
mod device_ids;
mod doctor;
mod engine_odd_pages;
mod engine_pages;
mod engine_rates;
mod engine_scrape;
mod engines;
mod fake_nvml;
mod frame;
mod handovers;
mod kubelet;
mod kubelet_agent;
mod kubelet_server;
mod layering;
mod local_attribution;
mod local_frames;
mod local_nvml;
mod local_outputs;
mod local_processes;
mod manifest;
mod nvml;
mod owner;
mod process;
mod processes;
mod replay;
mod replay_file;
mod simulated;
mod site;
mod split;
mod support;
mod terminal;
mod top_from;
mod top_screen;
mod top_terminal;
mod tree;
mod uplink;
mod uplink_briefs;
