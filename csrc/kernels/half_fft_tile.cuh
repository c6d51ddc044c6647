// A tile of a float16 transform on tensor cores: 256 points of a line, or two lines of 128, in the registers of a warp.
//
// A product with a matrix of roots sums over digit a of point 16 a + b (of 128 points: 8 a + b) and gives frequency
// p = 0 .. 15. After twiddles a second product sums over b and gives q. The result is at p + 16 q. The roots are A operands
// (precision.cuh), the values are B operands. Roots are permuted so that the first product's sums are the second one's B operand in
// the same lane:
//     lane (g, t) has of fragment f, column g, the values of a = t, t + 4, t + 8, t + 12
//     and of the results p = 4 t .. 4 t + 3, q = g and q = g + 8: 16 bytes each, next to those of the next lane
// Values are rounded to float16 where a product takes them. Sums, twiddles and factors are float32.
//
// The inverse exchanges real and imaginary parts before and after.
#pragma once

#include "complex.cuh"
#include "precision.cuh"

namespace turbofno {

using Float16Product = PrecisionTf32; // whose operands are float16, too

// Real and imaginary parts of 16 x 16 roots.
struct RootMatrix {
    uint32_t real[4], imag[4];
};

__device__ __forceinline__ uint32_t negative(uint32_t pair) { return pair ^ 0x80008000u; }

__device__ __forceinline__ uint32_t scaled(uint32_t pair, __half2 factor) {
    return word(__hmul2(*reinterpret_cast<const __half2 *>(&pair), factor));
}

__device__ __forceinline__ uint32_t half_pair(float2 z) { return word(__floats2half2_rn(z.x, z.y)); }

// Adds a complex product: real and imaginary parts of 16 terms of 8 columns.
__device__ __forceinline__ void add_product(float (&real)[4], float (&imag)[4], const RootMatrix &roots, const uint32_t (&r)[2],
                                            const uint32_t (&i)[2]) {
    mma<Float16Product>(real, roots.real, r[0], r[1]);
    mma<Float16Product>(imag, roots.real, i[0], i[1]);
    mma<Float16Product>(real, roots.imag, negative(i[0]), negative(i[1]));
    mma<Float16Product>(imag, roots.imag, r[0], r[1]);
}

// A line of POINTS has tiles: tile j has the points that are j modulo their number. Its result k is multiplied by
// exp(-2 pi i j k / POINTS), by factors that are part of its matrices.
//
// The table (turbofno_ops/fft/_tables.py), in words of 16 bytes: twiddles [4][lane], then of each tile [real and imaginary part of
// the first matrix, of the second][lane].
template <int POINTS> struct HalfTile {
    static constexpr bool kTwoLines = POINTS == 128;

    float2 twiddle[2][2][2]; // [half of the rows of the first product][fragment][neighbouring columns]
    uint32_t real_of, imag_of, stored_as; // selectors of __byte_perm

    // `factor` multiplies what the first product gives.
    __device__ __forceinline__ HalfTile(const uint4 *table, float factor, bool inverse)
        : real_of(inverse ? 0x7632 : 0x5410), imag_of(inverse ? 0x5410 : 0x7632), stored_as(inverse ? 0x1032 : 0x3210) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float4 w = __ldg(reinterpret_cast<const float4 *>(table) + 32 * n + threadIdx.x % 32);
            twiddle[n / 2][n % 2][0] = {w.x * factor, w.y * factor};
            twiddle[n / 2][n % 2][1] = {w.z * factor, w.w * factor};
        }
    }

    // values[f][i] of a = 4 i + t, column g of fragment f. Result [h][i] is p = 4 t + i of q = g + 8 h; of two lines, q = g of line h.
    __device__ __forceinline__ void transform(float2 (&result)[2][4], const uint32_t (&values)[2][4],
                                              const RootMatrix (&roots)[2]) const {
        float real[2][4] = {}, imag[2][4] = {};
#pragma unroll
        for (int f = 0; f < 2; ++f) {
            uint32_t r[2], i[2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                r[n] = __byte_perm(values[f][2 * n], values[f][2 * n + 1], real_of);
                i[n] = __byte_perm(values[f][2 * n], values[f][2 * n + 1], imag_of);
            }
            add_product(real[f], imag[f], roots[0], r, i);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t r[2], i[2];
#pragma unroll
            for (int f = 0; f < 2; ++f) {
                const float2 z0 = product({real[f][2 * half], imag[f][2 * half]}, twiddle[half][f][0]);
                const float2 z1 = product({real[f][2 * half + 1], imag[f][2 * half + 1]}, twiddle[half][f][1]);
                r[f] = half_pair({z0.x, z1.x});
                i[f] = half_pair({z0.y, z1.y});
            }
            sum_low_digits(result, half, roots[1], r, i);
        }
    }

    // A result as it is stored.
    __device__ __forceinline__ uint32_t stored(float2 z, float factor) const {
        return __byte_perm(half_pair({z.x * factor, z.y * factor}), 0, stored_as);
    }

    // The same of p .. p + 3.
    __device__ __forceinline__ uint4 stored(const float2 (&z)[4], float factor) const {
        return {stored(z[0], factor), stored(z[1], factor), stored(z[2], factor), stored(z[3], factor)};
    }

  private:
    // The second product; of two lines one for each, since an infinite value of one must not reach the other.
    static __device__ __forceinline__ void sum_low_digits(float2 (&result)[2][4], int half, const RootMatrix &roots,
                                                          const uint32_t (&r)[2], const uint32_t (&i)[2]) {
        if constexpr (kTwoLines) {
#pragma unroll
            for (int line = 0; line < 2; ++line) {
                float x[4] = {}, y[4] = {};
                add_product(x, y, roots, {r[line], 0}, {i[line], 0});
                result[line][2 * half] = {x[0], y[0]};
                result[line][2 * half + 1] = {x[1], y[1]};
            }
        } else {
            float x[4] = {}, y[4] = {};
            add_product(x, y, roots, r, i);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                result[h][2 * half] = {x[2 * h], y[2 * h]};
                result[h][2 * half + 1] = {x[2 * h + 1], y[2 * h + 1]};
            }
        }
    }
};

// The matrices of tile j; `words`: of the table behind its twiddles, in global or shared memory.
__device__ __forceinline__ void load_matrices(RootMatrix (&roots)[2], const uint4 *words, int j) {
    const uint4 *mine = words + 128 * j + threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const uint4 r = mine[64 * n], i = mine[64 * n + 32];
        roots[n].real[0] = r.x, roots[n].real[1] = r.y, roots[n].real[2] = r.z, roots[n].real[3] = r.w;
        roots[n].imag[0] = i.x, roots[n].imag[1] = i.y, roots[n].imag[2] = i.z, roots[n].imag[3] = i.w;
    }
}

} // namespace turbofno
