// DFTs along h, both ways, of all columns [batch][channel][modes_w] side by side.
//
// Points n and kept modes k both stand in FFT order: index i of `size` means i below (size + 1) / 2 and i - size from
// there on. A transform takes `from` indices to `to` indices; +j and -j share their products, as do +i and -i:
//
//     C[i] = sum over j of cos(i j) (in[j] + in[-j])      i = 0 .. to / 2, j = 0 .. from / 2
//     S[i] = sum over j of sin(i j) (in[j] - in[-j])      in[j] or in[-j] is zero where it does not exist
//     out[i] = C[i] -+ i S[i], out[-i] = C[i] +- i S[i]   upper signs: points to modes
//
// a quarter of the products of the full sum. C and S are real matrix products on tensor cores, left the tables of cosines
// and sines, right the columns. A warp takes 16 complex columns and 16 to 48 rows i; a lane's columns go from global
// memory straight into the places where the tensor cores want them, and the tables are stored in that order
// (turbofno_ops/_cuda_tables.py): [tile of 16 rows][step of 8 terms][cos, sin][high, low][lane][4].
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
    float sign; // of i S in out[i]
};

__device__ int64_t place(const Axis &axis, int64_t column, int modes_w) {
    const unsigned channel = unsigned(column) / unsigned(modes_w); // columns are at most 2^31
    return channel * axis.channel_stride + (unsigned(column) - channel * modes_w);
}

// Whether i or -i exists on an axis of `size`, for i = 0 .. size / 2 and beyond.
__device__ bool has_positive(int i, int size) { return i < (size + 1) / 2; }
__device__ bool has_negative(int i, int size) { return i >= 1 && i <= size / 2; }

// Two neighbouring columns: (re, im, re, im). EVEN: an even number of modes_w, so they are 16 aligned bytes.
template <bool EVEN> __device__ float4 load(const float2 *const (&from)[2], int64_t offset, bool exists) {
    if (!exists) return float4{};
    if constexpr (EVEN) {
        return *reinterpret_cast<const float4 *>(from[0] + offset);
    } else {
        const float2 a = from[0][offset], b = from[1][offset];
        return float4{a.x, a.y, b.x, b.y};
    }
}

struct Terms { // one lane's share of a step: in[j] and in[-j] for j = t and j = t + 4
    float4 positive[2], negative[2];
};

template <bool EVEN>
__device__ __forceinline__ Terms load_terms(const Columns &a, const float2 *const (&from)[2], int step) {
    Terms terms;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int j = step * 8 + int(threadIdx.x % 4) + 4 * e;
        terms.positive[e] = load<EVEN>(from, int64_t(unsigned(j)) * a.from.stride, has_positive(j, a.from.size));
        terms.negative[e] =
            load<EVEN>(from, int64_t(unsigned(a.from.size - j)) * a.from.stride, has_negative(j, a.from.size));
    }
    return terms;
}

template <int TILES, bool SPLIT>
__device__ __forceinline__ void multiply(float (&sum)[TILES][4][4], const float4 (&terms)[2], const uint4 *table,
                                         int64_t tile_stride, int tiles) {
    uint32_t high[4][2], low[4][2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const float values[4] = {terms[e].x, terms[e].y, terms[e].z, terms[e].w};
#pragma unroll
        for (int f = 0; f < 4; ++f) {
            const Tf32 value = to_tf32<SPLIT>(values[f]);
            high[f][e] = value.high;
            low[f][e] = value.low;
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        if (TILES > 1 && i >= tiles) break;
        const uint4 h = __ldg(table + i * tile_stride);
        const uint32_t left_high[4] = {h.x, h.y, h.z, h.w};
        float part[4][4] = {};
        if constexpr (SPLIT) {
            const uint4 l = __ldg(table + i * tile_stride + 32);
            const uint32_t left_low[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
            for (int f = 0; f < 4; ++f) multiply_add(part[f], left_low, high[f]);
#pragma unroll
            for (int f = 0; f < 4; ++f) multiply_add(part[f], left_high, low[f]);
        }
#pragma unroll
        for (int f = 0; f < 4; ++f) multiply_add(part[f], left_high, high[f]);
#pragma unroll
        for (int f = 0; f < 4; ++f) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][f][e] += part[f][e];
        }
    }
}

__device__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ float4 minus(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }

template <int TILES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, TILES == 1 ? 4 : TILES == 2 ? 3 : 2)
    transform_columns(const Columns a) {
    constexpr int kAhead = 2; // steps on their way while one is multiplied
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t warp = int64_t(blockIdx.x) * kColumnWarps + threadIdx.x / 32;
    const int tile0 = int(warp % a.groups) * TILES;
    const int64_t column0 = warp / a.groups * kWarpColumns;
    wait_for_previous();
    let_next_start();
    if (column0 >= a.columns) return;

    // beyond the last column the last one, or the last two, again
    const int64_t first = min(column0 + 2 * g, EVEN ? a.columns - 2 : a.columns - 1);
    const float2 *const from[2] = {a.in + place(a.from, first, a.modes_w),
                                   a.in + place(a.from, min(first + 1, a.columns - 1), a.modes_w)};
    const uint4 *table = a.table + int64_t(tile0) * a.steps * 128 + threadIdx.x % 32;
    const int64_t tile_stride = int64_t(a.steps) * 128;
    const int tiles = a.tiles - tile0;

    float cosine[TILES][4][4] = {}, sine[TILES][4][4] = {};
    Terms ahead[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ahead[n] = load_terms<EVEN>(a, from, n);
    for (int step0 = 0; step0 < a.steps; step0 += kAhead) {
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            if (step0 + n >= a.steps) break;
            const Terms now = ahead[n];
            ahead[n] = load_terms<EVEN>(a, from, step0 + n + kAhead);
            const float4 even[2] = {plus(now.positive[0], now.negative[0]), plus(now.positive[1], now.negative[1])};
            multiply<TILES, SPLIT>(cosine, even, table, tile_stride, tiles);
            const float4 odd[2] = {minus(now.positive[0], now.negative[0]), minus(now.positive[1], now.negative[1])};
            multiply<TILES, SPLIT>(sine, odd, table + 64, tile_stride, tiles);
            table += 128;
        }
    }

    // This lane's sums are of rows g and g + 8 of a tile and of four neighbouring columns.
    const int64_t column = column0 + 4 * t;
    float2 *to[4];
#pragma unroll
    for (int s = 0; s < 4; s += EVEN ? 2 : 1) {
        to[s] = column + s < a.columns ? a.out + place(a.to, column + s, a.modes_w) : nullptr;
    }
    const auto put = [&](int index, const float2(&z)[4]) {
        const int64_t offset = int64_t(unsigned(index)) * a.to.stride;
#pragma unroll
        for (int s = 0; s < 4; s += EVEN ? 2 : 1) {
            if (to[s] == nullptr) continue;
            if constexpr (EVEN) {
                *reinterpret_cast<float4 *>(to[s] + offset) = float4{z[s].x, z[s].y, z[s + 1].x, z[s + 1].y};
            } else {
                to[s][offset] = z[s];
            }
        }
    };
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = (tile0 + i) * 16 + g + 8 * half;
            float2 positive[4], negative[4];
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int re = s % 2 * 2, e = 2 * half + s / 2;
                const float2 c = {cosine[i][re][e], cosine[i][re + 1][e]};
                const float2 is = {-a.sign * sine[i][re + 1][e], a.sign * sine[i][re][e]};
                positive[s] = float2{c.x + is.x, c.y + is.y};
                negative[s] = float2{c.x - is.x, c.y - is.y};
            }
            if (has_positive(row, a.to.size)) put(row, positive);
            if (has_negative(row, a.to.size)) put(a.to.size - row, negative);
        }
    }
}

turbofno_status launch(const Columns &a, const ColumnsPlan &p, int precision, cudaStream_t stream) {
    const auto run = [&](void (*kernel)(Columns)) {
        return launch_dependent(kernel, p.blocks, 32 * kColumnWarps, 0, stream, a);
    };
    const auto choose = [&](auto split, auto even) {
        constexpr bool SPLIT = decltype(split)::value, EVEN = decltype(even)::value;
        switch (p.warp_tiles) {
        case 1: return run(transform_columns<1, SPLIT, EVEN>);
        case 2: return run(transform_columns<2, SPLIT, EVEN>);
        default: return run(transform_columns<3, SPLIT, EVEN>);
        }
    };
    const bool even = a.modes_w % 2 == 0;
    if (precision == TURBOFNO_FP32) {
        return even ? choose(std::true_type{}, std::true_type{}) : choose(std::true_type{}, std::false_type{});
    }
    return even ? choose(std::false_type{}, std::true_type{}) : choose(std::false_type{}, std::false_type{});
}

Columns columns(const turbofno_mix &mix, const ColumnsPlan &p, int channels) {
    Columns a{};
    a.columns = mix.batch * channels * mix.modes_w;
    a.modes_w = mix.modes_w;
    a.steps = p.steps;
    a.tiles = p.tiles;
    a.groups = p.groups;
    return a;
}

Axis points(const turbofno_mix &mix, int h) { return {unsigned(mix.modes_w), int64_t(h) * mix.modes_w, h}; }
Axis modes(const turbofno_mix &mix, int64_t pitch) { return {unsigned(pitch), mix.modes_w, mix.modes_h}; }

} // namespace

turbofno_status analyze_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream) {
    Columns a = columns(mix, plan.analysis, mix.c_in);
    a.in = reinterpret_cast<const float2 *>(mix.spectra);
    a.out = coefficients(mix, plan);
    a.table = static_cast<const uint4 *>(mix.column_analysis);
    a.from = points(mix, mix.h_in);
    a.to = modes(mix, plan.in_pitch);
    a.sign = -1;
    return launch(a, plan.analysis, mix.precision, stream);
}

turbofno_status synthesize_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream) {
    Columns a = columns(mix, plan.synthesis, mix.c_out);
    a.in = products(mix, plan);
    a.out = reinterpret_cast<float2 *>(mix.mixed);
    a.table = static_cast<const uint4 *>(mix.column_synthesis);
    a.from = modes(mix, plan.out_pitch);
    a.to = points(mix, mix.h_out);
    a.sign = 1;
    return launch(a, plan.synthesis, mix.precision, stream);
}

} // namespace turbofno
