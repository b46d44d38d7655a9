//! Module images: which entry points they hold.

use crate::raw::Image;
use crate::status::Status;

const ELF: &[u8] = b"\x7fELF";
/// A fat binary, and the wrapper that compilers put around one.
#[cfg(feature = "cuda")]
const FAT_BINARIES: [&[u8]; 2] = [b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"];

/// The entry points of PTX text; machine code is not supported, since nothing here runs it.
#[cfg(feature = "cuda")]
pub(crate) fn ptx_entries(image: Image) -> Result<Vec<String>, Status> {
    if [ELF]
        .into_iter()
        .chain(FAT_BINARIES)
        .any(|magic| image.begins_with(magic))
    {
        return Err(Status::NOT_SUPPORTED);
    }
    let entries = entries_of_ptx(image.text()?);
    if entries.is_empty() {
        Err(Status::INVALID_IMAGE)
    } else {
        Ok(entries)
    }
}

#[cfg(feature = "cuda")]
fn entries_of_ptx(text: &str) -> Vec<String> {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let code: Vec<&str> = code.collect();
    let code = code.join("\n");
    let in_name = |c: char| c.is_ascii_alphanumeric() || "_$%".contains(c);
    code.split(".entry")
        .skip(1)
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .map(|rest| {
            rest.trim_start()
                .chars()
                .take_while(|c| in_name(*c))
                .collect()
        })
        .filter(|name: &String| !name.is_empty())
        .collect()
}

/// The kernels of an AMD code object: it holds a symbol `<name>.kd` for each.
#[cfg(feature = "hip")]
pub(crate) fn code_object_entries(image: Image) -> Result<Vec<String>, Status> {
    if !image.begins_with(ELF) {
        return Err(Status::INVALID_IMAGE);
    }
    let entries = entries_of_elf(|offset, bytes| image.part(offset, bytes));
    entries
        .filter(|entries| !entries.is_empty())
        .ok_or(Status::INVALID_IMAGE)
}

/// Reads the symbol tables of a 64-bit little-endian ELF file, of which `part` gives parts.
#[cfg(feature = "hip")]
fn entries_of_elf<'a>(part: impl Fn(usize, usize) -> Option<&'a [u8]>) -> Option<Vec<String>> {
    const SECTION_BYTES: usize = 64;
    const SYMBOL_BYTES: usize = 24;
    const SYMBOLS: u32 = 2;
    const DYNAMIC_SYMBOLS: u32 = 11;
    const LITTLE_64: [u8; 2] = [2, 1];
    let header = part(0, 64)?;
    if header.get(4..6)? != LITTLE_64 || usize::from(u16_at(header, 58)?) != SECTION_BYTES {
        return None;
    }
    let sections = usize::from(u16_at(header, 60)?);
    let sections = part(offset_at(header, 40)?, sections * SECTION_BYTES)?;
    let mut entries = Vec::new();
    for section in sections.chunks_exact(SECTION_BYTES) {
        if ![SYMBOLS, DYNAMIC_SYMBOLS].contains(&u32_at(section, 4)?) {
            continue;
        }
        let names = usize::try_from(u32_at(section, 40)?).ok()?;
        let names = sections.chunks_exact(SECTION_BYTES).nth(names)?;
        let names = part(offset_at(names, 24)?, offset_at(names, 32)?)?;
        let symbols = part(offset_at(section, 24)?, offset_at(section, 32)?)?;
        for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
            let name = names.get(usize::try_from(u32_at(symbol, 0)?).ok()?..)?;
            let name = std::ffi::CStr::from_bytes_until_nul(name)
                .ok()?
                .to_str()
                .ok()?;
            if let Some(kernel) = name.strip_suffix(".kd")
                && !entries.iter().any(|known| known == kernel)
            {
                entries.push(kernel.to_owned());
            }
        }
    }
    Some(entries)
}

#[cfg(feature = "hip")]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(feature = "hip")]
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(feature = "hip")]
fn offset_at(bytes: &[u8], at: usize) -> Option<usize> {
    let value = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    usize::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "cuda")]
    fn entry_points_are_found_in_ptx_and_not_in_its_comments() {
        let text = ".version 7.0\n// .entry no\n.visible .entry ds4_fill(\n.param .u64 a)\n{}\n\
                    .entry\n  other$1 () {}\n.entryway";
        assert_eq!(entries_of_ptx(text), ["ds4_fill", "other$1"]);
    }

    /// A code object with the dynamic symbols of two kernels, one of them twice.
    #[cfg(feature = "hip")]
    fn code_object() -> Vec<u8> {
        let names = b"\0ds4_fill\0ds4_fill.kd\0add.kd\0";
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let names_at = file.len();
        file.extend(names);
        let symbols_at = file.len();
        for name in [0_u32, 1, 10, 22, 10] {
            file.extend(name.to_le_bytes());
            file.extend([0; 20]);
        }
        let sections_at = file.len();
        let symbols = sections_at - symbols_at;
        for (kind, link, at, bytes) in [
            (3_u32, 0_u32, names_at, names.len()),
            (11, 0, symbols_at, symbols),
        ] {
            let mut section = [0; 64];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
            section[40..44].copy_from_slice(&link.to_le_bytes());
            file.extend(section);
        }
        file[40..48].copy_from_slice(&(sections_at as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&2_u16.to_le_bytes());
        file
    }

    #[test]
    #[cfg(feature = "hip")]
    fn kernels_are_found_in_a_code_object_and_damage_is_survived() {
        let entries =
            |file: &[u8]| entries_of_elf(|at, bytes| file.get(at..at.checked_add(bytes)?));
        let file = code_object();
        assert_eq!(entries(&file).unwrap(), ["ds4_fill", "add"]);
        for cut in 0..file.len() {
            assert_eq!(entries(&file[..cut]), None, "cut at {cut}");
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0xFF;
            let _ = entries(&damaged);
        }
    }
}
