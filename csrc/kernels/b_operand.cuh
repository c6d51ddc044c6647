// B operands in shared memory, in one of two orders: `LaneOperand` as the lanes of mma.sync take them, `GroupOperand` as
// wgmma reads them by itself. Both are made of the same 16-byte words (products.cuh) and have the scales behind them.
#pragma once

#include "../plan/ceil_div.h"
#include "warpgroup.cuh"

namespace turbofno {

// Where a word comes from: 32 terms, 16 of them, 16 columns, high or low part, lane.
struct WordPlace {
    int chunk, step, pair, plane, lane;
};

// Scales behind the words of `terms` by 16 `pairs` columns.
template <typename P> __device__ __forceinline__ float *backs_of(uint4 *words, int terms, int pairs) {
    return reinterpret_cast<float *>(words + ceil_div(terms, 32) * pairs * kPairWords<P>);
}

template <typename P> struct LaneOperand {
    const uint4 *words; // this lane's first
    const float *back;
    int pairs;

    __device__ __forceinline__ LaneOperand(uint4 *shared, int terms, int pairs, int lane)
        : words(shared + lane), back(backs_of<P>(shared, terms, pairs)), pairs(pairs) {}

    static __device__ __forceinline__ void put(uint4 *shared, int pairs, const WordPlace &at, uint4 word) {
        shared[(at.chunk * pairs + at.pair) * kPairWords<P> + (at.step * P::kPlanes + at.plane) * kLanes + at.lane] = word;
    }

    // values += a . b over the 32 terms of a chunk (or the first 16 of them: steps = 1), columns from 16 `pair` on.
    template <int FRAGMENTS>
    __device__ __forceinline__ void add(float (&values)[FRAGMENTS][4], const Operand<P> &a, int chunk, int pair,
                                        int steps = 2) const {
        const int block = chunk * pairs + pair;
        add_product<P>(values, a, words + block * kPairWords<P>, back + block, steps);
    }
};

template <typename P> struct GroupOperand {
    unsigned first; // descriptor of its matrices
    const float *back;
    int pairs;

    __device__ __forceinline__ GroupOperand(uint4 *shared, int terms, int pairs, int)
        : first(descriptor(shared_address(shared), 2 * pairs * kMatrixBytes)),
          back(backs_of<P>(shared, terms, pairs)), pairs(pairs) {}

    // Of `fragments` matrices side by side: the place of one, in words of four bytes.
    static __device__ __forceinline__ int matrix(int fragments, int step, int plane, int half, int fragment) {
        return (((step * P::kPlanes + plane) * 2 + half) * fragments + fragment) * kLanes;
    }

    static __device__ __forceinline__ void put(uint4 *shared, int pairs, const WordPlace &at, uint4 word) {
        auto *to = reinterpret_cast<uint32_t *>(shared) + at.lane;
        const int step = 2 * at.chunk + at.step, fragment = 2 * at.pair;
        to[matrix(2 * pairs, step, at.plane, 0, fragment)] = word.x;
        to[matrix(2 * pairs, step, at.plane, 1, fragment)] = word.y;
        to[matrix(2 * pairs, step, at.plane, 0, fragment + 1)] = word.z;
        to[matrix(2 * pairs, step, at.plane, 1, fragment + 1)] = word.w;
    }

    template <int FRAGMENTS>
    __device__ __forceinline__ void add(float (&values)[FRAGMENTS][4], const Operand<P> &a, int chunk, int pair, int = 2) const {
        constexpr int kTogether = FRAGMENTS < 4 ? FRAGMENTS : 4; // more would not leave registers for what comes next
        const unsigned plane = 2 * 2 * pairs * kMatrixWords, step = plane * P::kPlanes;
#pragma unroll
        for (int from = 0; from < FRAGMENTS; from += kTogether) {
            const unsigned b = first + 2 * chunk * step + (2 * pair + from) * kMatrixWords;
            float part[kTogether][4];
            begin_products();
            if constexpr (P::kSplit) {
#pragma unroll
                for (int i = 0; i < 2; ++i) multiply<P>(part, a.low[i], b + i * step, i > 0);
#pragma unroll
                for (int i = 0; i < 2; ++i) multiply<P>(part, a.high[i], b + i * step + plane, true);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) multiply<P>(part, a.high[i], b + i * step, P::kSplit || i > 0);
            finish_products(part);
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                const float of_b = P::kScaled ? back[chunk * pairs + pair + (from + j) / 2] : 1.0f;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float &v = values[from + j][e];
                    v = fmaf(part[j][e], P::kScaled ? a.back[e / 2] * of_b : 1.0f, v);
                }
            }
        }
    }
};

} // namespace turbofno
