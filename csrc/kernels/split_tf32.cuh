// Real products on TF32 tensor cores, of operands split into two TF32 numbers or rounded to one.
//
// Split: value = high + low with |low| <= 2^-11 |value|, and three products, low.high + high.low + high.high; the omitted
// one is about 2^-22. Tensor cores truncate when they accumulate, a bias that grows with the number of terms. So every
// product starts from zero and is added in float32.
//
// Operand layout of mma.m16n8k8, g = lane / 4, t = lane % 4:
//     A    (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)       of 16 rows, 8 terms
//     B    (t, g), (t + 4, g)                                   of 8 terms, 8 columns
//     sum  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)   of 16 rows, 8 columns
#pragma once

#include <stdint.h>

namespace turbofno {

struct Tf32Parts {
    uint32_t high, low; // low is unused for a rounded value
};

// A non-finite value makes every product NaN.
template <bool SPLIT> __device__ __forceinline__ Tf32Parts to_tf32(float value) {
    constexpr uint32_t half = 0x1000, kept = 0xffffe000; // TF32 keeps 10 bits of the fraction; the unit truncates
    if constexpr (SPLIT) {
        const uint32_t high = (__float_as_uint(value) + half) & kept;
        return {high, __float_as_uint(value - __uint_as_float(high))}; // NaN and infinity leave NaN in low
    } else {
        uint32_t high;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(fmaf(value, 0.0f, value))); // infinity -> NaN
        return {high, 0};
    }
}

__device__ __forceinline__ uint32_t negative(uint32_t value) { return value ^ 0x80000000u; }

__device__ __forceinline__ void mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

} // namespace turbofno
