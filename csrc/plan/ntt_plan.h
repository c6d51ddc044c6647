// Passes and launches of number-theoretic transforms. Host code only.
//
// The index n of an input value loses its highest bits first (decimation in frequency). After the bits processed so far the
// rest of n is the index within a smaller transform; which one, the bits of k say that are known, lowest first.
//
// A launch reads all lines once and writes them once. It makes one stage after the other, with shared memory between them. A
// stage is a pass over bits that a thread's registers hold, then passes over bits that lanes hold and swap for bits of
// registers by shuffles.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kMinNttBits = 6, kMaxNttBits = 16;
constexpr int kMaxNttStages = 11;

struct NttStage {
    int bits; // of the index
    int lane_bits; // of these, in lanes; all others are in registers
};

struct NttLaunch {
    int bits; // of the index that this launch processes
    int done, tail; // bits before them, processed; bits after them, not processed yet
    int stages;
    NttStage stage[kMaxNttStages];
    int line_bits; // lines of a block, as a power of two
    int thread_bits;
    int shared_bytes;
    int64_t lines, blocks;
};

struct NttPlan {
    int launches; // 1 or 2
    NttLaunch launch[2];
    int64_t workspace_bytes; // between two launches
};

TURBOFNO_HOST_DEVICE constexpr int bits_of(int power_of_two) {
    int bits = 0;
    while ((1 << bits) < power_of_two) ++bits;
    return bits;
}

// Most threads of a block, as a power of two: 16 values of a thread need more than 64 registers.
TURBOFNO_HOST_DEVICE constexpr int max_thread_bits(int radix_bits) { return radix_bits == 4 ? 9 : 10; }

NttPlan plan(const turbofno_ntt &transform);

} // namespace turbofno
