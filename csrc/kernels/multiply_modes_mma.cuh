// The tensor-core product of multiply_modes, for a warp: 16 output channels by 8 batch elements, over 8 input channels at a time.
//
// A holds the weights, whose real and imaginary parts are neighbouring terms, B the input: 8 channels by 8 batch elements. The
// real part of the product is (re, -im) of the weights times (re, im) of the input, the imaginary part (im, re) times (re, im).
// Row g is channel 2g and row g + 8 channel 2g + 1, so that a lane reads its weights as 16 bytes. Input shares a scale per batch
// element and mode, weights one per A operand.
#pragma once

#include "../plan/product_plan.h"
#include "async_copy.cuh"
#include "precision.cuh"

namespace turbofno {
namespace {

// Sums are divided by this, and multiplied with the input's scale: else large weights would overflow where the product does not.
constexpr float kSumScale = 1 << 14;

// The slabs of a field, if it is cut: `in` is the sum of their parts, and all get the product, each times factors [slab][kx].
struct ProductSlabs {
    int count; // 0: the field is whole
    const float2 *parts[TURBOFNO_MAX_SLABS];
    float2 *products[TURBOFNO_MAX_SLABS];
    const float2 *part_factors, *product_factors;
};

struct ProductArguments {
    const float2 *in, *weight;
    float2 *out;
    ProductSlabs slabs;
    int others; // kx
    int64_t batch, in_pitch, out_pitch; // pitches: from one kx to the next
    int in_channel, in_mode; // with the channels of `out` last: from one channel, or ky, of the input to the next
    int c_in, c_out, modes_w, row_modes; // modes of the last axis: of the weight, of a row
    int batch_tiles, tiles_each, tile_groups, mode_tiles, channel_groups, channel_tiles;
    int block_modes, block_outputs; // of few batch elements: ky and output channels of a block
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

// A warp's weights in shared memory, [stage][warp][2][32]: 8 input channels by 16 output channels a stage, as they are in memory.
// A ring of stages, or one for each 8 input channels. The warp copies the weights of 4 channels in lines of 128 bytes and reads
// them in mma order; the swizzle avoids bank conflicts in both.
template <bool EVEN> struct WeightStages {
    const ProductArguments &a;
    const float2 *weight; // of the mode
    float4 *own; // of this warp, in the first stage
    int channels; // input channels, rounded up to whole stages
    int channel, output, lane; // that this lane copies, besides the fourth after it

    __device__ __forceinline__ WeightStages(const ProductArguments &a, float4 *shared, int warp, int lane, int kx, int y, int output)
        : a(a), weight(a.weight + (int64_t(kx) * a.modes_w + min(y, a.modes_w - 1)) * a.c_in * a.c_out), own(shared + warp * 64),
          channels(round_up(a.c_in, 8)), channel(lane / 8), output(output + lane % 8 * 2), lane(lane) {}

    // Starts to copy the stage of the input channels from c on.
    __device__ __forceinline__ void copy(int stage, int c) const {
        if (c < channels) {
            float4 *to = own + stage * 2 * blockDim.x + channel * 8 + (lane % 8 ^ 2 * channel);
            copy_weights<EVEN>(to, a, weight, c + channel, output);
            copy_weights<EVEN>(to + 32, a, weight, c + 4 + channel, output);
        }
        commit_copies();
    }

    // Waits for a stage, of the channels from c on, and starts the copies to the one that was read before it.
    __device__ __forceinline__ void arrive(int stage, int c) const {
        wait_copies<kWeightsAhead - 1>();
        __syncwarp(); // the weights have arrived; those overwritten next have been read
        copy(stage == 0 ? a.weight_stages - 1 : stage - 1, c + 8 * a.weights_ahead);
    }

    // The weights of this lane's first channel and two output channels; those of the fourth channel after it are 32 words on.
    __device__ __forceinline__ float4 *read(int stage) const {
        const int g = lane / 4, t = lane % 4;
        return own + stage * 2 * blockDim.x + t * 8 + (g ^ 2 * t);
    }
};

// Splits the weights of channels t and t + 4, output channels 2g and 2g + 1. A word has the high parts of both, then the low
// parts. Returns their inverse scale.
template <typename P> __device__ __forceinline__ float split_weights(uint4 (&words)[2], float4 first, float4 second) {
    const float4 w[2] = {first, second};
    float most[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        for (const float part : {w[i].x, w[i].y, w[i].z, w[i].w}) most[i] = max_magnitude(most[i], part);
    }
    const Scale scale = scale_of(max_of_lanes(max_magnitude(most[0], most[1])));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        split<P>(w[i].x, w[i].y, scale.factor, words[i].x, words[i].z);
        split<P>(w[i].z, w[i].w, scale.factor, words[i].y, words[i].w);
    }
    return scale.inverse * (1.0f / kSumScale);
}

// sum[n][0] += real parts, sum[n][1] += imaginary parts, over eight input channels. `z` is this lane's first channel, `next`
// leads to the one four channels on, `pitch` to that of the next eight batch elements.
template <int BATCH, typename P>
__device__ __forceinline__ void multiply(float (&sum)[BATCH][2][4], const uint4 (&words)[2], float inverse_scale,
                                         const uint2 *z, int next, int pitch) {
    const uint32_t high[4] = {words[0].x, words[0].y, words[1].x, words[1].y};
    const uint32_t low[4] = {words[0].z, words[0].w, words[1].z, words[1].w};
    uint32_t a_high[2][4], a_low[2][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        a_high[0][e] = high[e] ^ 0x80000000u; // (re, -im)
        a_high[1][e] = __byte_perm(high[e], 0, 0x1032); // (im, re)
        if constexpr (P::kSplit) {
            a_low[0][e] = low[e] ^ 0x80000000u;
            a_low[1][e] = __byte_perm(low[e], 0, 0x1032);
        }
    }
    uint2 b[BATCH][2];
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) b[n][half] = z[n * pitch + half * next];
    }
    float part[BATCH][2][4] = {};
#pragma unroll
    for (int product = P::kSplit ? 0 : 2; product < 3; ++product) { // small products first; independent ones interleaved
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool low_input = product == 1;
                mma<P>(part[n][i], product == 0 ? a_low[i] : a_high[i], low_input ? b[n][0].y : b[n][0].x,
                       low_input ? b[n][1].y : b[n][1].x);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            sum[n][0][e] = fmaf(part[n][0][e], inverse_scale, sum[n][0][e]);
            sum[n][1][e] = fmaf(part[n][1][e], inverse_scale, sum[n][1][e]);
        }
    }
}

} // namespace
} // namespace turbofno
