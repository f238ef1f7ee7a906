//! The commands and flags of a binary, as clap knows them.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::table;

/// Every command of `root` with its flags, as Markdown; those that all commands take come first.
pub fn flags(mut root: Command) -> String {
    root.build();
    let mut text = String::new();
    let global: Vec<&Arg> = root.get_arguments().filter(|arg| arg.is_global_set()).collect();
    section(&mut text, &root, "Of every command", &global);
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        let own = command.get_arguments().filter(|arg| !arg.is_global_set());
        let own: Vec<&Arg> = own.filter(|arg| !arg.is_hide_set()).collect();
        section(&mut text, command, &format!("`{} {}`", root.get_name(), command.get_name()), &own);
    }
    text
}

fn section(text: &mut String, command: &Command, title: &str, args: &[&Arg]) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    assert!(!about.is_empty(), "{title} has no description");
    let rows = args.iter().filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
    let rows = rows.map(|arg| {
        let help = arg.get_help().map(|help| help.to_string()).unwrap_or_default();
        assert!(!help.is_empty(), "{} of {title} has no description", arg.get_id());
        let env = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
        let values = arg.get_default_values().iter();
        let default: Vec<String> = values.map(|v| format!("`{}`", v.to_string_lossy())).collect();
        let required = if arg.is_required_set() { "required" } else { "" };
        let default = if default.is_empty() { required.to_owned() } else { default.join(" ") };
        [
            spelled(arg),
            env.unwrap_or_default(),
            default,
            help.replace('\n', " ") + &words(arg, &help),
        ]
    });
    let table = table(["flag", "environment", "default", "what it is"], rows);
    writeln!(text, "### {title}\n\n{about}.\n\n{table}")
        .expect("writing to a String does not fail");
}

/// The words it takes, where there are only some and `help` does not say them.
fn words(arg: &Arg, help: &str) -> String {
    let takes = arg.get_action().takes_values();
    let words = arg.get_possible_values().into_iter().filter(|word| takes && !word.is_hide_set());
    let words: Vec<String> = words.map(|word| format!("`{}`", word.get_name())).collect();
    if words.iter().all(|word| help.contains(word)) {
        String::new()
    } else {
        format!(": {}", words.join(", "))
    }
}

/// `-o, --output FORM`, or the name of a value.
fn spelled(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let value = arg.get_value_names().unwrap_or_default().join(" ");
    let value = if takes { format!(" {value}") } else { String::new() };
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}, --{long}{value}`"),
        (None, Some(long)) => format!("`--{long}{value}`"),
        (Some(short), None) => format!("`-{short}{value}`"),
        (None, None) => format!("`{}`", value.trim_start()),
    }
}
