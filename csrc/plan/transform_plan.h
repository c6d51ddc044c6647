// Block layout of the transforms of the axes before the last. Host code only, but for the constants.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

// One transform: tiles of 16 frequencies or points (a tile has both signs), k-tiles of 8 terms.
struct TransformPlan {
    int tiles, steps;
    int warp_tiles; // tiles that a warp accumulates: 1, 2 or 3; 0 for dft_resident
    int groups; // blocks that share their columns
    int64_t blocks;
};

constexpr int kColumnWarps = 4; // of a block
constexpr int kWarpColumns = 16; // complex columns of a warp
constexpr int kMaxResidentSteps = 2; // k-tiles that dft_resident keeps in registers

TransformPlan plan(const turbofno_transform &transform);

} // namespace turbofno
