// How the row kernels cut their work into blocks. Pure host code.
#pragma once

#include "../api/turbofno.h"

namespace turbofno {

constexpr int kChunk = 64; // points that a warp computes at once
constexpr int kRows = 16; // of a warp: output channels (fourier_rows) or rows (analyze_rows)
constexpr int kWarps = 8; // of a block, at most
constexpr int kTilePitch = kChunk + 8; // halves between the channels of x in shared memory, see load_matrices
constexpr int kRowsSharedBytes = 99 * 1024; // what a block may have on every card since sm_80
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
    // shared memory in 16-byte words: the block's skip and its scales, then for each group, from its start:
    // the tile of x at 0, spectra, sums of the next analysis or the projection, largest values of the warps
    int skip_scales, first_group, group_words, spectra, sums, maxima;
    int shared_bytes;
    size_t workspace_bytes;
};

AnalysisPlan plan(const turbofno_analysis &analysis);
RowsPlan plan(const turbofno_rows &rows);

} // namespace turbofno
