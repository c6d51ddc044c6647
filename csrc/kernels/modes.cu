// One complex product of the channels a mode: out[b][o] = sum over c of in[b][c] weight[c][o].
//
// in [kx][batch][c_in][ky], weight [kx][ky][c_in][c_out], out [kx][batch][c_out][ky]; 1D is one kx, and `in` and `out` are
// the spectra themselves. A block takes one kx, 1 to 4 neighbouring ky (so that what it reads and writes lies together in
// memory), 8 to 32 batch elements and some output channels; a warp one ky and 16 output channels.
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
    int shared_in, shared_out; // pitches, from one batch element to the next in shared memory
    bool first; // of the stage
};

// Weights of channels c and o, o + 1; zero where there is none.
template <bool EVEN> __device__ float4 load_weights(const Product &a, const float2 *weight, int c, int o) {
    if (c >= a.c_in || o >= a.c_out) return float4{};
    const float2 *from = weight + c * a.c_out + o;
    if constexpr (EVEN) {
        return __ldg(reinterpret_cast<const float4 *>(from));
    } else {
        const float2 first = __ldg(from), second = o + 1 < a.c_out ? __ldg(from + 1) : float2{};
        return float4{first.x, first.y, second.x, second.y};
    }
}

// sum[n][0] += real parts, sum[n][1] += imaginary parts, over four input channels.
template <int BATCH, bool SPLIT>
__device__ __forceinline__ void multiply(float (&sum)[BATCH][2][4], float4 w, const float2 *z, int pitch) {
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
    float part[BATCH][2][4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) { // the small ones first, and independent ones side by side
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                multiply_add(part[n][i], product == 0 ? left_low : left_high, product == 1 ? low[n][i] : high[n][i]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            sum[n][0][e] += part[n][0][e];
            sum[n][1][e] += part[n][1][e];
        }
    }
}

// A batch element's `channels` channels of MODES modes each, of which `modes` exist, to shared memory; zeros from
// channel `count` on. Lanes of one warp.
template <int MODES> __device__ void copy_in(float2 *to, const float2 *from, int channels, int count, int modes, int stride) {
    if (MODES > 1 && stride % 2 == 0) { // two modes are 16 aligned bytes
        constexpr int PAIRS = MODES > 1 ? MODES / 2 : 1;
        for (int e = threadIdx.x % 32; e < channels * PAIRS; e += 32) {
            const int c = e / PAIRS, dy = e % PAIRS * 2;
            const bool inside = c < count && dy < modes;
            copy_async<16>(to + 2 * e, inside ? from + c * stride + dy : from, inside);
        }
    } else {
        for (int e = threadIdx.x % 32; e < channels * MODES; e += 32) {
            const int c = e / MODES, dy = e % MODES;
            const bool inside = c < count && dy < modes;
            copy_async<8>(to + e, inside ? from + c * stride + dy : from, inside);
        }
    }
}

template <int MODES> __device__ void copy_out(float2 *to, const float2 *from, int channels, int modes, int stride) {
    if (MODES > 1 && stride % 2 == 0) {
        constexpr int PAIRS = MODES > 1 ? MODES / 2 : 1;
#pragma unroll 2
        for (int e = threadIdx.x % 32; e < channels * PAIRS; e += 32) {
            const int c = e / PAIRS, dy = e % PAIRS * 2;
            if (dy < modes) {
                *reinterpret_cast<float4 *>(to + c * stride + dy) = *reinterpret_cast<const float4 *>(from + 2 * e);
            }
        }
    } else {
#pragma unroll 2
        for (int e = threadIdx.x % 32; e < channels * MODES; e += 32) {
            const int c = e / MODES, dy = e % MODES;
            if (dy < modes) to[c * stride + dy] = from[e];
        }
    }
}

template <int BATCH, int MODES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kMostModeWarps, BATCH == 1 ? 4 : BATCH == 2 ? 3 : 2) multiply_modes_kernel(const Product a) {
    constexpr int kAhead = 4; // weights on their way, in steps of 4 channels
    extern __shared__ __align__(16) float2 shared[]; // [b][c][ky] in, then [b][o][ky] out
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane / 4, t = lane % 4;
    unsigned block = blockIdx.x;
    const int64_t b0 = int64_t(block % a.batch_tiles) * (8 * BATCH);
    block /= a.batch_tiles;
    const int y0 = int(block % a.mode_tiles) * MODES;
    block /= a.mode_tiles;
    const int o0 = int(block % a.channel_groups) * a.channel_tiles * 16;
    const int kx = int(block / a.channel_groups);
    const int batch = int(min(int64_t(8 * BATCH), a.batch - b0)), modes = min(MODES, a.modes_w - y0);

    const int y = min(warp % MODES, modes - 1), o = o0 + warp / MODES * 16 + 2 * g;
    const float2 *weight = a.weight + (int64_t(kx) * a.modes_w + y0 + y) * a.c_in * a.c_out;
    float4 ahead[kAhead];
    if (a.first) wait_for_previous(); // else the transform before this kernel has already waited for the weights
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ahead[n] = load_weights<EVEN>(a, weight, n * 4 + t, o);
    if (!a.first) wait_for_previous();
    let_next_start();

    const int padded = (a.c_in + 7) / 8 * 8;
    for (int b = warp; b < batch; b += warps) {
        const float2 *in = a.in + kx * a.in_pitch + (b0 + b) * a.c_in * a.modes_w + y0;
        copy_in<MODES>(shared + b * a.shared_in, in, padded, a.c_in, modes, a.modes_w);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    const float2 *z = shared + g * a.shared_in + t * MODES + y;
    float sum[BATCH][2][4] = {};
    for (int c0 = 0; c0 < padded; c0 += 4 * kAhead) {
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            if (n == kAhead / 2 && c0 + 4 * n >= padded) break;
            const float4 w = ahead[n];
            multiply<BATCH, SPLIT>(sum, w, z + (c0 + 4 * n) * MODES, a.shared_in);
            ahead[n] = load_weights<EVEN>(a, weight, c0 + 4 * (kAhead + n) + t, o);
        }
    }

    __syncthreads();
    float2 *tile = shared + warp / MODES * 16 * MODES + warp % MODES;
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int b = n * 8 + 2 * t + e % 2, row = 2 * g + e / 2;
            tile[b * a.shared_out + row * MODES] = float2{sum[n][0][e], sum[n][1][e]};
        }
    }
    __syncthreads();
    const int channels = min(a.channel_tiles * 16, a.c_out - o0);
    for (int b = warp; b < batch; b += warps) {
        float2 *out = a.out + kx * a.out_pitch + ((b0 + b) * a.c_out + o0) * a.modes_w + y0;
        copy_out<MODES>(out, shared + b * a.shared_out, channels, modes, a.modes_w);
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
    a.shared_in = p.shared_in;
    a.shared_out = p.shared_out;
    a.first = plan.one_row;
    const bool even = mix.c_out % 2 == 0;
    const auto kernel = mix.precision == TURBOFNO_FP32 ? (even ? kernel_for<true, true>(p) : kernel_for<true, false>(p))
                                                       : (even ? kernel_for<false, true>(p) : kernel_for<false, false>(p));
    return launch_dependent(kernel, p.blocks, p.threads, size_t(p.shared_bytes), stream, a);
}

} // namespace turbofno
