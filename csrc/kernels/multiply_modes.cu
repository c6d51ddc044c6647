// One complex channel matrix per mode: out[b][o] = sum over c of in[b][c] weight[c][o].
//
// in [kx][batch][ky][c_in], weight [kx][ky][c_in][c_out], out [kx][batch][ky][c_out], or `in` or both with the channels before ky;
// kx counts the kept modes of all axes but the last (one in 1D, where `in` and `out` are the spectra themselves). `in` and `out`
// may have one ky more (row_modes).
//
// Few batch elements and slabs have a kernel of their own (multiply_few.cuh). L2 answers as many requests for whole lines of 128
// bytes as for parts of them. With the channels last lines are whole (multiply_channels.cuh). This file's kernel has the channels
// first. A block takes one kx, 1 to 4 neighbouring ky, of which 32 bytes of a line are read at once, 8 to 32 batch elements and
// some output channels; a warp one ky and 16 output channels. Weights stream through a ring of stages, or there is a stage for
// each of them (product_plan.cpp).
#include "complex.cuh"
#include "multiply_channels.cuh"
#include "multiply_few.cuh"
#include "multiply_modes_mma.cuh"
#include "pdl.cuh"

namespace turbofno {
namespace {

// The largest magnitude over all lanes, or with two pairs of modes over the lanes that are odd or even as this one is.
template <int PAIRS> __device__ __forceinline__ float max_of_pairs(float magnitude) {
    static_assert(PAIRS <= 2);
    if constexpr (PAIRS == 1) return max_of_lanes(magnitude);
    const bool odd = threadIdx.x % 2 != 0;
    const float even_most = max_of_lanes(odd ? 0.0f : magnitude), odd_most = max_of_lanes(odd ? magnitude : 0.0f);
    return odd ? odd_most : even_most;
}

// Splits [channel][mode] of a batch element in place: (re, im) becomes the high parts of both and the low parts of both.
template <int MODES, typename P> __device__ __forceinline__ void split_input(float2 *input, int channels, float *inverse_scales) {
    constexpr int kPairs = MODES == 4 ? 2 : 1; // of modes; with one mode a word has two channels
    const int lane = threadIdx.x % 32, count = channels * MODES / 2;
    auto *words = reinterpret_cast<float4 *>(input);
    float most[2] = {};
    for (int i = lane; i < count; i += 32) {
        const float4 v = words[i];
        most[0] = max_magnitude(max_magnitude(most[0], v.x), v.y);
        most[1] = max_magnitude(max_magnitude(most[1], v.z), v.w);
    }
    if (MODES == 1) most[0] = most[1] = max_magnitude(most[0], most[1]);
    const Scale scale[2] = {scale_of(max_of_pairs<kPairs>(most[0])), scale_of(max_of_pairs<kPairs>(most[1]))};
    for (int i = lane; i < count; i += 32) {
        const float4 v = words[i];
        uint4 parts{};
        split<P>(v.x, v.y, scale[0].factor, parts.x, parts.y);
        split<P>(v.z, v.w, scale[1].factor, parts.z, parts.w);
        reinterpret_cast<uint4 *>(words)[i] = parts;
    }
    if (lane < kPairs) {
        inverse_scales[2 * lane] = scale[0].inverse * kSumScale;
        if (MODES > 1) inverse_scales[2 * lane + 1] = scale[1].inverse * kSumScale;
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

template <int BATCH, int MODES, typename P, bool EVEN>
__global__ void __launch_bounds__(32 * kMaxModeWarps, BATCH == 1 ? 4 : BATCH == 2 ? 3 : 2)
    multiply_modes_kernel(const ProductArguments a) {
    constexpr int kPair = MODES > 1 ? 2 : 1;
    extern __shared__ __align__(16) float4 weights[]; // [stage][warp][2 steps][32]
    __shared__ float input_scales[8 * BATCH][MODES];
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
    const WeightStages<EVEN> stages(a, weights, warp, lane, kx, y0 + y, o0 + warp / MODES * 16);
    if (!a.weights_settled) pdl_wait();
    for (int n = 0; n < a.weights_ahead; ++n) stages.copy(n, 8 * n);
    if (a.weights_settled) pdl_wait();
    pdl_trigger_of_small_grid();

    const bool in_pairs = MODES > 1 && a.row_modes % 2 == 0; // two modes are 16 aligned bytes
    for (int b = warp; b < batch; b += warps) {
        const float2 *in = a.in + kx * a.in_pitch + (b0 + b) * a.c_in * a.row_modes + y0;
        if (in_pairs) {
            copy_in<MODES, kPair>(shared + b * a.shared_in, in, stages.channels, a.c_in, modes, a.row_modes);
        } else {
            copy_in<MODES, 1>(shared + b * a.shared_in, in, stages.channels, a.c_in, modes, a.row_modes);
        }
    }
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    for (int b = warp; b < batch; b += warps) {
        split_input<MODES, P>(shared + b * a.shared_in, stages.channels, input_scales[b]);
    }
    __syncthreads();

    const auto *z = reinterpret_cast<const uint2 *>(shared) + g * a.shared_in + t * MODES + y;
    float sum[BATCH][2][4] = {};
    for (int c = 0, stage = 0; c < stages.channels; c += 8) {
        stages.arrive(stage, c);
        uint4 words[2];
        const float4 *at = stages.read(stage);
        const float weight_scale = split_weights<P>(words, at[0], at[32]);
        multiply<BATCH, P>(sum, words, weight_scale, z + c * MODES, 4 * MODES, 8 * a.shared_in);
        if (++stage == a.weight_stages) stage = 0;
    }
    pdl_trigger();

    __syncthreads();
    float2 *result = shared + warp / MODES * 16 * MODES + warp % MODES;
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int b = n * 8 + 2 * t + e % 2, row = 2 * g + e / 2;
            const float scale = input_scales[b][y];
            const float2 value{sum[n][0][e] * scale, sum[n][1][e] * scale};
            result[b * a.shared_out + row * MODES] = has_weight ? value : float2{0.0f, 0.0f};
        }
    }
    __syncthreads();
    const int channels = min(a.channel_tiles * 16, a.c_out - o0);
    const int64_t first = kx * a.out_pitch + (b0 * a.c_out + o0) * a.row_modes + y0;
    for (int b = warp; b < batch; b += warps) {
        float2 *out = a.out + first + int64_t(b) * a.c_out * a.row_modes;
        if (in_pairs) {
            copy_out<MODES, kPair>(out, shared + b * a.shared_out, channels, modes, a.row_modes);
        } else {
            copy_out<MODES, 1>(out, shared + b * a.shared_out, channels, modes, a.row_modes);
        }
    }
}

using Kernel = void (*)(ProductArguments);

template <typename P, bool EVEN> Kernel kernel_for(const ProductPlan &p, bool channels_last) {
    const auto choose = [&](auto batch) -> Kernel {
        constexpr int BATCH = decltype(batch)::value;
        if (channels_last) return multiply_channels<BATCH, P>;
        switch (p.modes) {
        case 1: return multiply_modes_kernel<BATCH, 1, P, EVEN>;
        case 2: return multiply_modes_kernel<BATCH, 2, P, EVEN>;
        default: return multiply_modes_kernel<BATCH, 4, P, EVEN>;
        }
    };
    switch (p.batch_fragments) {
    case 1: return choose(std::integral_constant<int, 1>{});
    case 2: return choose(std::integral_constant<int, 2>{});
    default: return choose(std::integral_constant<int, 4>{});
    }
}

template <int VECTOR, bool SLABS> Kernel kernel_of_few(int few) {
    switch (few) {
    case 1: return multiply_few<1, VECTOR, SLABS>;
    case 2: return multiply_few<2, VECTOR, SLABS>;
    default: return multiply_few<4, VECTOR, SLABS>;
    }
}

Kernel kernel_for(const ProductPlan &p, const turbofno_product &product) {
    const bool even = product.c_out % 2 == 0, last = product.channels_last;
    if (p.few) {
        if (product.slabs) return even ? kernel_of_few<2, true>(p.few) : kernel_of_few<1, true>(p.few);
        return even ? kernel_of_few<2, false>(p.few) : kernel_of_few<1, false>(p.few);
    }
    if (product.precision == TURBOFNO_FP32) {
        return even ? kernel_for<PrecisionFp32, true>(p, last) : kernel_for<PrecisionFp32, false>(p, last);
    }
    return even ? kernel_for<PrecisionTf32, true>(p, last) : kernel_for<PrecisionTf32, false>(p, last);
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_multiply_modes(const turbofno_product *product, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_product_unsupported(product) != nullptr) return TURBOFNO_UNSUPPORTED;
    const bool whole = product->slabs == 0;
    if (product->weight == nullptr || (whole && (product->input == nullptr || product->out == nullptr))) return TURBOFNO_NULL_POINTER;
    if (!whole && (product->part_factors == nullptr || product->product_factors == nullptr)) return TURBOFNO_NULL_POINTER;
    const ProductPlan p = plan(*product);
    ProductArguments a{};
    a.in = reinterpret_cast<const float2 *>(product->input);
    a.out = reinterpret_cast<float2 *>(product->out);
    a.weight = reinterpret_cast<const float2 *>(product->weight);
    a.slabs.count = product->slabs;
    for (int s = 0; s < product->slabs; ++s) {
        if (product->parts[s] == nullptr || product->products[s] == nullptr) return TURBOFNO_NULL_POINTER;
        a.slabs.parts[s] = reinterpret_cast<const float2 *>(product->parts[s]);
        a.slabs.products[s] = reinterpret_cast<float2 *>(product->products[s]);
    }
    a.slabs.part_factors = reinterpret_cast<const float2 *>(product->part_factors);
    a.slabs.product_factors = reinterpret_cast<const float2 *>(product->product_factors);
    a.others = product->others;
    a.batch = product->batch;
    a.in_pitch = product->others > 1 ? product->in_pitch : 0;
    a.out_pitch = product->out_pitch;
    a.c_in = product->c_in;
    a.c_out = product->c_out;
    a.modes_w = product->modes;
    a.row_modes = product->row_modes;
    a.batch_tiles = int(p.batch_tiles);
    a.tiles_each = int(p.tiles_each);
    a.tile_groups = int(p.tile_groups);
    a.mode_tiles = int(p.mode_tiles);
    a.channel_groups = int(p.channel_groups);
    a.channel_tiles = p.channel_tiles;
    a.block_modes = p.modes;
    a.block_outputs = p.outputs;
    a.shared_in = p.shared_in;
    a.shared_out = p.shared_out;
    a.weight_stages = p.weight_stages;
    a.weights_ahead = p.weights_ahead;
    // Behind a transform of another axis they are: it has waited.
    a.weights_settled = product->weights_settled != 0 || product->others > 1;
    a.in_channel = product->input_channels_last ? 1 : product->row_modes;
    a.in_mode = product->input_channels_last ? product->c_in : 1;
    const Kernel kernel = kernel_for(p, *product);
    allow_shared_memory(kernel, kMaxSharedBytes);
    return launch_pdl(kernel, dim3(unsigned(p.blocks)), p.threads, size_t(p.shared_bytes), stream, a);
}
