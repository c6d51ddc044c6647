// Products of a warp's tile, 16 points by all channels: points are mma rows, channels mma columns.
//
// Values are kept as mma accumulators: values[j][e], fragment j of 8 channels. Channels are permuted among the columns so
// that a lane holds four neighbouring ones:
//     fragment 2s      column n is channel 16s + 4(n / 2) + n % 2
//     fragment 2s + 1  column n is channel 16s + 4(n / 2) + n % 2 + 2
// Lane (g, t) holds channels 16s + 4t .. 4t + 3 of the points g (elements 0, 1 of both fragments) and g + 8 (2, 3): one
// 16-byte load or store per point. Sums become the next product's A operand in the same lane, without shuffles.
//
// Tensor cores truncate when they accumulate. So a product takes 32 terms at a time, small products first, and its sums
// are unscaled and added in float32.
//
// A B operand is stored in lane order, as 16-byte words
//     [32 terms][16 columns][16 terms of these][high, low][lane]   b0, b1 of the even fragment, then of the odd
// followed by the inverse scale of every 32 terms and 16 columns.
#pragma once

#include "precision.cuh"

namespace turbofno {

constexpr int kLanes = 32;

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <typename P> constexpr int kPairWords = 2 * P::kPlanes * kLanes; // of 32 terms and 16 columns

// The A operand of 32 terms: high and low parts of two steps of 16, and the inverse scales of points g and g + 8.
template <typename P> struct OperandA {
    uint32_t high[2][4], low[2][4];
    float inv_scale[2];
};

// Splits fragments 2s and 2s + 1. A word has channels 16s + 4t .. + 3 of the point g (the second: g + 8), as split fields
// do: two pairs of high parts, two pairs of low parts.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void split_points(uint4 (&words)[2], const float (&values)[FRAGMENTS][4], int s, float scale) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        const float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
        split<P>(even[0], even[1], scale, words[second].x, words[second].z);
        split<P>(odd[0], odd[1], scale, words[second].y, words[second].w);
    }
}

// The largest magnitude of a warp's tile.
template <int FRAGMENTS> __device__ __forceinline__ float max_of_warp(const float (&values)[FRAGMENTS][4]) {
    float most[4] = {}; // independent
#pragma unroll
    for (auto &fragment : values) {
#pragma unroll
        for (int e = 0; e < 4; ++e) most[e] = max_magnitude(most[e], fragment[e]);
    }
    return max_of_lanes(max_magnitude(max_magnitude(most[0], most[1]), max_magnitude(most[2], most[3])));
}

// Converts four fragments (32 channels) to an A operand, with one scale per point.
template <typename P> __device__ __forceinline__ void to_operand(OperandA<P> &a, const float (&values)[4][4]) {
    Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (P::kScaled) {
        float most[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) most[e / 2] = max_magnitude(most[e / 2], values[j][e]);
        }
        scale[0] = scale_of(max_over_lanes<1, 4>(most[0]));
        scale[1] = scale_of(max_over_lanes<1, 4>(most[1]));
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) { // fragment r / 2, point g or g + 8
            const float *pair = &values[2 * step + r / 2][2 * (r % 2)];
            split<P>(pair[0], pair[1], scale[r % 2].factor, a.high[step][r], a.low[step][r]);
        }
    }
    a.inv_scale[0] = scale[0].inverse;
    a.inv_scale[1] = scale[1].inverse;
}

// values += a . b over 32 terms (the first 16 if steps = 1) for FRAGMENTS fragments. `b` is this lane's first word.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void add_product(float (&values)[FRAGMENTS][4], const OperandA<P> &a, const uint4 *b,
                                            const float *inv_scale, int steps = 2) {
    constexpr int kUnroll = 2; // four would spill registers
#pragma unroll
    for (int first = 0; first < FRAGMENTS; first += kUnroll) {
        uint4 high[2][kUnroll / 2], low[2][kUnroll / 2];
#pragma unroll
        for (int p = 0; p < kUnroll / 2; ++p) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (step == steps) break;
                const uint4 *word = b + (first / 2 + p) * kPairWords<P> + step * (P::kPlanes * kLanes);
                high[step][p] = word[0];
                if constexpr (P::kSplit) low[step][p] = word[kLanes];
            }
        }
        float part[kUnroll][4] = {};
        if constexpr (P::kSplit) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (step == steps) break;
#pragma unroll
                for (int j = 0; j < kUnroll; ++j) {
                    const uint4 h = high[step][j / 2];
                    mma<P>(part[j], a.low[step], j % 2 ? h.z : h.x, j % 2 ? h.w : h.y);
                }
#pragma unroll
                for (int j = 0; j < kUnroll; ++j) {
                    const uint4 l = low[step][j / 2];
                    mma<P>(part[j], a.high[step], j % 2 ? l.z : l.x, j % 2 ? l.w : l.y);
                }
            }
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            if (step == steps) break;
#pragma unroll
            for (int j = 0; j < kUnroll; ++j) {
                const uint4 h = high[step][j / 2];
                mma<P>(part[j], a.high[step], j % 2 ? h.z : h.x, j % 2 ? h.w : h.y);
            }
        }
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const float b_inv_scale = P::kScaled ? inv_scale[(first + j) / 2] : 1.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float &v = values[first + j][e];
                v = fmaf(part[j][e], P::kScaled ? a.inv_scale[e / 2] * b_inv_scale : 1.0f, v);
            }
        }
    }
}

} // namespace turbofno
