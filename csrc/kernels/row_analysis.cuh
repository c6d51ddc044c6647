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

// Every row has its own scale.
template <typename P>
__device__ __forceinline__ void split_rows(const Values &values, Left (&left)[kPairs], float (&back)[2]) {
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

// sums += left . table over one chunk of points; `table` starts at the chunk, and has zeros where the row has no points.
// HALF: only the chunk's first half has points.
template <typename P, bool SHARED, bool HALF>
__device__ __forceinline__ void add_analysis(float4 *sums, const Left (&left)[kPairs], float back0, float back1,
                                             const uint4 *table, int column_pairs) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < column_pairs; ++n, table += kPairs * kRightWords<P>, sums += 64) {
        float part[2][2][4] = {}; // of points, columns
#pragma unroll
        for (int i = 0; i < (HALF ? 1 : 2); ++i) {
            const Left two[2] = {left[2 * i], left[2 * i + 1]};
            Right right[1][2];
            load_right<P, SHARED>(right[0][0], table + 2 * i * kRightWords<P>);
            load_right<P, SHARED>(right[0][1], table + (2 * i + 1) * kRightWords<P>);
            chain<P>(part[i], two, right);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float4 v = sums[32 * c + lane];
            v.x = fmaf(part[0][c][0] + part[1][c][0], back0, v.x);
            v.y = fmaf(part[0][c][1] + part[1][c][1], back0, v.y);
            v.z = fmaf(part[0][c][2] + part[1][c][2], back1, v.z);
            v.w = fmaf(part[0][c][3] + part[1][c][3], back1, v.w);
            sums[32 * c + lane] = v;
        }
    }
}

template <typename P, bool SHARED>
__device__ __forceinline__ void add_analysis(float4 *sums, const Values &values, const uint4 *table, int column_pairs,
                                             float table_back, bool half) {
    Left left[kPairs];
    float back[2];
    split_rows<P>(values, left, back);
    back[0] *= table_back, back[1] *= table_back;
    if (half) {
        add_analysis<P, SHARED, true>(sums, left, back[0], back[1], table, column_pairs);
    } else {
        add_analysis<P, SHARED, false>(sums, left, back[0], back[1], table, column_pairs);
    }
}

__device__ __forceinline__ void clear_analysis(float4 *sums, int column_pairs) {
    for (int i = threadIdx.x % 32; i < 64 * column_pairs; i += 32) sums[i] = {};
}

// Row g to `to` + g * stride, row g + 8 likewise, of the `rows` rows there are; columns = 2 * modes floats of each.
__device__ __forceinline__ void store_analysis(float *to, int64_t stride, int rows, int columns, const float4 *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *low = to + g * stride + 2 * t, *high = low + 8 * stride;
    sums += lane;
    for (int left = columns - 2 * t; left > 0; left -= 8, low += 8, high += 8, sums += 32) {
        const float4 v = *sums;
        if (g < rows) *reinterpret_cast<float2 *>(low) = {v.x, v.y};
        if (g + 8 < rows) *reinterpret_cast<float2 *>(high) = {v.z, v.w};
    }
}

} // namespace turbofno
