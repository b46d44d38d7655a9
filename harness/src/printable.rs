//! Text from files and flags as a terminal may be shown it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal would act on a character, or show it nowhere, instead of printing it:
/// controls, line separators, changes of direction and characters without width.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// `text` on one line, with escapes such as `\u{1b}` for what a terminal would act on.
///
/// Printable text stays as it is, so doing it twice changes nothing.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// As [`printable`], for a text of several lines.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let plain = |c: char| keep(c) || !acts(c);
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if plain(c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
    }
    Cow::Owned(out)
}

/// JSON that reads as the same value, in which no string holds what a terminal would act on.
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    let plain = |c: char| c == '\n' || !acts(c);
    if json.chars().all(plain) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if plain(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(out)
}

/// A name for a file or a machine made from `text`: without what a terminal would act on, and at
/// most `most` characters.
pub(crate) fn cleaned(text: &str, most: usize) -> String {
    text.chars()
        .map(|c| if acts(c) { '_' } else { c })
        .take(most)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped_once() {
        let evil = "a\u{1b}[31m\r\nb\u{202e}c\u{9b}d\u{7f}é漢";
        let shown = printable(evil);
        assert_eq!(shown, "a\\u{1b}[31m\\r\\nb\\u{202e}c\\u{9b}d\\u{7f}é漢");
        assert_eq!(printable(&shown), shown);
        assert_eq!(printable_lines("a\n\u{1b}"), "a\n\\u{1b}");
        assert_eq!(cleaned("a\u{1b}b\ncd", 5), "a_b_c");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({ "name": "a\u{1b}\u{202e}\u{9b}\u{e0001}\n" });
        let json = format!("{value:#}");
        let shown = printable_json(&json);
        assert!(shown.chars().all(|c| c == '\n' || !acts(c)), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }
}
