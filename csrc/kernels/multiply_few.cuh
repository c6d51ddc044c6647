// The product of modes of few batch elements, in float32. It takes as long as its weights take to be read, once and in lines.
//
// A block takes up to four batch elements, one kx, 4 or 8 neighbouring ky and up to 64 output channels; a warp one ky. Lanes beside
// each other have neighbouring output channels, two each where their number is even; a warp reads as many input channels at once as
// it has such rows of lanes. A thread adds up every `step`-th input channel, the block the sums of its threads.
//
// Of a field that is cut into slabs the input is the sum of their parts, and the product goes to all of them. These may be in the
// memory of other cards.
#pragma once

#include "complex.cuh"
#include "multiply_modes_mma.cuh"
#include "pdl.cuh"

namespace turbofno {
namespace {

constexpr int kPartsAtOnce = 4;

// The sum of the slabs' parts at an index, each times its factor. Several are read at once: other cards answer slowly.
__device__ __forceinline__ float2 sum_of_parts(const ProductArguments &a, int kx, int64_t at) {
    float2 sum{};
    for (int slab = 0; slab < a.slabs.count; slab += kPartsAtOnce) {
        float2 parts[kPartsAtOnce];
#pragma unroll
        for (int s = 0; s < kPartsAtOnce; ++s) parts[s] = slab + s < a.slabs.count ? a.slabs.parts[slab + s][at] : float2{};
#pragma unroll
        for (int s = 0; s < kPartsAtOnce; ++s) {
            if (slab + s < a.slabs.count) sum = sum + product(parts[s], a.slabs.part_factors[(slab + s) * a.others + kx]);
        }
    }
    return sum;
}

// VECTOR: output channels of a lane.
template <int BATCH, int VECTOR, bool SLABS>
__global__ void __launch_bounds__(kMaxFewThreads, 2) multiply_few(const ProductArguments a) {
    using Weights = std::conditional_t<VECTOR == 2, float4, float2>;
    constexpr int kAtOnce = BATCH == 1 ? 8 : 4; // input channels whose weights a thread reads at once
    extern __shared__ __align__(16) float2 shared[]; // [b][c][ky], then sums [row][ky][b][o]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    unsigned block = blockIdx.x;
    const int64_t b0 = int64_t(block % a.batch_tiles) * BATCH;
    block /= a.batch_tiles;
    const int y0 = int(block % a.mode_tiles) * a.block_modes;
    block /= a.mode_tiles;
    const int o0 = int(block % a.channel_groups) * a.block_outputs;
    const int kx = int(block / a.channel_groups);
    const int batch = int(min(int64_t(BATCH), a.batch - b0));
    const int modes = min(a.block_modes, a.row_modes - y0), outputs = min(a.block_outputs, a.c_out - o0);

    const int lanes = a.block_outputs / VECTOR, rows = 32 / lanes, step = rows * (warps / a.block_modes);
    const int mode = warp % a.block_modes, o = lane % lanes * VECTOR, row = warp / a.block_modes * rows + lane / lanes;
    const bool exists = lane / lanes < rows && o < outputs, has_weight = exists && y0 + mode < a.modes_w;
    const float2 *const weight =
        a.weight + (int64_t(kx) * a.modes_w + min(y0 + mode, a.modes_w - 1)) * a.c_in * a.c_out + o0 + (exists ? o : 0);
    Weights weights[kAtOnce];
    const auto read = [&](int first) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
            const int c = first + n * step;
            weights[n] = has_weight && c < a.c_in ? *reinterpret_cast<const Weights *>(weight + c * a.c_out) : Weights{};
        }
    };
    if (!a.weights_settled) pdl_wait();
    read(row);
    if (a.weights_settled) pdl_wait();
    pdl_trigger_of_small_grid();

    const int64_t in = kx * a.in_pitch + b0 * a.c_in * a.row_modes + y0;
    for (int i = threadIdx.x; i < batch * a.c_in * a.block_modes; i += blockDim.x) {
        const int m = i % a.block_modes;
        const int64_t at = in + int64_t(i / a.block_modes) * a.row_modes + m;
        if constexpr (SLABS) {
            shared[i] = m < modes ? sum_of_parts(a, kx, at) : float2{};
        } else {
            shared[i] = m < modes ? a.in[at] : float2{};
        }
    }
    __syncthreads();

    float2 sum[BATCH][VECTOR] = {};
    for (int first = row; first < a.c_in; first += kAtOnce * step) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
            const int c = first + n * step;
            if (c >= a.c_in) break;
            const auto *w = reinterpret_cast<const float2 *>(&weights[n]);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const float2 z = shared[(min(b, batch - 1) * a.c_in + c) * a.block_modes + mode];
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) sum[b][v] = plus_product(sum[b][v], z, w[v]);
            }
        }
        read(first + kAtOnce * step);
    }
    pdl_trigger();

    __syncthreads(); // the input has been read
    if (exists) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                shared[((row * a.block_modes + mode) * BATCH + b) * a.block_outputs + o + v] = sum[b][v];
            }
        }
    }
    __syncthreads();
    const int64_t out = kx * a.out_pitch + (b0 * a.c_out + o0) * a.row_modes + y0;
    for (int i = threadIdx.x; i < batch * outputs * a.block_modes; i += blockDim.x) {
        const int m = i % a.block_modes, channel = i / a.block_modes % outputs, b = i / a.block_modes / outputs;
        if (m >= modes) continue;
        float2 all{};
        for (int r = 0; r < step; ++r) all = all + shared[((r * a.block_modes + m) * BATCH + b) * a.block_outputs + channel];
        const int64_t to = out + (int64_t(b) * a.c_out + channel) * a.row_modes + m;
        if constexpr (SLABS) {
            for (int s = 0; s < a.slabs.count; ++s) {
                a.slabs.products[s][to] = product(all, a.slabs.product_factors[s * a.others + kx]);
            }
        } else {
            a.out[to] = all;
        }
    }
}

} // namespace
} // namespace turbofno
