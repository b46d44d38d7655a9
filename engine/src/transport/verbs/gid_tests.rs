//! The tables of published reports, and the entry that worked there.

use super::*;

/// `index kind address interface` a line; `-` for no interface.
fn table(link: LinkLayer, text: &str) -> GidTable {
    let gids = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let gids = gids.map(|line| {
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap();
        let index = next().parse().unwrap();
        let kind = match next() {
            "v1" => GidKind::RoceV1,
            "v2" => GidKind::RoceV2,
            "ib" => GidKind::InfiniBand,
            _ => GidKind::Unknown,
        };
        let raw = next().parse::<Ipv6Addr>().unwrap().octets();
        let interface = Some(next().to_owned()).filter(|name| name != "-");
        Gid {
            index,
            kind,
            raw,
            interface,
        }
    });
    let gids = gids.collect();
    GidTable { link, gids }
}

fn ethernet(text: &str) -> GidTable {
    table(LinkLayer::Ethernet, text)
}

fn order(own: &GidTable, peer: Option<&GidTable>) -> Vec<u32> {
    rank_gids(own, peer).iter().map(|it| it.index).collect()
}

/// NVIDIA/nccl#769: index 1, link-local, timed out; index 3 worked.
const NCCL_769: &str = "
    0 v1 fe80::ac0:ebff:feda:1cfb bond0
    1 v2 fe80::ac0:ebff:feda:1cfb bond0
    2 v1 ::ffff:200.0.209.6 bond0
    3 v2 ::ffff:200.0.209.6 bond0";
/// The other host of that report, with the next address.
const NCCL_769_PEER: &str = "
    0 v1 fe80::ac0:ebff:feda:1cfc bond0
    1 v2 fe80::ac0:ebff:feda:1cfc bond0
    2 v1 ::ffff:200.0.209.7 bond0
    3 v2 ::ffff:200.0.209.7 bond0";

#[test]
fn a_routed_version_2_address_comes_before_a_link_local_one() {
    let (own, peer) = (ethernet(NCCL_769), ethernet(NCCL_769_PEER));
    assert_eq!(order(&own, Some(&peer)), [3, 1, 2, 0]);
    assert_eq!(order(&own, None), [3, 1, 2, 0]);
}

#[test]
fn the_layout_of_a_dual_stack_port_gives_index_3_as_in_nccl_426() {
    // NVIDIA/nccl#426 (completions with status 12 at index 0, cured by index 3); the table is the
    // one of NVIDIA/nccl-tests#192, which shows the same layout.
    let own = ethernet(
        "0 v1 fe80::a288:c2ff:fe5b:3ec ens3np0
         1 v2 fe80::a288:c2ff:fe5b:3ec ens3np0
         2 v1 ::ffff:11.0.0.72 ens3np0
         3 v2 ::ffff:11.0.0.72 ens3np0",
    );
    let peer = ethernet(
        "0 v1 fe80::a288:c2ff:fe5b:374 ens2np0
         1 v2 fe80::a288:c2ff:fe5b:374 ens2np0
         2 v1 ::ffff:11.0.0.73 ens2np0
         3 v2 ::ffff:11.0.0.73 ens2np0",
    );
    assert_eq!(order(&own, Some(&peer))[0], 3);
}

#[test]
fn without_ipv4_the_unique_local_address_is_taken() {
    // uccl-project/uccl#803 and ROCm/ATOM#1748: a filter for IPv4 skipped everything and fell back
    // to index 0, which is link-local.
    let own = ethernet(
        "0 v2 fe80::5e25:73ff:fe01:1 net0
         1 v2 fd93:16d3:59b6::1 net0",
    );
    let peer = ethernet(
        "0 v2 fe80::5e25:73ff:fe01:2 net0
         1 v2 fd93:16d3:59b6::2 net0",
    );
    assert_eq!(order(&own, Some(&peer)), [1, 0]);
    // kvcache-ai/Mooncake#1592 and #1593: "no suitable GID" where all are IPv6.
    let own = ethernet(
        "0 v1 fe80::225:9dff:fe33:33aa bond0
         1 v2 fe80::225:9dff:fe33:33aa bond0
         2 v1 fd00:1148:9000:5000::ff22 bond0
         3 v2 fd00:1148:9000:5000::ff22 bond0",
    );
    assert_eq!(order(&own, None)[0], 3);
}

#[test]
fn with_nothing_but_link_local_addresses_on_both_sides_they_are_taken() {
    // ml-explore/mlx#3467: a filter for IPv4 left the address of a Thunderbolt port uninitialised.
    let link = LinkLayer::Other(100);
    let own = table(link, "0 ? fe80::347c:94ff:fecd:45c4 en3");
    let peer = table(link, "0 ? fe80::347c:94ff:fecd:45c5 en3");
    let ranked = rank_gids(&own, Some(&peer));
    assert_eq!((ranked[0].index, ranked[0].peer), (0, Some(0)));
    assert!(ranked[0].why.contains("one link only"), "{ranked:?}");
    // The same report: an address of 169.254.0.0/16 comes and goes; it is better while it is there
    // on both sides, and no answer to a side that has lost it.
    let both = table(
        link,
        "0 ? fe80::347c:94ff:fecd:45c4 en3\n1 ? ::ffff:169.254.10.1 en3",
    );
    assert_eq!(order(&both, Some(&both))[0], 1);
    assert_eq!(order(&both, Some(&peer)), [0]);
}

#[test]
fn private_addresses_are_as_good_as_public_ones() {
    // kvcache-ai/Mooncake#2729 and #2747: 10.0.0.0/8 was taken for an overlay and lost against
    // fe80.
    let own = ethernet(
        "0 v2 fe80::690:81ff:fe37:a9e8 rdma0
         1 v2 ::ffff:10.102.9.101 rdma0",
    );
    let peer = ethernet(
        "0 v2 fe80::690:81ff:fe37:a9e9 rdma0
         1 v2 ::ffff:10.102.77.3 rdma0",
    );
    assert_eq!(order(&own, Some(&peer)), [1, 0]);
}

#[test]
fn an_entry_of_another_namespace_comes_last() {
    // kvcache-ai/Mooncake#946: index 3 belonged to no interface of the container, 7 to its own.
    let own = ethernet(
        "3 v2 ::ffff:26.208.8.250 -
         7 v2 ::ffff:26.208.8.252 eth1",
    );
    assert_eq!(order(&own, None), [7, 3]);
    let peer = ethernet("5 v2 ::ffff:26.208.8.251 eth1");
    let ranked = rank_gids(&own, Some(&peer));
    assert_eq!((ranked[0].index, ranked[0].peer), (7, Some(5)));
}

#[test]
fn of_several_networks_the_common_one_is_taken() {
    let own = ethernet(
        "1 v2 ::ffff:192.168.1.1 a
         3 v2 ::ffff:10.0.0.1 b",
    );
    let peer = ethernet(
        "1 v2 ::ffff:10.0.0.2 c
         3 v2 ::ffff:172.16.0.9 d",
    );
    let ranked = rank_gids(&own, Some(&peer));
    assert_eq!((ranked[0].index, ranked[0].peer), (3, Some(1)));
}

#[test]
fn versions_families_and_link_layers_are_never_mixed() {
    let v1 = ethernet("2 v1 ::ffff:10.0.0.1 a");
    let v2 = ethernet("3 v2 ::ffff:10.0.0.2 a");
    let six = ethernet("3 v2 fd00::2 a");
    assert!(order(&v1, Some(&v2)).is_empty());
    assert!(order(&v2, Some(&six)).is_empty());
    assert_eq!(order(&v1, Some(&v1)), [2], "version 1 where both have it");
    let native = table(LinkLayer::InfiniBand, "0 ib fe80::2:c903:a1:b2c1 -");
    assert!(order(&native, Some(&v1)).is_empty());
    // InfiniBand needs no IPv4-mapped entry: packets go by LID.
    let ranked = rank_gids(&native, Some(&native));
    assert_eq!(ranked[0].index, 0);
    assert!(ranked[0].why.contains("LID"), "{ranked:?}");
}

#[test]
fn empty_entries_are_known() {
    assert!(is_empty([0; 16]));
    let mut bare = [0; 16];
    bare[0] = 0xfe;
    bare[1] = 0x80;
    assert!(is_empty(bare));
    bare[15] = 1;
    assert!(!is_empty(bare));
}
