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
// at a time, the next of which is on its way in registers. S and the next table come split, through L1.
// In the tile, points stand in the order of the fragments' columns (row_quads.cuh).
#include <algorithm>

#include "activations.cuh"
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
    unsigned rows; // batch * h
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

    __device__ void wait() const { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory"); }
};

// A slab of x: `split` of row (b, h), chunk, input channel.
struct Place {
    unsigned row;
    int split, chunk, channel;
};

__device__ __forceinline__ Place first_place(const Arguments &a, unsigned unit) {
    const unsigned row = unit / a.plan.splits;
    const int split = int(unit - row * a.plan.splits);
    return {row, split, split * a.plan.split_chunks, 0};
}

__device__ __forceinline__ int end_chunk(const Arguments &a, const Place &at) {
    return min(ceil_div(a.w, kChunk), (at.split + 1) * a.plan.split_chunks);
}

// 16 rows of `terms` floats as left operands, each row with its own scale; `rows` of them there are.
template <typename P>
__device__ __forceinline__ void stage_left(uint4 *to, float (&back)[2], const float *from, int64_t stride, int rows,
                                           int terms) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool there[2] = {g < rows, g + 8 < rows};
    const float *row[2] = {from + g * stride, from + (g + 8) * stride};
    const auto value = [&](int half, int k) { return there[half] && k < terms ? __ldg(row[half] + k) : 0.0f; };
    Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (P::kScaled) {
        float magnitude[2] = {0.0f, 0.0f};
#pragma unroll 2
        for (int k = 2 * t; k < terms; k += 8) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                magnitude[half] = largest(largest(magnitude[half], value(half, k)), value(half, k + 1));
            }
        }
        scale[0] = scale_of(largest_of_row(magnitude[0]));
        scale[1] = scale_of(largest_of_row(magnitude[1]));
    }
    for (int k0 = 0; k0 < terms; k0 += 16) {
        Left left;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i % 2, k = k0 + 2 * t + i / 2 * 8;
            split<P>(value(half, k), value(half, k + 1), scale[half].to, left.high[i], left.low[i]);
        }
        store_left<P>(to + k0 / 16 * kLeftWords<P>, left);
    }
    back[0] = scale[0].back;
    back[1] = scale[1].back;
}

template <typename P, int STEPS, bool FULL, typename Operand>
__device__ __forceinline__ void add_part(Values &sums, const uint4 *left_words, int step, int pairs,
                                         const Operand &operand, float back0, float back1) {
    Left left[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) load_left<P>(left[s], left_words + (step + s) * kLeftWords<P>);
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
        if (!FULL && b >= pairs) break;
        Right right[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; ++s) operand(right[s], step + s, b);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float(&sum)[4] = sums[2 * b + c];
            if constexpr (P::kScaled) {
                float part[4] = {};
                chain<P>(part, left, right, c);
                sum[0] = fmaf(part[0], back0, sum[0]), sum[1] = fmaf(part[1], back0, sum[1]);
                sum[2] = fmaf(part[2], back1, sum[2]), sum[3] = fmaf(part[3], back1, sum[3]);
            } else {
                chain<P>(sum, left, right, c);
            }
        }
    }
}

template <typename P, bool FULL, typename Operand>
__device__ __forceinline__ void add_steps(Values &sums, const uint4 *left, int steps, int pairs,
                                          const Operand &operand, float back0, float back1) {
    constexpr int kSteps = kPart / 16;
    int step = 0;
    for (; step + kSteps <= steps; step += kSteps) {
        add_part<P, kSteps, FULL>(sums, left, step, pairs, operand, back0, back1);
    }
    for (; step < steps; ++step) add_part<P, 1, FULL>(sums, left, step, pairs, operand, back0, back1);
}

// sums += left . operand over `steps` times 16 terms and the first `pairs` times 16 points.
template <typename P, typename Operand>
__device__ __forceinline__ void add_product(Values &sums, const uint4 *left, int steps, int pairs,
                                            const Operand &operand, float back0, float back1) {
    if (pairs == kPairs) {
        add_steps<P, true>(sums, left, steps, pairs, operand, back0, back1);
    } else {
        add_steps<P, false>(sums, left, steps, pairs, operand, back0, back1);
    }
}

// A thread's share of a slab: a quad of every threads / 16th channel. Zeros for what is not there.
template <typename Field>
__device__ __forceinline__ void load_slab(typename Quad<Field>::type (&quads)[kQuads], const Arguments &a,
                                          const Team &team, const Place &at) {
    const int channel = team.thread / 16, every = team.threads / 16;
    const unsigned b = at.row / a.h, h = at.row - b * a.h;
    const int point = at.chunk * kChunk + team.thread % 16 * 4;
    const int64_t plane = int64_t(a.h) * a.w;
    const int channels = a.c_in - at.channel;
    const Field *from = static_cast<const Field *>(a.x) + (int64_t(b) * a.c_in + at.channel + channel) * plane +
                        int64_t(h) * a.w + point;
    const int64_t stride = every * plane;
    if (a.w % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
            quads[i] = load_quad(from + i * stride, channel + i * every < channels ? a.w - point : 0, true);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
            quads[i] = load_quad(from + i * stride, channel + i * every < channels ? a.w - point : 0, false);
        }
    }
}

__device__ __forceinline__ float largest_of(float magnitude, float4 v) {
    return largest(largest(largest(largest(magnitude, v.x), v.y), v.z), v.w);
}
__device__ __forceinline__ float largest_of(float magnitude, uint2) { return magnitude; }

// The words of two halves of a quad: high and low words of its points 0, 1 and 2, 3.
template <typename P>
__device__ __forceinline__ void split_quad(float4 v, float scale, uint32_t (&high)[2], uint32_t (&low)[2]) {
    split<P>(v.x, v.y, scale, high[0], low[0]);
    split<P>(v.z, v.w, scale, high[1], low[1]);
}
template <typename P>
__device__ __forceinline__ void split_quad(uint2 v, float, uint32_t (&high)[2], uint32_t (&)[2]) {
    high[0] = v.x, high[1] = v.y;
}

// Write the slab to the group's tile; returns what undoes its scale.
template <typename P, typename Quad>
__device__ __forceinline__ float stage_slab(const Team &team, const Quad (&quads)[kQuads], int slab) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) {
        float magnitude = 0.0f;
#pragma unroll
        for (const Quad &quad : quads) magnitude = largest_of(magnitude, quad);
        const unsigned bits = __reduce_max_sync(0xffffffffu, __float_as_uint(magnitude));
        if (team.thread % 32 == 0) team.maxima[team.member] = bits;
        team.wait(); // also: the tile before has been multiplied
        unsigned most = 0;
        for (int warp = 0; warp < team.threads / 32; ++warp) most = max(most, team.maxima[warp]);
        scale = scale_of(__uint_as_float(most));
    } else {
        team.wait();
    }
    const int channel = team.thread / 16, quad = team.thread % 16, every = team.threads / 16;
    uint32_t *to = reinterpret_cast<uint32_t *>(team.tile) + channel * (kTilePitch / 2) + quad / 4 * 8 + quad % 4;
    uint32_t *to_low = to + slab * (kTilePitch / 2);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
        if (channel + i * every >= slab) break;
        uint32_t high[2], low[2];
        split_quad<P>(quads[i], scale.to, high, low);
        const int at = i * every * (kTilePitch / 2);
        to[at] = high[0], to[at + 4] = high[1];
        if constexpr (P::kSplit) to_low[at] = low[0], to_low[at + 4] = low[1];
    }
    team.wait();
    return scale.back;
}

// y or, with a projection, the warp's share of it.
template <typename P>
__device__ __forceinline__ void store_chunk(const Values &values, const Arguments &a, const Team &team,
                                            const Place &at, int pairs) {
    using Field = typename P::Field;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned b = at.row / a.h, h = at.row - b * a.h;
    const int point = at.chunk * kChunk + 4 * t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int o = team.first_channel + g + 8 * half;
        if (o >= a.c_out) continue;
        Field *y = static_cast<Field *>(a.y) + ((int64_t(b) * a.c_out + o) * a.h + h) * a.w + point;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float *low = values[2 * i] + 2 * half, *high = values[2 * i + 1] + 2 * half;
            if (i < pairs) store_quad(y + 16 * i, {low[0], low[1], high[0], high[1]}, a.w - point - 16 * i, a.w);
        }
    }
}

// sums[q][point] of this warp = projection[q, its channels] . values. Lanes with the same t hold the same points: each
// of three exchanges halves the points that a lane looks after, 16, 8, 4, 2.
__device__ __forceinline__ void project(float *sums, const Values &values, const Arguments &a, const Team &team) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int o = team.first_channel + g;
    for (int q = 0; q < a.projected; ++q) {
        const float *row = a.projection + q * a.c_out;
        const float factor[2] = {o < a.c_out ? __ldg(row + o) : 0.0f, o + 8 < a.c_out ? __ldg(row + o + 8) : 0.0f};
        float v[4 * kPairs];
#pragma unroll
        for (int i = 0; i < 4 * kPairs; ++i) {
            v[i] = fmaf(factor[0], values[i / 2][i % 2], factor[1] * values[i / 2][i % 2 + 2]);
        }
        int fragment = 0;
#pragma unroll
        for (int count = 2 * kPairs; count >= 2; count /= 2) {
            const int mask = 2 * count; // lanes 16, 8, 4 apart
            const bool upper = lane & mask;
#pragma unroll
            for (int i = 0; i < count; ++i) {
                const float other = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[count + i], mask);
                v[i] = (upper ? v[count + i] : v[i]) + other;
            }
            if (upper) fragment += count / 2;
        }
        const int point = fragment / 2 * 16 + 4 * t + fragment % 2 * 2;
        *reinterpret_cast<float2 *>(sums + q * kChunk + point) = {v[0], v[1]};
    }
}

__device__ __forceinline__ void store_projection(const float *sums, const Arguments &a, const Team &team,
                                                 const Place &at) {
    const unsigned b = at.row / a.h, h = at.row - b * a.h;
    const int warps = team.threads / 32;
    const int64_t plane = int64_t(a.h) * a.w;
    float *out = a.out + (blockIdx.y * int64_t(a.rows / a.h) + b) * a.projected * plane + int64_t(h) * a.w;
    for (int i = team.thread; i < a.projected * kChunk; i += team.threads) {
        const int q = i / kChunk, point = at.chunk * kChunk + i % kChunk;
        if (point >= a.w) continue;
        float sum = a.projection_bias != nullptr ? __ldg(a.projection_bias + q) : 0.0f;
        for (int warp = 0; warp < warps; ++warp) sum += sums[warp * a.projected * kChunk + i];
        out[q * plane + point] = sum;
    }
}

template <typename P> __global__ void __launch_bounds__(32 * kWarps, 2) fourier_rows(const Arguments a) {
    using Field = typename P::Field;
    extern __shared__ uint4 shared[];
    const RowsPlan &plan = a.plan;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    const int skip_steps = ceil_div(a.c_in, 16), steps = ceil_div(a.columns, 16);
    const int column_pairs = ceil_div(a.next_columns, 16);

    Team team;
    team.threads = 32 * plan.warps;
    team.group = warp / plan.warps;
    team.member = warp - team.group * plan.warps;
    team.thread = threadIdx.x - team.group * team.threads;
    team.first_channel = (blockIdx.y * plan.warps + team.member) * kRows;
    uint4 *own = shared + plan.first_group + team.group * plan.group_words;
    team.tile = own;
    team.spectra = own + plan.spectra + team.member * steps * kLeftWords<P>;
    team.sums = reinterpret_cast<float4 *>(own + plan.sums) + team.member * column_pairs * 64;
    team.maxima = reinterpret_cast<unsigned *>(own + plan.maxima);
    team.skip = shared + team.member * skip_steps * kLeftWords<P>;
    float *skip_scales = reinterpret_cast<float *>(shared + plan.skip_scales);

    if (a.c_in > 0) {
        if (team.group == 0) {
            float back[2];
            stage_left<P>(shared + team.member * skip_steps * kLeftWords<P>, back,
                          a.skip + int64_t(team.first_channel) * a.c_in, a.c_in, a.c_out - team.first_channel, a.c_in);
            skip_scales[kRows * team.member + g] = back[0];
            skip_scales[kRows * team.member + g + 8] = back[1];
        }
        __syncthreads();
    }
    float skip_back[2], bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int o = team.first_channel + g + 8 * half;
        bias[half] = a.bias != nullptr && o < a.c_out ? a.bias[o] : 0.0f;
        skip_back[half] = a.c_in > 0 ? skip_scales[kRows * team.member + g + 8 * half] : 0.0f;
    }

    const unsigned units = a.rows * plan.splits, stride = gridDim.x * plan.groups;
    unsigned unit = blockIdx.x * plan.groups + team.group;
    if (unit >= units) return;
    Place at = first_place(a, unit);
    typename Quad<Field>::type quads[kQuads];
    if (a.c_in > 0) load_slab<Field>(quads, a, team, at);

    const unsigned tile_address = static_cast<unsigned>(__cvta_generic_to_shared(team.tile)) +
                                  (lane % 16) * (2 * kTilePitch) + lane / 16 * 16;
    const auto from_tile = [&](Right &right, int step, int pair) {
        const unsigned address = tile_address + step * (16 * 2 * kTilePitch) + pair * 32;
        load_matrices(right.high, address);
        if constexpr (P::kSplit) load_matrices(right.low, address + plan.slab * (2 * kTilePitch));
    };

    for (; unit < units; unit += stride) {
        at = first_place(a, unit);
        const int begin = at.chunk, end = end_chunk(a, at);
        float back[2];
        {
            const unsigned b = at.row / a.h, h = at.row - b * a.h;
            const float *from = a.spectra + ((int64_t(b) * a.c_out + team.first_channel) * a.h + h) * a.columns;
            stage_left<P>(team.spectra, back, from, int64_t(a.h) * a.columns, a.c_out - team.first_channel, a.columns);
            __syncwarp();
        }
        for (; at.chunk < end; ++at.chunk) {
            const int pairs = min(kPairs, ceil_div(a.w - at.chunk * kChunk, 16));
            Values values;
#pragma unroll
            for (auto &fragment : values) {
                fragment[0] = fragment[1] = bias[0];
                fragment[2] = fragment[3] = bias[1];
            }
            const uint4 *table = a.table + int64_t(at.chunk) * kPairs * steps * kRightWords<P>;
            const auto from_table = [&](Right &right, int step, int pair) {
                load_right<P>(right, table + (pair * steps + step) * kRightWords<P>);
            };
            add_product<P>(values, team.spectra, steps, pairs, from_table, back[0] * kSynthesisBack,
                           back[1] * kSynthesisBack);
            for (int channel = 0; channel < a.c_in; channel += plan.slab) {
                const float slab_back = stage_slab<P>(team, quads, plan.slab);
                Place next = at;
                next.channel = channel + plan.slab;
                if (next.channel >= a.c_in) {
                    next.channel = 0;
                    if (++next.chunk == end) next = first_place(a, unit + stride);
                }
                if (next.row < a.rows) load_slab<Field>(quads, a, team, next);
                add_product<P>(values, team.skip + channel / 16 * kLeftWords<P>,
                               ceil_div(min(plan.slab, a.c_in - channel), 16), pairs, from_tile,
                               slab_back * skip_back[0], slab_back * skip_back[1]);
            }
            activate<P>(values, a.activation);
            if (a.projected > 0) {
                float *sums = reinterpret_cast<float *>(own + plan.sums);
                project(sums + team.member * a.projected * kChunk, values, a, team);
                team.wait();
                store_projection(sums, a, team, at);
                team.wait();
                continue;
            }
            store_chunk<P>(values, a, team, at, pairs);
            if (a.next_columns > 0) {
                Left left[kPairs];
                float row_back[2];
                split_rows<P>(values, pairs, left, row_back);
                add_analysis<P>(team.sums, at.chunk == begin, left, row_back, pairs,
                                a.next_table + int64_t(at.chunk) * kPairs * column_pairs * kRightWords<P>,
                                column_pairs, a.next_back);
            }
        }
        if (a.next_columns > 0) {
            const unsigned b = at.row / a.h, h = at.row - b * a.h;
            const int64_t row = (int64_t(b) * a.c_out + team.first_channel) * a.h + h;
            float *to = a.next_sums + (at.split * int64_t(a.rows) * a.c_out + row) * a.next_columns;
            store_analysis(to, int64_t(a.h) * a.next_columns, a.c_out - team.first_channel, a.next_columns, team.sums);
        }
    }
}

template <typename P> turbofno_status launch(const turbofno_rows &r, cudaStream_t stream) {
    Arguments a{};
    a.plan = plan(r);
    const RowsPlan &p = a.plan;
    float *parts = static_cast<float *>(r.workspace);
    a.x = r.x, a.skip = r.skip, a.bias = r.bias, a.spectra = r.spectra, a.y = r.y;
    a.rows = unsigned(r.batch * r.h);
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

    const int threads = 32 * p.warps * p.groups;
    const int resident = resident_blocks(fourier_rows<P>, threads, p.shared_bytes, r.multiprocessors);
    const int64_t units = int64_t(a.rows) * p.splits;
    const int64_t blocks = std::min<int64_t>(ceil_div(units, int64_t(p.groups)), ceil_div(resident, p.channel_tiles));
    fourier_rows<P><<<dim3(unsigned(blocks), p.channel_tiles), threads, p.shared_bytes, stream>>>(a);
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
