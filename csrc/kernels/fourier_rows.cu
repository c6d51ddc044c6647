// Inverse DFT along the last axis, pointwise skip, bias and activation: one read of x, one write of y. While y is in
// registers, the next layer's analysis is made of it, or the projection to few channels instead of y.
//
// For one row (b, h) and all channels this is one real matrix product,
//     y[o, w] = activation([R' | skip][o, :] . [S ; x][:, w] + bias[o])
// R' the row's mixed spectrum, S the synthesis table: the skip is only more terms in the inverse DFT's sum.
//
// A group of warps (plan/rows_plan.h) takes one row after another, in chunks of kChunk points; each of its warps holds
// kRows output channels, as left operands that are split once: the skip once a block, R' once a row. x is the right
// operand: split once for the group's warps, into a tile [channel][point] of halves in shared memory, `slab` channels
// at a time, the next of which is on its way in registers. In the tile, points stand in the order of the fragments'
// columns (row_quads.cuh).
//
// S and the next table come split. They lie in shared memory for the whole row, or for this chunk and the next one,
// and the groups of a block then go through their rows in step; or, where there is no room for that, they come through
// L1, slowly: a hit there waits behind the misses of x.
#include <algorithm>

#include "activations.cuh"
#include "async_copy.cuh"
#include "partial_sums.h"
#include "row_analysis.cuh"
#include "row_quads.cuh"

namespace turbofno {
namespace {

constexpr float kSynthesisBack = 1.0f / 8192; // undoes the scale of _cuda_tables.py
constexpr int kQuads = kRows * kChunk / 4 / 32; // of x, a thread's share of a slab

struct Arguments {
    const void *x;
    const float *skip, *bias, *spectra;
    const uint4 *table, *next_table;
    void *y;
    float *next_sums; // next spectra, or [splits] of them
    const float *projection, *projection_bias;
    float *out; // of the projection, or [channel tiles] of parts
    int rows; // batch * h
    int c_in, c_out, h, w, columns, next_columns, projected, activation;
    float next_back;
    RowsPlan plan;
};

template <typename Field> struct Quad {
    using type = float4;
};
template <> struct Quad<__nv_bfloat16> {
    using type = uint2;
};

// What a warp is and has in shared memory.
struct Team {
    int threads, thread; // of the group, in the group
    int member; // warp of the group
    int group, first_channel;
    const uint4 *skip;
    uint4 *tile, *spectra;
    float4 *sums;
    unsigned *maxima;

    __device__ void wait() const {
        if (threads == 32) {
            __syncwarp(); // there may be more groups than barriers
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
        }
    }
};

// Split of row (b, h), and chunk.
struct Place {
    int b, h, split, chunk;
};

// The groups beyond the last row repeat it: they write what is written anyway.
__device__ __forceinline__ Place place(const Arguments &a, int unit, int group) {
    const int set = a.plan.splits == 1 ? unit : unit / a.plan.splits;
    const int split = unit - set * a.plan.splits;
    const int row = min(set * a.plan.groups + group, a.rows - 1);
    const int b = a.h == 1 ? row : row / a.h;
    return {b, row - b * a.h, split, split * a.plan.split_chunks};
}

__device__ __forceinline__ int64_t row_of(const Place &at, int channels, int channel, int h) {
    return (int64_t(at.b) * channels + channel) * h + at.h;
}

// Two neighbours of a row of `terms` floats; zeros for what is not there. EVEN: so is `terms`, and rows start at 8 bytes.
template <bool EVEN> __device__ __forceinline__ float2 load_two(const float *row, int k, int terms) {
    if constexpr (EVEN) return k < terms ? __ldg(reinterpret_cast<const float2 *>(row + k)) : float2{};
    return {k < terms ? __ldg(row + k) : 0.0f, k + 1 < terms ? __ldg(row + k + 1) : 0.0f};
}

// 16 rows of `terms` floats as left operands, each row with its own scale; `rows` of them there are. Rows of up to 32
// terms are read once, longer ones once for their scales and once to be split.
template <typename P, bool EVEN> struct LeftStage {
    const float *row[2];
    int there[2];
    float2 v[2][4];

    __device__ __forceinline__ LeftStage(const float *from, int64_t stride, int rows, int terms) {
        const int g = threadIdx.x % 32 / 4;
        row[0] = from + g * stride;
        row[1] = row[0] + 8 * stride;
        there[0] = g < rows ? terms : 0;
        there[1] = g + 8 < rows ? terms : 0;
        load(0);
    }

    __device__ __forceinline__ void load(int k0) {
        k0 += threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = load_two<EVEN>(row[i % 2], k0 + i / 2 * 8, there[i % 2]);
    }

    __device__ __forceinline__ void store(uint4 *to, float (&back)[2], int terms) {
        Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
        if constexpr (P::kScaled) {
            float magnitude[2] = {0.0f, 0.0f};
            for (int k0 = 0; k0 < terms; k0 += 32) {
                if (k0 > 0) load(k0);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    magnitude[i % 2] = largest(largest(magnitude[i % 2], v[i / 4][i % 4].x), v[i / 4][i % 4].y);
                }
            }
            scale[0] = scale_of(largest_of_row(magnitude[0]));
            scale[1] = scale_of(largest_of_row(magnitude[1]));
        }
        for (int k0 = 0; k0 < terms; k0 += 32) {
            if (terms > 32) load(k0);
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (k0 + 16 * step >= terms) break;
                Left left;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    split<P>(v[step][i].x, v[step][i].y, scale[i % 2].to, left.high[i], left.low[i]);
                }
                store_left<P>(to + (k0 / 16 + step) * kLeftWords<P>, left);
            }
        }
        back[0] = scale[0].back;
        back[1] = scale[1].back;
    }
};

using Rows = float[kTiles][2]; // something for a lane's rows g and g + 8 of each tile

// The warp's rows of R'.
template <typename P>
__device__ __forceinline__ void stage_spectra(const Team &team, const Arguments &a, const Place &at, int steps,
                                              Rows &back) {
    const int64_t stride = int64_t(a.h) * a.columns;
    const float *from = a.spectra + row_of(at, a.c_out, team.first_channel, a.h) * a.columns;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
        LeftStage<P, true> stage(from + 16 * m * stride, stride, a.c_out - team.first_channel - 16 * m, a.columns);
        stage.store(team.spectra + m * steps * kLeftWords<P>, back[m], a.columns);
    }
    if constexpr (P::kScaled) {
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) back[i / 2][i % 2] *= kSynthesisBack;
    }
}

// sums += left . operand, 16 STEPS terms from `step` on; FIRST: sums = left . operand + start instead. HALF: only for
// the chunk's first half. `left` of the next tile lies `tile_words` further.
template <typename P, int STEPS, bool HALF, bool FIRST, typename Operand>
__device__ __forceinline__ void add_part(Values &sums, const Rows &start, const uint4 *left_words, int tile_words,
                                         int step, const Operand &operand, const Rows &back) {
    Left left[kTiles][STEPS];
#pragma unroll
    for (int s = 0; s < kTiles * STEPS; ++s) {
        load_left<P>(left[s / STEPS][s % STEPS],
                     left_words + s / STEPS * tile_words + (step + s % STEPS) * kLeftWords<P>);
    }
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
        float part[kTiles][2][4] = {};
        if (!HALF || b < kPairs / 2) {
            Right right[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) operand(right[s], step + s, b);
            chain<P>(part, left, right);
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                float &sum = sums[m][2 * b + e / 4][e % 4];
                const int half = e % 4 / 2;
                sum = fmaf(part[m][e / 4][e % 4], back[m][half], FIRST ? start[m][half] : sum);
            }
        }
    }
}

// sums = start + left . operand over `steps` times 16 terms, or sums += it.
template <typename P, bool HALF, bool FIRST, typename Operand>
__device__ __forceinline__ void add_product(Values &sums, const Rows &start, const uint4 *left, int tile_words,
                                            int steps, const Operand &operand, const Rows &back) {
    constexpr int kSteps = kPart / 16;
    int step = 0;
    if (FIRST) {
        if (steps == 1) {
            add_part<P, 1, HALF, true>(sums, start, left, tile_words, 0, operand, back);
            return;
        }
        add_part<P, kSteps, HALF, true>(sums, start, left, tile_words, 0, operand, back);
        step = kSteps;
    }
    for (; step + kSteps <= steps; step += kSteps) {
        add_part<P, kSteps, HALF, false>(sums, start, left, tile_words, step, operand, back);
    }
    if (step < steps) add_part<P, 1, HALF, false>(sums, start, left, tile_words, step, operand, back);
}

// A lane's share of a slab from input channel `first` on, whose channels kRows w .. kRows w + kRows - 1 are warp w's: a quad of every
// second channel. Zeros for what is not there.
template <bool WHOLE, typename Field>
__device__ __forceinline__ void load_slab(typename Quad<Field>::type (&quads)[kQuads], const Arguments &a,
                                          const Team &team, const Place &at, int first) {
    const int lane = threadIdx.x % 32;
    first += kRows * team.member;
    const int channel = first + lane / 16, point = at.chunk * kChunk + lane % 16 * 4, left = a.w - point;
    const Field *from = static_cast<const Field *>(a.x) + row_of(at, a.c_in, channel, a.h) * a.w + point;
    const int64_t stride = 2 * int64_t(a.h) * a.w;
    if (WHOLE && first + kRows <= a.c_in && a.w - at.chunk * kChunk >= kChunk) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i, from += stride) quads[i] = load_quad<true>(from, 4);
    } else {
#pragma unroll
        for (int i = 0; i < kQuads; ++i, from += stride) {
            quads[i] = load_quad<WHOLE>(from, channel + 2 * i < a.c_in ? left : 0);
        }
    }
}

__device__ __forceinline__ float largest_of(float magnitude, float4 v) {
    return largest(largest(largest(largest(magnitude, v.x), v.y), v.z), v.w);
}

// The words of two halves of a quad: high and low words of its points 0, 1 and 2, 3.
template <typename P>
__device__ __forceinline__ void split_quad(float4 v, float scale, uint32_t (&high)[2], uint32_t (&low)[2]) {
    split<P>(v.x, v.y, scale, high[0], low[0]);
    split<P>(v.z, v.w, scale, high[1], low[1]);
}
template <typename P>
__device__ __forceinline__ void split_quad(uint2 v, float, uint32_t (&high)[2], uint32_t (&)[2]) {
    high[0] = finite_or_nan(*reinterpret_cast<__nv_bfloat162 *>(&v.x));
    high[1] = finite_or_nan(*reinterpret_cast<__nv_bfloat162 *>(&v.y));
}

// Write the slab to the group's tile; returns what undoes its scale.
template <typename P, typename Quad>
__device__ __forceinline__ float stage_slab(const Team &team, const Quad (&quads)[kQuads], int slab) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) {
        float magnitude[2] = {0.0f, 0.0f}; // two, that they need not wait for each other
#pragma unroll
        for (int i = 0; i < kQuads; ++i) magnitude[i % 2] = largest_of(magnitude[i % 2], quads[i]);
        const float most = largest(magnitude[0], magnitude[1]);
        const unsigned bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
        if (team.thread % 32 == 0) team.maxima[team.member] = bits;
        team.wait(); // also: the tile before has been multiplied
        const unsigned others = team.maxima[min(team.thread % 32, team.threads / 32 - 1)];
        scale = scale_of(__uint_as_float(__reduce_max_sync(0xffffffffu, others)));
    } else {
        team.wait();
    }
    if (kRows * team.member < slab) {
        const int lane = threadIdx.x % 32, channel = kRows * team.member + lane / 16, quad = lane % 16;
        uint32_t *to = reinterpret_cast<uint32_t *>(team.tile) + channel * (kTilePitch / 2) + quad / 4 * 8 + quad % 4;
        uint32_t *to_low = to + slab * (kTilePitch / 2);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
            uint32_t high[2], low[2];
            split_quad<P>(quads[i], scale.to, high, low);
            const int at = i * kTilePitch; // two channels on
            to[at] = high[0], to[at + 4] = high[1];
            if constexpr (P::kSplit) to_low[at] = low[0], to_low[at + 4] = low[1];
        }
    }
    team.wait();
    return scale.back;
}

template <typename Field>
__device__ __forceinline__ void store_chunk(const Values &values, const Arguments &a, const Team &team,
                                            const Place &at) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int o = team.first_channel + g, point = at.chunk * kChunk + 4 * t, left = a.w - point;
    Field *y = static_cast<Field *>(a.y) + row_of(at, a.c_out, o, a.h) * a.w + point;
    const int64_t stride = 8 * int64_t(a.h) * a.w;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part, y += stride) { // rows g and g + 8 of each tile
        const TileValues &from = values[part / 2];
        const int there = o + 8 * part < a.c_out ? left : 0, e = part % 2 * 2;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float4 quad{from[2 * i][e], from[2 * i][e + 1], from[2 * i + 1][e], from[2 * i + 1][e + 1]};
            if (there > 16 * i) store_quad(y + 16 * i, quad);
        }
    }
}

// The same for rows that do not start at whole words: through the warp's share of the group's tile, so that a warp
// writes neighbouring points of one row. The group has read its tile.
template <typename Field>
__device__ __forceinline__ void store_odd_chunk(const Values &values, const Arguments &a, const Team &team,
                                                const Place &at) {
    constexpr int kPitch = kChunk + 8; // 8 rows of floats have as much room as 16 of halves in the tile
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *buffer = reinterpret_cast<float *>(team.tile) + team.member * 8 * kPitch;
    const int point = at.chunk * kChunk + lane, channels = a.c_out - team.first_channel;
    Field *y = static_cast<Field *>(a.y) + row_of(at, a.c_out, team.first_channel, a.h) * a.w + point;
    const int64_t stride = int64_t(a.h) * a.w;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) { // rows g and g + 8 of each tile
        const int e = part % 2 * 2;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float *low = values[part / 2][2 * i] + e, *high = values[part / 2][2 * i + 1] + e;
            *reinterpret_cast<float4 *>(buffer + g * kPitch + 16 * i + 4 * t) = {low[0], low[1], high[0], high[1]};
        }
        __syncwarp();
#pragma unroll
        for (int row = 0; row < 8; ++row, y += stride) {
            if (8 * part + row >= channels) break;
            if (point < a.w) y[0] = Field(buffer[row * kPitch + lane]);
            if (point + 32 < a.w) y[32] = Field(buffer[row * kPitch + lane + 32]);
        }
        __syncwarp();
    }
}

// Lanes 2 COUNT apart add up 2 COUNT values each, of which each keeps COUNT: the upper lane the upper ones.
template <int COUNT> __device__ __forceinline__ int fold(float (&v)[4 * kPairs], bool upper) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float other = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[COUNT + i], 2 * COUNT);
        v[i] = (upper ? v[COUNT + i] : v[i]) + other;
    }
    return upper;
}

// sums[q][point] of this warp = projection[q, its channels] . values. Lanes with the same t hold the same points: each
// of three exchanges halves the points that a lane looks after, 16, 8, 4, 2.
__device__ __forceinline__ void project(float *sums, const Values &values, const Arguments &a, const Team &team) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int o = team.first_channel + g;
    for (int q = 0; q < a.projected; ++q) {
        const float *row = a.projection + q * a.c_out;
        float v[4 * kPairs] = {};
#pragma unroll
        for (int part = 0; part < 2 * kTiles; ++part) {
            const float factor = o + 8 * part < a.c_out ? __ldg(row + o + 8 * part) : 0.0f;
#pragma unroll
            for (int i = 0; i < 4 * kPairs; ++i) {
                v[i] = fmaf(factor, values[part / 2][i / 2][part % 2 * 2 + i % 2], v[i]);
            }
        }
        const int fragment = fold<8>(v, lane & 16) * 4 + fold<4>(v, lane & 8) * 2 + fold<2>(v, lane & 4);
        const int point = fragment / 2 * 16 + 4 * t + fragment % 2 * 2;
        *reinterpret_cast<float2 *>(sums + q * kChunk + point) = {v[0], v[1]};
    }
}

__device__ __forceinline__ void store_projection(const float *sums, const Arguments &a, const Team &team,
                                                 const Place &at) {
    const int warps = team.threads / 32;
    const int64_t plane = int64_t(a.h) * a.w;
    float *out = a.out + blockIdx.y * int64_t(a.rows) * a.projected * a.w + row_of(at, a.projected, 0, a.h) * a.w;
    for (int i = team.thread; i < a.projected * kChunk; i += team.threads) {
        const int q = i / kChunk, point = at.chunk * kChunk + i % kChunk;
        if (point >= a.w) continue;
        float sum = a.projection_bias != nullptr ? __ldg(a.projection_bias + q) : 0.0f;
        for (int warp = 0; warp < warps; ++warp) sum += sums[warp * a.projected * kChunk + i];
        out[q * plane + point] = sum;
    }
}

// One chunk of both tables into the shared memory `to`.
template <typename P> __device__ __forceinline__ void fetch_tables(uint4 *to, const Arguments &a, int chunk) {
    const int words = ceil_div(a.columns, 16) * kPairs * kRightWords<P>;
    const int next_words = ceil_div(a.next_columns, 16) * kPairs * kRightWords<P>;
    const uint4 *from = a.table + int64_t(chunk) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(to + i, from + i, true);
    from = a.next_table + int64_t(chunk) * next_words;
    for (int i = threadIdx.x; i < next_words; i += blockDim.x) copy_async<16>(to + words + i, from + i, true);
}

template <typename P, bool WHOLE, bool SHARED>
__global__ void __launch_bounds__(32 * (SHARED ? kWarps : kWarpsThroughL1), 1) fourier_rows(const Arguments a) {
    using Field = typename P::Field;
    extern __shared__ uint4 shared[];
    const RowsPlan &plan = a.plan;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    const int skip_steps = sixteens(a.c_in), steps = sixteens(a.columns), column_pairs = sixteens(a.next_columns);
    const int chunks = ceil_div(a.w, kChunk), slot_words = (steps + column_pairs) * (kPairs * kRightWords<P>);

    Team team;
    team.threads = 32 * plan.warps;
    team.group = warp / plan.warps;
    team.member = warp - team.group * plan.warps;
    team.thread = threadIdx.x - team.group * team.threads;
    team.first_channel = (blockIdx.y * plan.warps + team.member) * kRows;
    uint4 *own = shared + plan.first_group + team.group * plan.group_words;
    team.tile = own;
    team.spectra = own + plan.spectra + team.member * kTiles * steps * kLeftWords<P>;
    team.sums = reinterpret_cast<float4 *>(own + plan.sums) + team.member * kTiles * column_pairs * 64;
    team.maxima = reinterpret_cast<unsigned *>(own + plan.maxima);
    team.skip = shared + team.member * kTiles * skip_steps * kLeftWords<P>;
    float *skip_scales = reinterpret_cast<float *>(shared + plan.skip_scales);

    const int units = ceil_div(a.rows, plan.groups) * plan.splits;
    int unit = blockIdx.x;
    typename Quad<Field>::type quads[kQuads];
    Place at = place(a, unit, team.group);
    if (a.c_in > 0) load_slab<WHOLE, Field>(quads, a, team, at, 0);

    clear_analysis(team.sums, column_pairs);

    uint4 *slots = shared + plan.tables;
    const bool streams = SHARED && plan.slots < chunks;
    int slot = 0;
    if (streams) {
        fetch_tables<P>(slots, a, at.chunk);
    } else if (SHARED) {
        for (int chunk = 0; chunk < chunks; ++chunk) fetch_tables<P>(slots + chunk * slot_words, a, chunk);
    }
    commit_copies();
    if (a.c_in > 0) {
        for (int m = team.group; m < kTiles; m += plan.groups) {
            const int channel = team.first_channel + 16 * m;
            float back[2];
            LeftStage<P, false> stage(a.skip + int64_t(channel) * a.c_in, a.c_in, a.c_out - channel, a.c_in);
            stage.store(shared + (team.member * kTiles + m) * skip_steps * kLeftWords<P>, back, a.c_in);
            float *scales = skip_scales + kRows * team.member + 16 * m;
            scales[g] = back[0];
            scales[g + 8] = back[1];
        }
    }
    if (!streams) wait_copies<0>();
    __syncthreads();
    Rows skip_back, bias;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
        const int o = team.first_channel + g + 8 * part;
        bias[part / 2][part % 2] = a.bias != nullptr && o < a.c_out ? a.bias[o] : 0.0f;
        skip_back[part / 2][part % 2] = a.c_in > 0 ? skip_scales[kRows * team.member + g + 8 * part] : 0.0f;
    }

    const unsigned tile_address = static_cast<unsigned>(__cvta_generic_to_shared(team.tile)) +
                                  (lane % 16) * (2 * kTilePitch) + lane / 16 * 16;
    const unsigned low_address = tile_address + plan.slab * (2 * kTilePitch);
    const auto from_tile = [&](Right &right, int step, int pair) {
        const unsigned offset = step * (16 * 2 * kTilePitch) + pair * 32;
        load_matrices(right.high, tile_address + offset);
        if constexpr (P::kSplit) load_matrices(right.low, low_address + offset);
    };

    for (;;) {
        unit += gridDim.x;
        const bool last = unit >= units;
        const Place after = last ? at : place(a, unit, team.group);
        const int begin = at.chunk, end = min(chunks, begin + plan.split_chunks);
        Rows back;
        stage_spectra<P>(team, a, at, steps, back);
        for (; at.chunk < end; ++at.chunk) {
            const bool half = a.w - at.chunk * kChunk <= kChunk / 2;
            const uint4 *table = slots + (streams ? slot : at.chunk) * slot_words;
            const uint4 *next_table = table + steps * (kPairs * kRightWords<P>);
            if (streams) {
                wait_copies<0>();
                __syncthreads(); // this chunk's tables are there, and those of the chunk before have been read
                slot ^= 1;
                if (at.chunk + 1 < end || !last) {
                    fetch_tables<P>(slots + slot * slot_words, a, at.chunk + 1 < end ? at.chunk + 1 : after.chunk);
                }
                commit_copies();
            } else if (!SHARED) {
                table = a.table + int64_t(at.chunk) * steps * (kPairs * kRightWords<P>);
                next_table = a.next_table + int64_t(at.chunk) * column_pairs * (kPairs * kRightWords<P>);
            }
            float slab_back = a.c_in > 0 ? stage_slab<P>(team, quads, plan.slab) : 0.0f;
            Values values;
            const auto from_table = [&](Right &right, int step, int pair) {
                load_right<P, SHARED>(right, table + (step * kPairs + pair) * kRightWords<P>);
            };
            if (half) {
                add_product<P, true, true>(values, bias, team.spectra, steps * kLeftWords<P>, steps, from_table, back);
            } else {
                add_product<P, false, true>(values, bias, team.spectra, steps * kLeftWords<P>, steps, from_table, back);
            }
            for (int channel = 0; channel < a.c_in; channel += plan.slab) {
                if (channel > 0) {
                    load_slab<WHOLE, Field>(quads, a, team, at, channel);
                    slab_back = stage_slab<P>(team, quads, plan.slab);
                }
                const uint4 *left = team.skip + channel / 16 * kLeftWords<P>;
                const int slab_steps = sixteens(min(plan.slab, a.c_in - channel));
                const int tile_words = skip_steps * kLeftWords<P>;
                Rows scale;
#pragma unroll
                for (int i = 0; i < 2 * kTiles; ++i) scale[i / 2][i % 2] = slab_back * skip_back[i / 2][i % 2];
                if (half) {
                    add_product<P, true, false>(values, bias, left, tile_words, slab_steps, from_tile, scale);
                } else {
                    add_product<P, false, false>(values, bias, left, tile_words, slab_steps, from_tile, scale);
                }
            }
            // the next x is sent for once the products' operands no longer take up registers
            const Place next = at.chunk + 1 < end ? Place{at.b, at.h, at.split, at.chunk + 1} : after;
            if (a.c_in > 0) load_slab<WHOLE, Field>(quads, a, team, next, 0);
            activate<P>(values, a.activation);
            if (a.projected > 0) {
                float *sums = reinterpret_cast<float *>(own + plan.sums);
                project(sums + team.member * a.projected * kChunk, values, a, team);
                team.wait();
                store_projection(sums, a, team, at);
                team.wait();
                continue;
            }
            if constexpr (WHOLE) {
                store_chunk<Field>(values, a, team, at);
            } else {
                team.wait();
                store_odd_chunk<Field>(values, a, team, at);
            }
            if (a.next_columns > 0) {
                Left left[kTiles][kPairs];
                Rows scale;
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    split_rows<P>(values[m], left[m], scale[m]);
                    scale[m][0] *= a.next_back, scale[m][1] *= a.next_back;
                }
                if (half) {
                    add_analysis<P, SHARED, true>(team.sums, left, scale, next_table, column_pairs);
                } else {
                    add_analysis<P, SHARED, false>(team.sums, left, scale, next_table, column_pairs);
                }
            }
        }
        if (a.next_columns > 0) {
            const int64_t row = at.split * int64_t(a.rows) * a.c_out + row_of(at, a.c_out, team.first_channel, a.h);
            store_analysis(a.next_sums + row * a.next_columns, int64_t(a.h) * a.next_columns,
                           a.c_out - team.first_channel, a.next_columns, team.sums);
            clear_analysis(team.sums, column_pairs);
        }
        if (last) return;
        at = after;
    }
}

template <typename P> turbofno_status launch(const turbofno_rows &r, cudaStream_t stream) {
    Arguments a{};
    int device = 0, shared_bytes = kRowsSharedBytes;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    a.plan = plan(r, shared_bytes);
    const RowsPlan &p = a.plan;
    float *parts = static_cast<float *>(r.workspace);
    a.x = r.x, a.skip = r.skip, a.bias = r.bias, a.spectra = r.spectra, a.y = r.y;
    a.rows = int(r.batch * r.h);
    a.c_in = r.c_in, a.c_out = r.c_out, a.h = r.h, a.w = r.w;
    a.columns = 2 * r.modes, a.next_columns = 2 * r.next_modes;
    a.projected = r.projected, a.activation = r.activation;
    a.table = row_synthesis_table<P>(r.table, r.w, a.columns);
    a.next_table = row_analysis_table<P>(r.next_table, r.w, a.next_columns);
    a.next_back = P::kScaled ? analysis_table_back(r.w) : 1.0f;
    const bool sum_next = p.splits > 1 && r.next_modes > 0, sum_tiles = p.channel_tiles > 1 && r.projected > 0;
    a.next_sums = sum_next ? parts : r.next_spectra;
    a.projection = r.projection;
    a.projection_bias = sum_tiles ? nullptr : r.projection_bias;
    a.out = sum_tiles ? parts : r.out;

    const bool whole = r.w % 4 == 0, shared = p.slots > 0;
    const auto kernel = whole ? (shared ? fourier_rows<P, true, true> : fourier_rows<P, true, false>)
                              : (shared ? fourier_rows<P, false, true> : fourier_rows<P, false, false>);
    const int threads = 32 * p.warps * p.groups;
    const int resident = resident_blocks(kernel, threads, p.shared_bytes, shared_bytes, r.multiprocessors);
    const int units = ceil_div(a.rows, p.groups) * p.splits;
    const int blocks = std::min(units, ceil_div(resident, p.channel_tiles));
    kernel<<<dim3(blocks, p.channel_tiles), threads, p.shared_bytes, stream>>>(a);
    const turbofno_status status = launched();
    if (status != TURBOFNO_OK) return status;
    const int64_t plane = int64_t(r.h) * r.w;
    if (sum_next) {
        return add_parts(r.next_spectra, parts, int64_t(a.rows) * r.c_out * a.next_columns, p.splits, nullptr, 1, 1,
                         stream);
    }
    if (sum_tiles) {
        return add_parts(r.out, parts, r.batch * r.projected * plane, p.channel_tiles, r.projection_bias, plane,
                         r.projected, stream);
    }
    return TURBOFNO_OK;
}

bool complete(const turbofno_rows &r) {
    const bool skip = r.c_in == 0 || (r.x != nullptr && r.skip != nullptr);
    const bool result = r.projected > 0 ? r.projection != nullptr && r.out != nullptr : r.y != nullptr;
    const bool next = r.next_modes == 0 || (r.next_table != nullptr && r.next_spectra != nullptr);
    const bool workspace = r.workspace != nullptr || turbofno_rows_workspace_bytes(&r) == 0;
    return r.spectra != nullptr && r.table != nullptr && skip && result && next && workspace;
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_fourier_rows(const turbofno_rows *rows, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_rows_unsupported(rows) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (!complete(*rows)) return TURBOFNO_NULL_POINTER;
    switch (rows->precision) {
    case TURBOFNO_TF32: return launch<Tf32>(*rows, stream);
    case TURBOFNO_BF16: return launch<Bf16>(*rows, stream);
    default: return launch<Fp32>(*rows, stream);
    }
}
