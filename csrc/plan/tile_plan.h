// How a tile program is cut into blocks. Pure host code.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kTilePoints = 16; // of a warp at once
constexpr int kMostFragments = 16; // of 8 channels each, of a tile
constexpr int kMostProjected = 16;
constexpr int kGroupWarps = 4; // of a warpgroup
constexpr int kGroupColumns = 4, kMostGroupModes = 16; // fragments of cosines and sines in a warpgroup's analysis

// A row (all points at one place of the other axes) is a team's: its warps take the row's tiles in turns and share its
// mixed spectra. A block holds the weights, and where there is room the tables, for all of its teams.
struct TilePlan {
    int fragments; // of y, held by a warp: 2, 4, 8 or 16
    bool wide; // an MLP or projection needs registers for a second value
    int channel_tiles; // blocks side by side that hold different channels of y
    int warps, team; // of a block; of a team
    int splits, split_tiles; // of a row, and tiles of one
    bool groups; // teams are warpgroups: wgmma, a row 64 points at a time
    bool synthesis_on_chip, analysis_on_chip; // their tables
    int planes; // of an operand
    int blocks; // per channel tile
    int stride; // from one unit (a split of a row) of a team to its next: that many units, or so many splits, rows, ..
    int stride_split, stride_row, stride_batch, stride_outer;
    // shared memory in 16-byte words: weights of each step, tables, then for each team from `first_team`: its spectra
    // (words, then their scales), for each of its warps the sums of the next analysis (for a warpgroup y itself), then the inboxes
    int first_at[TURBOFNO_MOST_STEPS], second_at[TURBOFNO_MOST_STEPS];
    int vectors_at[TURBOFNO_MOST_STEPS], vector_width[TURBOFNO_MOST_STEPS]; // scale, shift, second shift of a step
    int synthesis_at, analysis_at, first_team, team_words, sums_at, sums_words;
    // The channels-last field that maps and gates (or the program's beginning) read goes through shared memory, a tile
    // ahead: steps inbox_step .. inbox_last read it there; -1 without.
    int inbox_step, inbox_last, inbox_at, inbox_words;
    int shared_bytes;
    size_t workspace_bytes;
};

// Warps of a block at most, for their registers: a multiprocessor has 64K, and one block.
TURBOFNO_EVERYWHERE constexpr int most_warps(int fragments, bool wide, bool groups) {
    if (groups) return fragments <= 8 ? (wide ? 12 : 16) : 8;
    return fragments <= 8 ? (wide ? 12 : 16) : (wide ? 8 : 12);
}

// The plan has no warps if the program fits in no way; one without weights may need no shared memory.
TilePlan plan(const turbofno_tile &tile);

} // namespace turbofno
