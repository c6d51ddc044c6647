// Products of a warp's tile: 16 points by all channels, points the rows of the tensor cores and channels their columns.
//
// Values are kept as the tensor cores give sums: values[j][e], fragment j of 8 channels. Which channel is which column
// is ours to choose, and so that a lane holds four neighbouring ones, of 16 channels
//     fragment 2s      column n is channel 16s + 4(n / 2) + n % 2
//     fragment 2s + 1  column n is channel 16s + 4(n / 2) + n % 2 + 2
// so lane (g, t) holds channels 16s + 4t .. 4t + 3 of the points g (elements 0, 1 of both fragments) and g + 8 (2, 3):
// one 16-byte load or store a point. Sums become the next product's A operand in the same lane, nothing moves.
//
// Tensor cores add with truncation, so a product goes 32 terms at a time, small products first, and these sums are
// scaled back and added in float32.
//
// A B operand waits in memory as the lanes take it, 16-byte words
//     [32 terms][16 columns][16 terms of these][high, low][lane]   b0, b1 of the even fragment, then of the odd
// and behind them, for every 32 terms and 16 columns, the power of two that undoes their scale.
#pragma once

#include "split.cuh"

namespace turbofno {

constexpr int kLanes = 32;

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <typename P> constexpr int kPairWords = 2 * P::kPlanes * kLanes; // of 32 terms and 16 columns

// The A operand of 32 terms: high and low parts of two steps of 16, and what undoes the scales of points g and g + 8.
template <typename P> struct Operand {
    uint32_t high[2][4], low[2][4];
    float back[2];
};

// The largest magnitude of a warp's values.
template <int FRAGMENTS> __device__ __forceinline__ float largest_of(const float (&values)[FRAGMENTS][4]) {
    float most = 0.0f;
#pragma unroll
    for (auto &fragment : values) {
#pragma unroll
        for (float v : fragment) most = largest(most, v);
    }
    return largest_of_lanes<1, 32>(most);
}

// Four fragments (32 channels) as an A operand, each point with a scale of its own.
template <typename P> __device__ __forceinline__ void to_operand(Operand<P> &a, const float (&values)[4][4]) {
    Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (P::kScaled) {
        float most[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) most[e / 2] = largest(most[e / 2], values[j][e]);
        }
        scale[0] = scale_of(largest_of_lanes<1, 4>(most[0]));
        scale[1] = scale_of(largest_of_lanes<1, 4>(most[1]));
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) { // fragment r / 2, point g or g + 8
            const float *pair = &values[2 * step + r / 2][2 * (r % 2)];
            split<P>(pair[0], pair[1], scale[r % 2].to, a.high[step][r], a.low[step][r]);
        }
    }
    a.back[0] = scale[0].back;
    a.back[1] = scale[1].back;
}

// values += a . b over 32 terms (or the first 16 of them: steps = 1) for FRAGMENTS fragments; `b` at the first of them,
// this lane's word.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void add_product(float (&values)[FRAGMENTS][4], const Operand<P> &a, const uint4 *b,
                                            const float *back, int steps = 2) {
    constexpr int kTogether = 2; // four would not leave registers for what comes next
#pragma unroll
    for (int first = 0; first < FRAGMENTS; first += kTogether) {
        uint4 high[2][kTogether / 2], low[2][kTogether / 2];
#pragma unroll
        for (int p = 0; p < kTogether / 2; ++p) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (step == steps) break;
                const uint4 *word = b + (first / 2 + p) * kPairWords<P> + step * (P::kPlanes * kLanes);
                high[step][p] = word[0];
                if constexpr (P::kSplit) low[step][p] = word[kLanes];
            }
        }
        float part[kTogether][4] = {};
        if constexpr (P::kSplit) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (step == steps) break;
#pragma unroll
                for (int j = 0; j < kTogether; ++j) {
                    const uint4 h = high[step][j / 2];
                    multiply_add<P>(part[j], a.low[step], j % 2 ? h.z : h.x, j % 2 ? h.w : h.y);
                }
#pragma unroll
                for (int j = 0; j < kTogether; ++j) {
                    const uint4 l = low[step][j / 2];
                    multiply_add<P>(part[j], a.high[step], j % 2 ? l.z : l.x, j % 2 ? l.w : l.y);
                }
            }
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            if (step == steps) break;
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                const uint4 h = high[step][j / 2];
                multiply_add<P>(part[j], a.high[step], j % 2 ? h.z : h.x, j % 2 ? h.w : h.y);
            }
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const float of_b = P::kScaled ? back[(first + j) / 2] : 1.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                values[first + j][e] = fmaf(part[j][e], P::kScaled ? a.back[e / 2] * of_b : 1.0f, values[first + j][e]);
            }
        }
    }
}

} // namespace turbofno
