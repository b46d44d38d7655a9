//! Byte counts: parsing, printing, and arithmetic that says when it would wrap.

use std::fmt;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// The largest size that any call accepts: sizes cross C interfaces as signed numbers.
pub const MAX_BYTES: u64 = i64::MAX as u64;

/// `bytes` rounded up to a multiple of `align`, or `None` when that would wrap.
///
/// `align` must be a power of two; other values give `None`.
#[must_use]
pub fn align_up(bytes: u64, align: u64) -> Option<u64> {
    if !align.is_power_of_two() {
        return None;
    }
    Some(bytes.checked_add(align - 1)? & !(align - 1))
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// There is no digit to read.
    Empty,
    /// The text does not begin with a whole number.
    NotANumber(String),
    /// The letters after the number are no known unit.
    UnknownUnit(String),
    /// The size exceeds [`MAX_BYTES`].
    TooLarge(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FORM: &str = "write a whole number with K, M, G or T, for example 64M";
        match self {
            Self::Empty => write!(f, "the size is empty; {FORM}"),
            Self::NotANumber(text) => write!(f, "'{text}' is not a size; {FORM}"),
            Self::UnknownUnit(text) => write!(f, "'{text}' has an unknown unit; {FORM}"),
            Self::TooLarge(text) => {
                write!(
                    f,
                    "'{text}' is too large; the largest size is {MAX_BYTES} bytes (8 EiB - 1)"
                )
            }
        }
    }
}

impl std::error::Error for SizeError {}

/// Parses `64M`, `24GiB`, `1024`; units are binary and may be written in either case.
///
/// # Errors
/// [`SizeError`], by what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(SizeError::Empty);
    }
    let digits_end = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(digits_end);
    if digits.is_empty() || unit.starts_with(['.', ',']) {
        return Err(SizeError::NotANumber(text.to_owned()));
    }
    let shift =
        unit_shift(unit.trim_start()).ok_or_else(|| SizeError::UnknownUnit(text.to_owned()))?;
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift))
        .filter(|bytes| *bytes <= MAX_BYTES)
        .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

fn unit_shift(unit: &str) -> Option<u32> {
    match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    }
}

/// Prints a byte count for people: exact in the largest unit that divides it, else one decimal.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let mut larger = None;
    for (name, shift) in UNITS {
        let unit = 1_u64 << shift;
        if bytes < unit {
            larger = Some(name);
            continue;
        }
        if bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes >> shift);
        }
        // Tenths rounded to nearest, in integers so that every machine prints the same.
        let tenths = (u128::from(bytes) * 10 + u128::from(unit / 2)) >> shift;
        return match larger {
            Some(larger) if tenths == 10240 => format!("1.0 {larger}"),
            _ => format!("{}.{} {name}", tenths / 10, tenths % 10),
        };
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("64M", 64 * MIB),
            ("64m", 64 * MIB),
            (" 24 GiB ", 24 * GIB),
            ("1k", KIB),
            ("512b", 512),
            ("9223372036854775807", MAX_BYTES),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_name_what_is_wrong() {
        assert_eq!(parse_size(""), Err(SizeError::Empty));
        for text in ["-1", "abc", "M", "+4", "1.5G"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::NotANumber(_))),
                "{text}"
            );
        }
        for text in ["64Q", "0x10", "64 M M"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::UnknownUnit(_))),
                "{text}"
            );
        }
        for text in ["18446744073709551616", "9223372036854775808", "8388608T"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::TooLarge(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_print_exactly_or_to_a_tenth() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(24 * GIB), "24 GiB");
        assert_eq!(format_bytes(GIB + GIB / 2), "1.5 GiB");
        assert_eq!(format_bytes(GIB - 1), "1.0 GiB");
        assert_eq!(format_bytes(GIB - MIB), "1023 MiB");
        assert_eq!(format_bytes(u64::MAX), "16777216.0 TiB");
    }

    proptest! {
        #[test]
        fn rounding_up_never_wraps_and_is_the_least_multiple(bytes: u64, shift in 0_u32..63) {
            let align = 1_u64 << shift;
            match align_up(bytes, align) {
                Some(up) => {
                    prop_assert!(up >= bytes && up % align == 0 && up - bytes < align);
                }
                None => prop_assert!(bytes > u64::MAX - (align - 1)),
            }
        }

        #[test]
        fn printed_whole_units_parse_back(count in 0_u64..1 << 20, shift in 0_u32..4) {
            let bytes = count << (shift * 10);
            prop_assert!(format_bytes(bytes).contains('.') || parse_size(&format_bytes(bytes)) == Ok(bytes));
        }
    }
}
