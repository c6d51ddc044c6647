// Block layout of the product of modes. Host code only, but for the constants.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"
#include "limits.h"

namespace turbofno {

struct ProductPlan {
    int few; // batch elements of a block of the kernel for few of them, 1, 2 or 4; 0: another kernel
    int outputs; // output channels of such a block
    int batch_fragments; // of 8 batch elements each, in a tile: 1, 2 or 4
    int modes; // of the last axis, in a block: 1, 2 or 4, with few batch elements 4 or 8
    int channel_tiles; // of 16 output channels each, in a block
    int weight_stages, weights_ahead; // in shared memory, of 8 input channels each; copied ahead of their use
    int64_t tiles_each; // batch tiles that a block takes in turns; more than one only with all of its weights on chip
    int64_t batch_tiles, tile_groups, mode_tiles, channel_groups, blocks;
    int threads;
    int shared_in, shared_out; // complex numbers from one batch element to the next in shared memory
    int shared_bytes;
};

constexpr int kMaxModeWarps = 8; // of a block
constexpr int kMaxFewThreads = 512;
constexpr int kWeightsAhead = 2; // stages of a ring of weights in flight

ProductPlan plan(const turbofno_product &product);

} // namespace turbofno
