// Products of a dense DFT, folded lines by the table of cosines and sines, on wgmma or on mma.sync, and their sums.
#pragma once

#include "dense_dft_fold.cuh"
#include "wgmma.cuh"

namespace turbofno {

template <typename P> constexpr int kDftFragmentWords = kDftPlaneBytes *P::kPlanes / 16; // 16 bytes each

#ifdef TURBOFNO_WGMMA_ENABLED

// Starts part = e . cosines (PART 0) or o . sines (PART 1) of FRAGMENTS fragments.
template <int PART, typename P, int STEPS, int FRAGMENTS>
__device__ __forceinline__ void multiply(float (&part)[FRAGMENTS][4], const FoldedOperandA<P, STEPS> &a, const uint4 *table,
                                         int) {
    constexpr unsigned kPlane = 2 * kMatrixWords, kStep = P::kPlanes * kPlane;
    const unsigned b = descriptor_low(shared_address(table), kMatrixBytes) + PART * kDftSteps * kStep;
    start_product<P, STEPS>(part, a.high[PART], a.low[PART], b, kStep, kPlane, kDftFragmentWords<P>);
}

#else

// The same on mma.sync, small products first. It has ended when this returns.
template <int PART, typename P, int STEPS, int FRAGMENTS>
__device__ __forceinline__ void multiply(float (&part)[FRAGMENTS][4], const FoldedOperandA<P, STEPS> &a, const uint4 *table,
                                         int lane) {
    const auto *words = reinterpret_cast<const uint32_t *>(table) + lane; // a lane's word of each matrix
    const auto matrix = [&](int fragment, int step, int plane, int half) {
        return words[(((fragment * 2 + PART) * kDftSteps + step) * P::kPlanes * 2 + plane * 2 + half) * kLanes];
    };
#pragma unroll
    for (int j = 0; j < FRAGMENTS; ++j) {
        uint32_t b[STEPS][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) part[j][i] = 0.0f;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            b[i][0] = matrix(j, i, 0, 0);
            b[i][1] = matrix(j, i, 0, 1);
            if constexpr (P::kSplit) {
                mma<P>(part[j], a.low[PART][i], b[i][0], b[i][1]);
                mma<P>(part[j], a.high[PART][i], matrix(j, i, P::kPlanes - 1, 0), matrix(j, i, P::kPlanes - 1, 1));
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; ++i) mma<P>(part[j], a.high[PART][i], b[i][0], b[i][1]);
    }
}

#endif

// A warpgroup's sums C and S of 16 rows a warp.
template <typename P, int FRAGMENTS, int TILES> struct DftSums {
    float of[2][TILES * FRAGMENTS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto &part : of) {
#pragma unroll
            for (auto &fragment : part) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
        }
    }

    template <int PART>
    __device__ __forceinline__ void add_tile(int tile, const float (&product)[FRAGMENTS][4], const float (&inv_scale)[2]) {
#pragma unroll
        for (int j = 0; j < FRAGMENTS; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float &sum = of[PART][tile * FRAGMENTS + j][e];
                sum = fmaf(product[j][e], inv_scale[e / 2], sum);
            }
        }
    }

    // Adds a chunk's products. While the tensor cores compute one, the one before is added.
    template <int STEPS>
    __device__ __forceinline__ void add(FoldedOperandA<P, STEPS> &a, const uint4 *table, int lane) {
        float even[FRAGMENTS][4], odd[FRAGMENTS][4];
        constexpr int kTileWords = FRAGMENTS * kDftFragmentWords<P>;
        a.keep();
        multiply<0>(even, a, table, lane);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            multiply<1>(odd, a, table + tile * kTileWords, lane);
            wgmma_wait_but<1>(even);
            add_tile<0>(tile, even, a.inv_scale);
            if (tile + 1 < TILES) {
                multiply<0>(even, a, table + (tile + 1) * kTileWords, lane);
                wgmma_wait_but<1>(odd);
            } else {
                wgmma_wait(odd);
            }
            add_tile<1>(tile, odd, a.inv_scale);
        }
        a.keep();
    }
};

} // namespace turbofno
