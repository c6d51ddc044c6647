#include "partial_sums.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    partial_sums(float *to, const float *from, int64_t count, int parts, const float *bias, int64_t plane,
                 int channels) {
    const int64_t stride = int64_t(gridDim.x) * kThreads;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
        float sum = bias != nullptr ? bias[i / plane % channels] : 0.0f;
#pragma unroll 4
        for (int part = 0; part < parts; ++part) sum += from[part * count + i];
        to[i] = sum;
    }
}

} // namespace

turbofno_status add_parts(float *to, const float *from, int64_t count, int parts, const float *bias, int64_t plane,
                          int channels, cudaStream_t stream) {
    const auto blocks = unsigned(std::min<int64_t>(ceil_div(count, int64_t(kThreads)), 16384));
    partial_sums<<<blocks, kThreads, 0, stream>>>(to, from, count, parts, bias, plane, channels);
    return launched();
}

} // namespace turbofno
