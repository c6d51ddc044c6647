// Block layout of a tile program. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kTilePoints = 16; // points of a warp's tile
constexpr int kMaxFragments = 16; // fragments of a tile, 8 channels each
constexpr int kMaxProjected = 16; // output channels of a projection
constexpr int kWarpgroupWarps = 4; // warps of a warpgroup
// Columns of a wgmma analysis: fragments of 8 cosines and sines. Only common programs of 20 or 32 channels at fp32 have many
// (tile_20_channels.cu, tile_many_modes.cu).
constexpr int kWgmmaColumns = 4, kManyColumns = 8, kModesOfColumn = 4;
constexpr int kSegmentedFragments = 8; // most fragments of a wgmma analysis by segments; more would serialise the products

// A group of warps takes one row (all points of the last axis), or with splits > 1 a split of it. Its warps take the tiles in
// turn and share the row's mixed spectra (the output of the spectral product). A block holds weights and tables for all of its
// groups. The tables are those of a segment of the row: its spectra are those of the row, shifted by a phase for each mode.
struct TilePlan {
    int fragments; // of y, held by a warp: 2, 4, 8 or 16
    bool common; // has a kernel of its own, and what most networks have in common (tile_programs.h)
    bool stores_split; // the field that it stores is split (turbofno.h), because the analysis splits it anyway
    bool maps_few; // its map takes few channels of the network's input, on ordinary cores (tile_programs.h)
    bool wide; // has an MLP or projection, which needs registers for a second tile
    int channel_tiles; // blocks that hold different channels of the same rows
    int warps, group_warps; // warps of a block; of a group
    int splits, split_tiles; // splits of a row; tiles of a split
    int split_segments; // segments of a split; 0 where a segment is a row
    int columns; // of a wgmma analysis, if the program has one: kWgmmaColumns, or kManyColumns; 0 without wgmma
    int segment_tiles; // tiles of a segment
    bool synthesis_on_chip; // its table is in shared memory, else read through L1, and a segment is a row
    int planes; // of an operand: 2 (high and low halves) for fp32, else 1
    int blocks; // thread blocks per channel tile
    // A group's work items are splits of rows, `stride` apart; below the stride in mixed radix: the loop need not divide.
    int stride;
    int stride_split, stride_row, stride_batch, stride_outer;
    // Shared memory in 16-byte words: weights of each step, tables, then per group from `first_group` on: its spectra (words,
    // then inverse scales), a row's spectra as in memory, the sums of the next analysis per warp (with wgmma the staged y), the
    // prefetch buffers. `copied_at` is -1 if spectra are not copied there before they are staged. In common programs of
    // warpgroups the copy may lie where y is staged later.
    int first_at[TURBOFNO_MAX_STEPS], second_at[TURBOFNO_MAX_STEPS];
    int vectors_at[TURBOFNO_MAX_STEPS]; // scale, shift, second shift of a step
    int synthesis_at, analysis_at, first_group, group_words, barrier_at, copied_at, sums_at, sums_words;
    // The channels-last field that maps and gates (or the first load) read is prefetched one tile ahead: steps
    // prefetch_first .. prefetch_last read it from shared memory; -1 without prefetch.
    int prefetch_first, prefetch_last, prefetch_at, prefetch_words;
    int shared_bytes;
    size_t workspace_bytes;
    double cost; // estimated time

    // With wgmma groups are warpgroups, and a row is computed 64 points at a time.
    TURBOFNO_HOST_DEVICE constexpr bool wgmma() const { return columns > 0; }
};

// True for a projection to so few channels that dot products on ordinary cores are faster than tensor cores, which compute 16.
TURBOFNO_HOST_DEVICE constexpr bool projects_few(const turbofno_step &step) {
    return step.kind == TURBOFNO_PROJECT && step.hidden > 0 && step.channels <= TURBOFNO_DOT_OUTPUTS;
}

// 16-byte words of a row's mixed spectra as they are copied to shared memory: four modes at a time.
TURBOFNO_HOST_DEVICE constexpr int copied_words(int modes, int channels) {
    return ceil_div(modes, 4) * 4 * round_up(channels, 16) / 2;
}

// Maximum number of warps of a block: a multiprocessor has 64K registers and runs one block.
TURBOFNO_HOST_DEVICE constexpr int max_warps(int fragments, bool wide, int columns, bool common) {
    const bool wgmma = columns > 0;
    if (fragments > 8) return wide || wgmma ? 8 : 12;
    const bool many = wide && !(wgmma && common); // registers
    if (fragments <= 4) return many ? 16 : 20;
    return many ? 12 : 16;
}

// The fastest plan by the cost model. It has 0 warps if no plan fits.
TilePlan plan(const turbofno_tile &tile);

} // namespace turbofno
