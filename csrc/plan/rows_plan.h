// How the row kernels cut their work into blocks. Pure host code.
#pragma once

#include "../api/turbofno.h"

namespace turbofno {

constexpr int kChunk = 64; // points that a warp computes at once
constexpr int kTiles = 1; // of 16 rows, that a warp multiplies by the same right operands (2 is no faster)
constexpr int kRows = 16 * kTiles; // of a warp: output channels (fourier_rows) or rows (analyze_rows)
constexpr int kWarps = 16; // of a multiprocessor, for registers
constexpr int kWarpsTogether = 12; // of fourier_rows where four multiply at once, with float32 fields
constexpr int kWarpsThroughL1 = 12; // of fourier_rows with tables through L1, which has more to wait for
constexpr int kGroupWarps = 4; // of a group in fourier_rows, at most
constexpr int kAnalysisWarps = 4; // of a block of analyze_rows
constexpr int kTilePitch = kChunk + 8; // halves between the channels of x in shared memory, see load_matrices
constexpr int kRowsSharedBytes = 160 * 1024; // what a block may have on A100 and Hopper
constexpr int kMostProjected = 16;

struct AnalysisPlan {
    int warps; // of a block
    int splits, split_chunks; // of a row's chunks; more than one split needs partial sums in the workspace
    int shared_bytes;
    size_t workspace_bytes;
};

// A group is a set of warps that share a row (b, h): together they hold kRows * warps output channels of it.
struct RowsPlan {
    int warps; // of a group
    int groups; // of a block, each at a row of its own; they share the skip
    int channel_tiles;
    int splits, split_chunks; // of a row's chunks
    int slab; // input channels in shared memory at once
    bool together; // groups of four warps multiply at once, on Hopper
    int slots; // chunks of the tables in shared memory: the row's, 2 that take turns, or 0 for tables through L1
    // shared memory in 16-byte words: the block's skip, its scales and tables, then for each group, from its start:
    // the tile of x at 0, spectra, sums of the next analysis or the projection, largest values of the warps
    int skip_scales, tables, first_group, group_words, spectra, sums, maxima;
    int shared_bytes;
    size_t workspace_bytes;
};

AnalysisPlan plan(const turbofno_analysis &analysis);
// `shared_bytes` that a block may have; `hopper`: four warps may multiply at once
RowsPlan plan(const turbofno_rows &rows, int shared_bytes = kRowsSharedBytes, bool hopper = false);

} // namespace turbofno
