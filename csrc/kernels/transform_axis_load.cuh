// Loads of transform_axis: a warp's columns from memory to k-tiles in shared memory.
#pragma once

#include "../plan/transform_plan.h"
#include "async_copy.cuh"
#include "fft_order.cuh"
#include "l2_policy.h"

namespace turbofno {

// Column [o][y] at index i is complex number i * stride + o * outer_stride + y.
struct Axis {
    int64_t stride, outer_stride;
    int size;
};

struct TransformArguments {
    const float2 *in;
    float2 *out;
    const uint4 *table;
    Axis from, to;
    int64_t columns; // outer * inner
    int inner;
    int steps, tiles, groups;
};

inline __device__ int64_t element_offset(const Axis &axis, int64_t column, int inner) {
    const unsigned o = unsigned(column) / unsigned(inner); // columns are at most 2^31
    return o * axis.outer_stride + (unsigned(column) - o * inner);
}

// EVEN, here and below: `inner` is even, so two neighbouring columns are 16 aligned bytes.
//
// A k-tile of terms in shared memory: in[j] and in[-j] of j = 0 .. 3, then of 4 .. 7, each [j % 4][columns / 2]. Pairs of
// columns are swizzled so that neither the copies nor the reads of a warp have bank conflicts.
using KTile = float4[2][2][32];

inline __device__ int swizzled(int j, int pair) { return j * 8 + (pair ^ (2 * j)); }

template <bool EVEN> struct ColumnSource { // this lane copies columns 2 pair, 2 pair + 1 of terms j and j + 4
    const float2 *from[2];
    int j, pair;
    uint64_t policy; // of L2: several groups of blocks read the same columns

    __device__ ColumnSource(const TransformArguments &a, int64_t column0)
        : j(threadIdx.x % 32 / 8), pair(threadIdx.x % 8), policy(a.groups > 1 ? kEvictNormal : kEvictFirst) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            // beyond the last column read the last pair again; its result is not stored
            const int64_t column = column0 + 2 * pair + s;
            const int64_t inside = column < a.columns ? column : EVEN ? a.columns - 2 + s : a.columns - 1;
            from[s] = a.in + element_offset(a.from, inside, a.inner);
        }
    }

    __device__ __forceinline__ void copy(float4 *to, unsigned index, int64_t stride, bool exists) const {
        const int64_t at = exists ? index * stride : 0;
        if constexpr (EVEN) {
            copy_async<16>(to, from[0] + at, exists, policy);
        } else {
            copy_async<8>(to, from[0] + at, exists, policy);
            copy_async<8>(reinterpret_cast<float2 *>(to) + 1, from[1] + at, exists, policy);
        }
    }

    __device__ __forceinline__ void copy_k_tile(KTile &to, const Axis &axis, int step) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int index = step * 8 + 4 * e + j;
            copy(&to[e][0][swizzled(j, pair)], index, axis.stride, has_positive(index, axis.size));
            copy(&to[e][1][swizzled(j, pair)], axis.size - index, axis.stride, has_negative(index, axis.size));
        }
    }
};

} // namespace turbofno
