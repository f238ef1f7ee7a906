//! The grammar of one line: name, labels, value, and what may follow.

use std::borrow::Cow;

/// More than any engine has; so a line that consists of labels only costs little.
const MAX_LABELS: usize = 64;

/// What stands on a line.
pub(super) struct Parts<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) labels: Labels<'a>,
    pub(super) value: f64,
}

/// The labels of one series, each name once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels<'a> {
    /// What stands between the braces, checked, after a quoted name of the series.
    text: &'a str,
}

impl<'a> Labels<'a> {
    /// Names and values, in the order of the line.
    pub fn iter(self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        let mut rest = self.text;
        std::iter::from_fn(move || {
            let (label, after) = label(rest).ok()??;
            rest = after;
            Some((label.name, label.value))
        })
    }

    /// The value of the label `name`.
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.iter().find(|(label, _)| label == name).map(|(_, value)| value)
    }
}

/// Takes a line apart that is neither empty nor a comment.
pub(super) fn parts(line: &str) -> Result<Parts<'_>, &'static str> {
    let (plain, rest) = split_word(line, is_name);
    let rest = blank(rest);
    let (name, labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let (name, inside) = own_name(plain, blank(inside))?;
            let (labels, rest) = braces(inside)?;
            (name, labels, blank(rest))
        }
        None if plain.is_empty() => return Err("it does not begin with a series name"),
        None => (Cow::Borrowed(plain), Labels::default(), rest),
    };
    if plain.len() + rest.len() == line.len() {
        return Err("there is no space between name and value, or a character no name has");
    }
    if plain.starts_with(|c: char| c.is_ascii_digit()) {
        return Err("a series name begins with a digit");
    }
    Ok(Parts { name, labels, value: value(rest)? })
}

/// The series name that a broken line begins with, in braces and quotes or without; may be empty.
pub(super) fn begun(line: &str) -> Cow<'_, str> {
    let (plain, rest) = split_word(line, is_name);
    let inside = blank(rest).strip_prefix('{').map(blank);
    match inside.and_then(|inside| inside.strip_prefix('"')) {
        Some(quoted) if plain.is_empty() => {
            quoted_rest(quoted).map_or(Cow::Borrowed(quoted), |(name, _)| name)
        }
        _ => Cow::Borrowed(plain),
    }
}

/// The name and type of what follows `# TYPE `.
pub(super) fn declaration(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = blank(text);
    if let Some(quoted) = text.strip_prefix('"') {
        let (name, rest) = quoted_rest(quoted)?;
        return Some((name, blank(rest)));
    }
    let (name, word) = text.split_once([' ', '\t'])?;
    Some((Cow::Borrowed(name), blank(word)))
}

/// The series' name, which may also be the first thing in its braces, in quotes.
fn own_name<'a>(plain: &'a str, inside: &'a str) -> Result<(Cow<'a, str>, &'a str), &'static str> {
    const NONE: &str = "there is no series name before or in the braces";
    if !plain.is_empty() {
        return Ok((Cow::Borrowed(plain), inside));
    }
    let quoted = inside.strip_prefix('"').ok_or(NONE)?;
    let (name, rest) = quoted_rest(quoted).ok_or("the series name in the braces is not closed")?;
    if name.is_empty() {
        return Err("the series name is empty");
    }
    let rest = blank(rest);
    match rest.strip_prefix(',') {
        Some(labels) => Ok((name, blank(labels))),
        None if rest.starts_with('}') => Ok((name, rest)),
        None => Err(NONE),
    }
}

/// Checks the labels up to the closing brace and gives what follows it.
fn braces(inside: &str) -> Result<(Labels<'_>, &str), &'static str> {
    let mut seen = [const { Cow::Borrowed("") }; MAX_LABELS];
    let mut count = 0;
    let mut rest = inside;
    while let Some((label, after)) = label(rest)? {
        if count == MAX_LABELS {
            return Err("it has more than 64 labels");
        }
        // As it is meant: an escape may be written in more than one way.
        if seen[..count].contains(&label.name) {
            return Err("a label is there twice");
        }
        seen[count] = label.name;
        count += 1;
        rest = after;
    }
    let labels = Labels { text: inside.strip_suffix(rest).unwrap_or(inside) };
    Ok((labels, rest.strip_prefix('}').ok_or("the braces are not closed")?))
}

struct Label<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
}

/// The next label and what follows it and its comma; none at the closing brace or the end.
fn label(text: &str) -> Result<Option<(Label<'_>, &str)>, &'static str> {
    let text = blank(text);
    if text.is_empty() || text.starts_with('}') {
        return Ok(None);
    }
    let (name, rest) = match text.strip_prefix('"') {
        Some(quoted) => quoted_rest(quoted).ok_or("a label's name is not closed")?,
        None => {
            let (name, rest) = split_word(text, |byte| is_name(byte) && byte != b':');
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err("a label has no name, or one with a character no name has");
            }
            (Cow::Borrowed(name), rest)
        }
    };
    let rest = blank(rest).strip_prefix('=').ok_or("a label has no =")?;
    let rest = blank(rest).strip_prefix('"').ok_or("a label's value is not in quotes")?;
    let (value, rest) = quoted_rest(rest).ok_or("a label's value is not closed")?;
    let rest = blank(rest);
    let rest = match rest.strip_prefix(',') {
        Some(rest) => blank(rest),
        None if rest.is_empty() || rest.starts_with('}') => rest,
        None => return Err("there is no comma between two labels"),
    };
    Ok(Some((Label { name, value }, rest)))
}

/// What stands up to the closing quote, and what follows it.
fn quoted_rest(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.bytes().position(|byte| byte == b'"' || byte == b'\\')?;
    if text.as_bytes()[end] == b'"' {
        return Some((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let mut unescaped = text[..end].to_owned();
    let mut rest = text[end..].chars();
    loop {
        match rest.next()? {
            '"' => return Some((Cow::Owned(unescaped), rest.as_str())),
            '\\' => match rest.next()? {
                'n' => unescaped.push('\n'),
                c @ ('"' | '\\') => unescaped.push(c),
                // Not an escape of either format; Prometheus leaves it as it stands, too.
                other => unescaped.extend(['\\', other]),
            },
            other => unescaped.push(other),
        }
    }
}

/// The value; a timestamp and an exemplar may follow.
fn value(text: &str) -> Result<f64, &'static str> {
    let (word, rest) = split_word(text, |byte| !is_blank(byte));
    let value = word.parse().map_err(|_| match word {
        "" => "there is no value",
        _ => "its value is not a number",
    })?;
    let (timestamp, rest) = split_word(blank(rest), |byte| !is_blank(byte) && byte != b'#');
    if !timestamp.is_empty() && timestamp.parse::<f64>().is_err() {
        return Err("its timestamp is not a number");
    }
    let rest = blank(rest);
    if rest.is_empty() || rest.starts_with('#') {
        Ok(value)
    } else {
        Err("there is something after its timestamp")
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Text without the blanks it begins with.
fn blank(text: &str) -> &str {
    split_word(text, is_blank).1
}

/// Splits before the first byte that does not belong, which has to be the start of a character
/// wherever one that belongs is not ASCII.
fn split_word(text: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| !belongs(byte)).unwrap_or(text.len()))
}
