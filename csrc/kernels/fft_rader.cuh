// Transforms of a prime size p as a cyclic convolution of p - 1 points (Rader).
//
// The points m > 0 are powers of one of them modulo p, and so are the products m k in the exponent: result k is x[0] plus a
// convolution of the points with the roots of unity. p - 1 = A B with coprime factors, so that every point is one of order A
// to a power i < A times one of order B to a power j < B, and the convolution has two axes, of A and of B points, without
// twiddles between them. Its spectrum is the transform over both axes times the transform of the roots, which the table has,
// divided by p - 1. A second transform leads back, in the reverse order: that is the order of the results if the roots
// were taken in theirs, so that result k is found where point k was.
//
// A thread has one butterfly of one line: A points, then B of them twice with the product between, then A again. Values are
// in their order in shared memory before and after. Between, value (i, j) is at 1 + i B + j, and value 0 stays. Half a warp has
// the same butterfly of 16 lines: their distance is odd, and no two of its threads read the same bank, whatever the points.
#pragma once

#include "fft_block.cuh"
#include "radix.cuh"

namespace turbofno {

// The points (i, j) of one j, from the table.
template <int A, int B> __device__ __forceinline__ void points_of(const FftArguments &a, int j, int (&point)[A]) {
    static_assert(A % 2 == 0 && A < B, "points are read in pairs, and every thread has a j");
    const int2 *const pairs = reinterpret_cast<const int2 *>(a.table + A * B) + j * (A / 2);
#pragma unroll
    for (int i = 0; i < A / 2; ++i) {
        const int2 pair = pairs[i];
        point[2 * i] = pair.x;
        point[2 * i + 1] = pair.y;
    }
}

// Transforms over i, of the points.
template <int A, int B, int BLOCKS>
__device__ __forceinline__ void transform_points(const FftBlock<ConvolvedSize<A, B, BLOCKS>> &block, float2 *values, int j) {
    float2 x[A];
    int point[A];
    points_of<A, B>(block.a, j, point);
#pragma unroll
    for (int i = 0; i < A; ++i) x[i] = values[point[i]];
    __syncthreads();
    if (block.p.in.access == kFftComplex) {
#pragma unroll
        for (int i = 0; i < A; ++i) x[i].y *= block.a.in_sign;
        if (j == 0) values[0].y *= block.a.in_sign;
    }
    dft(x, [&](auto i, float2 v) { values[1 + i * B + j] = v; });
}

// Transforms over j, the product with the spectrum of the roots, and transforms over j again. The first value of the whole
// spectrum is the sum of all points but point 0, which is added to all results there.
template <int A, int B, int BLOCKS>
__device__ __forceinline__ void convolve(const FftBlock<ConvolvedSize<A, B, BLOCKS>> &block, float2 *values, int i) {
    if (i >= A) return;
    float2 *const here = values + 1 + i * B;
    const float2 *const spectrum = block.a.table + i * B;
    float2 x[B];
#pragma unroll
    for (int j = 0; j < B; ++j) x[j] = here[j];
    dft_in_place(x);
    const float2 sum = x[0];
#pragma unroll
    for (int j = 0; j < B; ++j) x[j] = product(x[j], spectrum[j]);
    if (i == 0) {
        const float2 first = values[0];
        x[0] = x[0] + first;
        values[0] = sum + first;
    }
    dft(x, [&](auto j, float2 v) { here[j] = v; });
}

// Transforms over i, to the results.
template <int A, int B, int BLOCKS>
__device__ __forceinline__ void transform_to_results(const FftBlock<ConvolvedSize<A, B, BLOCKS>> &block, float2 *values, int j) {
    float2 x[A];
#pragma unroll
    for (int i = 0; i < A; ++i) x[i] = values[1 + i * B + j];
    __syncthreads();
    int point[A];
    points_of<A, B>(block.a, j, point);
    dft(x, [&](auto i, float2 v) { values[point[i]] = v; });
}

template <int A, int B, int BLOCKS>
__device__ __forceinline__ void run_stages(const FftBlock<ConvolvedSize<A, B, BLOCKS>> &block) {
    const int line = int(threadIdx.x % kConvolvedLines), index = int(threadIdx.x / kConvolvedLines);
    float2 *const values = block.values + line * ConvolvedSize<A, B, BLOCKS>::size();
    transform_points(block, values, index);
    __syncthreads();
    convolve(block, values, index);
    __syncthreads();
    transform_to_results(block, values, index);
}

} // namespace turbofno
