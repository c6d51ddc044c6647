// The products of fourier_rows (row_product.cuh, row_analysis.cuh) by a group of four warps at once, on Hopper. Sums
// restart every kPart terms here too.
#pragma once

#include "row_product.cuh"
#include "row_team.cuh"
#include "warpgroup.cuh"

namespace turbofno {

static_assert(kTiles == 1 && kChunk == kSwizzledPitch && kPart == 32);

// Table blocks of 8 columns that lie side by side in a pair of right operands.
template <typename P> constexpr int kTablePitch = kRightWords<P> * 16 / 2;

template <typename P, bool TILE, int STEPS, bool FIRST>
__device__ __forceinline__ void add_group_part(Values &sums, const Rows &start, const uint4 *left_words,
                                               const SharedOperand &right, const Rows &back) {
    Left left[STEPS];
    float part[2 * kPairs][4];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) load_left<P>(left[s], left_words + s * kLeftWords<P>);
    begin_products();
    begin_chain<P, TILE, STEPS>(part, left, right);
    finish_products();
    receive(part);
#pragma unroll
    for (int i = 0; i < 8 * kPairs; ++i) {
        float &sum = sums[0][i / 4][i % 4];
        const int row = i % 4 / 2;
        sum = fmaf(part[i / 4][i % 4], back[0][row], FIRST ? start[0][row] : sum);
    }
}

// sums = start + left . right over `steps` times 16 terms, or sums += it.
template <typename P, bool TILE, bool FIRST>
__device__ __forceinline__ void add_group_product(Values &sums, const Rows &start, const uint4 *left, int steps,
                                                  SharedOperand right, const Rows &back) {
    int step = 0;
    if (FIRST) {
        if (steps == 1) {
            add_group_part<P, TILE, 1, true>(sums, start, left, right, back);
            return;
        }
        add_group_part<P, TILE, 2, true>(sums, start, left, right, back);
        step = 2;
    }
    right.high += step * right.step;
    for (; step + 2 <= steps; step += 2, right.high += 2 * right.step) {
        add_group_part<P, TILE, 2, false>(sums, start, left + step * kLeftWords<P>, right, back);
    }
    if (step < steps) add_group_part<P, TILE, 1, false>(sums, start, left + step * kLeftWords<P>, right, back);
}

// 8 FRAGMENTS columns of the analysis of one chunk: sums += left . right.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void add_group_columns(float4 *sums, const Left (&left)[kPairs], const float (&back)[2],
                                                  SharedOperand right) {
    float part[2][FRAGMENTS][4];
    begin_products();
    begin_chain<P, false, 2>(part[0], left, right);
    right.high += 2 * right.step;
    begin_chain<P, false, 2>(part[1], left + 2, right);
    finish_products();
    receive(part[0]);
    receive(part[1]);
#pragma unroll
    for (int j = 0; j < FRAGMENTS; ++j) {
        float4 sum = sums[32 * j];
#pragma unroll
        for (const auto &half : part) {
            const float *v = half[j];
            sum = {fmaf(v[0], back[0], sum.x), fmaf(v[1], back[0], sum.y), fmaf(v[2], back[1], sum.z),
                   fmaf(v[3], back[1], sum.w)};
        }
        sums[32 * j] = sum;
    }
}

// sums += left . table over one chunk of points; of the table, [pair of points][column pair].
template <typename P>
__device__ __forceinline__ void add_group_analysis(float4 *sums, const Left (&left)[kPairs], const float (&back)[2],
                                                   const uint4 *table, int column_pairs) {
    sums += threadIdx.x % 32;
    SharedOperand right = table_operand(table, kTablePitch<P>, column_pairs * kRightWords<P>);
    int columns = column_pairs;
    for (; columns >= 2; columns -= 2, sums += 128, right.high += 2 * kRightWords<P>) {
        add_group_columns<P, 4>(sums, left, back, right);
    }
    if (columns > 0) add_group_columns<P, 2>(sums, left, back, right);
}

} // namespace turbofno
