//! Words from closed lists: finding them, and what to say about a word that is not on the list.

/// What people write when they mean a word that has another name here.
const MEANT: &[(&str, &str)] = &[("average", "avg"), ("mean", "avg"), ("median", "p50")];

/// Longest part of a user's word that is looked at or repeated in a message.
const SHOWN: usize = 60;

/// Makes an enum whose variants are written as one word each in metadata.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$attr])* $variant,)* }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word for it in metadata.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}
pub(super) use words;

/// The member of `all` whose word is `text`.
pub(super) fn one_of<T: Copy>(
    text: &str,
    all: &[T],
    word: fn(T) -> &'static str,
) -> Result<T, String> {
    let words = || all.iter().map(|&item| word(item));
    match all.iter().find(|&&item| word(item) == text) {
        Some(&item) => Ok(item),
        None => Err(format!(
            "not one of {}, nearest is {}",
            words().collect::<Vec<_>>().join(" "),
            nearest(text, words())
        )),
    }
}

/// The word of `good` that `text` most likely stands for, whatever its case.
pub(super) fn nearest<'a>(text: &str, good: impl Iterator<Item = &'a str>) -> &'a str {
    let text: String = text.chars().take(SHOWN).flat_map(char::to_lowercase).collect();
    let meant = MEANT.iter().find(|(word, _)| *word == text);
    let text = meant.map_or(text.as_str(), |(_, word)| word);
    let likeness = |word: &str| strsim::normalized_damerau_levenshtein(text, &word.to_lowercase());
    let likest = good.map(|word| (likeness(word), word)).max_by(|a, b| a.0.total_cmp(&b.0));
    likest.map(|(_, word)| word).unwrap_or_default()
}

/// The user's word as messages show it: quoted, control characters escaped, not too long.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_whatever_its_case() {
        let good = ["total", "max", "min", "avg", "targetValue", "gpu_utilization"];
        for (text, near) in [
            ("MAX", "max"),
            ("mean", "avg"),
            ("Average", "avg"),
            ("targetvalue", "targetValue"),
            ("gpu_utilisation", "gpu_utilization"),
        ] {
            assert_eq!(nearest(text, good.into_iter()), near, "{text}");
        }
    }

    #[test]
    fn long_and_odd_words_are_shown_short_and_escaped() {
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert_eq!(quoted(&"ä".repeat(1000)).chars().count(), 63);
    }
}
