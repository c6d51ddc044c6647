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

inline uint64_t program_of(const turbofno_tile &tile) {
    uint64_t code = 0;
    for (int i = tile.steps; i-- > 0;) code = code << 4 | uint64_t(tile.step[i].kind + 1);
    return code;
}

// Programs of common networks. turbofno_ops/_tile_program.py sorts commuting steps into this order.
constexpr uint64_t kLayerAlone = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                         TURBOFNO_STORE);
constexpr uint64_t kLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_ACTIVATE, TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kLastBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_MLP,
                                        TURBOFNO_ADD_GATE, TURBOFNO_PROJECT);
constexpr uint64_t kNormedBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                          TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_STORE);
constexpr uint64_t kAfterNorm = program(TURBOFNO_LOAD, TURBOFNO_AFFINE, TURBOFNO_ACTIVATE, TURBOFNO_STORE,
                                        TURBOFNO_ANALYZE);
constexpr uint64_t kLifting = program(TURBOFNO_LOAD, TURBOFNO_MLP, TURBOFNO_STORE, TURBOFNO_ANALYZE);

using TileKernel = void (*)(TileArguments);

TileKernel tile_fp32(const TileArguments &a);
TileKernel tile_tf32(const TileArguments &a);
TileKernel tile_bf16(const TileArguments &a);

} // namespace turbofno
