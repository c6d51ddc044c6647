// What the kernels' host sides share: checking every launch.
#pragma once

#include <cuda_runtime.h>

#include "../api/turbofno.h"

namespace turbofno {

template <typename T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// Status of the launch just made; remembers CUDA's words for turbofno_last_cuda_error.
turbofno_status launched();

} // namespace turbofno
