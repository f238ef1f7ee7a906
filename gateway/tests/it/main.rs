//! The gateway from outside: real ports, real agents' streams, KEDA's calls.

mod api_server;
mod attribution;
mod briefs;
mod check;
mod demand;
mod demand_page;
mod directory_file;
mod e2e_script;
mod engines;
mod explain;
mod http;
mod identity;
mod ingest;
mod kube;
mod kube_owners;
mod kube_watch;
mod ledger;
mod limits;
mod pki;
mod scaler;
mod slices;
mod streams;
mod support;
