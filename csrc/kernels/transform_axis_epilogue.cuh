// Epilogue of transform_axis: results i and -i from the sums of cosines and sines, stored where they exist.
#pragma once

#include "transform_axis_load.cuh"

namespace turbofno {

template <bool EVEN> struct ColumnTarget { // this lane writes two pairs of neighbouring columns
    float2 *to[2][2];

    __device__ ColumnTarget(const TransformArguments &a, int64_t column0) {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
            for (int s = 0; s < (EVEN ? 1 : 2); ++s) {
                const int64_t column = column0 + 8 * pair + 2 * t + s;
                to[pair][s] = column < a.columns ? a.out + element_offset(a.to, column, a.inner) : nullptr;
            }
        }
    }

    __device__ __forceinline__ void put(int pair, uint64_t offset, float2 first, float2 second) const {
        if constexpr (EVEN) {
            if (to[pair][0] == nullptr) return;
            *reinterpret_cast<float4 *>(to[pair][0] + offset) = float4{first.x, first.y, second.x, second.y};
        } else {
            if (to[pair][0] != nullptr) to[pair][0][offset] = first;
            if (to[pair][1] != nullptr) to[pair][1][offset] = second;
        }
    }

    // Rows g and g + 8 of a tile.
    __device__ __forceinline__ void put_tile(const Axis &axis, int tile, const float (&cosine)[4][4],
                                             const float (&sine)[4][4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile * 16 + int(threadIdx.x % 32 / 4) + 8 * half;
            const bool has[2] = {has_positive(row, axis.size), has_negative(row, axis.size)};
            const uint64_t offset[2] = {uint64_t(row) * axis.stride, uint64_t(axis.size - row) * axis.stride};
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                float2 z[2][2]; // positive and negative, of two columns
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    const int re = 2 * pair, im = re + 1, e = 2 * half + s;
                    z[0][s] = float2{cosine[re][e] - sine[im][e], cosine[im][e] + sine[re][e]};
                    z[1][s] = float2{cosine[re][e] + sine[im][e], cosine[im][e] - sine[re][e]};
                }
                if (has[0]) put(pair, offset[0], z[0][0], z[0][1]);
                if (has[1]) put(pair, offset[1], z[1][0], z[1][1]);
            }
        }
    }
};

} // namespace turbofno
