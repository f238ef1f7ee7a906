//! The gateway without sockets and clocks: the decision, the worked cases with the time as a
//! parameter, and the order of the modules.
#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

mod asked_again;
mod briefs;
mod cases;
mod decision;
mod demand;
mod engine_asks;
mod engines;
mod explained;
mod kube_index;
mod layering;
mod ledger;
mod sessions;
