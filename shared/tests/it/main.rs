//! The shared crate's tests, one binary.

mod exposition;
mod exposition_properties;
