// The A operand of analyze_rows: a warp's values of a chunk, scaled, split and transposed in registers, and its product with
// the table.
#pragma once

#include "analyze_rows_pipeline.cuh"

namespace turbofno {

#ifdef TURBOFNO_WGMMA_ENABLED

// A warp's part of a chunk, 16 channels of 64 points, in the order of warp_mma.cuh: lane (g, t) has the channels 4t .. 4t + 3
// of the points g and g + 8 of every 16.
struct ChunkValues {
    float4 values[kChunkSteps][2];

    // Points and channels that do not exist become zeros.
    template <typename Field>
    __device__ __forceinline__ void load(const char *from, int point_bytes, int points, int channels, int lane) {
        const int channel = 4 * (lane % 4), first = lane / 4;
        const bool exists = channel < channels;
        from += first * point_bytes + channel * int(sizeof(Field));
#pragma unroll
        for (int i = 0; i < 2 * kChunkSteps; ++i) {
            float4 &to = values[i / 2][i % 2];
            to = float4{0.0f, 0.0f, 0.0f, 0.0f};
            if (exists && first + 8 * i < points) to = load_four(reinterpret_cast<const Field *>(from + 8 * i * point_bytes));
        }
    }

    // The largest magnitude of the warp's values.
    __device__ __forceinline__ float largest() const {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * kChunkSteps; ++i) {
            const float4 &v = values[i / 2][i % 2];
            most = max_magnitude(max_magnitude(max_magnitude(max_magnitude(most, v.x), v.y), v.z), v.w);
        }
        // magnitudes are ordered as their bits are, NaN above all others
        return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
    }
};

// The values split and transposed: A operands of wgmma, rows are channels.
template <typename P> struct ChunkOperand {
    uint32_t high[kChunkSteps][4], low[kChunkSteps][4];

    __device__ __forceinline__ void take(const ChunkValues &from, float scale) {
#pragma unroll
        for (int step = 0; step < kChunkSteps; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) { // rows of fragment r % 2, points of half r / 2
                const float4 &v = from.values[step][r / 2];
                split<P>(r % 2 ? v.z : v.x, r % 2 ? v.w : v.y, scale, high[step][r], low[step][r]);
                high[step][r] = transpose_8x8(high[step][r]);
                if constexpr (P::kSplit) low[step][r] = transpose_8x8(low[step][r]);
            }
        }
    }

    // Starts part = values . table. `table` is the shared address of the chunk's table.
    template <int FRAGMENTS> __device__ __forceinline__ void multiply(float (&part)[FRAGMENTS][4], unsigned table) {
        constexpr unsigned kPlane = 2 * kMatrixWords, kNext = P::kPlanes * kPlane;
        keep();
        start_product<P, kChunkSteps>(part, high, low, descriptor_low(table, kMatrixBytes), kNext, kPlane,
                                      kTableFragmentBytes<P> / 16);
    }

    // Holds the values in their registers. Call after the wait for the product, too: until then it reads them.
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int i = 0; i < 4 * kChunkSteps; ++i) {
            asm volatile("" : "+r"(high[i / 4][i % 4])::"memory");
            if constexpr (P::kSplit) asm volatile("" : "+r"(low[i / 4][i % 4])::"memory");
        }
    }
};

#endif

} // namespace turbofno
