// What the kernels' host sides share: checking every launch.
#pragma once

#include <cuda_runtime.h>

#include "../plan/rows_plan.h"

namespace turbofno {

template <typename T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// Status of the launch just made; remembers CUDA's words for turbofno_last_cuda_error.
turbofno_status launched();

// Blocks of a kernel that loops over its work, all of which run at once. `most_shared_bytes` is what the kernel is ever
// launched with here: always the same, for other threads may be launching it with other sizes.
template <typename Kernel>
int resident_blocks(Kernel *kernel, int threads, int shared_bytes, int most_shared_bytes, int multiprocessors) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes);
    int blocks = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, size_t(shared_bytes));
    return (blocks > 0 ? blocks : 1) * multiprocessors;
}

} // namespace turbofno
