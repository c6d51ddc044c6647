// The tile program's kernels, in several files so that they compile in parallel.
#pragma once

#include "../plan/tile_plan.h"
#include "../plan/tile_programs.h"
#include "launch.h"

namespace turbofno {

struct TileArguments {
    turbofno_tile tile;
    TilePlan plan;
    bool common; // plan.common, and the result is not stored channel first, as a layer's that is called alone
    uint64_t fields_policy; // of L2, for fields that are read or written
    float synthesis_inv_scale, analysis_inv_scale; // of the tables
    float *next; // spectra, or partial sums of them
};

using TileKernel = void (*)(TileArguments);

TileKernel tile_fp32(const TileArguments &a);
TileKernel tile_tf32(const TileArguments &a);
TileKernel tile_bf16(const TileArguments &a);
// Of common programs. Null for those that have no such kernel.
TileKernel tile_20_channels(const TileArguments &a);
TileKernel tile_many_modes(const TileArguments &a); // fp32, with kManyColumns

} // namespace turbofno
