#include "partial_sums.h"

#include <algorithm>

#include "../plan/ceil_div.h"
#include "pdl.cuh"

namespace turbofno {
namespace {

constexpr int kThreads = 256;

struct Parts {
    float *to;
    const float *from;
    int64_t count;
    int parts;
};

__global__ void __launch_bounds__(kThreads) partial_sums(const Parts a) {
    pdl_wait();
    pdl_trigger_of_small_grid();
    const int64_t stride = int64_t(gridDim.x) * kThreads;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < a.count; i += stride) {
        float sum = 0.0f;
#pragma unroll 4
        for (int part = 0; part < a.parts; ++part) sum += a.from[part * a.count + i];
        a.to[i] = sum;
    }
    pdl_trigger();
}

} // namespace

turbofno_status add_parts(float *to, const float *from, int64_t count, int parts, cudaStream_t stream) {
    const auto blocks = unsigned(std::min<int64_t>(ceil_div(count, int64_t(kThreads)), 16384));
    return launch_pdl(partial_sums, dim3(blocks), kThreads, 0, stream, Parts{to, from, count, parts});
}

} // namespace turbofno
