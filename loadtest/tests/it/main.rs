//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod attribution;
mod changing_hands;
mod client;
mod demo;
mod doctor;
mod engines;
#[path = "../../../agent/tests/it/fake_nvml.rs"]
mod fake_nvml;
mod faults;
mod fuzz;
mod holders;
mod identity;
#[path = "../../../agent/tests/it/kubelet_server.rs"]
#[expect(dead_code, reason = "the agent's own tests use all of it")]
mod kubelet_server;
mod measure;
mod mig;
mod night;
mod nodes;
mod nvml;
#[path = "../../../gateway/tests/it/pki.rs"]
mod pki;
mod processes;
mod proxy;
mod recordings;
mod replicas;
mod restarts;
mod scene;
mod silences;
#[expect(dead_code, reason = "the agent's own tests use the rest of it")]
#[path = "../../../agent/tests/it/site.rs"]
mod site;
mod support;
#[path = "../../../agent/tests/it/tree.rs"]
#[expect(dead_code, reason = "the agent's own tests use all of it")]
mod tree;
mod wake;
mod workspace;
