// What fourier_rows makes of its sums: y, or its projection to few channels.
#pragma once

#include "row_analysis.cuh"
#include "row_quads.cuh"
#include "row_team.cuh"

namespace turbofno {

template <typename Field>
__device__ __forceinline__ void store_chunk(const Values &values, const RowsArguments &a, const Team &team,
                                            const Place &at) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int o = team.first_channel + g, point = at.chunk * kChunk + 4 * t, left = a.w - point;
    Field *y = static_cast<Field *>(a.y) + row_of(at, a.c_out, o, a.h) * a.w + point;
    const int64_t stride = 8 * int64_t(a.h) * a.w;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part, y += stride) { // rows g and g + 8 of each tile
        const TileValues &from = values[part / 2];
        const int there = o + 8 * part < a.c_out ? left : 0, e = part % 2 * 2;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float4 quad{from[2 * i][e], from[2 * i][e + 1], from[2 * i + 1][e], from[2 * i + 1][e + 1]};
            if (there > 16 * i) store_quad(y + 16 * i, quad);
        }
    }
}

// The same for rows that do not start at whole words: through the warp's share of the group's tile, so that a warp
// writes neighbouring points of one row. The group has read its tile.
template <typename Field>
__device__ __forceinline__ void store_odd_chunk(const Values &values, const RowsArguments &a, const Team &team,
                                                const Place &at) {
    constexpr int kPitch = kChunk + 8; // 8 rows of floats have as much room as 16 of halves in the tile
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *buffer = reinterpret_cast<float *>(team.tile) + team.member * 8 * kPitch;
    const int point = at.chunk * kChunk + lane, channels = a.c_out - team.first_channel;
    Field *y = static_cast<Field *>(a.y) + row_of(at, a.c_out, team.first_channel, a.h) * a.w + point;
    const int64_t stride = int64_t(a.h) * a.w;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) { // rows g and g + 8 of each tile
        const int e = part % 2 * 2;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float *low = values[part / 2][2 * i] + e, *high = values[part / 2][2 * i + 1] + e;
            *reinterpret_cast<float4 *>(buffer + g * kPitch + 16 * i + 4 * t) = {low[0], low[1], high[0], high[1]};
        }
        __syncwarp();
#pragma unroll
        for (int row = 0; row < 8; ++row, y += stride) {
            if (8 * part + row >= channels) break;
            if (point < a.w) y[0] = Field(buffer[row * kPitch + lane]);
            if (point + 32 < a.w) y[32] = Field(buffer[row * kPitch + lane + 32]);
        }
        __syncwarp();
    }
}

// Lanes 2 COUNT apart add up 2 COUNT values each, of which each keeps COUNT: the upper lane the upper ones.
template <int COUNT> __device__ __forceinline__ int fold(float (&v)[4 * kPairs], bool upper) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float other = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[COUNT + i], 2 * COUNT);
        v[i] = (upper ? v[COUNT + i] : v[i]) + other;
    }
    return upper;
}

// sums[q][point] of this warp = projection[q, its channels] . values. Lanes with the same t hold the same points: each
// of three exchanges halves the points that a lane looks after, 16, 8, 4, 2.
__device__ __forceinline__ void project(float *sums, const Values &values, const RowsArguments &a, const Team &team) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int o = team.first_channel + g;
    for (int q = 0; q < a.projected; ++q) {
        const float *row = a.projection + q * a.c_out;
        float v[4 * kPairs] = {};
#pragma unroll
        for (int part = 0; part < 2 * kTiles; ++part) {
            const float factor = o + 8 * part < a.c_out ? __ldg(row + o + 8 * part) : 0.0f;
#pragma unroll
            for (int i = 0; i < 4 * kPairs; ++i) {
                v[i] = fmaf(factor, values[part / 2][i / 2][part % 2 * 2 + i % 2], v[i]);
            }
        }
        const int fragment = fold<8>(v, lane & 16) * 4 + fold<4>(v, lane & 8) * 2 + fold<2>(v, lane & 4);
        const int point = fragment / 2 * 16 + 4 * t + fragment % 2 * 2;
        *reinterpret_cast<float2 *>(sums + q * kChunk + point) = {v[0], v[1]};
    }
}

__device__ __forceinline__ void store_projection(const float *sums, const RowsArguments &a, const Team &team,
                                                 const Place &at) {
    const int warps = team.threads / 32;
    const int64_t plane = int64_t(a.h) * a.w;
    float *out = a.out + blockIdx.y * int64_t(a.rows) * a.projected * a.w + row_of(at, a.projected, 0, a.h) * a.w;
    for (int i = team.thread; i < a.projected * kChunk; i += team.threads) {
        const int q = i / kChunk, point = at.chunk * kChunk + i % kChunk;
        if (point >= a.w) continue;
        float sum = a.projection_bias != nullptr ? __ldg(a.projection_bias + q) : 0.0f;
        for (int warp = 0; warp < warps; ++warp) sum += sums[warp * a.projected * kChunk + i];
        out[q * plane + point] = sum;
    }
}

} // namespace turbofno
