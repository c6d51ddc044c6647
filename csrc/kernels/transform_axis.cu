// Truncated DFT along one axis, or its inverse, of all columns [outer][inner]: `outer` counts the elements before the axis,
// `inner` those after it.
//
// Points n and kept modes k are both in FFT order: index i of `size` means i below (size + 1) / 2, else i - size. A
// transform maps `from` indices to `to` indices. +j and -j share their products, as do +i and -i:
//
//     C[i] = sum over j of cos(i j) (in[j] + in[-j])      i = 0 .. to / 2, j = 0 .. from / 2
//     S[i] = sum over j of sin(i j) (in[j] - in[-j])      in[j] or in[-j] is zero where it does not exist
//     out[i] = C[i] + i S[i], out[-i] = C[i] - i S[i]     (from points to modes the table has -sin)
//
// This takes a quarter of the products of the full sum. C and S are real matrix products on tensor cores: A holds the tables
// of cosines and sines, B the columns. A warp takes 16 complex columns and copies their terms to shared memory in whole
// lines of 128 bytes, because L2 look-ups limit partial lines. The tables are stored in mma order
// (turbofno_ops/_cuda_tables.py), [tile of 16 rows][k-slab of 8 terms][cos, sin][high, low][lane][4]; the warps of a block
// share them in shared memory.
//
// Two kernels. `dft_streamed` streams any number of terms and accumulates 16 to 48 rows. `dft_resident` keeps at most 16
// terms in registers (30 modes of an inverse), split once, and computes one tile of rows after the other.
//
// A warp computes two mma column groups of eight. If more is read than written, column n of group p is the warp's column
// 2n + p, so that a lane reads two neighbours as 16 bytes. Otherwise it is 8p + n, so that a lane writes 16 bytes.
#include "async_copy.cuh"
#include "fft_order.cuh"
#include "pdl.cuh"
#include "../plan/spectral_plan.h"
#include "split_tf32.cuh"

namespace turbofno {
namespace {

// Column [o][y] at index i is complex number i * stride + o * outer_stride + y.
struct Axis {
    int64_t stride, outer_stride;
    int size;
};

struct DftArguments {
    const float2 *in;
    float2 *out;
    const uint4 *table;
    Axis from, to;
    int64_t columns; // outer * inner
    int inner;
    int steps, tiles, groups;
};

__device__ int64_t element_offset(const Axis &axis, int64_t column, int inner) {
    const unsigned o = unsigned(column) / unsigned(inner); // columns are at most 2^31
    return o * axis.outer_stride + (unsigned(column) - o * inner);
}

// EVEN, here and below: `inner` is even, so two neighbouring columns are 16 aligned bytes.
//
// A k-slab of terms in shared memory: in[j] and in[-j] of j = 0 .. 3, then of 4 .. 7, each [j % 4][columns / 2]. Pairs of
// columns are swizzled so that neither the copies nor the reads of a warp have bank conflicts.
using KSlab = float4[2][2][32];

__device__ int swizzled(int j, int pair) { return j * 8 + (pair ^ (2 * j)); }

template <bool EVEN> struct Source { // this lane copies columns 2 pair, 2 pair + 1 of terms j and j + 4
    const float2 *from[2];
    int j, pair;

    __device__ Source(const DftArguments &a, int64_t column0) : j(threadIdx.x % 32 / 8), pair(threadIdx.x % 8) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            // beyond the last column read the last pair again; its result is not stored
            const int64_t column = column0 + 2 * pair + s;
            const int64_t inside = column < a.columns ? column : EVEN ? a.columns - 2 + s : a.columns - 1;
            from[s] = a.in + element_offset(a.from, inside, a.inner);
        }
    }

    __device__ __forceinline__ void copy(float4 *to, unsigned index, int64_t stride, bool exists) const {
        const int64_t at = exists ? index * stride : 0;
        if constexpr (EVEN) {
            copy_async<16>(to, from[0] + at, exists);
        } else {
            copy_async<8>(to, from[0] + at, exists);
            copy_async<8>(reinterpret_cast<float2 *>(to) + 1, from[1] + at, exists);
        }
    }

    __device__ __forceinline__ void copy_slab(KSlab &to, const Axis &axis, int step) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int index = step * 8 + 4 * e + j;
            copy(&to[e][0][swizzled(j, pair)], index, axis.stride, has_positive(index, axis.size));
            copy(&to[e][1][swizzled(j, pair)], axis.size - index, axis.stride, has_negative(index, axis.size));
        }
    }
};

// Column n = lane / 4 of both groups, at term t = lane % 4.
template <bool WIDE_READS> __device__ __forceinline__ float4 read(const float4 *terms) {
    const int n = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if constexpr (WIDE_READS) {
        return terms[swizzled(t, n)];
    } else {
        const float2 a = reinterpret_cast<const float2 *>(terms + swizzled(t, n / 2))[n % 2];
        const float2 b = reinterpret_cast<const float2 *>(terms + swizzled(t, 4 + n / 2))[n % 2];
        return float4{a.x, a.y, b.x, b.y};
    }
}

struct OperandB { // 8 terms: fragments (re, im) of the first column, (re, im) of the second
    uint32_t high[4][2], low[4][2];
};

template <bool SPLIT> __device__ __forceinline__ OperandB operand_b(float4 first, float4 second) {
    const float values[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
    OperandB b;
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const Tf32Parts value = to_tf32<SPLIT>(values[e][f]);
            b.high[f][e] = value.high;
            b.low[f][e] = value.low;
        }
    }
    return b;
}

__device__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ float4 minus(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }

template <bool SPLIT, bool WIDE_READS> __device__ __forceinline__ void fold(OperandB &even, OperandB &odd, const KSlab &step) {
    const float4 positive[2] = {read<WIDE_READS>(step[0][0]), read<WIDE_READS>(step[1][0])};
    const float4 negative[2] = {read<WIDE_READS>(step[0][1]), read<WIDE_READS>(step[1][1])};
    even = operand_b<SPLIT>(plus(positive[0], negative[0]), plus(positive[1], negative[1]));
    odd = operand_b<SPLIT>(minus(positive[0], negative[0]), minus(positive[1], negative[1]));
}

template <bool SPLIT>
__device__ __forceinline__ void add_product(float (&sum)[4][4], const uint4 *table, const OperandB &b) {
    const uint4 h = table[0], l = SPLIT ? table[32] : uint4{};
    const uint32_t high[4] = {h.x, h.y, h.z, h.w}, low[4] = {l.x, l.y, l.z, l.w};
    float part[4][4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) { // small products first; independent ones interleaved
#pragma unroll
        for (int f = 0; f < 4; ++f) {
            mma(part[f], product == 0 ? low : high, product == 1 ? b.low[f] : b.high[f]);
        }
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][e] += part[f][e];
    }
}

template <bool EVEN, bool WIDE_READS> struct Target { // this lane writes two pairs of neighbouring columns
    float2 *to[2][2];

    __device__ Target(const DftArguments &a, int64_t column0) {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
            for (int s = 0; s < (EVEN ? 1 : 2); ++s) {
                const int64_t column = column0 + (WIDE_READS ? 4 * t + 2 * pair : 8 * pair + 2 * t) + s;
                to[pair][s] = column < a.columns ? a.out + element_offset(a.to, column, a.inner) : nullptr;
            }
        }
    }

    __device__ __forceinline__ void put(int pair, uint64_t offset, float2 first, float2 second) const {
        if constexpr (EVEN) {
            if (to[pair][0] == nullptr) return;
            *reinterpret_cast<float4 *>(to[pair][0] + offset) = float4{first.x, first.y, second.x, second.y};
        } else {
            if (to[pair][0] != nullptr) to[pair][0][offset] = first;
            if (to[pair][1] != nullptr) to[pair][1][offset] = second;
        }
    }

    // Rows g and g + 8 of a tile.
    __device__ __forceinline__ void put_tile(const Axis &axis, int tile, const float (&cosine)[4][4],
                                             const float (&sine)[4][4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile * 16 + int(threadIdx.x % 32 / 4) + 8 * half;
            const bool has[2] = {has_positive(row, axis.size), has_negative(row, axis.size)};
            const uint64_t offset[2] = {uint64_t(row) * axis.stride,
                                        uint64_t(axis.size - row) * axis.stride};
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                float2 z[2][2]; // positive and negative, of two columns
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    const int re = 2 * (WIDE_READS ? s : pair), im = re + 1, e = 2 * half + (WIDE_READS ? pair : s);
                    z[0][s] = float2{cosine[re][e] - sine[im][e], cosine[im][e] + sine[re][e]};
                    z[1][s] = float2{cosine[re][e] + sine[im][e], cosine[im][e] - sine[re][e]};
                }
                if (has[0]) put(pair, offset[0], z[0][0], z[0][1]);
                if (has[1]) put(pair, offset[1], z[1][0], z[1][1]);
            }
        }
    }
};

constexpr int kTable = 128; // 16-byte words of a tile's k-slab, and threads of a block
static_assert(32 * kColumnWarps == kTable, "each thread copies one word");

template <int TILES, bool SPLIT, bool EVEN, bool WIDE_READS>
__global__ void __launch_bounds__(32 * kColumnWarps, TILES == 1 ? 4 : TILES == 2 ? 3 : 2) dft_streamed(const DftArguments a) {
    constexpr int kStages = TILES == 1 ? 4 : 3; // k-slabs in shared memory
    __shared__ KSlab stages[kStages][kColumnWarps];
    __shared__ uint4 tables[kStages][TILES][kTable];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tile0 = int(blockIdx.x % a.groups) * TILES;
    const int64_t column0 = (int64_t(blockIdx.x / a.groups) * kColumnWarps + warp) * kWarpColumns;
    const Source<EVEN> source(a, column0);
    const auto copy_slab = [&](int step) {
        const int stage = step % kStages;
        if (step < a.steps) {
            source.copy_slab(stages[stage][warp], a.from, step);
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const bool exists = tile0 + i < a.tiles;
                const int64_t at = (int64_t(tile0 + i) * a.steps + step) * kTable + threadIdx.x;
                copy_async<16>(&tables[stage][i][threadIdx.x], exists ? a.table + at : a.table, exists);
            }
        }
        commit_copies();
    };
    pdl_wait();

#pragma unroll
    for (int n = 0; n < kStages - 1; ++n) copy_slab(n);
    float cosine[TILES][4][4] = {}, sine[TILES][4][4] = {};
    for (int step = 0; step < a.steps; ++step) {
        wait_copies<kStages - 2>();
        __syncthreads(); // this k-slab has arrived; the stage filled next has been read
        copy_slab(step + kStages - 1);
        const int stage = step % kStages;
        OperandB even, odd;
        fold<SPLIT, WIDE_READS>(even, odd, stages[stage][warp]);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if (TILES > 1 && tile0 + i >= a.tiles) break;
            add_product<SPLIT>(cosine[i], &tables[stage][i][lane], even);
            add_product<SPLIT>(sine[i], &tables[stage][i][lane + 64], odd);
        }
    }
    pdl_trigger();
    const Target<EVEN, WIDE_READS> target(a, column0);
#pragma unroll
    for (int i = 0; i < TILES; ++i) target.put_tile(a.to, tile0 + i, cosine[i], sine[i]);
}

template <int STEPS, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, STEPS == 1 ? 4 : 3) dft_resident(const DftArguments a) {
    constexpr int kStages = 3; // tiles in shared memory
    __shared__ KSlab stages[kColumnWarps][STEPS];
    __shared__ uint4 tables[kStages][STEPS][kTable];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = int(blockIdx.x % a.groups);
    const int64_t column0 = (int64_t(blockIdx.x / a.groups) * kColumnWarps + warp) * kWarpColumns;
    const auto copy_table = [&](int n) {
        const int tile = group + n * a.groups;
        if (tile < a.tiles) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                copy_async<16>(&tables[n % kStages][i][threadIdx.x],
                               a.table + (int64_t(tile) * STEPS + i) * kTable + threadIdx.x, true);
            }
        }
        commit_copies();
    };
    const Source<EVEN> source(a, column0);
    const Target<EVEN, false> target(a, column0);
    pdl_wait();

#pragma unroll
    for (int i = 0; i < STEPS; ++i) source.copy_slab(stages[warp][i], a.from, i);
    copy_table(0);
    copy_table(1);
    wait_copies<1>();
    __syncwarp();
    OperandB even[STEPS], odd[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) fold<SPLIT, false>(even[i], odd[i], stages[warp][i]);
#pragma unroll 1
    for (int n = 0; group + n * a.groups < a.tiles; ++n) {
        wait_copies<1>();
        __syncthreads(); // the table has arrived; the one overwritten next has been read
        copy_table(n + 2);
        float cosine[4][4] = {}, sine[4][4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const uint4 *table = &tables[n % kStages][i][lane];
            add_product<SPLIT>(cosine, table, even[i]);
            add_product<SPLIT>(sine, table + 64, odd[i]);
        }
        target.put_tile(a.to, group + n * a.groups, cosine, sine);
    }
    pdl_trigger();
}

using Kernel = void (*)(DftArguments);

template <bool SPLIT, bool EVEN, bool WIDE_READS> Kernel streamed_kernel(int warp_tiles) {
    switch (warp_tiles) {
    case 1: return dft_streamed<1, SPLIT, EVEN, WIDE_READS>;
    case 2: return dft_streamed<2, SPLIT, EVEN, WIDE_READS>;
    default: return dft_streamed<3, SPLIT, EVEN, WIDE_READS>;
    }
}

template <bool SPLIT, bool EVEN> Kernel kernel_for(const DftArguments &a, const TransformPlan &p) {
    if (p.warp_tiles == 0) return p.steps == 1 ? dft_resident<1, SPLIT, EVEN> : dft_resident<2, SPLIT, EVEN>;
    return a.from.size >= a.to.size ? streamed_kernel<SPLIT, EVEN, true>(p.warp_tiles)
                                    : streamed_kernel<SPLIT, EVEN, false>(p.warp_tiles);
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_transform_axis(const turbofno_transform *t, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_transform_unsupported(t) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (t->input == nullptr || t->out == nullptr || t->table == nullptr) return TURBOFNO_NULL_POINTER;
    const TransformPlan p = plan(*t);
    const Axis points{t->inner, int64_t(t->points) * t->inner, t->points}, modes{t->pitch, t->inner, t->modes};
    DftArguments a{};
    a.in = reinterpret_cast<const float2 *>(t->input);
    a.out = reinterpret_cast<float2 *>(t->out);
    a.table = static_cast<const uint4 *>(t->table);
    a.from = t->inverse ? modes : points;
    a.to = t->inverse ? points : modes;
    a.columns = t->outer * t->inner;
    a.inner = int(t->inner);
    a.steps = p.steps;
    a.tiles = p.tiles;
    a.groups = p.groups;
    const bool even = t->inner % 2 == 0 && t->pitch % 2 == 0;
    const Kernel kernel = t->precision == TURBOFNO_FP32
                              ? (even ? kernel_for<true, true>(a, p) : kernel_for<true, false>(a, p))
                              : (even ? kernel_for<false, true>(a, p) : kernel_for<false, false>(a, p));
    return launch_pdl(kernel, dim3(unsigned(p.blocks)), 32 * kColumnWarps, 0, stream, a);
}
