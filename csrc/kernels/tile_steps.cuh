// The steps of a tile program on a warp's 16 points by 8 FRAGMENTS channels, in registers (value layout: warp_mma.cuh). Lane
// t of four holds the channels 4t .. 4t + 3 of every 16.
#pragma once

#include "../plan/tile_programs.h"
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

// A tile as A operands of 32 channels each, for products with matrices of at most 32 CHUNKS input channels.
template <typename P, int CHUNKS> struct TileOperand {
    OperandA<P> chunks[CHUNKS];

    template <int FRAGMENTS> __device__ __forceinline__ explicit TileOperand(const float (&values)[FRAGMENTS][4]) {
#pragma unroll
        for (int q = 0; q < CHUNKS; ++q) {
            float four[4][4];
            take_fragments(four, values, 4 * q);
            to_operand(chunks[q], four);
        }
    }

    // values += weight . y for the columns from 16 `pair` on.
    template <int FRAGMENTS, typename B>
    __device__ __forceinline__ void add(float (&values)[FRAGMENTS][4], const B &weight, int terms, int pair) const {
#pragma unroll
        for (int q = 0; q < CHUNKS; ++q) {
            const int left = terms - 32 * q;
            if (left > 0) weight.add(values, chunks[q], q, pair, left <= 16 ? 1 : 2);
        }
    }
};

// A chunk of 32 hidden channels, activation(first . y + shift).
template <typename P, int CHUNKS, typename B>
__device__ __forceinline__ void make_hidden(float (&hidden)[4][4], int chunk, const TileOperand<P, CHUNKS> &y,
                                            const turbofno_step &step, const B &first, const float *shift, int t) {
    set_vector(hidden, shift + 32 * chunk, t);
    y.add(hidden, first, step.terms, 2 * chunk);
    activate<P>(hidden, step.activation, step.parameter);
}

// out = second . activation(first . y + shifts) + second shift, or second . y + second shift without hidden channels. y has
// 32 CHUNKS channels at most. `shifts` are those of the hidden channels, then the second shift.
template <typename P, int CHUNKS, int FRAGMENTS, int OUT, typename B>
__device__ __forceinline__ void mlp(float (&out)[OUT][4], const float (&values)[FRAGMENTS][4], const turbofno_step &step,
                                    const B &first, const B &second, const float *shifts, int t) {
    const TileOperand<P, CHUNKS> y(values);
    // One chunk: `out` takes no registers before it is needed. It begins as the shift, not as zeros: of two products whose unscaled
    // sums were added to zeros, ptxas 13.0 dropped the first.
    const bool one_chunk = step.hidden == 32;
    if (!one_chunk) set_vector(out, shifts + step.hidden, t);
    if (step.hidden == 0) return y.add(out, second, step.terms, 0);
#pragma unroll 1
    for (int chunk = 0; chunk < step.hidden / 32; ++chunk) {
        float hidden[4][4];
        make_hidden(hidden, chunk, y, step, first, shifts, t);
        OperandA<P> a;
        to_operand(a, hidden);
        if (one_chunk) set_vector(out, shifts + step.hidden, t);
        second.add(out, a, chunk, 0);
    }
}

// The same for at most OUTPUTS channels, with `weights` [channels][hidden]. In lanes with t = 0 the result is at its channels.
template <int OUTPUTS, typename P, int CHUNKS, int FRAGMENTS, typename B>
__device__ __forceinline__ void project_to(float (&out)[2][4], const float (&values)[FRAGMENTS][4], const turbofno_step &step,
                                           const B &first, const float *weights, const float *shift, int t) {
    const TileOperand<P, CHUNKS> y(values);
    float sums[OUTPUTS][2] = {}; // of the points g and g + 8
    out[0][1] = out[0][3] = out[1][0] = out[1][1] = out[1][2] = out[1][3] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < step.hidden / 32; ++chunk) {
        float hidden[4][4];
        make_hidden(hidden, chunk, y, step, first, shift, t);
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            if (OUTPUTS > 1 && o >= step.channels) continue;
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const float4 w = *reinterpret_cast<const float4 *>(weights + o * step.hidden + 32 * chunk + 16 * s + 4 * t);
#pragma unroll
                for (int second = 0; second < 2; ++second) {
                    const float *even = &hidden[2 * s][2 * second], *odd = &hidden[2 * s + 1][2 * second];
                    float &sum = sums[o][second];
                    sum = fmaf(w.x, even[0], fmaf(w.y, even[1], fmaf(w.z, odd[0], fmaf(w.w, odd[1], sum))));
                }
            }
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            float sum = sums[o][second];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            out[o / 2][2 * second + o % 2] = sum;
        }
    }
}

// The same for TURBOFNO_DOT_OUTPUTS channels at most. One has code of its own: the compiler would compute all.
template <typename P, int CHUNKS, int FRAGMENTS, typename B>
__device__ __forceinline__ void project_few(float (&out)[2][4], const float (&values)[FRAGMENTS][4], const turbofno_step &step,
                                            const B &first, const float *weights, const float *shift, int t) {
    if (step.channels == 1) {
        project_to<1, P, CHUNKS>(out, values, step, first, weights, shift, t);
    } else {
        project_to<TURBOFNO_DOT_OUTPUTS, P, CHUNKS>(out, values, step, first, weights, shift, t);
    }
}

// values += weight . x, 32 channels of x at a time. Reads them AT_ONCE, x having as many channels as y, or one after the other.
template <typename P, bool AT_ONCE, int FRAGMENTS, typename From, typename B>
__device__ __forceinline__ void add_map(float (&values)[FRAGMENTS][4], const From &x, int terms, const B &map) {
    if constexpr (AT_ONCE) {
        float4 points[FRAGMENTS / 2][2];
#pragma unroll
        for (int s = 0; s < FRAGMENTS / 2; ++s) x.load(points[s], s);
#pragma unroll
        for (int q = 0; q < FRAGMENTS / 4; ++q) {
            OperandA<P> a;
            to_operand(a, points[2 * q], points[2 * q + 1]);
            map.add(values, a, q, 0);
        }
    } else {
#pragma unroll 1
        for (int q = 0; 32 * q < terms; ++q) {
            OperandA<P> a;
            load_operand(a, x, q);
            map.add(values, a, q, 0);
        }
    }
}

// values += x . weights for at most kMostInputs channels of x; `weights` are [terms][8 FRAGMENTS].
template <int FRAGMENTS>
__device__ __forceinline__ void add_few(float (&values)[FRAGMENTS][4], const ChannelFirstPoints &x, const float *weights, int terms,
                                        int t) {
    float points[kMostInputs][2];
#pragma unroll
    for (int c = 0; c < kMostInputs; ++c) { // all loads at once
#pragma unroll
        for (int second = 0; second < 2; ++second) points[c][second] = c < terms ? x.at[second][c * x.stride] : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < kMostInputs; ++c) {
        if (c >= terms) break;
#pragma unroll
        for (int s = 0; s < FRAGMENTS / 2; ++s) {
            const float4 w = load_four(weights + c * (8 * FRAGMENTS) + 16 * s + 4 * t);
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
                even[0] = fmaf(w.x, points[c][second], even[0]), even[1] = fmaf(w.y, points[c][second], even[1]);
                odd[0] = fmaf(w.z, points[c][second], odd[0]), odd[1] = fmaf(w.w, points[c][second], odd[1]);
            }
        }
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
