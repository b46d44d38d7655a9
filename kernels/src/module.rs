//! The compiled kernels, all in one module for each kind of device, and how they are launched.

use crate::Launch;
use crate::gate::{PACKET_BLOCKS, PACKET_THREADS, PART_BLOCKS, PART_THREADS};

/// Threads of a block.
const THREADS: u32 = 256;
/// The most blocks of a grid: enough to fill every device several times over, so that none of its
/// parts waits long for the last.
const MOST_BLOCKS: u64 = 1 << 14;
/// What a thread moves at a time, in bytes.
const GROUP_BYTES: u64 = 16;

/// All kernels, as texts for NVIDIA devices, without the NUL that drivers want at their ends: the
/// first for compute capability 9.0 and above, the second for 8.0 and above.
pub const PTX: [&str; 2] = [
    include_str!("../compiled/ds4-sm90.ptx"),
    include_str!("../compiled/ds4.ptx"),
];

/// All kernels for each kind of AMD device, by the name that HIP gives its processor. A code object
/// runs with any features of its processor.
pub const CODE_OBJECTS: [(&str, &[u8]); 4] = [
    ("gfx90a", include_bytes!("../compiled/ds4-gfx90a.hsaco")),
    ("gfx942", include_bytes!("../compiled/ds4-gfx942.hsaco")),
    ("gfx1100", include_bytes!("../compiled/ds4-gfx1100.hsaco")),
    ("gfx1151", include_bytes!("../compiled/ds4-gfx1151.hsaco")),
];

/// Blocks of the one-dimensional grid and threads of a block. Gates have the same on both devices,
/// whatever their size; for all else any other numbers would also give the right result.
#[must_use]
pub fn geometry(launch: &Launch) -> (u32, u32) {
    match launch {
        Launch::GatePackets { .. } => return (PACKET_BLOCKS, PACKET_THREADS),
        Launch::GateParts { .. } => return (PART_BLOCKS, PART_THREADS),
        Launch::Fill { .. }
        | Launch::WritePattern { .. }
        | Launch::CheckPattern { .. }
        | Launch::Checksum { .. }
        | Launch::AddF32 { .. } => {}
    }
    let group = GROUP_BYTES / launch.element_bytes();
    let groups = launch.elements().div_ceil(group);
    let blocks = groups.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS);
    (u32::try_from(blocks).unwrap_or(1), THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;

    /// The parameters of an entry point, as PTX lists them.
    fn parameters(ptx: &'static str, entry: &str) -> Vec<&'static str> {
        let (_, rest) = ptx.split_once(&format!(".entry {entry}(")).unwrap();
        let (list, _) = rest.split_once(')').unwrap();
        list.split(',').map(str::trim).collect()
    }

    #[test]
    fn ptx_has_every_entry_point_with_its_parameters_of_64_bits() {
        for ptx in PTX {
            for kernel in Kernel::ALL {
                let parameters = parameters(ptx, kernel.entry());
                assert_eq!(parameters.len(), kernel.arguments(), "{kernel:?}");
                for parameter in parameters {
                    let wide = [".param .u64 ", ".param .b64 "]
                        .iter()
                        .any(|start| parameter.starts_with(start));
                    assert!(wide, "{parameter}");
                }
            }
            assert_eq!(ptx.matches(".entry ").count(), Kernel::ALL.len());
        }
    }

    #[test]
    fn ptx_is_taken_by_every_driver_since_cuda_11() {
        for (ptx, target) in PTX.into_iter().zip(["sm_90", "sm_80"]) {
            let line = |name: &str| {
                let mut lines = ptx.lines();
                lines.find_map(|line| line.strip_prefix(name)).unwrap()
            };
            let (major, minor) = line(".version ").split_once('.').unwrap();
            let version: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
            assert!(version <= (7, 8), "{version:?}");
            assert_eq!(line(".target "), target);
            assert_eq!(line(".address_size "), "64");
        }
    }

    #[test]
    fn floats_are_added_with_one_rounding_and_denormals_are_kept() {
        for ptx in PTX {
            let adds: Vec<&str> = ptx
                .split_whitespace()
                .filter(|word| word.ends_with(".f32") && word.starts_with("add"))
                .collect();
            assert!(!adds.is_empty());
            assert!(adds.iter().all(|add| *add == "add.rn.f32"), "{adds:?}");
            assert!(!ptx.contains(".ftz") && !ptx.contains("fma"));
        }
    }

    /// The little-endian number of `N` bytes at an offset of a file.
    fn number<const N: usize>(file: &[u8], at: u64) -> u64 {
        let at = usize::try_from(at).unwrap();
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&file[at..at + N]);
        u64::from_le_bytes(bytes)
    }

    /// The names of an ELF file's dynamic symbols.
    fn symbols(elf: &[u8]) -> Vec<String> {
        const DYNAMIC_SYMBOLS: u64 = 11;
        let (sections, count) = (number::<8>(elf, 0x28), number::<2>(elf, 0x3C));
        let section = |index: u64| sections + 64 * index;
        let table = (0..count)
            .map(section)
            .find(|at| number::<4>(elf, at + 4) == DYNAMIC_SYMBOLS)
            .unwrap();
        let strings = number::<8>(elf, section(number::<4>(elf, table + 0x28)) + 0x18);
        let (start, bytes) = (
            number::<8>(elf, table + 0x18),
            number::<8>(elf, table + 0x20),
        );
        let name = |symbol: u64| {
            let at = usize::try_from(strings + number::<4>(elf, symbol)).unwrap();
            let name = elf[at..].split(|byte| *byte == 0).next().unwrap();
            String::from_utf8(name.to_vec()).unwrap()
        };
        (0..bytes / 24)
            .map(|index| name(start + 24 * index))
            .collect()
    }

    #[test]
    fn every_code_object_is_of_its_processor_and_describes_every_kernel() {
        const AMDGPU: u64 = 224;
        for (processor, elf) in CODE_OBJECTS {
            assert!(elf.starts_with(b"\x7fELF\x02\x01"));
            assert_eq!(number::<2>(elf, 0x12), AMDGPU);
            let target = format!("amdgcn-amd-amdhsa--{processor}");
            let named = elf
                .windows(target.len())
                .any(|part| part == target.as_bytes());
            assert!(named, "{target}");
            let symbols = symbols(elf);
            for kernel in Kernel::ALL {
                let descriptor = format!("{}.kd", kernel.entry());
                assert!(symbols.contains(&descriptor), "{processor}: {symbols:?}");
            }
            let descriptors = symbols.iter().filter(|name| name.ends_with(".kd"));
            assert_eq!(descriptors.count(), Kernel::ALL.len(), "{symbols:?}");
        }
    }

    #[test]
    fn grids_cover_small_launches_and_stay_bounded() {
        let fill = |bytes| Launch::Fill {
            to: 0,
            bytes,
            value: 0,
        };
        for (bytes, blocks) in [
            (0, 1),
            (1, 1),
            (4096, 1),
            (4097, 2),
            (1 << 26, 1 << 14),
            (u64::MAX, 1 << 14),
        ] {
            assert_eq!(geometry(&fill(bytes)), (blocks, 256), "{bytes}");
        }
        let add = |count| Launch::AddF32 {
            sum: 0,
            other: 0,
            count,
        };
        assert_eq!(geometry(&add(1025)), (2, 256));
    }
}
