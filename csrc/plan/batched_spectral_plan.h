// Block layout of the whole spectral product of many batch elements. Host code only, but for the constants.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"
#include "spectral_plan.h"

namespace turbofno {

// Steps have 8 terms: points of the transform; of the inverse frequencies, first their cosines, then their sines.
struct BatchedSpectralPlan {
    int cluster; // blocks: one for 16 channels. Stores to other blocks need two; the warps of a block are dealt to all of them
    int mode_share; // the most modes of the axis of a block
    Divider share; // the same
    int steps, out_groups, out_chunks; // out_groups: of 8 frequencies; out_chunks: of 32 points
    int64_t batch_tiles, clusters;
    int z_batch, y_batch, y_mode; // complex numbers in shared memory from one batch element, or mode, to the next
    int in_table_words, out_table_words; // of 16 bytes
    int z_at, y_at, table_at, shared_bytes; // bytes, after the mbarriers
};

constexpr int kBatchTile = 8; // batch elements of a block: columns of a product, and its warps
constexpr int kSliceChannels = 16; // of a block
constexpr int kBatchedStages = 6; // steps of a warp's columns in shared memory
constexpr int kBatchedFrequencies = 16; // 0 .. 15, the most
constexpr int kOutChunk = 32; // points that a warp computes at once

BatchedSpectralPlan plan(const turbofno_batched_spectral &batched);

} // namespace turbofno
