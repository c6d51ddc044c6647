// Activations of a tile's values. NaN stays NaN.
#pragma once

#include "../api/turbofno.h"
#include "precision.cuh"

namespace turbofno {

__device__ __forceinline__ float exp2_fast(float v) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}

__device__ __forceinline__ float relu(float v) {
    float result;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(v));
    return result;
}

__device__ __forceinline__ float clamped(float v, float from, float to) { return v < from ? from : v > to ? to : v; }

// gelu(v) = relu(v) - a Phi(-a), a = |v|, and Phi(-a) = 2^p(a). The polynomial p, with p(0) = -1, is fitted to an error of
// at most 1e-8 |v| (float32 fields) or 1.1e-4 |v| (bfloat16 fields) before rounding. p falls to -infinity for large a.
template <typename P> __device__ __forceinline__ float gelu(float v) {
    const float a = fabsf(v);
    float p;
    if constexpr (sizeof(typename P::Field) == 4) {
        p = -3.01166097e-06f;
        p = fmaf(p, a, 4.13839589e-05f);
        p = fmaf(p, a, -0.000195109227f);
        p = fmaf(p, a, -0.000117045602f);
        p = fmaf(p, a, 0.0070399656f);
        p = fmaf(p, a, -0.0524819791f);
        p = fmaf(p, a, -0.459212095f);
        p = fmaf(p, a, -1.15110481f);
    } else {
        p = -0.033253964f;
        p = fmaf(p, a, -0.474551857f);
        p = fmaf(p, a, -1.14799726f);
    }
    return fmaf(-a, exp2_fast(fmaf(p, a, -1.0f)), relu(v));
}

// v / (1 + e^-u)
__device__ __forceinline__ float sigmoid_times(float v, float u) {
    const float e = exp2_fast(-1.4426950408889634f * u);
    return __fdividef(v, 1.0f + e);
}

// log(1 + e^v), without overflow
__device__ __forceinline__ float softplus(float v) { return relu(v) + log1pf(expf(-fabsf(v))); }

template <int FRAGMENTS, typename F> __device__ __forceinline__ void apply(float (&values)[FRAGMENTS][4], const F &f) {
#pragma unroll
    for (auto &fragment : values) {
#pragma unroll
        for (float &v : fragment) v = f(v);
    }
}

// v tanh(log(1 + e^v)), with one exponential: tanh(log(u)) = (u^2 - 1) / (u^2 + 1)
__device__ __forceinline__ float mish(float v) {
    const float e = exp2_fast(1.4426950408889634f * fminf(v, 40.0f)), n = e * (e + 2.0f);
    return v * __fdividef(n, n + 2.0f);
}

template <typename F> __device__ __forceinline__ float4 of_four(float4 v, const F &f) { return {f(v.x), f(v.y), f(v.z), f(v.w)}; }

// Rare activations share one function that is not inlined, to keep the kernels small.
static __device__ __noinline__ float4 rare_activation(float4 four, int activation, float parameter) {
    switch (activation) {
    case TURBOFNO_LEAKY_RELU:
        return of_four(four, [=](float v) { return v > 0.0f ? v : parameter * v; });
    case TURBOFNO_ELU:
        return of_four(four, [=](float v) { return v > 0.0f ? v : parameter * expm1f(v); });
    case TURBOFNO_SELU:
        return of_four(four, [](float v) { return 1.0507009873554805f * (v > 0.0f ? v : 1.6732632423543772f * expm1f(v)); });
    case TURBOFNO_MISH:
        return of_four(four, [](float v) { return mish(v); });
    case TURBOFNO_SIN:
        return of_four(four, [](float v) { return sinf(v); });
    case TURBOFNO_SOFTPLUS:
        return of_four(four, [](float v) { return softplus(v); });
    case TURBOFNO_HARDTANH:
        return of_four(four, [](float v) { return clamped(v, -1.0f, 1.0f); });
    case TURBOFNO_HARDSWISH:
        return of_four(four, [](float v) { return v * clamped(fmaf(v, 1.0f / 6.0f, 0.5f), 0.0f, 1.0f); });
    default: // TURBOFNO_HARDSIGMOID
        return of_four(four, [](float v) { return clamped(fmaf(v, 1.0f / 6.0f, 0.5f), 0.0f, 1.0f); });
    }
}

// The switch is outside the loop: inside, the unrolled loop would repeat the code of every activation.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void activate(float (&values)[FRAGMENTS][4], int activation, float parameter) {
    switch (activation) {
    case TURBOFNO_NONE:
        return;
    case TURBOFNO_RELU:
        return apply(values, [](float v) { return relu(v); });
    case TURBOFNO_GELU:
        return apply(values, [](float v) { return gelu<P>(v); });
    case TURBOFNO_GELU_TANH: // 1 + tanh(u) = 2 / (1 + e^-2u)
        return apply(values, [](float v) {
            return sigmoid_times(v, 1.5957691216057308f * (v + 0.044715f * v * v * v));
        });
    case TURBOFNO_SILU:
        return apply(values, [](float v) { return sigmoid_times(v, v); });
    case TURBOFNO_TANH:
        return apply(values, [](float v) { return tanhf(v); });
    default:
#pragma unroll
        for (auto &v : values) {
            const float4 of = rare_activation({v[0], v[1], v[2], v[3]}, activation, parameter);
            v[0] = of.x, v[1] = of.y, v[2] = of.z, v[3] = of.w;
        }
    }
}

} // namespace turbofno
