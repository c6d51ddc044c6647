// DFTs along h, both ways, of all columns [batch][channel][modes_w] side by side.
//
// Points n and kept modes k both stand in FFT order: index i of `size` means i below (size + 1) / 2 and i - size from
// there on. A transform takes `from` indices to `to` indices; +j and -j share their products, as do +i and -i:
//
//     C[i] = sum over j of cos(i j) (in[j] + in[-j])      i = 0 .. to / 2, j = 0 .. from / 2
//     S[i] = sum over j of sin(i j) (in[j] - in[-j])      in[j] or in[-j] is zero where it does not exist
//     out[i] = C[i] + i S[i], out[-i] = C[i] - i S[i]     (from points to modes the table has -sin)
//
// a quarter of the products of the full sum. C and S are real matrix products on tensor cores: left the tables of cosines
// and sines, right the columns. A warp takes 16 complex columns; a lane loads what the tensor cores want of that lane,
// two neighbouring columns of terms t and t + 4, so columns pass from lane to lane nowhere. The tables are stored in
// that order too (turbofno_ops/_cuda_tables.py): [tile of 16 rows][step of 8 terms][cos, sin][high, low][lane][4].
//
// Two kernels. `sum_columns` streams any number of terms past the sums of 16 to 48 rows. `expand_columns` holds at most
// 16 terms (30 modes on their way back to points), split once, and makes one tile of rows after the other.
#include "async_copy.cuh"
#include "dependent_launch.cuh"
#include "spectral_mix.h"
#include "split_tf32.cuh"

namespace turbofno {
namespace {

// Complex number of column [channel][y] at index i: i * stride + channel * channel_stride + y.
struct Axis {
    unsigned stride;
    int64_t channel_stride;
    int size;
};

struct Columns {
    const float2 *in;
    float2 *out;
    const uint4 *table;
    Axis from, to;
    int64_t columns; // batch * channels * modes_w
    int modes_w;
    int steps, tiles, groups;
};

__device__ int64_t place(const Axis &axis, int64_t column, int modes_w) {
    const unsigned channel = unsigned(column) / unsigned(modes_w); // columns are at most 2^31
    return channel * axis.channel_stride + (unsigned(column) - channel * modes_w);
}

// Whether i or -i exists on an axis of `size`, for any i from 0 up.
__device__ bool has_positive(int i, int size) { return i < (size + 1) / 2; }
__device__ bool has_negative(int i, int size) { return i >= 1 && i <= size / 2; }

// EVEN, here and below: an even number of modes_w, so two neighbouring columns are 16 aligned bytes.
template <bool EVEN> struct Source { // this lane's two columns
    const float2 *from[2];

    __device__ Source(const Columns &a, int64_t column) {
        // beyond the last column the last one, or the last two, again
        column = min(column, EVEN ? a.columns - 2 : a.columns - 1);
        from[0] = a.in + place(a.from, column, a.modes_w);
        from[1] = EVEN ? from[0] + 1 : a.in + place(a.from, min(column + 1, a.columns - 1), a.modes_w);
    }

    __device__ __forceinline__ void copy(float4 *to, unsigned offset, unsigned stride, bool exists) const {
        const int64_t at = exists ? int64_t(uint64_t(offset) * stride) : 0;
        if constexpr (EVEN) {
            copy_async<16>(to, from[0] + at, exists);
        } else {
            copy_async<8>(to, from[0] + at, exists);
            copy_async<8>(reinterpret_cast<float2 *>(to) + 1, from[1] + at, exists);
        }
    }

    // This lane's share of a step: in[j] and in[-j] of j = t, then of t + 4, in every 32nd element of `to`.
    __device__ __forceinline__ void copy_step(float4 *to, const Axis &axis, int step) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int j = step * 8 + int(threadIdx.x % 4) + 4 * e;
            copy(to + 64 * e, j, axis.stride, has_positive(j, axis.size));
            copy(to + 64 * e + 32, axis.size - j, axis.stride, has_negative(j, axis.size));
        }
    }
};

struct Right { // 8 terms of the right operand: fragments (re, im) of the first column, (re, im) of the second
    uint32_t high[4][2], low[4][2];
};

template <bool SPLIT> __device__ __forceinline__ Right right_operand(float4 first, float4 second) {
    const float values[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
    Right right;
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const Tf32 value = to_tf32<SPLIT>(values[e][f]);
            right.high[f][e] = value.high;
            right.low[f][e] = value.low;
        }
    }
    return right;
}

__device__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ float4 minus(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }

struct Left {
    uint4 high, low;
};

template <bool SPLIT> __device__ __forceinline__ Left load_left(const uint4 *table) {
    return {__ldg(table), SPLIT ? __ldg(table + 32) : uint4{}};
}

template <bool SPLIT> __device__ __forceinline__ void add_product(float (&sum)[4][4], const Left &left, const Right &right) {
    const uint32_t high[4] = {left.high.x, left.high.y, left.high.z, left.high.w};
    const uint32_t low[4] = {left.low.x, left.low.y, left.low.z, left.low.w};
    float part[4][4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) { // the small ones first, and independent ones side by side
#pragma unroll
        for (int f = 0; f < 4; ++f) {
            multiply_add(part[f], product == 0 ? low : high, product == 1 ? right.low[f] : right.high[f]);
        }
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][e] += part[f][e];
    }
}

template <bool EVEN> struct Target { // this lane's four neighbouring columns of what comes out
    float2 *to[4];

    __device__ Target(const Columns &a, int64_t column) {
#pragma unroll
        for (int s = 0; s < 4; s += EVEN ? 2 : 1) {
            to[s] = column + s < a.columns ? a.out + place(a.to, column + s, a.modes_w) : nullptr;
        }
    }

    __device__ __forceinline__ void put(unsigned index, unsigned stride, const float2 (&z)[4]) const {
        const uint64_t offset = uint64_t(index) * stride;
#pragma unroll
        for (int s = 0; s < 4; s += EVEN ? 2 : 1) {
            if (to[s] == nullptr) continue;
            if constexpr (EVEN) {
                *reinterpret_cast<float4 *>(to[s] + offset) = float4{z[s].x, z[s].y, z[s + 1].x, z[s + 1].y};
            } else {
                to[s][offset] = z[s];
            }
        }
    }

    // Rows g and g + 8 of a tile.
    __device__ __forceinline__ void put_tile(const Axis &axis, int tile, const float (&cosine)[4][4],
                                             const float (&sine)[4][4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile * 16 + int(threadIdx.x % 32 / 4) + 8 * half;
            float2 positive[4], negative[4];
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int re = s % 2 * 2, im = re + 1, e = 2 * half + s / 2;
                positive[s] = float2{cosine[re][e] - sine[im][e], cosine[im][e] + sine[re][e]};
                negative[s] = float2{cosine[re][e] + sine[im][e], cosine[im][e] - sine[re][e]};
            }
            if (has_positive(row, axis.size)) put(row, axis.stride, positive);
            if (has_negative(row, axis.size)) put(axis.size - row, axis.stride, negative);
        }
    }
};

constexpr int kLeft = 128; // 16-byte words of a step of a tile in the table
constexpr int kStages = 4; // steps on their way

template <int TILES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, TILES == 1 ? 4 : TILES == 2 ? 3 : 2) sum_columns(const Columns a) {
    __shared__ float4 stages[kColumnWarps][kStages][128];
    const int lane = threadIdx.x % 32;
    const int64_t warp = int64_t(blockIdx.x) * kColumnWarps + threadIdx.x / 32;
    const int tile0 = int(warp % a.groups) * TILES;
    const int64_t column0 = warp / a.groups * kWarpColumns;
    const int64_t tile_words = int64_t(a.steps) * kLeft;
    const uint4 *table = a.table + tile0 * tile_words + lane;
    Left next = load_left<SPLIT>(table);
    const Source<EVEN> source(a, column0 + lane / 4 * 2);
    wait_for_previous();
    let_next_start();
    if (column0 >= a.columns) return;

    float4 *stage = stages[threadIdx.x / 32][0] + lane; // each lane reads only what it has copied itself
#pragma unroll
    for (int n = 0; n < kStages - 1; ++n) {
        source.copy_step(stage + n * 128, a.from, n);
        commit_copies();
    }
    float cosine[TILES][4][4] = {}, sine[TILES][4][4] = {};
    for (int step = 0; step < a.steps; ++step) {
        wait_copies<kStages - 2>();
        const float4 *now = stage + step % kStages * 128;
        const float4 positive[2] = {now[0], now[64]}, negative[2] = {now[32], now[96]};
        source.copy_step(stage + (step + kStages - 1) % kStages * 128, a.from, step + kStages - 1);
        commit_copies();
        const Right even = right_operand<SPLIT>(plus(positive[0], negative[0]), plus(positive[1], negative[1]));
        const Right odd = right_operand<SPLIT>(minus(positive[0], negative[0]), minus(positive[1], negative[1]));
        const uint4 *following = table + (step + 1 < a.steps ? kLeft : 0);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if (tile0 + i >= a.tiles) break;
            const Left left = next;
            next = load_left<SPLIT>(table + i * tile_words + 64);
            add_product<SPLIT>(cosine[i], left, even);
            const Left sines = next;
            const bool last = i + 1 == TILES || tile0 + i + 1 >= a.tiles;
            next = load_left<SPLIT>(last ? following : table + (i + 1) * tile_words);
            add_product<SPLIT>(sine[i], sines, odd);
        }
        table = following;
    }
    const Target<EVEN> target(a, column0 + lane % 4 * 4);
#pragma unroll
    for (int i = 0; i < TILES; ++i) target.put_tile(a.to, tile0 + i, cosine[i], sine[i]);
}

template <int STEPS, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, STEPS == 1 ? 4 : 3) expand_columns(const Columns a) {
    __shared__ float4 stages[kColumnWarps][STEPS][128];
    const int lane = threadIdx.x % 32;
    const int64_t warp = int64_t(blockIdx.x) * kColumnWarps + threadIdx.x / 32;
    const int group = int(warp % a.groups);
    const int64_t column0 = warp / a.groups * kWarpColumns;
    const Source<EVEN> source(a, column0 + lane / 4 * 2);
    const Target<EVEN> target(a, column0 + lane % 4 * 4);
    wait_for_previous();
    let_next_start();
    if (column0 >= a.columns) return;

    float4 *stage = stages[threadIdx.x / 32][0] + lane;
#pragma unroll
    for (int n = 0; n < STEPS; ++n) source.copy_step(stage + n * 128, a.from, n);
    commit_copies();
    wait_copies<0>();
    Right even[STEPS], odd[STEPS];
#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
        const float4 *now = stage + n * 128;
        even[n] = right_operand<SPLIT>(plus(now[0], now[32]), plus(now[64], now[96]));
        odd[n] = right_operand<SPLIT>(minus(now[0], now[32]), minus(now[64], now[96]));
    }
#pragma unroll 1
    for (int tile = group; tile < a.tiles; tile += a.groups) {
        const uint4 *table = a.table + tile * (STEPS * kLeft) + lane;
        float cosine[4][4] = {}, sine[4][4] = {};
#pragma unroll
        for (int n = 0; n < STEPS; ++n) {
            add_product<SPLIT>(cosine, load_left<SPLIT>(table + n * kLeft), even[n]);
            add_product<SPLIT>(sine, load_left<SPLIT>(table + n * kLeft + 64), odd[n]);
        }
        target.put_tile(a.to, tile, cosine, sine);
    }
}

template <bool SPLIT, bool EVEN> auto kernel_for(const ColumnsPlan &p) -> void (*)(Columns) {
    if (p.warp_tiles == 0) return p.steps == 1 ? expand_columns<1, SPLIT, EVEN> : expand_columns<2, SPLIT, EVEN>;
    switch (p.warp_tiles) {
    case 1: return sum_columns<1, SPLIT, EVEN>;
    case 2: return sum_columns<2, SPLIT, EVEN>;
    default: return sum_columns<3, SPLIT, EVEN>;
    }
}

turbofno_status launch(const turbofno_mix &mix, Columns a, int channels, const ColumnsPlan &p, cudaStream_t stream) {
    a.columns = mix.batch * channels * mix.modes_w;
    a.modes_w = mix.modes_w;
    a.steps = p.steps;
    a.tiles = p.tiles;
    a.groups = p.groups;
    const bool even = a.modes_w % 2 == 0;
    const auto kernel = mix.precision == TURBOFNO_FP32 ? (even ? kernel_for<true, true>(p) : kernel_for<true, false>(p))
                                                       : (even ? kernel_for<false, true>(p) : kernel_for<false, false>(p));
    return launch_dependent(kernel, p.blocks, 32 * kColumnWarps, 0, stream, a);
}

Axis points(const turbofno_mix &mix, int h) { return {unsigned(mix.modes_w), int64_t(h) * mix.modes_w, h}; }
Axis modes(const turbofno_mix &mix, int64_t pitch) { return {unsigned(pitch), mix.modes_w, mix.modes_h}; }

} // namespace

turbofno_status analyze_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream) {
    Columns a{};
    a.in = reinterpret_cast<const float2 *>(mix.spectra);
    a.out = coefficients(mix, plan);
    a.table = static_cast<const uint4 *>(mix.column_analysis);
    a.from = points(mix, mix.h_in);
    a.to = modes(mix, plan.in_pitch);
    return launch(mix, a, mix.c_in, plan.analysis, stream);
}

turbofno_status synthesize_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream) {
    Columns a{};
    a.in = products(mix, plan);
    a.out = reinterpret_cast<float2 *>(mix.mixed);
    a.table = static_cast<const uint4 *>(mix.column_synthesis);
    a.from = modes(mix, plan.out_pitch);
    a.to = points(mix, mix.h_out);
    return launch(mix, a, mix.c_out, plan.synthesis, stream);
}

} // namespace turbofno
