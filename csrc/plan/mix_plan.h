// How spectral_mix is cut into blocks, and where its spectra lie in the workspace. Pure host code.
//
// Workspace, both complex float32 and only if there are columns to transform (2D):
//   coefficients  Z  [modes_h][in_pitch]    a row holds [batch][c_in][modes_w]
//   products      Z' [modes_h][out_pitch]   a row holds [batch][c_out][modes_w]
#pragma once

#include "../api/turbofno.h"

namespace turbofno {

// One transform along h: tiles of 16 frequencies or points (a tile has both signs), 8 terms a step.
struct ColumnsPlan {
    int tiles, steps;
    int warp_tiles; // at once: 1, 2 or 3; 0 where a warp holds its terms and makes one tile after the other
    int groups; // blocks that share their columns
    int64_t blocks;
};

struct ModesPlan {
    int batch_fragments; // of 8 batch elements each, in a block: 1, 2 or 4
    int modes; // modes_w of a block: 1, 2 or 4
    int channel_tiles; // of 16 output channels each, in a block
    int64_t batch_tiles, mode_tiles, channel_groups, blocks;
    int threads;
    int shared_in, shared_out; // complex numbers from one batch element to the next in shared memory
    int shared_bytes;
};

struct MixPlan {
    bool one_row; // 1D: only the product
    int64_t in_pitch, out_pitch; // complex numbers
    ColumnsPlan analysis, synthesis;
    ModesPlan modes;
    size_t coefficients, products, bytes; // offsets in the workspace, its size
};

constexpr int kMostSharedBytes = 96 * 1024; // what every device since sm_80 gives a block that asks
constexpr int kColumnWarps = 4; // of a block
constexpr int kWarpColumns = 16; // complex columns of a warp
constexpr int kHeldSteps = 2; // at most, of a warp that holds its terms
constexpr int kMostModeWarps = 8; // of a block
constexpr int kWeightStages = 3; // of 8 input channels each, whose weights are in shared memory

MixPlan plan_mix(const turbofno_mix &mix);

} // namespace turbofno
