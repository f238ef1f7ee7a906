//! Every command and flag, as the reference lists them.

use clap::CommandFactory as _;
use reference::{compare, flags};

use super::Cli;

#[test]
fn the_reference_lists_every_flag() {
    compare("flags.md", "gpu-agent", &flags(Cli::command()));
}
