// A operands of a dense DFT: a staged chunk is folded, x[n] +- x[N - n], then scaled and split.
#pragma once

#include "dense_dft_load.cuh"
#include "wgmma.cuh"

namespace turbofno {

constexpr int kDftSteps = kDftTerms / 16; // of a chunk, that the tensor cores take at once
constexpr float kDftTableInvScale = 0x1p-13f; // of dense_table

// Four neighbouring values of a staged row.
template <int BYTES, bool COMPLEX> struct FourValues {
    float re[4], im[4]; // im only of complex values

    __device__ __forceinline__ FourValues(const char *plane, int row, int term) {
        using Rows = StagedRows<BYTES>;
        if constexpr (BYTES == 8) {
            const float4 a = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term));
            const float4 b = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term + 2));
            re[0] = a.x, im[0] = a.y, re[1] = a.z, im[1] = a.w;
            re[2] = b.x, im[2] = b.y, re[3] = b.z, im[3] = b.w;
        } else if constexpr (!COMPLEX && BYTES == 4) {
            const float4 a = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term));
            re[0] = a.x, re[1] = a.y, re[2] = a.z, re[3] = a.w;
        } else {
            __half2 pairs[BYTES];
            if constexpr (BYTES == 4) {
                *reinterpret_cast<uint4 *>(pairs) = *reinterpret_cast<const uint4 *>(plane + Rows::at(row, term));
            } else {
                *reinterpret_cast<uint2 *>(pairs) = *reinterpret_cast<const uint2 *>(plane + Rows::at(row, term));
            }
#pragma unroll
            for (int i = 0; i < BYTES; ++i) {
                const float2 pair = __half22float2(pairs[i]);
                if constexpr (COMPLEX) {
                    re[i] = pair.x, im[i] = pair.y;
                } else {
                    re[2 * i] = pair.x, re[2 * i + 1] = pair.y;
                }
            }
        }
    }
};

// The A operands of a chunk: of e (even) and o (odd). STEPS: of its terms; a short last chunk has one.
template <typename P, int STEPS> struct FoldedOperandA {
    using Values = float[2][2][STEPS][4]; // [even, odd][row g or g + 8][step][term]

    uint32_t high[2][STEPS][4], low[2][STEPS][4];
    float inv_scale[2]; // of the rows g and g + 8, times that of the table

    template <int KIND, bool HALVES>
    __device__ __forceinline__ void load(const char *stage, int chunk, int points, int lane) {
        Values values;
        fold<KIND, HALVES>(values, stage, chunk, points, lane);
        scale_and_split(values);
    }

    template <int KIND, bool HALVES>
    static __device__ __forceinline__ void fold(Values &values, const char *stage, int chunk, int points, int lane) {
        using Source = LineSource<KIND, HALVES>;
        using Four = FourValues<Source::kBytes, DftKind<KIND>::kComplexIn>;
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int term = 16 * step + 4 * t;
            if constexpr (KIND == TURBOFNO_COMPLEX) {
                const Four here(stage, g, term), there(stage + Source::kPlaneBytes, g, term);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    values[0][0][step][i] = here.re[i] + there.re[i];
                    values[1][0][step][i] = here.re[i] - there.re[i];
                    values[0][1][step][i] = here.im[i] + there.im[i];
                    values[1][1][step][i] = here.im[i] - there.im[i];
                }
            } else {
#pragma unroll
                for (int row = 0; row < 2; ++row) {
                    const Four here(stage, g + 8 * row, term);
                    if constexpr (KIND == TURBOFNO_REAL_TO_COMPLEX) {
                        const Four there(stage + Source::kPlaneBytes, g + 8 * row, term);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            values[0][row][step][i] = here.re[i] + there.re[i];
                            values[1][row][step][i] = here.re[i] - there.re[i];
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const int k = chunk * kDftTerms + term + i;
                            values[0][row][step][i] = here.re[i];
                            values[1][row][step][i] = k == 0 || 2 * k == points ? 0.0f : here.im[i];
                        }
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void scale_and_split(const Values &values) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float most = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * STEPS * 4; ++i) {
                most = max_magnitude(most, values[i / (STEPS * 4)][row][i / 4 % STEPS][i % 4]);
            }
            const Scale scale = scale_of(max_over_lanes<1, 4>(most));
            inv_scale[row] = scale.inverse * kDftTableInvScale;
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                    for (int pair = 0; pair < 2; ++pair) {
                        const float *both = &values[part][row][step][2 * pair];
                        const int r = 2 * pair + row;
                        split<P>(both[0], both[1], scale.factor, high[part][step][r], low[part][step][r]);
                    }
                }
            }
        }
    }

    // Holds the operands in their registers: until the products have ended, wgmma reads them.
    __device__ __forceinline__ void keep() {
#ifdef TURBOFNO_WGMMA_ENABLED
#pragma unroll
        for (int i = 0; i < 2 * STEPS * 4; ++i) {
            asm volatile("" : "+r"(high[i / (STEPS * 4)][i / 4 % STEPS][i % 4])::"memory");
            if constexpr (P::kSplit) asm volatile("" : "+r"(low[i / (STEPS * 4)][i / 4 % STEPS][i % 4])::"memory");
        }
#endif
    }
};

} // namespace turbofno
