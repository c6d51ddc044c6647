// Products of transform_axis: a k-tile folded, in[j] +- in[-j], and split as B operands, times the table of cosines and sines.
#pragma once

#include "split_tf32.cuh"
#include "transform_axis_load.cuh"

namespace turbofno {

// Column n = lane / 4 of both groups, at term t = lane % 4.
__device__ __forceinline__ float4 read(const float4 *terms) {
    const int n = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float2 a = reinterpret_cast<const float2 *>(terms + swizzled(t, n / 2))[n % 2];
    const float2 b = reinterpret_cast<const float2 *>(terms + swizzled(t, 4 + n / 2))[n % 2];
    return float4{a.x, a.y, b.x, b.y};
}

struct OperandB { // 8 terms: fragments (re, im) of the first column, (re, im) of the second
    uint32_t high[4][2], low[4][2];
};

template <bool SPLIT> __device__ __forceinline__ OperandB operand_b(float4 first, float4 second) {
    const float values[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
    OperandB b;
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const Tf32Parts value = to_tf32<SPLIT>(values[e][f]);
            b.high[f][e] = value.high;
            b.low[f][e] = value.low;
        }
    }
    return b;
}

inline __device__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
inline __device__ float4 minus(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }

template <bool SPLIT> __device__ __forceinline__ void fold(OperandB &even, OperandB &odd, const KTile &step) {
    const float4 positive[2] = {read(step[0][0]), read(step[1][0])};
    const float4 negative[2] = {read(step[0][1]), read(step[1][1])};
    even = operand_b<SPLIT>(plus(positive[0], negative[0]), plus(positive[1], negative[1]));
    odd = operand_b<SPLIT>(minus(positive[0], negative[0]), minus(positive[1], negative[1]));
}

template <bool SPLIT>
__device__ __forceinline__ void add_product(float (&sum)[4][4], const uint4 *table, const OperandB &b) {
    const uint4 h = table[0], l = SPLIT ? table[32] : uint4{};
    const uint32_t high[4] = {h.x, h.y, h.z, h.w}, low[4] = {l.x, l.y, l.z, l.w};
    float part[4][4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) { // small products first; independent ones interleaved
#pragma unroll
        for (int f = 0; f < 4; ++f) {
            mma(part[f], product == 0 ? low : high, product == 1 ? b.low[f] : b.high[f]);
        }
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][e] += part[f][e];
    }
}

} // namespace turbofno
