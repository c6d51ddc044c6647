// The index bits of one stage of a number-theoretic transform: which of them registers hold, which lanes and warps.
#pragma once

#include "../plan/ntt_plan.h"

namespace turbofno {

constexpr int kLanes = 32, kLaneBits = 5;

// Bits of an element's index at one stage. An element is one of a line; `rest` counts those that a thread's bits of this
// stage do not.
struct StageBits {
    int bits, lane_bits, processed; // of this stage; of these in lanes; before this stage
    int rest_bits;
    bool lines_first; // neighbouring threads have neighbouring lines
};

// The element that a register holds: the line within the block, the processed bits k, the bits `low` after this stage's.
struct Element {
    int line, k, low;
};

struct Stage {
    StageBits bits;
    int line_bits, in_thread; // bits of u that the thread's index gives
    int lane_digit, u;

    __device__ __forceinline__ Stage(const NttLaunch &launch, int index, int processed) {
        const NttStage &of = launch.stage[index];
        const bool first = index == 0, last = index == launch.stages - 1;
        bits = {of.bits, of.lane_bits, processed, launch.bits - of.bits,
                (first && launch.tail > 0) || (last && launch.done > 0)};
        line_bits = launch.line_bits;
        in_thread = launch.thread_bits - of.lane_bits;
        const int lane = threadIdx.x % kLanes, free = kLaneBits - of.lane_bits;
        lane_digit = lane >> free;
        u = (lane & ((1 << free) - 1)) | int(threadIdx.x / kLanes) << free;
    }

    // `above`: the register's bits above this stage's.
    __device__ __forceinline__ Element element(int above) const {
        const int all = u | above << in_thread;
        const int line = bits.lines_first ? all & ((1 << line_bits) - 1) : all >> bits.rest_bits;
        const int rest = bits.lines_first ? all >> line_bits : all & ((1 << bits.rest_bits) - 1);
        return {line, rest & ((1 << bits.processed) - 1), rest >> bits.processed};
    }

    __device__ __forceinline__ int low_bits() const { return bits.rest_bits - bits.processed; }
};

} // namespace turbofno
