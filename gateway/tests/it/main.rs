//! The gateway from outside: real ports, real agents' streams, KEDA's calls.

mod api_server;
mod attribution;
mod briefs;
mod check;
mod directory_file;
mod explain;
mod http;
mod ingest;
mod kube;
mod kube_watch;
mod scaler;
mod slices;
mod streams;
mod support;
