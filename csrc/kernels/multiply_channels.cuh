// The product of modes with the channels last: in [kx][batch][ky][c_in], out [kx][batch][ky][c_out], of even c_in and c_out. The
// few channels of a network's input may be first.
//
// A block takes one mode, one or more tiles of 8 to 32 batch elements in turns and up to 128 output channels, 16 a warp. A row is
// the channels of a batch element: 16 or 32 lanes read it from memory, split it and put it into shared memory. Results go to
// memory from registers, in whole lines. Where all weights of a mode are on chip, they are split once for all tiles.
#pragma once

#include "multiply_modes_mma.cuh"
#include "pdl.cuh"

namespace turbofno {
namespace {

// Reads and splits the rows of a tile: (re, im) becomes the high parts of both and the low parts of both.
struct InputRows {
    static constexpr int kAtOnce = 4; // words of 16 bytes that a lane reads at once: of as many rows, or of parts of them

    int lanes, words, rows; // of a row: lanes, words of a lane (1, 2 or 4); rows of a lane at once
    int slot, slots; // this lane's row, of the rows of the block's warps
    int word; // this lane's first one

    __device__ __forceinline__ InputRows(int channels, int warp, int warps, int lane) {
        lanes = channels <= 32 ? 16 : 32;
        words = channels <= 64 ? 1 : channels <= 128 ? 2 : 4;
        rows = kAtOnce / words;
        slots = warps * (32 / lanes);
        slot = warp * (32 / lanes) + lane / lanes;
        word = lane % lanes;
    }

    // `row_pitch`, `channel_pitch`: from one row, or channel, to the next in memory; `pitch`: from one row to the next in shared
    // memory. Zeros from row `count` on.
    template <typename P>
    __device__ __forceinline__ void split(uint2 *shared, float *scales, const float2 *from, int64_t row_pitch, int channel_pitch,
                                          int pitch, int count, int all, int c_in, int channels) const {
        for (int first = 0; first < all; first += slots * rows) {
            float4 v[kAtOnce];
            int row[kAtOnce], c[kAtOnce];
            float most[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                row[i] = first + slot + slots * (i / words);
                c[i] = 2 * (word + i % words * lanes);
                const bool exists = row[i] < count && c[i] < c_in;
                const float2 *at = from + row[i] * row_pitch + c[i] * channel_pitch;
                if (!exists) {
                    v[i] = float4{};
                } else if (channel_pitch == 1 && c_in % 2 == 0) {
                    v[i] = *reinterpret_cast<const float4 *>(at);
                } else {
                    const float2 one = at[0], other = c[i] + 1 < c_in ? at[channel_pitch] : float2{};
                    v[i] = {one.x, one.y, other.x, other.y};
                }
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                most[i] = max_magnitude(max_magnitude(max_magnitude(fabsf(v[i].x), v[i].y), v[i].z), v[i].w);
            }
            if (words > 1) {
                most[0] = most[1] = max_magnitude(most[0], most[1]);
                most[2] = most[3] = max_magnitude(most[2], most[3]);
            }
            if (words > 2) most[0] = most[1] = most[2] = most[3] = max_magnitude(most[0], most[2]);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                most[i] = max_over_lanes<1, 16>(most[i]);
                if (lanes == 32) most[i] = max_over_lanes<16, 32>(most[i]);
                const Scale scale = scale_of(most[i]);
                uint4 parts{};
                turbofno::split<P>(v[i].x, v[i].y, scale.factor, parts.x, parts.y);
                turbofno::split<P>(v[i].z, v[i].w, scale.factor, parts.z, parts.w);
                if (row[i] >= all) continue;
                if (c[i] < channels) *reinterpret_cast<uint4 *>(shared + row[i] * pitch + c[i]) = parts;
                if (c[i] == 0) scales[row[i]] = scale.inverse * kSumScale;
            }
        }
    }
};

template <int BATCH, typename P>
__global__ void __launch_bounds__(32 * kMaxModeWarps, BATCH == 1 ? 4 : BATCH == 2 ? 3 : 2)
    multiply_channels(const ProductArguments a) {
    extern __shared__ __align__(16) float4 weights[]; // [stage][warp][2 steps][32]
    __shared__ float input_scales[8 * BATCH];
    uint2 *const shared = reinterpret_cast<uint2 *>(weights + a.weight_stages * 2 * blockDim.x); // [b][c]
    float *const weight_scales = reinterpret_cast<float *>(shared + 8 * BATCH * a.shared_in); // [stage][warp]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane / 4, t = lane % 4;
    unsigned block = blockIdx.x;
    const int o0 = (int(block % a.channel_groups) * a.channel_tiles + warp) * 16;
    block /= a.channel_groups;
    const int first_tile = int(block % a.tile_groups) * a.tiles_each;
    const int end_tile = min(first_tile + a.tiles_each, a.batch_tiles);
    block /= a.tile_groups;
    const int y = int(block % a.row_modes), kx = int(block / a.row_modes);
    const bool has_weight = y < a.modes_w;

    const WeightStages<true> stages(a, weights, warp, lane, kx, y, o0);
    const InputRows rows(stages.channels, warp, warps, lane);
    if (!a.weights_settled) pdl_wait();
    for (int n = 0; n < a.weights_ahead; ++n) stages.copy(n, 8 * n);
    if (a.weights_settled) pdl_wait();

    for (int tile = first_tile; tile < end_tile; ++tile) {
        const int64_t b0 = int64_t(tile) * (8 * BATCH);
        const int batch = int(min(int64_t(8 * BATCH), a.batch - b0));
        if (tile > first_tile) __syncthreads(); // the rows have been read
        const int64_t row_pitch = int64_t(a.row_modes) * a.c_in;
        rows.split<P>(shared, input_scales, a.in + kx * a.in_pitch + b0 * row_pitch + y * a.in_mode, row_pitch, a.in_channel, a.shared_in,
                      batch, 8 * BATCH, a.c_in, stages.channels);
        if (a.weights_ahead == a.weight_stages) wait_copies<0>(); // all weights of the mode
        __syncthreads();

        const uint2 *z = shared + g * a.shared_in + t;
        float sum[BATCH][2][4] = {};
        for (int c = 0, stage = 0; c < stages.channels; c += 8) {
            uint4 words[2];
            float weight_scale;
            auto *const at = stages.read(stage);
            auto *const kept = reinterpret_cast<uint4 *>(at); // split; this lane alone reads them
            if (tile == first_tile) {
                stages.arrive(stage, c);
                weight_scale = split_weights<P>(words, at[0], at[32]);
                if (a.tiles_each > 1) {
                    kept[0] = words[0];
                    kept[32] = words[1];
                    if (lane == 0) weight_scales[stage * warps + warp] = weight_scale;
                }
            } else {
                words[0] = kept[0];
                words[1] = kept[32];
                weight_scale = weight_scales[stage * warps + warp];
            }
            multiply<BATCH, P>(sum, words, weight_scale, z + c, 4, 8 * a.shared_in);
            if (++stage == a.weight_stages) stage = 0;
        }
        if (tile == end_tile - 1) pdl_trigger();

        const int o = o0 + 2 * g; // of two neighbouring output channels
        float2 *const out = a.out + kx * a.out_pitch + (b0 * a.row_modes + y) * a.c_out + o;
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int b = 8 * n + 2 * t + e;
                if (b >= batch || o >= a.c_out) continue;
                const float scale = input_scales[b];
                const float(&re)[4] = sum[n][0], (&im)[4] = sum[n][1];
                float4 two{re[e] * scale, im[e] * scale, re[e + 2] * scale, im[e + 2] * scale};
                if (!has_weight) two = float4{};
                *reinterpret_cast<float4 *>(out + int64_t(b) * a.row_modes * a.c_out) = two;
            }
        }
    }
}

} // namespace
} // namespace turbofno
