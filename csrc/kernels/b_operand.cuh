// B operands in shared memory, in one of two layouts: `MmaOperandB` in the lane order of mma.sync, `WgmmaOperandB` as the
// matrices that wgmma reads. Both hold the 16-byte words of warp_mma.cuh, followed by the inverse scales.
#pragma once

#include "../plan/ceil_div.h"
#include "async_copy.cuh"
#include "wgmma.cuh"

namespace turbofno {

// Index of a word: chunk of 32 terms, step of 16 of these, pair of fragments (16 columns), plane (high or low), lane.
struct WordIndex {
    int chunk, step, pair, plane, lane;
};

// The inverse scales, which follow the words of `terms` by 16 `pairs` columns.
template <typename P> __device__ __forceinline__ float *inv_scales_of(uint4 *words, int terms, int pairs) {
    return reinterpret_cast<float *>(words + ceil_div(terms, 32) * pairs * kPairWords<P>);
}

template <typename P> struct MmaOperandB {
    const uint4 *words; // first word of this lane
    const float *inv_scale;
    int pairs;

    __device__ __forceinline__ MmaOperandB(uint4 *shared, int terms, int pairs, int lane)
        : words(shared + lane), inv_scale(inv_scales_of<P>(shared, terms, pairs)), pairs(pairs) {}

    static __device__ __forceinline__ uint4 *place(uint4 *shared, int pairs, const WordIndex &at) {
        return shared + (at.chunk * pairs + at.pair) * kPairWords<P> + (at.step * P::kPlanes + at.plane) * kLanes + at.lane;
    }

    static __device__ __forceinline__ void put(uint4 *shared, int pairs, const WordIndex &at, uint4 word) {
        *place(shared, pairs, at) = word;
    }

    // The same for a word in global memory; zeros if it does not exist.
    static __device__ __forceinline__ void copy(uint4 *shared, int pairs, const WordIndex &at, const uint4 *from, bool exists) {
        copy_async<16>(place(shared, pairs, at), from, exists);
    }

    // values += a . b over the 32 terms of a chunk (the first 16 if steps = 1), from column 16 `pair` on.
    template <int FRAGMENTS>
    __device__ __forceinline__ void add(float (&values)[FRAGMENTS][4], const OperandA<P> &a, int chunk, int pair,
                                        int steps = 2) const {
        const int block = chunk * pairs + pair;
        add_product<P>(values, a, words + block * kPairWords<P>, inv_scale + block, steps);
    }
};

template <typename P> struct WgmmaOperandB {
    unsigned first; // lower half of the first matrix's descriptor
    const float *inv_scale;
    int pairs;

    __device__ __forceinline__ WgmmaOperandB(uint4 *shared, int terms, int pairs, int)
        : first(descriptor_low(shared_address(shared), 2 * pairs * kMatrixBytes)),
          inv_scale(inv_scales_of<P>(shared, terms, pairs)), pairs(pairs) {}

    // Offset of a matrix in 4-byte words, with `fragments` matrices side by side.
    static __device__ __forceinline__ int matrix(int fragments, int step, int plane, int half, int fragment) {
        return (((step * P::kPlanes + plane) * 2 + half) * fragments + fragment) * kLanes;
    }

    // Place of each of a word's four values.
    static __device__ __forceinline__ uint32_t *place(uint4 *shared, int pairs, const WordIndex &at, int value) {
        auto *to = reinterpret_cast<uint32_t *>(shared) + at.lane;
        return to + matrix(2 * pairs, 2 * at.chunk + at.step, at.plane, value % 2, 2 * at.pair + value / 2);
    }

    static __device__ __forceinline__ void put(uint4 *shared, int pairs, const WordIndex &at, uint4 word) {
        *place(shared, pairs, at, 0) = word.x;
        *place(shared, pairs, at, 1) = word.y;
        *place(shared, pairs, at, 2) = word.z;
        *place(shared, pairs, at, 3) = word.w;
    }

    static __device__ __forceinline__ void copy(uint4 *shared, int pairs, const WordIndex &at, const uint4 *from, bool exists) {
        const auto *values = reinterpret_cast<const uint32_t *>(from);
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async<4>(place(shared, pairs, at, i), values + i, exists);
    }

    template <int FRAGMENTS>
    __device__ __forceinline__ void add(float (&values)[FRAGMENTS][4], const OperandA<P> &a, int chunk, int pair,
                                        int steps = 2) const {
        // a branch around single wgmma would serialise them
        if (steps == 1) {
            add_steps<1>(values, a, chunk, pair);
        } else {
            add_steps<2>(values, a, chunk, pair);
        }
    }

    template <int STEPS, int FRAGMENTS>
    __device__ __forceinline__ void add_steps(float (&values)[FRAGMENTS][4], const OperandA<P> &a, int chunk, int pair) const {
        constexpr int kWgmmaFragments = FRAGMENTS < 4 ? FRAGMENTS : 4; // per wgmma; more would spill registers
        const unsigned plane = 2 * 2 * pairs * kMatrixWords, step = plane * P::kPlanes;
#pragma unroll
        for (int from = 0; from < FRAGMENTS; from += kWgmmaFragments) {
            const unsigned b = first + 2 * chunk * step + (2 * pair + from) * kMatrixWords;
            float part[kWgmmaFragments][4];
            start_product<P, STEPS>(part, a.high, a.low, b, step, plane);
            wgmma_wait(part);
#pragma unroll
            for (int j = 0; j < kWgmmaFragments; ++j) {
                const float b_inv_scale = P::kScaled ? inv_scale[chunk * pairs + pair + (from + j) / 2] : 1.0f;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float &v = values[from + j][e];
                    v = fmaf(part[j][e], P::kScaled ? a.inv_scale[e / 2] * b_inv_scale : 1.0f, v);
                }
            }
        }
    }
};

} // namespace turbofno
