//! A command line that is refused: what clap cannot know is added.

use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::Cli;

/// Commands of the other program.
const OF_AGENT: [&str; 5] = ["run", "snapshot", "record", "top", "doctor"];

/// The same error, with whose command or which variable it is about.
pub fn explained(mut error: Error, arguments: &[String]) -> Error {
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && OF_AGENT.contains(&name.as_str())
    {
        let message = format!("{name} is a command of gpu-agent");
        return Cli::command().error(ErrorKind::InvalidSubcommand, message);
    }
    if let Some(variable) = variable(&error, arguments) {
        let tip = StyledStr::from(format!("that value is from the variable {variable}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The variable that gave a wrong value of a flag that was not written.
fn variable(error: &Error, arguments: &[String]) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = argument.split_whitespace().next()?;
    let is_it = |written: &String| {
        written.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if arguments.iter().any(is_it) {
        return None;
    }
    let cli = Cli::command();
    let mut all = cli.get_subcommands().chain([&cli]).flat_map(clap::Command::get_arguments);
    let known = all.find(|known| known.get_long() == flag.strip_prefix("--"))?;
    Some(known.get_env()?.to_string_lossy().into_owned())
}
