// What the kernels' host sides share: refusing what cannot run, and checking every launch.
#pragma once

#include <cuda_runtime.h>

#include "../plan/plan.h"

namespace turbofno {

template <typename T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// Status of the launch just made; remembers CUDA's words for turbofno_last_cuda_error.
turbofno_status launched();

// OK if the shape is served and the layer's pointers for all calls are there.
turbofno_status ready(const turbofno_layer &layer);

inline float *at(const turbofno_layer &layer, size_t offset) {
    return reinterpret_cast<float *>(static_cast<char *>(layer.workspace) + offset);
}

} // namespace turbofno
