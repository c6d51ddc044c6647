// How the transforms of the axes before the last, and the product of the modes, are cut into blocks. Pure host code.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

// One transform: tiles of 16 frequencies or points (a tile has both signs), 8 terms a step.
struct TransformPlan {
    int tiles, steps;
    int warp_tiles; // at once: 1, 2 or 3; 0 where a warp holds its terms and makes one tile after the other
    int groups; // blocks that share their columns
    int64_t blocks;
};

struct ProductPlan {
    int batch_fragments; // of 8 batch elements each, in a block: 1, 2 or 4
    int modes; // of the last axis, in a block: 1, 2 or 4
    int channel_tiles; // of 16 output channels each, in a block
    int64_t batch_tiles, mode_tiles, channel_groups, blocks;
    int threads;
    int shared_in, shared_out; // complex numbers from one batch element to the next in shared memory
    int shared_bytes;
};

constexpr int kMostSharedBytes = 96 * 1024; // what every device since sm_80 gives a block that asks
constexpr int kColumnWarps = 4; // of a block
constexpr int kWarpColumns = 16; // complex columns of a warp
constexpr int kHeldSteps = 2; // at most, of a warp that holds its terms
constexpr int kMostModeWarps = 8; // of a block
constexpr int kWeightStages = 3; // of 8 input channels each, whose weights are in shared memory

TransformPlan plan(const turbofno_transform &transform);
ProductPlan plan(const turbofno_product &product);

} // namespace turbofno
