// The steps of a tile program on a warp's 16 points by 8 FRAGMENTS channels, in registers (value layout: warp_mma.cuh). Lane
// t of four holds the channels 4t .. 4t + 3 of every 16.
#pragma once

#include "activations.cuh"
#include "tile_fields.cuh"
#include "warp_mma.cuh"

namespace turbofno {
namespace {

// Copies four fragments from `first` on, zero padded beyond the last.
template <int FRAGMENTS>
__device__ __forceinline__ void take_fragments(float (&four)[4][4], const float (&values)[FRAGMENTS][4], int first) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) four[j][e] = first + j < FRAGMENTS ? values[first + j < FRAGMENTS ? first + j : 0][e] : 0.0f;
    }
}

// change(y, v) for all values y and the entry v of their channel in a vector, up to channel `size`.
template <int FRAGMENTS, typename Change>
__device__ __forceinline__ void with_vector(float (&values)[FRAGMENTS][4], const float *vector, int t, int size,
                                            const Change &change) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        if (16 * s >= size) break;
        const float4 v = *reinterpret_cast<const float4 *>(vector + 16 * s + 4 * t);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            change(values[2 * s][e], e % 2 ? v.y : v.x);
            change(values[2 * s + 1][e], e % 2 ? v.w : v.z);
        }
    }
}

template <int FRAGMENTS>
__device__ __forceinline__ void set_vector(float (&values)[FRAGMENTS][4], const float *vector, int t) {
    with_vector(values, vector, t, 8 * FRAGMENTS, [](float &y, float v) { y = v; });
}

template <int FRAGMENTS>
__device__ __forceinline__ void add_vector(float (&values)[FRAGMENTS][4], const float *vector, int t, int size = 8 * FRAGMENTS) {
    with_vector(values, vector, t, size, [](float &y, float v) { y += v; });
}

template <int FRAGMENTS>
__device__ __forceinline__ void scale_by(float (&values)[FRAGMENTS][4], const float *vector, int t, int size = 8 * FRAGMENTS) {
    with_vector(values, vector, t, size, [](float &y, float v) { y *= v; });
}

// out = second . activation(first . y + shift), 32 hidden channels at a time. y has 32 kChunks channels at most.
template <typename P, int kChunks, int FRAGMENTS, int OUT, typename B>
__device__ __forceinline__ void mlp(float (&out)[OUT][4], const float (&values)[FRAGMENTS][4], const turbofno_step &step,
                                    const B &first, const B &second, const float *shift, int t) {
    OperandA<P> in[kChunks];
#pragma unroll
    for (int q = 0; q < kChunks; ++q) {
        float four[4][4];
        take_fragments(four, values, 4 * q);
        to_operand(in[q], four);
    }
#pragma unroll
    for (auto &fragment : out) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
    const auto add_first = [&](auto &to, const B &operand, int pair) {
#pragma unroll
        for (int q = 0; q < kChunks; ++q) {
            const int left = step.terms - 32 * q;
            if (left > 0) operand.add(to, in[q], q, pair, left <= 16 ? 1 : 2);
        }
    };
    if (step.hidden == 0) return add_first(out, second, 0);
#pragma unroll 1
    for (int chunk = 0; chunk < step.hidden / 32; ++chunk) {
        float hidden[4][4] = {};
        add_first(hidden, first, 2 * chunk);
        add_vector(hidden, shift + 32 * chunk, t);
        activate<P>(hidden, step.activation, step.parameter);
        OperandA<P> a;
        to_operand(a, hidden);
        second.add(out, a, chunk, 0);
    }
}

// values += weight . x, 32 channels of x at a time.
template <typename P, int FRAGMENTS, typename From, typename B>
__device__ __forceinline__ void add_map(float (&values)[FRAGMENTS][4], const From &x, int terms, const B &map) {
#pragma unroll 1
    for (int q = 0; 32 * q < terms; ++q) {
        OperandA<P> a;
        load_operand(a, x, q);
        map.add(values, a, q, 0);
    }
}

template <int FRAGMENTS, typename From>
__device__ __forceinline__ void add_gate(float (&values)[FRAGMENTS][4], const From &x, const float *weight, int t) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        x.load(points, s);
        const float4 w = *reinterpret_cast<const float4 *>(weight + 16 * s + 4 * t);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
            even[0] = fmaf(w.x, points[second].x, even[0]), even[1] = fmaf(w.y, points[second].y, even[1]);
            odd[0] = fmaf(w.z, points[second].z, odd[0]), odd[1] = fmaf(w.w, points[second].w, odd[1]);
        }
    }
}

template <int FRAGMENTS, typename From>
__device__ __forceinline__ void load_all(float (&values)[FRAGMENTS][4], const From &from) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        from.load(points, s);
        to_fragments(values[2 * s], values[2 * s + 1], points);
    }
}

template <int FRAGMENTS, typename To>
__device__ __forceinline__ void store_all(const float (&values)[FRAGMENTS][4], const To &to) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        to_points(points, values[2 * s], values[2 * s + 1]);
        to.store(s, points);
    }
}

} // namespace
} // namespace turbofno
