// The analysis of 16 rows whose points a warp holds in registers: kept modes of the rows' truncated DFT.
//
// The layout of a sum of matrix products is also that of a left operand (split_half.cuh), so a field just computed is
// multiplied by the table [points][columns] (column 2m: cosine of mode m, 2m + 1: minus sine) where it is. Sums over
// the row's chunks wait in shared memory, lane by lane: 16-byte words [column pair][2][lane].
#pragma once

#include "../plan/rows_plan.h"
#include "launch.h"
#include "split_half.cuh"

namespace turbofno {

constexpr int kPairs = kChunk / 16; // pairs of fragments of a chunk
using Values = float[2 * kPairs][4]; // a warp's kRows x kChunk values

// A table of row_analysis holds the words of fp32 and tf32, then those of bf16.
template <typename P> const uint4 *row_analysis_table(const void *table, int points, int columns) {
    const int64_t pairs = int64_t(ceil_div(points, kChunk)) * kPairs * ceil_div(columns, 16);
    return static_cast<const uint4 *>(table) + (P::kScaled ? 0 : pairs * kRightWords<Fp32>);
}

template <typename P> const uint4 *row_synthesis_table(const void *table, int points, int columns) {
    return row_analysis_table<P>(table, points, columns); // as many words: [pair of points][step of 16 columns]
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

// Values of points from 16 * pairs on are left out; every row has its own scale.
template <typename P>
__device__ __forceinline__ void split_rows(const Values &values, int pairs, Left (&left)[kPairs], float (&back)[2]) {
    Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (P::kScaled) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float magnitude = 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * kPairs; ++j) {
                if (j / 2 < pairs) {
                    magnitude = largest(largest(magnitude, values[j][2 * row]), values[j][2 * row + 1]);
                }
            }
            scale[row] = scale_of(largest_of_row(magnitude));
        }
    }
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) { // registers (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
            const float *pair = values[2 * b + i / 2] + 2 * (i % 2);
            left[b].high[i] = left[b].low[i] = 0;
            if (b < pairs) split<P>(pair[0], pair[1], scale[i % 2].to, left[b].high[i], left[b].low[i]);
        }
    }
    back[0] = scale[0].back;
    back[1] = scale[1].back;
}

// sums += left . table over one chunk of points; `table` starts at the chunk. The first chunk overwrites.
template <typename P>
__device__ __forceinline__ void add_analysis(float4 *sums, bool first, const Left (&left)[kPairs],
                                             const float (&back)[2], int pairs, const uint4 *table, int column_pairs,
                                             float table_back) {
    const int lane = threadIdx.x % 32;
    const float back0 = back[0] * table_back, back1 = back[1] * table_back;
    for (int n = 0; n < column_pairs; ++n) {
        float part[2][2][4] = {}; // of points, columns
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (2 * i >= pairs) continue;
            const Left two[2] = {left[2 * i], left[2 * i + 1]};
            Right right[2];
            load_right<P>(right[0], table + (2 * i * column_pairs + n) * kRightWords<P>);
            load_right<P>(right[1], table + ((2 * i + 1) * column_pairs + n) * kRightWords<P>);
#pragma unroll
            for (int c = 0; c < 2; ++c) chain<P>(part[i][c], two, right, c);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float4 *sum = sums + (2 * n + c) * 32 + lane;
            float4 v = first ? float4{} : *sum;
            v.x = fmaf(part[0][c][0] + part[1][c][0], back0, v.x);
            v.y = fmaf(part[0][c][1] + part[1][c][1], back0, v.y);
            v.z = fmaf(part[0][c][2] + part[1][c][2], back1, v.z);
            v.w = fmaf(part[0][c][3] + part[1][c][3], back1, v.w);
            *sum = v;
        }
    }
}

// Row g to `to` + g * stride, row g + 8 likewise, of the `rows` rows there are; columns = 2 * modes floats of each.
__device__ __forceinline__ void store_analysis(float *to, int64_t stride, int rows, int columns, const float4 *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int n = 0; 8 * n + 2 * t < columns; ++n) {
        const float4 v = sums[n * 32 + lane];
        float *at = to + g * stride + 8 * n + 2 * t;
        if (g < rows) *reinterpret_cast<float2 *>(at) = {v.x, v.y};
        if (g + 8 < rows) *reinterpret_cast<float2 *>(at + 8 * stride) = {v.z, v.w};
    }
}

} // namespace turbofno
