//! Whether a recording can be replayed: every line is read, memory is bounded by one line.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use shared::process::file;

use super::{Broken, quoted};
use crate::device::replay::MAX_LINE;
use crate::device::replay::line::{self, Line};

/// Whether every line of the recording at `path` is a good one.
///
/// # Errors
/// The first line that is not, or that there is none.
pub fn recording(path: &Path) -> Result<String, Broken> {
    let open = file::open(path).map(BufReader::new);
    let mut file = open.map_err(|error| unreadable(path, &error))?;
    let (mut number, mut good, mut broken) = (0_u64, 0_u64, 0_u64);
    let mut first = None;
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = next(&mut file, &mut text).map_err(|error| unreadable(path, &error))?;
        if read == 0 {
            break;
        }
        number += 1;
        if text.trim_ascii().is_empty() {
            continue;
        }
        match check(&text) {
            Ok(()) => good += 1,
            Err(why) => {
                broken += 1;
                first.get_or_insert((number, why));
            }
        }
    }
    match first {
        None if good == 0 => {
            let said = format!("{} has no line to replay", path.display());
            Err(Broken::new(said, format!("ls -l {}", quoted(path))))
        }
        None if good == 1 => Ok(format!("{}: 1 line, and it is good", path.display())),
        None => Ok(format!("{}: {good} lines, all good", path.display())),
        Some((at, why)) => {
            let others = match broken - 1 {
                0 => String::new(),
                more => format!(" ({more} more broken)"),
            };
            let said = format!("{} line {at}: {why}{others}", path.display());
            Err(Broken::new(said, format!("sed -n {at}p {}", quoted(path))))
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Broken {
    Broken::new(format!("{}: {error}", path.display()), format!("ls -l {}", quoted(path)))
}

/// Reads one line, of which at most one byte more than is allowed is kept.
fn next(file: &mut BufReader<File>, text: &mut Vec<u8>) -> io::Result<usize> {
    let mut read = file.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', text)?;
    while read > 0 && !text.ends_with(b"\n") && text.len() > MAX_LINE {
        // The rest of it is only looked through.
        let mut rest = Vec::new();
        read = file.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut rest)?;
        if rest.ends_with(b"\n") {
            break;
        }
    }
    Ok(text.len())
}

fn check(text: &[u8]) -> Result<(), String> {
    if text.len() > MAX_LINE {
        return Err(format!("more than {MAX_LINE} bytes; write shorter lines"));
    }
    let Line { unknown, .. } = line::parse(text)?;
    match unknown.into_iter().next() {
        Some(unknown) => Err(unknown),
        None => Ok(()),
    }
}
