// Block layout of a tile program. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kTilePoints = 16; // points of a warp's tile
constexpr int kMaxFragments = 16; // of a tile, 8 channels each
constexpr int kMaxProjected = 16;
constexpr int kWarpgroupWarps = 4; // of a warpgroup
constexpr int kWgmmaColumns = 4, kMaxWgmmaModes = 16; // fragments of cosines and sines, and modes, of a wgmma analysis

// A group of warps takes one row (all points of the last axis): its warps take the row's tiles in turn and share its mixed
// spectra. A block holds the weights, and the tables if they fit, for all of its groups.
struct TilePlan {
    int fragments; // of y, held by a warp: 2, 4, 8 or 16
    bool wide; // an MLP or projection needs registers for a second value
    int channel_tiles; // blocks that hold different channels of the same rows
    int warps, group_warps; // of a block; of a group
    int splits, split_tiles; // splits of a row; tiles of a split
    bool wgmma; // groups are warpgroups, and a row is computed 64 points at a time
    bool synthesis_on_chip, analysis_on_chip; // their tables
    int planes; // of an operand
    int blocks; // per channel tile
    int stride; // units (splits of a row) from one of a group to its next, below also as splits, rows, ..
    int stride_split, stride_row, stride_batch, stride_outer;
    // Shared memory in 16-byte words: weights of each step, tables, then per group from `first_group` on: its spectra (words,
    // then inverse scales), the sums of the next analysis per warp (with wgmma the staged y), the prefetch buffers.
    int first_at[TURBOFNO_MAX_STEPS], second_at[TURBOFNO_MAX_STEPS];
    int vectors_at[TURBOFNO_MAX_STEPS], vector_width[TURBOFNO_MAX_STEPS]; // scale, shift, second shift of a step
    int synthesis_at, analysis_at, first_group, group_words, sums_at, sums_words;
    // The channels-last field that maps and gates (or the first load) read is prefetched one tile ahead: steps
    // prefetch_first .. prefetch_last read it from shared memory; -1 without prefetch.
    int prefetch_first, prefetch_last, prefetch_at, prefetch_words;
    int shared_bytes;
    size_t workspace_bytes;
};

// Most warps of a block by their registers: a multiprocessor has 64K of them and runs one block.
TURBOFNO_HOST_DEVICE constexpr int max_warps(int fragments, bool wide, bool wgmma) {
    if (wgmma) return fragments <= 8 ? (wide ? 12 : 16) : 8;
    return fragments <= 8 ? (wide ? 12 : 16) : (wide ? 8 : 12);
}

// The fastest plan by the cost model. It has 0 warps if no plan fits.
TilePlan plan(const turbofno_tile &tile);

} // namespace turbofno
