// One complex channel matrix per mode: out[b][o] = sum over c of in[b][c] weight[c][o].
//
// in [kx][batch][c_in][ky], weight [kx][ky][c_in][c_out], out [kx][batch][c_out][ky]; kx counts the kept modes of all axes
// but the last (one in 1D, where `in` and `out` are the spectra themselves). `in` and `out` may have one ky more
// (row_modes). A block takes one kx, 1 to 4 neighbouring ky for contiguous reads and writes, 8 to 32 batch elements and some
// output channels; a warp one ky and 16 output channels.
//
// On tensor cores, A holds the weights: 16 output channels by 4 complex input channels, first their real, then their
// imaginary parts. B holds the input: 4 channels by 8 batch elements. The real part of the product is (re, -im) of the
// weights times (re, im) of the input, the imaginary part (re, im) times (im, re). Row g is channel 2g and row g + 8 channel
// 2g + 1, so that a lane reads its weights as 16 bytes. Weights are read once for all batch elements of the block: they
// stream through a ring of stages, or there is a stage for each of them (product_plan.cpp).
#include "../plan/product_plan.h"
#include "async_copy.cuh"
#include "pdl.cuh"
#include "split_tf32.cuh"

namespace turbofno {
namespace {

struct ProductArguments {
    const float2 *in, *weight;
    float2 *out;
    int64_t batch, in_pitch, out_pitch; // pitches: from one kx to the next
    int c_in, c_out, modes_w, row_modes; // modes of the last axis: of the weight, of a row
    int batch_tiles, mode_tiles, channel_groups, channel_tiles;
    int shared_in, shared_out; // pitches, from one batch element to the next in shared memory
    int weight_stages, weights_ahead;
    bool weights_settled;
};

// Copies the weights of input channel c and output channels o, o + 1; zeros out of range.
template <bool EVEN>
__device__ __forceinline__ void copy_weights(float4 *to, const ProductArguments &a, const float2 *weight, int c, int o) {
    const bool inside = c < a.c_in && o < a.c_out;
    const float2 *from = inside ? weight + c * a.c_out + o : weight;
    if constexpr (EVEN) {
        copy_async<16>(to, from, inside);
    } else {
        const bool both = inside && o + 1 < a.c_out;
        copy_async<8>(to, from, inside);
        copy_async<8>(reinterpret_cast<float2 *>(to) + 1, both ? from + 1 : weight, both);
    }
}

// sum[n][0] += real parts, sum[n][1] += imaginary parts, over four input channels.
template <int BATCH, bool SPLIT>
__device__ __forceinline__ void multiply(float (&sum)[BATCH][2][4], float4 w, const float2 *z, int pitch) {
    const float parts[4] = {w.x, w.z, w.y, w.w};
    uint32_t a_high[2][4], a_low[2][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const Tf32Parts value = to_tf32<SPLIT>(parts[e]);
        a_high[1][e] = value.high;
        a_low[1][e] = value.low;
        a_high[0][e] = e < 2 ? value.high : negative(value.high);
        a_low[0][e] = e < 2 ? value.low : negative(value.low);
    }
    uint32_t b_high[BATCH][2][2], b_low[BATCH][2][2];
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
        const float2 v = z[n * 8 * pitch];
        const Tf32Parts re = to_tf32<SPLIT>(v.x), im = to_tf32<SPLIT>(v.y);
        b_high[n][0][0] = b_high[n][1][1] = re.high;
        b_high[n][0][1] = b_high[n][1][0] = im.high;
        b_low[n][0][0] = b_low[n][1][1] = re.low;
        b_low[n][0][1] = b_low[n][1][0] = im.low;
    }
    float part[BATCH][2][4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) { // small products first; independent ones interleaved
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mma(part[n][i], product == 0 ? a_low[i] : a_high[i], product == 1 ? b_low[n][i] : b_high[n][i]);
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

// First channel and mode of a lane; it copies AT_ONCE modes of every kStep-th channel.
template <int MODES, int AT_ONCE> struct Walk {
    static constexpr int kPieces = MODES / AT_ONCE, kStep = 32 / kPieces;
    const int channel = threadIdx.x % 32 / kPieces, mode = threadIdx.x % kPieces * AT_ONCE;
};

// Copies `channels` channels of MODES modes each, of which a row has `modes`, to shared memory; zeros from channel `count` on.
template <int MODES, int AT_ONCE>
__device__ void copy_in(float2 *to, const float2 *from, int channels, int count, int modes, int stride) {
    const Walk<MODES, AT_ONCE> walk;
    if (walk.mode >= modes) count = 0;
    to += walk.channel * MODES + walk.mode;
    const float2 *at = from + walk.channel * stride + walk.mode;
#pragma unroll 2
    for (int c = walk.channel; c < channels; c += walk.kStep) {
        copy_async<8 * AT_ONCE>(to, c < count ? at : from, c < count);
        to += walk.kStep * MODES;
        at += walk.kStep * stride;
    }
}

template <int MODES, int AT_ONCE>
__device__ void copy_out(float2 *to, const float2 *from, int channels, int modes, int stride) {
    using Piece = std::conditional_t<AT_ONCE == 2, float4, float2>;
    const Walk<MODES, AT_ONCE> walk;
    if (walk.mode >= modes) return;
    from += walk.channel * MODES + walk.mode;
    to += walk.channel * stride + walk.mode;
#pragma unroll 2
    for (int c = walk.channel; c < channels; c += walk.kStep) {
        *reinterpret_cast<Piece *>(to) = *reinterpret_cast<const Piece *>(from);
        from += walk.kStep * MODES;
        to += walk.kStep * stride;
    }
}

template <int BATCH, int MODES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kMaxModeWarps, BATCH == 1 ? 4 : BATCH == 2 ? 3 : 2)
    multiply_modes_kernel(const ProductArguments a) {
    constexpr int kPair = MODES > 1 ? 2 : 1;
    extern __shared__ __align__(16) float4 weights[]; // [stage][warp][2 steps][32]
    // [b][c][ky] in, then [b][o][ky] out
    float2 *const shared = reinterpret_cast<float2 *>(weights + a.weight_stages * 2 * blockDim.x);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane / 4, t = lane % 4;
    unsigned block = blockIdx.x;
    const int64_t b0 = int64_t(block % a.batch_tiles) * (8 * BATCH);
    block /= a.batch_tiles;
    const int y0 = int(block % a.mode_tiles) * MODES;
    block /= a.mode_tiles;
    const int o0 = int(block % a.channel_groups) * a.channel_tiles * 16;
    const int kx = int(block / a.channel_groups);
    const int batch = int(min(int64_t(8 * BATCH), a.batch - b0)), modes = min(MODES, a.row_modes - y0);

    const bool has_weight = y0 + warp % MODES < a.modes_w;
    const int y = has_weight ? warp % MODES : 0;
    const float2 *weight = a.weight + (int64_t(kx) * a.modes_w + y0 + y) * a.c_in * a.c_out;
    // A warp copies the weights of 4 channels in lines of 128 bytes and reads them in mma order. The swizzle avoids bank
    // conflicts in both.
    const int c_copied = lane / 8, o_copied = o0 + warp / MODES * 16 + lane % 8 * 2;
    float4 *const stages = weights + warp * 64;
    const int written = c_copied * 8 + (lane % 8 ^ 2 * c_copied), read = t * 8 + (g ^ 2 * t);
    const int padded = round_up(a.c_in, 8);
    const auto copy_stage = [&](int stage, int c) {
        if (c < padded) {
            float4 *to = stages + stage * 2 * blockDim.x + written;
            copy_weights<EVEN>(to, a, weight, c + c_copied, o_copied);
            copy_weights<EVEN>(to + 32, a, weight, c + 4 + c_copied, o_copied);
        }
        commit_copies();
    };
    if (!a.weights_settled) pdl_wait();
    for (int n = 0; n < a.weights_ahead; ++n) copy_stage(n, 8 * n);
    if (a.weights_settled) pdl_wait();

    for (int b = warp; b < batch; b += warps) {
        const float2 *in = a.in + kx * a.in_pitch + (b0 + b) * a.c_in * a.row_modes + y0;
        if (MODES > 1 && a.row_modes % 2 == 0) { // two modes are 16 aligned bytes
            copy_in<MODES, kPair>(shared + b * a.shared_in, in, padded, a.c_in, modes, a.row_modes);
        } else {
            copy_in<MODES, 1>(shared + b * a.shared_in, in, padded, a.c_in, modes, a.row_modes);
        }
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    const float2 *z = shared + g * a.shared_in + t * MODES + y;
    float sum[BATCH][2][4] = {};
    for (int c = 0, stage = 0; c < padded; c += 8) {
        wait_copies<kWeightsAhead - 1>();
        __syncwarp(); // the weights have arrived; those overwritten next have been read
        copy_stage(stage == 0 ? a.weight_stages - 1 : stage - 1, c + 8 * a.weights_ahead);
        const float4 *at = stages + stage * 2 * blockDim.x + read;
        multiply<BATCH, SPLIT>(sum, at[0], z + c * MODES, a.shared_in);
        multiply<BATCH, SPLIT>(sum, at[32], z + (c + 4) * MODES, a.shared_in);
        if (++stage == a.weight_stages) stage = 0;
    }
    pdl_trigger();

    __syncthreads();
    float2 *tile = shared + warp / MODES * 16 * MODES + warp % MODES;
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int b = n * 8 + 2 * t + e % 2, row = 2 * g + e / 2;
            const float2 value{sum[n][0][e], sum[n][1][e]};
            tile[b * a.shared_out + row * MODES] = has_weight ? value : float2{0.0f, 0.0f};
        }
    }
    __syncthreads();
    const int channels = min(a.channel_tiles * 16, a.c_out - o0);
    for (int b = warp; b < batch; b += warps) {
        float2 *out = a.out + kx * a.out_pitch + ((b0 + b) * a.c_out + o0) * a.row_modes + y0;
        if (MODES > 1 && a.row_modes % 2 == 0) {
            copy_out<MODES, kPair>(out, shared + b * a.shared_out, channels, modes, a.row_modes);
        } else {
            copy_out<MODES, 1>(out, shared + b * a.shared_out, channels, modes, a.row_modes);
        }
    }
}

template <bool SPLIT, bool EVEN> auto kernel_for(const ProductPlan &p) -> void (*)(ProductArguments) {
    const auto choose = [&](auto batch) -> void (*)(ProductArguments) {
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
} // namespace turbofno

extern "C" turbofno_status turbofno_multiply_modes(const turbofno_product *product, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_product_unsupported(product) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (product->input == nullptr || product->weight == nullptr || product->out == nullptr) return TURBOFNO_NULL_POINTER;
    const ProductPlan p = plan(*product);
    ProductArguments a{};
    a.in = reinterpret_cast<const float2 *>(product->input);
    a.out = reinterpret_cast<float2 *>(product->out);
    a.weight = reinterpret_cast<const float2 *>(product->weight);
    a.batch = product->batch;
    a.in_pitch = product->others > 1 ? product->in_pitch : 0;
    a.out_pitch = product->out_pitch;
    a.c_in = product->c_in;
    a.c_out = product->c_out;
    a.modes_w = product->modes;
    a.row_modes = product->row_modes;
    a.batch_tiles = int(p.batch_tiles);
    a.mode_tiles = int(p.mode_tiles);
    a.channel_groups = int(p.channel_groups);
    a.channel_tiles = p.channel_tiles;
    a.shared_in = p.shared_in;
    a.shared_out = p.shared_out;
    a.weight_stages = p.weight_stages;
    a.weights_ahead = p.weights_ahead;
    // Behind a transform of another axis they are: it has waited.
    a.weights_settled = product->weights_settled != 0 || product->others > 1;
    const bool even = product->c_out % 2 == 0;
    const auto kernel = product->precision == TURBOFNO_FP32
                            ? (even ? kernel_for<true, true>(p) : kernel_for<true, false>(p))
                            : (even ? kernel_for<false, true>(p) : kernel_for<false, false>(p));
    allow_shared_memory(kernel, kMaxSharedBytes);
    return launch_pdl(kernel, dim3(unsigned(p.blocks)), p.threads, size_t(p.shared_bytes), stream, a);
}
