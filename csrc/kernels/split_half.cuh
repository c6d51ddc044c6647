// Real matrix products on tensor cores, at float32 accuracy where the precision asks for it.
//
// fp32: a value is scaled by a power of two and split into two halves, value = high + low with |low| <= 2^-11 |value|;
// three products are summed, low.high + high.low + high.high, and what is left out is about 2^-22. The scale puts the
// largest value of a tile between 2^14 and 2^15, where the split leaves an error of 2^-39 of that largest value.
// tf32: high.high alone. bf16: fields in bfloat16, one product, no scales.
//
// Tensor cores add with truncation, so the small products come first, sums start from zero every kPart terms, and
// these sums are scaled back and added in float32.
//
// mma.m16n8k16 takes its operands as follows, g = lane / 4, t = lane % 4; a register holds two neighbouring terms:
//     left   (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)   of 16 rows, 16 terms
//     right  (2t, g), (2t + 8, g)                                 of 16 terms, 8 columns
//     sum    (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)   of 16 rows, 8 columns
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace turbofno {

constexpr int kPart = 32;

__host__ __device__ constexpr int sixteens(int terms) { return int(unsigned(terms + 15) / 16u); }

struct Fp32 {
    using Field = float;
    static constexpr bool kSplit = true, kScaled = true;
};
struct Tf32 {
    using Field = float;
    static constexpr bool kSplit = false, kScaled = true;
};
struct Bf16 {
    using Field = __nv_bfloat16;
    static constexpr bool kSplit = false, kScaled = false;
};

// One 16 x 16 left operand and one pair of 16 x 8 right operands, as a lane holds them; `low` only if P::kSplit.
struct Left {
    uint32_t high[4], low[4];
};
struct Right {
    uint32_t high[2][2], low[2][2];
};

__device__ __forceinline__ uint32_t word(__half2 pair) { return *reinterpret_cast<uint32_t *>(&pair); }
__device__ __forceinline__ uint32_t word(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t *>(&pair); }

// The larger magnitude; NaN if there is one, which fmaxf would drop.
__device__ __forceinline__ float largest(float magnitude, float value) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(magnitude), "f"(fabsf(value)));
    return result;
}

// The power of two that brings a tile's largest magnitude to 2^14 .. 2^15, and its inverse; NaN if it is not finite, so
// that all the tile's products are NaN.
struct Scale {
    float to, back;
};

__device__ __forceinline__ Scale scale_of(float magnitude) {
    const unsigned exponent = __float_as_uint(magnitude) >> 23;
    const unsigned to = min(268u - exponent, 253u); // both 2^to and 2^-to are normal numbers
    const float infected = exponent == 255u ? __uint_as_float(0x7fffffffu) : 0.0f;
    return {__uint_as_float(to << 23) + infected, __uint_as_float((254u - to) << 23)};
}

// Two bfloat16 values, NaN for what is not finite.
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

template <typename P>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (P::kScaled) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// sums += left . right over 16 STEPS terms, for 16 TILES rows and 16 columns, small products first. The sums are
// independent, so they take turns.
template <typename P, int STEPS, int TILES>
__device__ __forceinline__ void chain(float (&sums)[TILES][2][4], const Left (&left)[TILES][STEPS],
                                      const Right (&right)[STEPS]) {
    if constexpr (P::kSplit) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int j = 0; j < 2 * TILES; ++j) {
                multiply_add<P>(sums[j / 2][j % 2], left[j / 2][s].low, right[s].high[j % 2]);
            }
#pragma unroll
            for (int j = 0; j < 2 * TILES; ++j) {
                multiply_add<P>(sums[j / 2][j % 2], left[j / 2][s].high, right[s].low[j % 2]);
            }
        }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int j = 0; j < 2 * TILES; ++j) {
            multiply_add<P>(sums[j / 2][j % 2], left[j / 2][s].high, right[s].high[j % 2]);
        }
    }
}

// Left operands wait in shared memory lane by lane: 16-byte words [step][high, low][lane].
template <typename P> constexpr int kLeftWords = P::kSplit ? 64 : 32;

template <typename P> __device__ __forceinline__ void store_left(uint4 *step, const Left &left) {
    const int lane = threadIdx.x % 32;
    step[lane] = {left.high[0], left.high[1], left.high[2], left.high[3]};
    if constexpr (P::kSplit) step[32 + lane] = {left.low[0], left.low[1], left.low[2], left.low[3]};
}

template <typename P> __device__ __forceinline__ void load_left(Left &left, const uint4 *step) {
    const int lane = threadIdx.x % 32;
    const uint4 high = step[lane];
    left.high[0] = high.x, left.high[1] = high.y, left.high[2] = high.z, left.high[3] = high.w;
    if constexpr (P::kSplit) {
        const uint4 low = step[32 + lane];
        left.low[0] = low.x, left.low[1] = low.y, left.low[2] = low.z, left.low[3] = low.w;
    }
}

// Tables are split beforehand and wait lane by lane too (turbofno_ops/_cuda_tables.py): for each pair of right
// operands, fp32 and tf32 find the 16-byte words [column][lane] (high, high, low, low), bf16 [lane]. SHARED: in shared
// memory.
template <typename P> constexpr int kRightWords = P::kScaled ? 64 : 32;

template <bool SHARED, typename T> __device__ __forceinline__ T load_word(const T *from) {
    if constexpr (SHARED) return *from;
    return __ldg(from);
}

template <typename P, bool SHARED> __device__ __forceinline__ void load_right(Right &right, const uint4 *pair) {
    const int lane = threadIdx.x % 32;
    if constexpr (P::kSplit) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const uint4 words = load_word<SHARED>(pair + 32 * c + lane);
            right.high[c][0] = words.x, right.high[c][1] = words.y;
            right.low[c][0] = words.z, right.low[c][1] = words.w;
        }
    } else if constexpr (P::kScaled) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const uint2 words = load_word<SHARED>(reinterpret_cast<const uint2 *>(pair + 32 * c + lane));
            right.high[c][0] = words.x, right.high[c][1] = words.y;
        }
    } else {
        const uint4 words = load_word<SHARED>(pair + lane);
        right.high[0][0] = words.x, right.high[0][1] = words.y, right.high[1][0] = words.z, right.high[1][1] = words.w;
    }
}

// A pair of right operands out of a tile [terms][columns] of halves in shared memory; `address` is the lane's, of the
// row `lane % 8 + lane / 8 % 2 * 8` and column `lane / 16 * 8` of the pair. Neighbouring rows should lie an odd number
// of 16-byte words apart.
__device__ __forceinline__ void load_matrices(uint32_t (&pair)[2][2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pair[0][0]), "=r"(pair[0][1]), "=r"(pair[1][0]), "=r"(pair[1][1])
                 : "r"(address)
                 : "memory");
}

} // namespace turbofno
