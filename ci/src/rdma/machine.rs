//! One emulated machine, from its start to its exit code.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::failed;
use super::guest::Scene;
use super::packages::Kit;
use crate::step::Failure;

/// Nothing that is right takes so long, on a busy machine either.
const LIMIT: Duration = Duration::from_secs(180);

/// A machine that runs.
pub(super) struct Machine {
    child: Child,
    /// What it said, once it says nothing more.
    console: Receiver<String>,
    started: Instant,
    /// The image, which must stay until the machine has read it.
    _image: tempfile::NamedTempFile,
}

/// A machine that has ended.
pub(super) struct Ended {
    /// The exit code of what ran in it, if it ended in order.
    pub(super) code: Option<u8>,
    /// What it said.
    pub(super) console: String,
}

impl Machine {
    /// Starts one; `cable` has the sockets of its own card and of the other machine's.
    #[expect(clippy::disallowed_methods, reason = "a machine that hangs is ended")]
    pub(super) fn start(
        kit: &Kit,
        image: &[u8],
        scene: Scene,
        cable: Option<(&Path, &Path)>,
    ) -> Result<Self, Failure> {
        let words = |error: std::io::Error| failed(&format!("the virtual machine: {error}"));
        let file = tempfile::NamedTempFile::new().map_err(words)?;
        std::fs::write(file.path(), image).map_err(words)?;
        let mut qemu = Command::new(&kit.qemu);
        if let Some(libraries) = &kit.libraries {
            qemu.env("LD_LIBRARY_PATH", libraries);
        }
        for folder in &kit.firmware {
            qemu.arg("-L").arg(folder);
        }
        // Emulation alone: what offers virtualisation may itself be virtual and hang a kernel that
        // does not know of it.
        qemu.args(["-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", "1", "-m", "512", "-kernel"])
            .arg(&kit.kernel)
            .arg("-initrd")
            .arg(file.path())
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-serial", "stdio", "-monitor", "none"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-append"])
            .arg(format!(
                "console=ttyS0 quiet panic=-1 oops=panic ds4.scene={}",
                scene.name()
            ));
        if let Some((own, other)) = cable {
            let last = if scene == Scene::Leader { 1 } else { 2 };
            qemu.arg("-netdev")
                .arg(format!(
                    "dgram,id=n,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                    own.display(),
                    other.display()
                ))
                .arg("-device")
                .arg(format!(
                    "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:d5:04:0{last}"
                ));
        }
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = qemu.spawn().map_err(words)?;
        let output = child.stdout.take();
        let (say, console) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What came until an error is worth showing.
            if let Some(mut output) = output {
                let _ = output.read_to_end(&mut bytes);
            }
            // Nobody waits for it any more after the limit.
            let _ = say.send(String::from_utf8_lossy(&bytes).replace('\r', ""));
        });
        Ok(Self {
            child,
            console,
            started: Instant::now(),
            _image: file,
        })
    }

    /// Waits for its end; at the limit it is ended.
    pub(super) fn wait(mut self) -> Ended {
        let left = LIMIT.saturating_sub(self.started.elapsed());
        let in_time = self.console.recv_timeout(left);
        let late = in_time.is_err();
        if late {
            // It may have ended by itself just now.
            let _ = self.child.kill();
        }
        let status = self.child.wait().ok().and_then(|it| it.code());
        let console = in_time.or_else(|_| self.console.recv()).unwrap_or_default();
        let said = console.contains("@@exit ");
        // The device ends the emulator with twice the number and one.
        let code = status.filter(|code| said && !late && code & 1 == 1);
        Ended {
            code: code.and_then(|code| u8::try_from(code >> 1).ok()),
            console,
        }
    }
}
