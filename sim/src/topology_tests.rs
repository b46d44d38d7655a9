use super::*;
use ds4_engine::backend::Backend;
use ds4_engine::bytes::GIB;
use proptest::prelude::*;

const GOOD: &str = "machine = \"t\"\n[[device]]\nname = \"a\"\ncapacity = \"24GiB\"\n\
                    peers = [1]\n[[device]]\nname = \"b\"\ncapacity = 1073741824\npeers = [0]\n";

fn refusal(text: &str) -> String {
    match Topology::from_toml(text, "t.toml") {
        Ok(topology) => panic!("accepted as {topology:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_shipped_machine_loads_and_reads_back_from_its_own_text() {
    assert_eq!(Topology::shipped().count(), 5);
    for name in Topology::shipped() {
        let topology = Topology::load(name).unwrap();
        assert_eq!(topology.config.machine, name);
        let again = Topology::from_toml(&topology.to_toml(), "again.toml").unwrap();
        let accesses = |t: &Topology| -> Vec<PeerAccess> {
            t.config.links.iter().map(|link| link.access).collect()
        };
        assert_eq!(accesses(&again), accesses(&topology));
        assert_eq!(again.config.devices, topology.config.devices);
        assert_eq!(again.to_toml(), topology.to_toml());
    }
}

#[test]
fn the_shipped_machines_are_what_their_names_say() {
    let config = |name| Topology::load(name).unwrap().config;
    assert_eq!(config("8xh200").devices.len(), 8);
    assert_eq!(config("2xh200").devices[1].capacity_bytes, 141 * GIB);
    assert!(
        config("4x24g-bare")
            .devices
            .iter()
            .all(|device| device.page_bytes.is_none())
    );
    let mixed = config("8x24g-mixed");
    let (six, seven) = (DeviceId::new(6).unwrap(), DeviceId::new(7).unwrap());
    assert_eq!(mixed.link(six, seven).unwrap().access, PeerAccess::Broken);
}

#[test]
fn each_bad_file_is_refused_in_a_sentence_with_place_and_remedy() {
    let edit = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, to, 1)
    };
    let many = format!(
        "machine = \"t\"\n{}",
        "[[device]]\nname = \"a\"\ncapacity = 4194304\n".repeat(33)
    );
    let cases = [
        (
            edit("\"24GiB\"", "0"),
            "t.toml:4: the capacity is zero; write a size",
        ),
        (
            edit("\"24GiB\"", "-5"),
            "t.toml:4:12: invalid value: integer `-5`, expected a size",
        ),
        (
            edit("\"24GiB\"", "true"),
            "t.toml:4:12: invalid type: boolean `true`, expected a size",
        ),
        (
            edit("\"24GiB\"", "\"24Q\""),
            "t.toml:4:12: '24Q' has an unknown unit; write a whole",
        ),
        (
            edit("\"24GiB\"", "\"9T\""),
            "t.toml:4: the capacity of 9 TiB exceeds the largest, 4 TiB",
        ),
        (
            edit("peers = [1]", "page = 3145728"),
            "t.toml:5: the page of 3145728 bytes is not a power",
        ),
        (
            edit("peers = [1]", "page = \"32GiB\""),
            "t.toml:5: the page of 32 GiB exceeds the cap",
        ),
        (
            edit("peers = [1]", "granularity = 3"),
            "t.toml:5: the granularity of 3 bytes is not",
        ),
        (
            edit("peers = [1]", "other_processes = \"25G\""),
            "t.toml:5: other processes hold 25 GiB",
        ),
        (
            edit("peers = [1]", "colour = 3"),
            "t.toml:5:1: unknown field `colour`, expected one of",
        ),
        (
            edit("peers = [1]", "peers = \"all\""),
            "t.toml:5:9: invalid type: string",
        ),
        (
            edit("peers = [1]", "peers = [-1]"),
            "t.toml:5:10: invalid value: integer `-1`",
        ),
        (
            edit("peers = [1]", "peers = [2]"),
            "t.toml:5: device 0 lists 2 as a peer; list other",
        ),
        (
            edit("peers = [1]", "peers = [0]"),
            "t.toml:5: device 0 lists 0 as a peer; list other",
        ),
        (
            edit("peers = [1]", "peers = [1, 1]"),
            "t.toml:5: device 0 lists 1 twice; list each",
        ),
        (
            edit("peers = [1]", ""),
            "t.toml:9: device 1 lists 0 as a peer, but 0 does not list 1; add 1",
        ),
        (
            edit("name = \"a\"\n", ""),
            "t.toml:2:1: missing field `name`",
        ),
        (
            edit("\"a\"", "\"\""),
            "t.toml:3: the device's name is empty",
        ),
        (
            edit("\"t\"", "\"\""),
            "t.toml:1: the machine's name is empty",
        ),
        (
            "machine = \"t\"\n".to_owned(),
            "t.toml: there is no device; add a [[device]]",
        ),
        (String::new(), "t.toml:1:1: missing field `machine`"),
        (many, "t.toml:98: there are 33 devices; keep at most 32"),
        (
            format!("{GOOD}[[pair]]\nfrom = 0\nto = 3\nlatency_ns = 1\nbytes_per_second = 1\n"),
            "t.toml:10: there is no path from 0 to 3; give figures only",
        ),
        (
            format!("{GOOD}[link]\nlatency_ns = 1\nbytes_per_second = 0\n"),
            "t.toml:10: the link has no bandwidth; write bytes_per_second",
        ),
    ];
    for (text, expected) in cases {
        let sentence = refusal(&text);
        assert!(
            sentence.starts_with(expected),
            "{sentence}\n  expected {expected}"
        );
        assert!(
            sentence.contains("; ") && !sentence.contains('\n'),
            "{sentence}"
        );
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones_and_a_missing_file_its_path() {
    let unknown = Topology::load("3xh300").unwrap_err().to_string();
    assert!(unknown.contains("use one of 1x24g, 2xh200"), "{unknown}");
    assert_eq!(Topology::load("2xh200.toml"), Topology::load("2xh200"));
    let missing = Topology::load("no/such.toml").unwrap_err().to_string();
    assert!(
        missing.starts_with("no/such.toml: the topology cannot be read"),
        "{missing}"
    );
}

#[test]
fn a_captured_host_loads_again_even_with_a_path_that_exists_one_way_only() {
    let config = Topology::load("2xh200").unwrap().config;
    let infos: Vec<DeviceInfo> = crate::SimBackend::new(config).unwrap().devices().to_vec();
    let captured = Topology::from_devices("my \"host\"", &infos, |from, _| {
        if from.index() == 0 {
            PeerAccess::Direct
        } else {
            PeerAccess::Absent
        }
    });
    let again = Topology::from_toml(&captured.to_toml(), "host.toml").unwrap();
    assert_eq!(again.config.machine, "my \"host\"");
    assert_eq!(again.config.devices, captured.config.devices);
    assert_eq!(again.config.links[1].access, PeerAccess::Direct);
    assert_eq!(again.config.links[2].access, PeerAccess::Broken);
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in ".{0,200}") {
        let _ = Topology::from_toml(&text, "x");
    }

    #[test]
    fn a_damaged_file_never_panics(cut in 0_usize..160, insert in "[\\[\\]=\"a-z0-9\n-]{0,6}") {
        let cut = cut.min(GOOD.len());
        let _ = Topology::from_toml(&format!("{}{insert}{}", &GOOD[..cut], &GOOD[cut..]), "x");
    }
}
