//! The device kernels: compiled from `kernels/device` and compared with what is checked in.

use std::path::Path;

use crate::exit;
use crate::step::{Failure, Program, root, say, step};
use crate::tool::not_run;

const SOURCE: &str = "kernels/device/ds4.cu";
const COMPILED: &str = "kernels/compiled";
/// The text that says by whom all was compiled.
const PTX: &str = "ds4.ptx";
/// PTX by the least architecture that takes it: what sm_90 has more is worth a text of its own.
const ARCHITECTURES: [(&str, &str); 2] = [(PTX, "sm_80"), ("ds4-sm90.ptx", "sm_90")];
/// The processors with a code object each.
const PROCESSORS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1151"];
/// No contraction and no flushing: one addition has one right result.
const FLAGS: &str = "-O3 -std=c++17 -ffp-contract=off -fno-ident -Wall -Wextra -Werror";
const AGAIN: &str = "cargo ci kernels";
const INSTALL: &str = "apt-get install clang-19 lld-19";

/// Compares the compiled kernels, or writes them with `save`.
///
/// # Errors
/// They differ, or could not be compared.
pub fn run(save: bool) -> Result<(), Failure> {
    let version = compiler(save)?.map_err(|why| {
        let what = format!("the kernels were not compiled: {why}.");
        Failure::new(exit::NOT_COMPARED, what, AGAIN)
    })?;
    step("kernels", || work(save, &version))
}

/// As [`run`] without `save`, for a task that goes on where there is no compiler.
///
/// # Errors
/// The kernels differ.
pub fn compare() -> Result<(), Failure> {
    match compiler(false)? {
        Ok(version) => step("kernels", || work(false, &version)),
        Err(why) => {
            not_run("kernels", &why);
            Ok(())
        }
    }
}

/// The version of the compiler, or why what it makes cannot be compared.
fn compiler(save: bool) -> Result<Result<String, String>, Failure> {
    let missing = ["clang-19", "ld.lld-19"]
        .into_iter()
        .find(|tool| !Program::new(&format!("{tool} --version")).succeeds());
    if let Some(missing) = missing {
        return Ok(Err(format!("there is no {missing}; {INSTALL}")));
    }
    let said = Program::new("clang-19 --version").output()?;
    let version = version(&said).ok_or_else(|| broken("clang-19 does not tell its version"))?;
    let saved = std::fs::read_to_string(root().join(COMPILED).join(PTX)).unwrap_or_default();
    if save || saved.starts_with(&header(&version)) {
        return Ok(Ok(version));
    }
    let by = saved.lines().next().unwrap_or("nothing");
    Ok(Err(format!(
        "clang-19 is {version}, and {COMPILED}/{PTX} begins with '{by}'; '{AGAIN} --save' renews it"
    )))
}

fn work(save: bool, version: &str) -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(|error| broken(&error.to_string()))?;
    let mut differ = Vec::new();
    for (name, bytes) in compile(folder.path(), version)? {
        let path = root().join(COMPILED).join(&name);
        if std::fs::read(&path).is_ok_and(|old| old == bytes) {
            continue;
        }
        if save {
            std::fs::write(&path, bytes).map_err(|error| broken(&format!("{name}: {error}")))?;
            say(&format!("wrote {COMPILED}/{name}"));
        } else {
            differ.push(name);
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{} in {COMPILED} are not what {SOURCE} compiles to; '{AGAIN} --save' renews them.",
        differ.join(", ")
    );
    Err(Failure::new(exit::FAILED, what, AGAIN))
}

/// Every file that is checked in, by name.
fn compile(folder: &Path, version: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| broken(&format!("{}: {error}", path.display())))
    };
    let clang = |language: &str, out: &Path| {
        Program::new(&format!("clang-19 {language} {FLAGS} {SOURCE} -o"))
            .arg(out.to_string_lossy())
            .run()
    };
    let mut files = Vec::new();
    for (name, architecture) in ARCHITECTURES {
        let cuda = format!(
            "-x cuda --cuda-device-only --cuda-gpu-arch={architecture} -nocudainc -nocudalib -S"
        );
        let out = folder.join(name);
        clang(&cuda, &out)?;
        let text = String::from_utf8_lossy(&read(&out)?).into_owned();
        files.push((name.to_owned(), plain_ptx(&text, version).into_bytes()));
    }
    for processor in PROCESSORS {
        let name = format!("ds4-{processor}.hsaco");
        let out = folder.join(&name);
        // No identifier of the compilation: it would depend on the folder of the sources.
        let hip = format!(
            "-x hip --offload-device-only --offload-arch={processor} -nogpuinc -nogpulib \
             --no-gpu-bundle-output -fuse-cuid=none -Xoffload-linker --strip-all"
        );
        clang(&hip, &out)?;
        files.push((name, read(&out)?));
    }
    Ok(files)
}

/// The first line of the checked-in PTX; it stands for the code objects too.
fn header(version: &str) -> String {
    format!("// clang {version}, {SOURCE}; 'cargo ci kernels --save' writes this file\n")
}

/// PTX without the compiler's comments.
fn plain_ptx(text: &str, version: &str) -> String {
    let mut plain = header(version);
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        if !code.is_empty() {
            plain.push_str(code);
            plain.push('\n');
        }
    }
    plain
}

/// `19.1.7` of what `clang --version` prints.
fn version(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("clang version ")?;
    let number: String = rest
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    (!number.is_empty()).then_some(number)
}

fn broken(what: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{what}."), AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compilers_version_is_read_without_its_packaging() {
        let said = "Debian clang version 19.1.7 (3~deb12u1)\nTarget: x86_64-pc-linux-gnu\n";
        assert_eq!(version(said).as_deref(), Some("19.1.7"));
        assert_eq!(version("clang version "), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn ptx_loses_comments_and_blank_lines_and_nothing_else() {
        let text = "//\n// Generated by\n\n.version 7.0\n\tret;   // done\n\t.loc 1\n";
        let plain = plain_ptx(text, "19.1.7");
        assert_eq!(
            plain,
            format!("{}.version 7.0\n\tret;\n\t.loc 1\n", header("19.1.7"))
        );
    }
}
