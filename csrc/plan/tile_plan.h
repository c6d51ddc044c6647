// How a tile program is cut into blocks. Pure host code.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kTilePoints = 16; // of a warp at once
constexpr int kMostFragments = 16; // of 8 channels each, of a tile
constexpr int kMostProjected = 16;

// A row (all points at one place of the other axes) is a team's: its warps take the row's tiles in turns and share its
// mixed spectra. A block holds the weights, and where there is room the tables, for all of its teams.
struct TilePlan {
    int fragments; // of y, held by a warp: 2, 4, 8 or 16
    bool wide; // an MLP or projection needs registers for a second value
    int channel_tiles; // blocks side by side that hold different channels of y
    int warps, team; // of a block; of a team
    int splits, split_tiles; // of a row, and tiles of one
    bool tables_on_chip;
    int planes; // of an operand
    int blocks; // per channel tile
    // shared memory in 16-byte words: weights of each step, tables, then for each team from `first_team`: its spectra
    // (words, then their scales), for each of its warps the sums of the next analysis, then its inbox
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
TURBOFNO_EVERYWHERE constexpr int most_warps(int fragments, bool wide) {
    return fragments <= 8 ? (wide ? 12 : 16) : (wide ? 8 : 12);
}

// The plan's shared_bytes are 0 if the program fits in no way.
TilePlan plan(const turbofno_tile &tile);

} // namespace turbofno
