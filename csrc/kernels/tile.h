// The tile program's kernels, one file per precision so that they compile in parallel.
#pragma once

#include "../plan/tile_plan.h"
#include "launch.h"

namespace turbofno {

struct TileArguments {
    turbofno_tile tile;
    TilePlan plan;
    float synthesis_inv_scale, analysis_inv_scale; // of the tables
    float *next; // spectra, or partial sums of them
};

// Encodes a program as a number: four bits per step, its kind plus one.
constexpr uint64_t program() { return 0; }
template <typename... Kinds> constexpr uint64_t program(turbofno_step_kind first, Kinds... others) {
    return uint64_t(first + 1) | program(others...) << 4;
}

// True if `program` begins with the tile's steps.
inline bool begins_with(uint64_t program, const turbofno_tile &tile) {
    for (int i = 0; i < tile.steps; ++i, program >>= 4) {
        if ((program & 15) != uint64_t(tile.step[i].kind + 1)) return false;
    }
    return true;
}

// True if a program has an MLP or a projection.
constexpr bool is_wide(uint64_t program) {
    for (; program != 0; program >>= 4) {
        const int kind = int(program & 15) - 1;
        if (kind == TURBOFNO_MLP || kind == TURBOFNO_PROJECT) return true;
    }
    return false;
}

// Programs of common networks. A kernel for one of them also serves its beginnings, such as a block without the analysis.
// turbofno_ops/_tile_program.py sorts commuting steps into this order.
constexpr uint64_t kLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kLastLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_PROJECT);
constexpr uint64_t kBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_ACTIVATE, TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kLastBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_MLP,
                                        TURBOFNO_ADD_GATE, TURBOFNO_PROJECT);
constexpr uint64_t kNormedBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                          TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_STORE);
constexpr uint64_t kLastNormedBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_MLP,
                                              TURBOFNO_ADD_GATE, TURBOFNO_STORE);
constexpr uint64_t kAfterNorm = program(TURBOFNO_LOAD, TURBOFNO_AFFINE, TURBOFNO_ACTIVATE, TURBOFNO_STORE,
                                        TURBOFNO_ANALYZE);
constexpr uint64_t kAfterLastNorm = program(TURBOFNO_LOAD, TURBOFNO_AFFINE, TURBOFNO_PROJECT);
constexpr uint64_t kLifting = program(TURBOFNO_LOAD, TURBOFNO_MLP, TURBOFNO_STORE, TURBOFNO_ANALYZE);

using TileKernel = void (*)(TileArguments);

TileKernel tile_fp32(const TileArguments &a);
TileKernel tile_tf32(const TileArguments &a);
TileKernel tile_bf16(const TileArguments &a);

} // namespace turbofno
