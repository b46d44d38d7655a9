// One gate between two ranks on two devices: each pushes its part to the other and both add, in the
// order of the ranks, so that both have the same bits; kernels/src/gate.rs describes the memory.
#include "device.h"

// What both kernels know of the link, in memory of the launching device.
struct GateLink {
  u64 own;         // where the peer writes: packets, flags and parts
  u64 peer;        // the same place of the peer
  u64 rank;        // 0 or 1
  u64 deadline_ns; // the longest wait of a gate
  u64 abort;       // not 0 when the wait shall end
  u64 failed;      // not 0 once a wait has ended without its bytes: the gate's sequence,
  u64 reason;      // 1 deadline, 2 abort,
  u64 seen;        // and what lay there instead
};

// Offsets from the link: a sequence for each block and kernel, on a sector of its own.
#define PACKET_SEQUENCES 128
#define PART_SEQUENCES (PACKET_SEQUENCES + 32 * GATE_PACKET_BLOCKS)
// Offsets from `own` and `peer`; each has two of everything, used in turns.
#define PACKETS 0
#define FLAGS (2 * GATE_PACKET_BYTES)
#define FLAG_BYTES (128 * GATE_PART_BLOCKS)
#define PARTS (FLAGS + 2 * FLAG_BYTES)

#define GATE_PACKET_BLOCKS 8
#define GATE_PACKET_BYTES (128 << 10)
#define GATE_PART_BLOCKS 128
// Looks between two looks at the clock and the wish to stop.
#define LOOKS 256

// Where a wait stands.
struct Wait {
  u32 looks;
  u64 since_ns;
};

// Whether to give up; the first thread that does says why.
DEVICE bool given_up(u64 link, Wait &wait, u32 sequence, u64 seen) {
  wait.looks += 1;
  if (wait.looks % LOOKS)
    return false;
  Global<GateLink> at = (Global<GateLink>)link;
  u64 now = clock_ns();
  if (wait.since_ns == 0)
    wait.since_ns = now;
  u64 reason = load_relaxed((u64)&at->abort) ? 2 : now - wait.since_ns > at->deadline_ns ? 1 : 0;
  if (reason && atomic_first((u64)&at->failed, sequence)) {
    at->reason = reason;
    at->seen = seen;
  }
  return reason;
}

// Takes the two packets of a place once both are of this gate.
DEVICE bool take(u64 link, u64 from, u32 sequence, u64x2 &packets) {
  Wait wait = {0, 0};
  for (;;) {
    packets = load_packets(from);
    if ((u32)(packets.x >> 32) == sequence && (u32)(packets.y >> 32) == sequence)
      return true;
    if (given_up(link, wait, sequence, packets.x >> 32))
      return false;
  }
}

DEVICE float add_in_order(u64 rank, float own, float other) {
  return rank ? other + own : own + other;
}

// The sequence of the next gate: never 0, which is what fresh memory holds.
DEVICE u32 next(u32 sequence) { return sequence + 1 ? sequence + 1 : 1; }

// Gates of at most GATE_PACKET_BYTES / 2 bytes: every float travels with the gate's sequence in one
// store of 8 bytes, so that it is its own flag and needs no fence. `count` is even.
KERNEL ds4_gate_packets(u64 link, u64 input, u64 output, u64 count, u64 gates) {
  previous_kernel();
  u64 place = link + PACKET_SEQUENCES + 32 * block();
  // All are asked for before the first is looked at: one after the other they would take as long
  // as the link.
  Global<GateLink> at = (Global<GateLink>)link;
  u64 own = load_relaxed((u64)&at->own) + PACKETS, peer = load_relaxed((u64)&at->peer) + PACKETS;
  u64 rank = load_relaxed((u64)&at->rank), failed = load_relaxed((u64)&at->failed);
  u32 sequence = (u32)load_relaxed(place);
  if (failed)
    return;
  bool good = true;
  for (u64 gate = 0; gate < gates && good; gate += 1) {
    sequence = next(sequence);
    u64 slot = (sequence & 1) * GATE_PACKET_BYTES;
    u64 mark = (u64)sequence << 32;
    for (u64 i = index(); i < count / 2; i += all_threads()) {
      u64 pair = ((Global<u64>)input)[i];
      u64x2 packets = {mark | (u32)pair, mark | pair >> 32};
      store_packets(peer + slot + 16 * i, packets);
    }
    for (u64 i = index(); i < count / 2 && good; i += all_threads()) {
      u64x2 packets;
      good = take(link, own + slot + 16 * i, sequence, packets);
      if (!good)
        break;
      f32x2 part = ((Global<f32x2>)input)[i];
      f32x2 sum = {add_in_order(rank, part.x, as_float((u32)packets.x)),
                   add_in_order(rank, part.y, as_float((u32)packets.y))};
      ((Global<f32x2>)output)[i] = sum;
    }
  }
  barrier();
  if (thread() == 0)
    *(Global<u32>)place = sequence;
}

// Gates of any size up to the link's: each block pushes its pieces and then a flag.
KERNEL ds4_gate_parts(u64 link, u64 input, u64 output, u64 count, u64 part_bytes) {
  previous_kernel();
  u64 place = link + PART_SEQUENCES + 32 * block();
  Global<GateLink> at = (Global<GateLink>)link;
  u64 rank = at->rank;
  u32 sequence = next(*(Global<u32>)place);
  if (at->failed)
    return;
  u64 turn = sequence & 1;
  u64 parts = PARTS + turn * part_bytes;
  u64 flag = FLAGS + turn * FLAG_BYTES + 128 * block();
  u64 groups = count / 4, blocks = all_threads() / block_threads();
  u64 each = (groups + blocks - 1) / blocks;
  u64 from = least(block() * each, groups), to = least(from + each, groups);
  u64 peer = at->peer, own = at->own;
  u64 step = block_threads();
  u64 i = from + thread();
  for (; i + 3 * step < to; i += 4 * step) {
    f32x4 a = ((Global<f32x4>)input)[i], b = ((Global<f32x4>)input)[i + step];
    f32x4 c = ((Global<f32x4>)input)[i + 2 * step], d = ((Global<f32x4>)input)[i + 3 * step];
    ((Global<f32x4>)(peer + parts))[i] = a;
    ((Global<f32x4>)(peer + parts))[i + step] = b;
    ((Global<f32x4>)(peer + parts))[i + 2 * step] = c;
    ((Global<f32x4>)(peer + parts))[i + 3 * step] = d;
  }
  for (; i < to; i += step)
    ((Global<f32x4>)(peer + parts))[i] = ((Global<f32x4>)input)[i];
  barrier();
  SHARED u32 good;
  if (thread() == 0) {
    // After the barrier the release covers what the whole block has stored.
    store_release(peer + flag, sequence);
    Wait wait = {0, 0};
    u32 seen = load_acquire(own + flag);
    good = 1;
    while (seen != sequence && good) {
      good = !given_up(link, wait, sequence, seen);
      seen = load_acquire(own + flag);
    }
    *(Global<u32>)place = sequence;
  }
  barrier();
  if (!good)
    return;
  for (u64 j = from + thread(); j < to; j += step) {
    f32x4 part = ((Global<f32x4>)input)[j], other = ((Global<f32x4>)(own + parts))[j];
    ((Global<f32x4>)output)[j] = rank ? other + part : part + other;
  }
}
