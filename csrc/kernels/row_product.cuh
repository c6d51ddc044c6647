// The products of fourier_rows: a warp's left operands, out of shared memory, with right operands out of a tile or a
// table, added up in registers.
#pragma once

#include "row_analysis.cuh"

namespace turbofno {

using Rows = float[kTiles][2]; // something for a lane's rows g and g + 8 of each tile

// sums += left . operand, 16 STEPS terms from `step` on; FIRST: sums = left . operand + start instead. HALF: only for
// the chunk's first half. `left` of the next tile lies `tile_words` further.
template <typename P, int STEPS, bool HALF, bool FIRST, typename Operand>
__device__ __forceinline__ void add_part(Values &sums, const Rows &start, const uint4 *left_words, int tile_words,
                                         int step, const Operand &operand, const Rows &back) {
    Left left[kTiles][STEPS];
#pragma unroll
    for (int s = 0; s < kTiles * STEPS; ++s) {
        load_left<P>(left[s / STEPS][s % STEPS],
                     left_words + s / STEPS * tile_words + (step + s % STEPS) * kLeftWords<P>);
    }
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
        float part[kTiles][2][4] = {};
        if (!HALF || b < kPairs / 2) {
            Right right[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) operand(right[s], step + s, b);
            chain<P>(part, left, right);
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                float &sum = sums[m][2 * b + e / 4][e % 4];
                const int half = e % 4 / 2;
                sum = fmaf(part[m][e / 4][e % 4], back[m][half], FIRST ? start[m][half] : sum);
            }
        }
    }
}

// sums = start + left . operand over `steps` times 16 terms, or sums += it.
template <typename P, bool HALF, bool FIRST, typename Operand>
__device__ __forceinline__ void add_product(Values &sums, const Rows &start, const uint4 *left, int tile_words,
                                            int steps, const Operand &operand, const Rows &back) {
    constexpr int kSteps = kPart / 16;
    int step = 0;
    if (FIRST) {
        if (steps == 1) {
            add_part<P, 1, HALF, true>(sums, start, left, tile_words, 0, operand, back);
            return;
        }
        add_part<P, kSteps, HALF, true>(sums, start, left, tile_words, 0, operand, back);
        step = kSteps;
    }
    for (; step + kSteps <= steps; step += kSteps) {
        add_part<P, kSteps, HALF, false>(sums, start, left, tile_words, step, operand, back);
    }
    if (step < steps) add_part<P, 1, HALF, false>(sums, start, left, tile_words, step, operand, back);
}

} // namespace turbofno
