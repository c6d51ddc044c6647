// The analysis of kRows rows whose points a warp holds in registers: kept modes of the rows' truncated DFT.
//
// The layout of a sum of matrix products is also that of a left operand (split_half.cuh), so a field just computed is
// multiplied by the table [points][columns] (column 2m: cosine of mode m, 2m + 1: minus sine) where it is. Sums over
// the row's chunks wait in shared memory, lane by lane: 16-byte words [tile][column pair][2][lane].
#pragma once

#include "../plan/rows_plan.h"
#include "launch.h"
#include "split_half.cuh"

namespace turbofno {

constexpr int kPairs = kChunk / 16; // pairs of fragments of a chunk
using TileValues = float[2 * kPairs][4]; // 16 rows x kChunk points
using Values = TileValues[kTiles]; // of a warp

// A table of row_analysis or row_synthesis holds the words of fp32 and tf32, then those of bf16, lane by lane; then the
// same as blocks.
template <typename P> const uint4 *row_table(const void *table, int points, int columns, bool blocks) {
    const int64_t pairs = int64_t(ceil_div(points, kChunk)) * kPairs * ceil_div(columns, 16);
    const int64_t words = (blocks ? kRightWords<Fp32> + kRightWords<Bf16> : 0) + (P::kScaled ? 0 : kRightWords<Fp32>);
    return static_cast<const uint4 *>(table) + pairs * words;
}

// What undoes the power of two by which _cuda_tables.py multiplies a table of row_analysis.
inline float analysis_table_back(int points) {
    int exponent = 13;
    for (int size = 1; size < points; size *= 2) ++exponent;
    return 1.0f / float(1LL << exponent);
}

__device__ __forceinline__ float largest_of_row(float value) {
    // bits of magnitudes compare as the magnitudes do, NaN above all
    unsigned bits = __float_as_uint(value);
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 1));
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 2));
    return __uint_as_float(bits);
}

// Every row has its own scale.
template <typename P>
__device__ __forceinline__ void split_rows(const TileValues &values, Left (&left)[kPairs], float (&back)[2]) {
    Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (P::kScaled) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float magnitude[2] = {0.0f, 0.0f}; // two, that they need not wait for each other
#pragma unroll
            for (int j = 0; j < 2 * kPairs; ++j) {
                magnitude[j % 2] = largest(largest(magnitude[j % 2], values[j][2 * row]), values[j][2 * row + 1]);
            }
            scale[row] = scale_of(largest_of_row(largest(magnitude[0], magnitude[1])));
        }
    }
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) { // registers (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
            const float *pair = values[2 * b + i / 2] + 2 * (i % 2);
            split<P>(pair[0], pair[1], scale[i % 2].to, left[b].high[i], left[b].low[i]);
        }
    }
    back[0] = scale[0].back;
    back[1] = scale[1].back;
}

// sums += left . table over one chunk of points; `table` starts at the chunk, and has zeros where the row has no
// points. HALF: only the chunk's first half has points.
template <typename P, bool SHARED, bool HALF>
__device__ __forceinline__ void add_analysis(float4 *sums, const Left (&left)[kTiles][kPairs],
                                             const float (&back)[kTiles][2], const uint4 *table, int column_pairs) {
    sums += threadIdx.x % 32;
    for (int n = 0; n < column_pairs; ++n, table += kPairs * kRightWords<P>, sums += 64) {
        float4 sum[kTiles][2];
#pragma unroll
        for (int j = 0; j < 2 * kTiles; ++j) sum[j / 2][j % 2] = sums[j / 2 * column_pairs * 64 + j % 2 * 32];
#pragma unroll
        for (int i = 0; i < (HALF ? 2 : kPairs); i += 2) {
            Left two[kTiles][2];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) two[m][0] = left[m][i], two[m][1] = left[m][i + 1];
            Right right[2];
            load_right<P, SHARED>(right[0], table + i * kRightWords<P>);
            load_right<P, SHARED>(right[1], table + (i + 1) * kRightWords<P>);
            float part[kTiles][2][4] = {};
            chain<P>(part, two, right);
#pragma unroll
            for (int j = 0; j < 2 * kTiles; ++j) {
                const float *v = part[j / 2][j % 2], *by = back[j / 2];
                float4 &to = sum[j / 2][j % 2];
                to = {fmaf(v[0], by[0], to.x), fmaf(v[1], by[0], to.y), fmaf(v[2], by[1], to.z),
                      fmaf(v[3], by[1], to.w)};
            }
        }
#pragma unroll
        for (int j = 0; j < 2 * kTiles; ++j) sums[j / 2 * column_pairs * 64 + j % 2 * 32] = sum[j / 2][j % 2];
    }
}

__device__ __forceinline__ void clear_analysis(float4 *sums, int column_pairs) {
    for (int i = threadIdx.x % 32; i < 64 * kTiles * column_pairs; i += 32) sums[i] = {};
}

// The first `rows` of a warp's rows to `to`, `stride` apart; columns = 2 * modes floats of each.
__device__ __forceinline__ void store_analysis(float *to, int64_t stride, int rows, int columns, const float4 *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    to += g * stride + 2 * t;
    sums += lane;
#pragma unroll
    for (int m = 0; m < kTiles; ++m, to += 16 * stride, sums += sixteens(columns) * 64, rows -= 16) {
        for (int column = 0; column + 2 * t < columns; column += 8) {
            const float4 v = sums[column * 4];
            if (g < rows) *reinterpret_cast<float2 *>(to + column) = {v.x, v.y};
            if (g + 8 < rows) *reinterpret_cast<float2 *>(to + 8 * stride + column) = {v.z, v.w};
        }
    }
}

} // namespace turbofno
