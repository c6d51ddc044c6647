// Block layout of the transforms of the axes before the last and of the product of modes. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

// One transform: tiles of 16 frequencies or points (a tile has both signs), k-slabs of 8 terms.
struct TransformPlan {
    int tiles, steps;
    int warp_tiles; // tiles that a warp accumulates: 1, 2 or 3; 0 for dft_resident
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

constexpr int kMaxSharedBytes = 96 * 1024; // opt-in limit per block that every device since sm_80 has
constexpr int kColumnWarps = 4; // of a block
constexpr int kWarpColumns = 16; // complex columns of a warp
constexpr int kMaxResidentSteps = 2; // k-slabs that dft_resident keeps in registers
constexpr int kMaxModeWarps = 8; // of a block
constexpr int kWeightStages = 3; // in shared memory, weights of 8 input channels each

TransformPlan plan(const turbofno_transform &transform);
ProductPlan plan(const turbofno_product &product);

} // namespace turbofno
