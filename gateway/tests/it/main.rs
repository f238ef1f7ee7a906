//! The gateway from outside: real ports, real agents' streams, KEDA's calls.

mod check;
mod directory_file;
mod http;
mod ingest;
mod scaler;
mod streams;
mod support;
