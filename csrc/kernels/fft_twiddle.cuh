// Twiddle factors of a mixed-radix transform: between its stages, powers of one root from a table; between the two steps of
// a long axis, sines and cosines.
#pragma once

#include "complex.cuh"
#include "fft_block.cuh"
#include "radix.cuh"

namespace turbofno {

// Multiplies value r of a butterfly by root `index` to the power of r. Powers 1, 2, 4, 8 and 16 are read from the table,
// others are products of at most three.
template <int R> __device__ __forceinline__ void twiddle(const float2 *table, float2 (&x)[R], int index) {
    const float2 w1 = __ldg(table + index);
    float2 near[4] = {{}, w1, {}, {}};
    x[1] = product(x[1], w1);
    if constexpr (R > 2) {
        near[2] = __ldg(table + 2 * index);
        x[2] = product(x[2], near[2]);
    }
    if constexpr (R > 3) {
        near[3] = product(w1, near[2]);
        x[3] = product(x[3], near[3]);
    }
    float2 far[2] = {}; // powers 4 and 8
    unrolled<1, (R + 3) / 4>([&](auto y) {
        float2 w;
        if constexpr (y == 3) {
            w = product(far[0], far[1]);
        } else {
            w = __ldg(table + 4 * y * index);
            if (y < 3) far[y - 1] = w;
        }
        x[4 * y] = product(x[4 * y], w);
        unrolled<1, 4>([&](auto n) {
            if constexpr (4 * y + n < R) x[4 * y + n] = product(x[4 * y + n], product(w, near[n]));
        });
    });
}

// exp(2 pi i r / n), by an exact quotient of the nearest quarter turn
inline __device__ float2 phase(int64_t r, int64_t n) {
    const int quarters = int(rintf(4.0f * (float(r) / float(n))));
    const int64_t rest = 4 * r - quarters * n;
    float2 z;
    sincospif(0.5f * (float(rest) / float(n)), &z.y, &z.x);
    switch (quarters % 4) {
    case 1: return {-z.y, z.x};
    case 2: return {-z.x, -z.y};
    case 3: return {z.y, -z.x};
    default: return z;
    }
}

// The factor of result q of a line between the two steps of a long axis.
template <typename Shape> __device__ __forceinline__ float2 factor(const FftBlock<Shape> &block, int64_t line, int q) {
    const FftPlan &p = block.p;
    const int64_t i = line - int64_t(p.by_inner(unsigned(line))) * p.by_inner.by;
    const int64_t r = i * q;
    const float2 w = phase(r < p.twiddle_points ? r : r % p.twiddle_points, p.twiddle_points);
    return {w.x, -block.a.out_sign * w.y};
}

// Multiplies results index + r step of a line by their factors. Few of these need a sine and a cosine.
template <int R, typename Shape>
__device__ __forceinline__ void twiddle_results(const FftBlock<Shape> &block, float2 (&v)[R], int64_t line, int index,
                                                int step) {
    const float2 first = factor(block, line, index), by1 = factor(block, line, step), by2 = factor(block, line, 2 * step);
    const float2 near[4] = {first, product(first, by1), product(first, by2), product(first, product(by1, by2))};
    unrolled<0, (R + 3) / 4>([&](auto y) {
        const float2 w = y == 0 ? float2{} : factor(block, line, 4 * y * step);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (4 * y + n < R) v[4 * y + n] = product(v[4 * y + n], y == 0 ? near[n] : product(w, near[n]));
        }
    });
}

} // namespace turbofno
