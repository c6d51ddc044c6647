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

// A program as a number: four bits a step, its kind and one.
constexpr uint64_t program() { return 0; }
template <typename... Kinds> constexpr uint64_t program(turbofno_step_kind first, Kinds... others) {
    return uint64_t(first + 1) | program(others...) << 4;
}

inline uint64_t program_of(const turbofno_tile &tile) {
    uint64_t code = 0;
    for (int i = tile.steps; i-- > 0;) code = code << 4 | uint64_t(tile.step[i].kind + 1);
    return code;
}

// Those of common networks; turbofno_ops/_tile_program.py brings steps that commute into this order.
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
