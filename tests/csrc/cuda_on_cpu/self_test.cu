// Kernels that check the emulation itself: sums by barriers and shuffles, a product by a warp, and wrong barriers.
#include "pdl.cuh"
#include "precision.cuh"

namespace turbofno {
namespace {

struct Arguments {
    const float *from;
    float *to;
    int mode;
};

// Sums the values of a block of 96 threads.
__global__ void sum(const Arguments a) {
    extern __shared__ uint4 shared[];
    __shared__ float sums[3];
    float *values = reinterpret_cast<float *>(shared);
    const int thread = threadIdx.x, lane = thread % 32;
    values[thread] = a.from[blockIdx.x * 96 + thread];
    if (a.mode == 1 && thread == 5) return; // the others wait for it
    __syncthreads();
    float value = values[95 - thread];
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    if (lane == 0) sums[thread / 32] = value;
    if (a.mode == 2 && thread == 40) values[96] = 0.0f; // beyond the end
    __syncthreads();
    const double total = __shfl_sync(0xffffffffu, double(sums[0]) + double(sums[1]) + double(sums[2]), 7);
    if (thread == 0) a.to[blockIdx.x] = float(total);
}

// out [16][8] = a [16][16] . b [16][8], all float32.
__global__ void product(const Arguments a) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const float *b = a.from + 256;
    uint32_t left[4], right[2], low;
    float sums[4] = {};
    for (int i = 0; i < 4; ++i) {
        const float *pair = a.from + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        split<PrecisionTf32>(pair[0], pair[1], 1.0f, left[i], low);
    }
    for (int i = 0; i < 2; ++i) {
        const float *pair = b + (2 * t + 8 * i) * 8 + g;
        split<PrecisionTf32>(pair[0], pair[8], 1.0f, right[i], low);
    }
    mma<PrecisionTf32>(sums, left, right[0], right[1]);
    for (int e = 0; e < 4; ++e) a.to[(g + e / 2 * 8) * 8 + 2 * t + e % 2] = sums[e];
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status self_test_sum(const float *from, float *to, int blocks, int mode) {
    using namespace turbofno;
    const size_t bytes = mode == 3 ? 50000 : 96 * sizeof(float);
    return launch_pdl(sum, dim3(unsigned(blocks)), 96, bytes, nullptr, Arguments{from, to, mode});
}

extern "C" turbofno_status self_test_product(const float *from, float *to) {
    using namespace turbofno;
    return launch_pdl(product, dim3(1), 32, 0, nullptr, Arguments{from, to, 0});
}
