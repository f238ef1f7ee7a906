//! The shared crate's tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test that finds no value should stop there")]

mod exposition;
mod exposition_properties;
