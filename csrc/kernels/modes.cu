// One complex product of the channels a mode: out[b][o] = sum over c of in[b][c] weight[c][o].
//
// in [kx][batch][c_in][ky], weight [kx][ky][c_in][c_out], out [kx][batch][c_out][ky]; 1D is one kx, and `in` and `out` are
// the spectra themselves. A block takes one kx, 1 to 4 neighbouring ky (so that what it reads and writes is contiguous
// by 8 to 32 bytes), 8 to 32 batch elements and up to 64 output channels; a warp one ky and 16 output channels.
//
// On tensor cores: left the weights, 16 output channels by 4 complex input channels, the terms being their real parts
// and then their imaginary parts; right the input twice, (re, -im) for the real part of the product and (im, re) for
// its imaginary part, 4 channels by 8 batch elements. A row of the tensor cores may be any output channel: row g is
// channel 2g and row g + 8 channel 2g + 1, so that a lane reads its weights as 16 bytes and a warp as lines of 128.
// Weights go from memory into registers, each once for all of the block's batch elements.
#include "async_copy.cuh"
#include "dependent_launch.cuh"
#include "spectral_mix.h"
#include "split_tf32.cuh"

namespace turbofno {
namespace {

struct Product {
    const float2 *in, *weight;
    float2 *out;
    int64_t batch, in_pitch, out_pitch; // pitches: from one kx to the next
    int c_in, c_out, modes_w;
    int batch_tiles, mode_tiles, channel_groups, channel_tiles;
    int shared_pitch; // of a batch element's channels in shared memory
    bool first; // of the stage
};

// Weights of channels c and o, o + 1; zero where there is none.
template <bool EVEN> __device__ float4 load_weights(const Product &a, const float2 *weight, int c, int o) {
    if (c >= a.c_in || o >= a.c_out) return float4{};
    const float2 *from = weight + int64_t(c) * a.c_out + o;
    if constexpr (EVEN) {
        return __ldg(reinterpret_cast<const float4 *>(from));
    } else {
        const float2 first = __ldg(from), second = o + 1 < a.c_out ? __ldg(from + 1) : float2{};
        return float4{first.x, first.y, second.x, second.y};
    }
}

// parts[n][0] += real parts, parts[n][1] += imaginary parts, over four input channels.
template <int BATCH, bool SPLIT>
__device__ __forceinline__ void multiply(float (&part)[BATCH][2][4], float4 w, const float2 *z, int pitch) {
    const float left[4] = {w.x, w.z, w.y, w.w};
    uint32_t left_high[4], left_low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const Tf32 value = to_tf32<SPLIT>(left[e]);
        left_high[e] = value.high;
        left_low[e] = value.low;
    }
    uint32_t high[BATCH][2][2], low[BATCH][2][2];
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
        const float2 v = z[n * 8 * pitch];
        const Tf32 re = to_tf32<SPLIT>(v.x), im = to_tf32<SPLIT>(v.y);
        high[n][0][0] = re.high;
        high[n][0][1] = negative(im.high);
        high[n][1][0] = im.high;
        high[n][1][1] = re.high;
        low[n][0][0] = re.low;
        low[n][0][1] = negative(im.low);
        low[n][1][0] = im.low;
        low[n][1][1] = re.low;
    }
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) {
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                multiply_add(part[n][i], product == 0 ? left_low : left_high, product == 1 ? low[n][i] : high[n][i]);
            }
        }
    }
}

template <int BATCH, int MODES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kMostModeWarps) multiply_modes_kernel(const Product a) {
    constexpr int kAhead = 4; // weights on their way, in steps of 4 channels
    extern __shared__ __align__(16) float2 shared[]; // [ky][b][c] in, then [b][ky][o] out
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane / 4, t = lane % 4;
    int64_t block = blockIdx.x;
    const int64_t b0 = block % a.batch_tiles * (8 * BATCH);
    block /= a.batch_tiles;
    const int y0 = int(block % a.mode_tiles) * MODES;
    block /= a.mode_tiles;
    const int o0 = int(block % a.channel_groups) * a.channel_tiles * 16;
    const int kx = int(block / a.channel_groups);
    const int batch = int(min(int64_t(8 * BATCH), a.batch - b0));

    const int y = min(y0 + warp % MODES, a.modes_w - 1), o = o0 + warp / MODES * 16 + 2 * g;
    const float2 *weight = a.weight + (int64_t(kx) * a.modes_w + y) * a.c_in * a.c_out;
    float4 ahead[kAhead];
    if (a.first) wait_for_previous(); // else the transform before this kernel has already waited for the weights
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ahead[n] = load_weights<EVEN>(a, weight, n * 4 + t, o);
    if (!a.first) wait_for_previous();
    let_next_start();
    const int pitch = a.shared_pitch, padded = (a.c_in + 7) / 8 * 8;
    for (int b = warp; b < batch; b += warps) {
        const float2 *in = a.in + kx * a.in_pitch + (b0 + b) * a.c_in * a.modes_w + y0;
        for (int e = lane; e < padded * MODES; e += 32) {
            const int c = e / MODES, dy = e % MODES;
            const bool inside = c < a.c_in && y0 + dy < a.modes_w;
            copy_async<8>(shared + (dy * 8 * BATCH + b) * pitch + c, inside ? in + c * a.modes_w + dy : a.in, inside);
        }
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    const float2 *z = shared + (warp % MODES * 8 * BATCH + g) * pitch + t;
    float sum[BATCH][2][4] = {};
    for (int c0 = 0; c0 < padded; c0 += 4 * kAhead) {
#pragma unroll
        for (int n = 0; n < kAhead; n += 2) { // 16 real terms before the sums are added up
            if (c0 + 4 * n >= padded) break;
            float part[BATCH][2][4] = {};
#pragma unroll
            for (int m = n; m < n + 2; ++m) {
                const float4 w = ahead[m];
                ahead[m] = load_weights<EVEN>(a, weight, c0 + 4 * (kAhead + m) + t, o);
                multiply<BATCH, SPLIT>(part, w, z + c0 + 4 * m, pitch);
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[i][0][e] += part[i][0][e];
                    sum[i][1][e] += part[i][1][e];
                }
            }
        }
    }

    __syncthreads();
    const int channels = a.channel_tiles * 16, out_pitch = MODES * channels + 1;
    float2 *tile = shared + warp / MODES * 16 * MODES + warp % MODES;
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int b = n * 8 + 2 * t + e % 2, row = 2 * g + e / 2;
            tile[b * out_pitch + row * MODES] = float2{sum[n][0][e], sum[n][1][e]};
        }
    }
    __syncthreads();
    const int count = min(channels, a.c_out - o0);
    for (int b = warp; b < batch; b += warps) {
        float2 *out = a.out + kx * a.out_pitch + ((b0 + b) * a.c_out + o0) * a.modes_w + y0;
        for (int e = lane; e < count * MODES; e += 32) {
            const int channel = e / MODES, dy = e % MODES;
            if (y0 + dy < a.modes_w) out[channel * a.modes_w + dy] = shared[b * out_pitch + e];
        }
    }
}

template <bool SPLIT, bool EVEN> auto kernel_for(const ModesPlan &p) -> void (*)(Product) {
    const auto choose = [&](auto batch) -> void (*)(Product) {
        constexpr int BATCH = decltype(batch)::value;
        switch (p.modes) {
        case 1: return multiply_modes_kernel<BATCH, 1, SPLIT, EVEN>;
        case 2: return multiply_modes_kernel<BATCH, 2, SPLIT, EVEN>;
        default: return multiply_modes_kernel<BATCH, 4, SPLIT, EVEN>;
        }
    };
    switch (p.batch_fragments) {
    case 1: return choose(std::integral_constant<int, 1>{});
    case 2: return choose(std::integral_constant<int, 2>{});
    default: return choose(std::integral_constant<int, 4>{});
    }
}

} // namespace

turbofno_status multiply_modes(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream) {
    const ModesPlan &p = plan.modes;
    Product a{};
    a.in = plan.one_row ? reinterpret_cast<const float2 *>(mix.spectra) : coefficients(mix, plan);
    a.out = plan.one_row ? reinterpret_cast<float2 *>(mix.mixed) : products(mix, plan);
    a.weight = reinterpret_cast<const float2 *>(mix.weight);
    a.batch = mix.batch;
    a.in_pitch = plan.in_pitch;
    a.out_pitch = plan.out_pitch;
    a.c_in = mix.c_in;
    a.c_out = mix.c_out;
    a.modes_w = mix.modes_w;
    a.batch_tiles = int(p.batch_tiles);
    a.mode_tiles = int(p.mode_tiles);
    a.channel_groups = int(p.channel_groups);
    a.channel_tiles = p.channel_tiles;
    a.shared_pitch = shared_channels(mix.c_in);
    a.first = plan.one_row;
    const bool even = mix.c_out % 2 == 0;
    const auto kernel = mix.precision == TURBOFNO_FP32 ? (even ? kernel_for<true, true>(p) : kernel_for<true, false>(p))
                                                       : (even ? kernel_for<false, true>(p) : kernel_for<false, false>(p));
    return launch_dependent(kernel, p.blocks, p.threads, size_t(p.shared_bytes), stream, a);
}

} // namespace turbofno
