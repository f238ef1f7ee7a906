//! The product as a whole: its parts, its processes, and its story.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "../../../gateway/tests/it/api_server.rs"]
#[expect(dead_code, reason = "the gateway's own tests use all of it")]
mod api_server;
mod attribution;
mod calls;
mod changing_hands;
mod churn;
mod client;
mod clocks;
mod demo;
mod docs;
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
mod ledger;
mod measure;
mod mig;
mod night;
mod nodes;
mod nvml;
#[path = "../../../gateway/tests/it/pki.rs"]
mod pki;
mod policies;
mod processes;
mod proxy;
mod recordings;
mod replicas;
mod restarts;
mod scene;
mod security;
mod silences;
#[expect(dead_code, reason = "the agent's own tests use the rest of it")]
#[path = "../../../agent/tests/it/site.rs"]
mod site;
mod support;
mod tokens;
#[path = "../../../agent/tests/it/tree.rs"]
#[expect(dead_code, reason = "the agent's own tests use all of it")]
mod tree;
mod wake;
mod workspace;
