// How one layer is cut into blocks, and where its spectra lie in the workspace. Pure host code.
//
// Spectra, all complex float32 (interleaved):
//   rows   R  [batch][c_in][h_in][modes_w]      2D only, after the last axis' DFT
//   modes  Z  [modes_h][modes_w][batch][c_in]   after the other axis' DFT; in 1D analyze_rows writes it
//   mixed  Z' [modes_h][modes_w][batch][c_out]  2D only
//   rows'  R' [batch][c_out][h_out][modes_w]    what fourier_rows reads; shares its memory with R
#pragma once

#include "../api/turbofno.h"

namespace turbofno {

struct Plan {
    // analyze_rows: rows of a block = 64 * row_fragments, columns = 8 * column_fragments
    int row_fragments, column_fragments;
    int splits; // of the sum over the row's points; more than one needs partial sums in the workspace
    int split_points;
    // spectral_mix: modes_w of a block; |k| pairs of a block; threads; batch groups of the mode product
    int analysis_ky, analysis_pairs;
    int synthesis_ky, synthesis_slots;
    int mix_batch; // batch elements of one thread: 1, 4 or 8
    int mix_pair; // output channels of one thread: 2, or 1 if c_out is odd
    int mix_groups; // threads that share a channel pair; a block's batch tile is mix_batch * mix_groups
    // fourier_rows: output channels and points of a block
    int tile_channels, tile_points;
    // workspace, in bytes from its start
    size_t rows, modes, mixed, partial, bytes;
};

constexpr int kChannelsAtOnce = 4; // of the transforms along h
constexpr int kMixThreads = 128;

bool is_1d(const turbofno_layer &layer);
Plan plan(const turbofno_layer &layer);

} // namespace turbofno
