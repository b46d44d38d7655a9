//! What the machines are made of: Debian's packages, downloaded once and unpacked, never installed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::guest::{CARD, INIT, MODULES};
use super::image::{Image, LIBRARIES};
use crate::exit;
use crate::step::{Failure, root, step};

/// What the guest is made of, besides the kernel.
const GUEST: [&str; 7] = [
    "busybox-static",
    "iproute2",
    "ibverbs-providers",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libmnl0",
];
const EMULATOR: &str = "qemu-system-x86";
const KERNEL: &str = "linux-image-amd64";
/// Changes when what is made of the packages does.
const EDITION: &str = "2";

/// Everything that a machine needs.
#[derive(Debug)]
pub(super) struct Kit {
    /// The emulator.
    pub(super) qemu: PathBuf,
    /// Where it finds its libraries, if not where the system's are.
    pub(super) libraries: Option<String>,
    /// Where it finds its firmware.
    pub(super) firmware: Vec<PathBuf>,
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The image without what is tested.
    pub(super) image: PathBuf,
}

/// The kit in a folder; made there first if it is missing. Otherwise, why it cannot be had.
pub(super) fn kit(folder: &Path) -> Result<Kit, String> {
    let tree = folder.join("tree");
    let place = |name: &str| tree.join(name);
    let lib = "lib/x86_64-linux-gnu";
    let libraries = [place(LIBRARIES), place(lib)].map(|it| it.display().to_string());
    let kit = Kit {
        qemu: place("usr/bin/qemu-system-x86_64"),
        libraries: Some(libraries.join(":")),
        firmware: vec![place("usr/share/qemu"), place("usr/share/seabios")],
        kernel: folder.join("kernel"),
        image: folder.join("base.cpio"),
    };
    let mark = folder.join("edition");
    let whole = [&kit.qemu, &kit.kernel, &kit.image]
        .into_iter()
        .all(|it| it.is_file());
    if whole && fs::read_to_string(&mark).is_ok_and(|text| text == EDITION) {
        return Ok(kit);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the virtual machines are made on x86-64 Linux".to_owned());
    }
    step("virtual machine, once (90 MB of packages)", || {
        let failure = |why| Failure::new(exit::NOT_COMPARED, why, super::AGAIN);
        make(folder, &tree, &kit).map_err(failure)
    })
    .map_err(|failure| failure.what)?;
    fs::write(mark, EDITION).map_err(|error| error.to_string())?;
    Ok(kit)
}

fn make(folder: &Path, tree: &Path, kit: &Kit) -> Result<(), String> {
    for tool in ["apt-get", "apt-cache", "dpkg"] {
        if !succeeds(Command::new(tool).arg("--version")) {
            return Err(format!("there is no {tool}, and the packages are Debian's"));
        }
    }
    let _ = fs::remove_dir_all(folder);
    let archives = folder.join("archives");
    fs::create_dir_all(&archives).map_err(words)?;
    let version = match download(&archives) {
        Ok(version) => version,
        Err(_) => {
            // Old lists name packages that have left the archive.
            if !succeeds(Command::new("apt-get").args(["update", "-qq"])) {
                return Err("the lists of packages cannot be fetched (apt-get update)".to_owned());
            }
            download(&archives)?
        }
    };
    for file in listed(&archives)? {
        if !succeeds(Command::new("dpkg").arg("-x").arg(&file).arg(tree)) {
            return Err(format!("{} cannot be unpacked", file.display()));
        }
    }
    let release = version.trim_start_matches("linux-image-").to_owned();
    let image = base_image(tree, &release).map_err(words)?;
    fs::write(&kit.image, image).map_err(words)?;
    let packed = fs::read(tree.join(format!("boot/vmlinuz-{release}"))).map_err(words)?;
    let kernel = unpacked(folder, &packed).unwrap_or(packed);
    fs::write(&kit.kernel, kernel).map_err(words)?;
    // Four hundred megabytes that nobody needs any more.
    let _ = fs::remove_dir_all(&archives);
    let _ = fs::remove_dir_all(tree.join("lib/modules"));
    let _ = fs::remove_dir_all(tree.join("boot"));
    Ok(())
}

/// Fetches every package; the kernel's name comes back.
fn download(archives: &Path) -> Result<String, String> {
    let version = kernel_package()?;
    let mut wanted: BTreeSet<String> = needed_by(EMULATOR)?;
    wanted.extend(GUEST.map(str::to_owned));
    wanted.insert(version.clone());
    let mut download = Command::new("apt-get");
    download.args(["download", "-qq"]).args(&wanted);
    if succeeds(download.current_dir(archives)) {
        Ok(version)
    } else {
        Err("the packages cannot be downloaded".to_owned())
    }
}

/// The package of the kernel: its name has a version.
fn kernel_package() -> Result<String, String> {
    let said = output(Command::new("apt-cache").args(["depends", KERNEL]));
    let names = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut names = names.filter(|name| name.starts_with("linux-image-"));
    let none = || format!("there is no package {KERNEL}, which Debian has");
    names.next().map(str::to_owned).ok_or_else(none)
}

/// A package and those that it needs and this system lacks, as an installation would take them.
fn needed_by(package: &str) -> Result<BTreeSet<String>, String> {
    let mut command = Command::new("apt-get");
    let said = output(command.args(["install", "-s", "--no-install-recommends", package]));
    let names = said.lines().filter_map(|line| line.strip_prefix("Inst "));
    let mut names: BTreeSet<String> = names
        .filter_map(|rest| rest.split(' ').next())
        .map(str::to_owned)
        .collect();
    // What is installed already is not named.
    names.extend(
        [
            EMULATOR,
            "qemu-system-common",
            "qemu-system-data",
            "seabios",
        ]
        .map(str::to_owned),
    );
    if said.is_empty() {
        return Err(format!("apt-get does not say what {package} needs"));
    }
    Ok(names)
}

/// The guest without what is tested.
fn base_image(tree: &Path, release: &str) -> io::Result<Vec<u8>> {
    let mut image = Image::default();
    for folder in [
        "proc",
        "sys",
        "dev",
        "tmp",
        "etc/libibverbs.d",
        LIBRARIES,
        "lib64",
    ] {
        image.folder(folder);
    }
    image.link("lib", "usr/lib");
    image.file("init", true, INIT.as_bytes().to_vec());
    image.file("etc/hosts", false, b"127.0.0.1 localhost\n".to_vec());
    let modules = tree.join("lib/modules").join(release).join("kernel");
    let mut order = String::new();
    for name in MODULES.into_iter().chain([CARD]) {
        let file = found(&modules, &format!("{name}.ko"))?;
        image.file(&format!("modules/{name}.ko"), false, fs::read(file)?);
        order.push_str(name);
        order.push('\n');
    }
    image.file("modules/order", false, order.into_bytes());
    let verbs = found(tree, "libibverbs.so.1")?;
    let provider = format!("{LIBRARIES}/libibverbs");
    let rxe = found(&tree.join(&provider), "librxe-rdmav34.so")
        .or_else(|_| first_beginning(&tree.join(&provider), "librxe-"))?;
    let mut needs: BTreeSet<PathBuf> = BTreeSet::new();
    let program = |name: &str| {
        let places = ["bin", "sbin", "usr/bin", "usr/sbin"].map(|it| tree.join(it).join(name));
        let there = places.into_iter().find(|it| it.is_file());
        there.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {name}")))
    };
    image.file("bin/busybox", true, fs::read(program("busybox")?)?);
    for name in ["ip", "rdma", "tc"] {
        let file = program(name)?;
        needs.extend(libraries(&file, &own_libraries(tree)));
        image.file(&format!("usr/bin/{name}"), true, fs::read(file)?);
    }
    for file in [&verbs, &rxe] {
        needs.extend(libraries(file, &own_libraries(tree)));
    }
    image.file(
        &format!("{LIBRARIES}/libibverbs.so.1"),
        true,
        fs::read(&verbs)?,
    );
    let name = rxe.file_name().map(|it| it.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    image.file(&format!("{provider}/{name}"), true, fs::read(&rxe)?);
    image.file(
        "etc/libibverbs.d/rxe.driver",
        false,
        b"driver rxe\n".to_vec(),
    );
    for library in needs {
        image.library(&library)?;
    }
    Ok(image.finish())
}

fn own_libraries(tree: &Path) -> Vec<PathBuf> {
    vec![tree.join(LIBRARIES), tree.join("lib/x86_64-linux-gnu")]
}

/// The libraries that a program needs, by the loader's word.
pub(super) fn libraries(file: &Path, folders: &[PathBuf]) -> Vec<PathBuf> {
    let paths: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
    let said = output(
        Command::new("ldd")
            .arg(file)
            .env("LD_LIBRARY_PATH", paths.join(":")),
    );
    let words = said.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).filter(|it| it.is_file()).collect()
}

/// The kernel as it lies in memory, which starts seconds sooner than one that unpacks itself;
/// none where the tool for that is missing.
fn unpacked(folder: &Path, packed: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| -> Option<usize> {
        let bytes = packed.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    // The header of a bzImage (Documentation/x86/boot.rst): sectors of set-up code at 0x1f1, place
    // and length of the payload from there on at 0x248; its last four bytes are its size unpacked.
    let sectors = match packed.get(0x1f1)? {
        0 => 4,
        count => usize::from(*count),
    };
    let begin = (sectors + 1) * 512 + word(0x248)?;
    let payload = packed.get(begin..begin.checked_add(word(0x24c)?)?.checked_sub(4)?)?;
    let file = folder.join("payload.xz");
    fs::write(&file, payload).ok()?;
    let done = Command::new("xz").args(["-dc"]).arg(&file).output().ok()?;
    let _ = fs::remove_file(&file);
    let good = done.stdout.starts_with(b"\x7fELF") && done.status.success();
    good.then_some(done.stdout)
}

/// A file by its name, anywhere below a folder.
fn found(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.file_name().is_some_and(|it| it == name) && path.is_file() {
                return Ok(path);
            }
        }
    }
    let what = format!("{} has no {name}", folder.display());
    Err(io::Error::new(io::ErrorKind::NotFound, what))
}

/// The first file of a folder whose name begins so: the provider's has the version of an interface.
fn first_beginning(folder: &Path, begin: &str) -> io::Result<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|it| it.to_string_lossy().starts_with(begin))
        })
        .collect();
    files.sort();
    let what = format!("{} has no {begin}", folder.display());
    let none = || io::Error::new(io::ErrorKind::NotFound, what);
    files.into_iter().next().ok_or_else(none)
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(words)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

fn output(command: &mut Command) -> String {
    let done = command.current_dir(root()).stderr(Stdio::null()).output();
    done.map_or_else(
        |_| String::new(),
        |it| String::from_utf8_lossy(&it.stdout).into_owned(),
    )
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn words(error: io::Error) -> String {
    error.to_string()
}
