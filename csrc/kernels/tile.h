// The tile program's kernels, a file for each precision so that they compile side by side.
#pragma once

#include "../plan/tile_plan.h"
#include "launch.h"

namespace turbofno {

struct TileArguments {
    turbofno_tile tile;
    TilePlan plan;
    float synthesis_back, analysis_back; // undo the tables' scales
    float *next; // spectra, or partial sums of them
};

using TileKernel = void (*)(TileArguments);

TileKernel tile_fp32(const TilePlan &plan);
TileKernel tile_tf32(const TilePlan &plan);
TileKernel tile_bf16(const TilePlan &plan);

} // namespace turbofno
