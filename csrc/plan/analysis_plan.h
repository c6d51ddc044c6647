// Block layout of the analysis of a stored field along its last axis. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kChunkPoints = 64; // that are multiplied at once
constexpr int kComputingWarps = 8; // of a block, two warpgroups; another warp copies
constexpr int kWarpChannels = 16, kBlockChannels = kComputingWarps * kWarpChannels;
constexpr int kFragmentSizes[] = {4, 6, 8, 12, 16}; // fragments of 8 columns, cosines and sines, that a warpgroup sums
constexpr int kMostFragments = 16;
constexpr int kMaxStages = 6; // of the ring
constexpr int kBarrierBytes = 128; // mbarriers

// A block takes units in turns: one row with up to 128 channels, or two rows with up to 64, .., eight with up to 16, or a split
// of these. A warp takes 16 channels of a row. Points arrive in chunks of 64 in a ring of stages in shared memory, beside them
// the chunk's part of the table, unless all of the table stays in shared memory.
struct AnalysisPlan {
    int row_warps, unit_rows, channel_blocks; // warps of a row: 1, 2, 4 or 8; rows of a unit; units that share a row
    int chunks, splits, split_chunks; // of a row; splits of a row; chunks of a split
    int fragments, column_tiles; // one of kFragmentSizes; blocks that share their units
    int table_fragments; // of the whole table
    bool resident; // the table stays in shared memory
    int point_bytes; // from one point to the next in a stage
    bool contiguous; // the points of a chunk are one piece of memory
    int stages, stage_bytes, stage_table; // stage_table: where in a stage its part of the table begins
    int chunk_table_bytes;
    int ring_at, shared_bytes; // the table, if resident, lies before the ring
    int64_t units;
    int blocks;
    size_t workspace_bytes;
};

// The layout of a supported analysis. It has 0 stages if shared memory does not hold one.
AnalysisPlan plan(const turbofno_row_analysis &analysis);

} // namespace turbofno
