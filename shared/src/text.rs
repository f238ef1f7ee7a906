//! Pure: texts of others, for a terminal.
//!
//! Guarantees: nothing that is shown moves the cursor, starts a line, turns the direction of
//! writing or cannot be seen.

/// What stands for a character that is not shown.
pub const REPLACED: char = '\u{fffd}';

/// The text, [`REPLACED`] in place of what would steer a terminal or hide in it.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_hidden(c) { REPLACED } else { c }).collect()
}

/// Characters without a cell of their own that change how their neighbours look: Unicode's
/// `Default_Ignorable_Code_Point` and `Bidi_Control`, separators of lines, and annotations.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_or_hides_in_it_is_replaced_and_nothing_else() {
        for c in "\u{1b}\u{9b}\n\r\t\u{7f}\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}\u{e0041}".chars()
        {
            assert_eq!(plain(&format!("a{c}b")), format!("a{REPLACED}b"), "{c:?}");
        }
        let harmless = "vllm-0 äöü 語 é e\u{301} 🦀 Привет";
        assert_eq!(plain(harmless), harmless);
    }
}
