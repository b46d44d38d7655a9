//! What runs in the machines: the one text for their shell.

/// What a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scene {
    /// Two devices on a virtual cable, and the tests.
    Tests,
    /// A leader on one device.
    Leader,
    /// A worker on one device.
    Worker,
}

impl Scene {
    /// Its name on the kernel's command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Leader => "leader",
            Self::Worker => "worker",
        }
    }
}

/// Kernel modules, in the order in which they are loaded.
pub(super) const MODULES: [&str; 16] = [
    // The kernel looks it up by name; no module says that it needs it.
    "crc32_generic",
    "crc32c_generic",
    "udp_tunnel",
    "ip6_udp_tunnel",
    "ib_core",
    "ib_uverbs",
    "rdma_rxe",
    "veth",
    "sch_netem",
    "failover",
    "net_failover",
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
];
/// The module of the card between two machines.
pub(super) const CARD: &str = "virtio_net";

/// The first process. Packets between the two ends of the cable would stay inside the kernel, as
/// both are its own: the rules send them over the cable.
pub(super) const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
# The shell prefers its own of that name.
ip() { /usr/bin/ip "$@"; }
export PATH=/usr/bin:/bin HOME=/tmp NEXTEST_BIN_EXE_ds4=/t/ds4
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /modules/order); do insmod /modules/$m.ko; done
ulimit -l unlimited
ip link set lo up
scene=$(sed -n 's/.*ds4\.scene=\([a-z]*\).*/\1/p' /proc/cmdline)

# A new device gets its addresses and its link a little later.
device() {
    rdma link add $1 type rxe netdev $2
    port=/sys/class/infiniband/$1/ports/1
    for n in $(seq 500); do
        grep -q ACTIVE $port/state && cat $port/gids/* | grep -q :ffff: && return
        usleep 10000
    done
    echo "$1 did not come up"
}

cable() {
    ip link add v0 type veth peer name v1
    for i in 0 1; do ip link set v$i up mtu 4500; done
    ip addr add 10.8.0.1/24 dev v0; ip addr add 10.8.0.2/24 dev v1
    for k in all v0 v1; do
        echo 1 > /proc/sys/net/ipv4/conf/$k/accept_local
        echo 0 > /proc/sys/net/ipv4/conf/$k/rp_filter
    done
    ip route add 10.8.0.2 dev v0 src 10.8.0.1 table 100
    ip route add 10.8.0.1 dev v1 src 10.8.0.2 table 101
    ip rule add pref 10 oif v0 lookup 100; ip rule add pref 11 oif v1 lookup 101
    ip rule add pref 100 lookup local; ip rule del pref 0
    ip neigh replace 10.8.0.2 lladdr $(cat /sys/class/net/v1/address) dev v0
    ip neigh replace 10.8.0.1 lladdr $(cat /sys/class/net/v0/address) dev v1
    device rxe0 v0; device rxe1 v1
}

card() {
    ip link set eth0 up; ip addr add 10.6.0.$1/24 dev eth0
    device rxe0 eth0
}

rank() {
    code=0
    for kind in rc uc; do
        DS4_RDMA_QUEUE_PAIRS=$kind /t/ds4 --tensor-parallel --transport rdma --n-layer 3 \
            --n-embd 4096 --insecure --format json "$@" > /tmp/report || code=$?
        echo "@@report $(echo $kind | tr a-z A-Z)"; cat /tmp/report; echo; echo "@@end"
    done
    return $code
}

case $scene in
tests) cable; /t/test --test-threads=1 ;;
leader) card 1; rank --role leader --listen 0.0.0.0 7000 --tokens 4 ;;
worker) card 2; rank --role worker --coordinator 10.6.0.1 7000 ;;
esac
code=$?
echo "@@exit $code"
[ $code -gt 126 ] && code=126
printf "\\$(printf %03o $code)" | dd of=/dev/port bs=1 seek=244 2>/dev/null
poweroff -f
"#;
