// The three precisions of real matrix products on half-precision tensor cores.
//
// fp32: a value is scaled by a power of two and split into two float16 values, value = high + low with
// |low| <= 2^-11 |value|. Three products are summed, low.high + high.low + high.high; the omitted one is about 2^-22. The
// scale puts the largest value that shares it between 2^14 and 2^15, where the split's error is 2^-39 of that value.
// tf32: high.high only; float16 has as many significant bits as TF32. bf16: one product of bfloat16 values, no scales.
//
// Operand layout of mma.m16n8k16, g = lane / 4, t = lane % 4; a register holds two neighbouring terms:
//     A    (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)   of 16 rows, 16 terms
//     B    (2t, g), (2t + 8, g)                                 of 16 terms, 8 columns
//     sum  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)   of 16 rows, 8 columns
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace turbofno {

struct PrecisionFp32 {
    using Field = float;
    static constexpr bool kSplit = true, kScaled = true;
    static constexpr int kPlanes = 2; // of an operand: high and low
};
struct PrecisionTf32 {
    using Field = float;
    static constexpr bool kSplit = false, kScaled = true;
    static constexpr int kPlanes = 1;
};
struct PrecisionBf16 {
    using Field = __nv_bfloat16;
    static constexpr bool kSplit = false, kScaled = false;
    static constexpr int kPlanes = 1;
};

__device__ __forceinline__ uint32_t word(__half2 pair) { return *reinterpret_cast<uint32_t *>(&pair); }
__device__ __forceinline__ uint32_t word(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t *>(&pair); }

// The larger magnitude. Propagates NaN, which fmaxf would drop.
__device__ __forceinline__ float max_magnitude(float magnitude, float value) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(magnitude), "f"(fabsf(value)));
    return result;
}

// The largest magnitude over the lanes that differ in the bits FROM .. TO / 2 only.
template <int FROM, int TO> __device__ __forceinline__ float max_over_lanes(float magnitude) {
#pragma unroll
    for (int bit = FROM; bit < TO; bit *= 2) {
        magnitude = max_magnitude(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, bit));
    }
    return magnitude;
}

// The largest magnitude over all lanes. Magnitudes compare as their bits do, NaN above all others.
__device__ __forceinline__ float max_of_lanes(float magnitude) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(magnitude)));
}

// The power of two that scales a largest magnitude to 2^14 .. 2^15, and its inverse. The scale is NaN if the magnitude is
// not finite, so that all products with it are NaN.
struct Scale {
    float factor, inverse;
};

__device__ __forceinline__ Scale scale_of(float magnitude) {
    const unsigned exponent = __float_as_uint(magnitude) >> 23;
    const unsigned to = min(268u - exponent, 253u); // both 2^to and 2^-to are normal numbers
    const float nan_if_not_finite = exponent == 255u ? __uint_as_float(0x7fffffffu) : 0.0f;
    return {__uint_as_float(to << 23) + nan_if_not_finite, __uint_as_float((254u - to) << 23)};
}

// Replaces non-finite values by NaN.
__device__ __forceinline__ uint32_t finite_or_nan(__nv_bfloat162 pair) {
    return word(__hfma2(pair, __floats2bfloat162_rn(0.0f, 0.0f), pair));
}

template <typename P>
__device__ __forceinline__ void split(float a, float b, float scale, uint32_t &high, uint32_t &low) {
    if constexpr (P::kScaled) {
        a *= scale;
        b *= scale;
        const __half2 pair = __floats2half2_rn(a, b);
        high = word(pair);
        if constexpr (P::kSplit) {
            const float2 rounded = __half22float2(pair);
            low = word(__floats2half2_rn(a - rounded.x, b - rounded.y));
        }
    } else {
        high = finite_or_nan(__floats2bfloat162_rn(a, b));
    }
}

// The values of a pair of scaled float16 parts.
__device__ __forceinline__ float2 joined(uint32_t high, uint32_t low) {
    const float2 h = __half22float2(*reinterpret_cast<const __half2 *>(&high));
    const float2 l = __half22float2(*reinterpret_cast<const __half2 *>(&low));
    return {h.x + l.x, h.y + l.y};
}

template <typename P>
__device__ __forceinline__ void mma(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (P::kScaled) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// Transposes an 8 x 8 matrix of halves, one row per four lanes.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t halves) {
    uint32_t result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(halves));
    return result;
}

} // namespace turbofno
