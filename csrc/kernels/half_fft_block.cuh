// Arguments of half_fft, and what its kernels share: the lane's place, butterflies over tiles.
#pragma once

#include "../plan/half_fft_plan.h"
#include "half_fft_tile.cuh"
#include "pdl.cuh"
#include "radix.cuh"

namespace turbofno {

struct HalfFftArguments {
    const uint32_t *in; // complex values
    uint32_t *out;
    const uint4 *table;
    int64_t lines;
    int64_t in_outer, in_inner, in_point, out_outer, out_inner, out_point;
    Quotient by_inner; // columns: of blocks
    float shares[3];
    float turns; // 1 / twiddle_points, or 0 without twiddles
    bool inverse;
};

// Row and column of a fragment of mma.
struct Lane {
    int g, t;

    __device__ __forceinline__ Lane() : g(int(threadIdx.x % 32) / 4), t(int(threadIdx.x) % 4) {}
};

constexpr int kTileWords = kTileBytes / 16;

// Offset of a line.
__device__ __forceinline__ int64_t line_offset(const HalfFftArguments &a, int64_t line, int64_t outer, int64_t inner) {
    const unsigned o = a.by_inner(unsigned(line));
    return o * outer + (unsigned(line) - o * a.by_inner.by) * inner;
}

// Transforms tiles with matrices in global memory, and their results at the same frequency with each other.
template <int POINTS, int TILES>
__device__ __forceinline__ void transform_tiles(const HalfTile<POINTS> &tile, float2 (&z)[TILES][2][4],
                                                const uint32_t (&values)[TILES][2][4], const uint4 *table) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
        RootMatrix roots[2];
        load_matrices(roots, table + kTileWords, j);
        tile.transform(z[j], values[j], roots);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float2 x[TILES];
#pragma unroll
            for (int j = 0; j < TILES; ++j) x[j] = z[j][h][i];
            dft(x, [&](auto k, float2 value) { z[k][h][i] = value; });
        }
    }
}

} // namespace turbofno
