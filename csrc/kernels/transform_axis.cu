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
// (turbofno_ops/_cuda_tables.py), [tile of 16 rows][k-tile of 8 terms][cos, sin][high, low][lane][4]; the warps of a block
// share them in shared memory.
//
// Two kernels. `dft_streamed` streams any number of terms and accumulates 16 to 48 rows. `dft_resident` keeps at most 16
// terms in registers (30 modes of an inverse), split once, and computes one tile of rows after the other.
//
// A warp computes two mma column groups of eight neighbouring columns: a lane writes two of them as 16 bytes, four lanes 64.
#include "pdl.cuh"
#include "transform_axis_epilogue.cuh"
#include "transform_axis_load.cuh"
#include "transform_axis_mma.cuh"

namespace turbofno {
namespace {

constexpr int kTable = 128; // 16-byte words of a tile's k-tile, and threads of a block
static_assert(32 * kColumnWarps == kTable, "each thread copies one word");

template <int TILES, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, TILES == 1 ? 4 : TILES == 2 ? 3 : 2)
    dft_streamed(const TransformArguments a) {
    constexpr int kStages = TILES == 1 ? 4 : 3; // k-tiles in shared memory
    __shared__ KTile stages[kStages][kColumnWarps];
    __shared__ uint4 tables[kStages][TILES][kTable];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tile0 = int(blockIdx.x % a.groups) * TILES;
    const int64_t column0 = (int64_t(blockIdx.x / a.groups) * kColumnWarps + warp) * kWarpColumns;
    const ColumnSource<EVEN> source(a, column0);
    const auto copy_k_tile = [&](int step) {
        const int stage = step % kStages;
        if (step < a.steps) {
            source.copy_k_tile(stages[stage][warp], a.from, step);
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
    for (int n = 0; n < kStages - 1; ++n) copy_k_tile(n);
    float cosine[TILES][4][4] = {}, sine[TILES][4][4] = {};
    for (int step = 0; step < a.steps; ++step) {
        wait_copies<kStages - 2>();
        __syncthreads(); // this k-tile has arrived; the stage filled next has been read
        copy_k_tile(step + kStages - 1);
        const int stage = step % kStages;
        OperandB even, odd;
        fold<SPLIT>(even, odd, stages[stage][warp]);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if (TILES > 1 && tile0 + i >= a.tiles) break;
            add_product<SPLIT>(cosine[i], &tables[stage][i][lane], even);
            add_product<SPLIT>(sine[i], &tables[stage][i][lane + 64], odd);
        }
    }
    pdl_trigger();
    const ColumnTarget<EVEN> target(a, column0);
#pragma unroll
    for (int i = 0; i < TILES; ++i) target.put_tile(a.to, tile0 + i, cosine[i], sine[i]);
}

template <int STEPS, bool SPLIT, bool EVEN>
__global__ void __launch_bounds__(32 * kColumnWarps, STEPS == 1 ? 4 : 3) dft_resident(const TransformArguments a) {
    constexpr int kStages = 3; // tiles in shared memory
    __shared__ KTile stages[kColumnWarps][STEPS];
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
    const ColumnSource<EVEN> source(a, column0);
    const ColumnTarget<EVEN> target(a, column0);
    pdl_wait();

#pragma unroll
    for (int i = 0; i < STEPS; ++i) source.copy_k_tile(stages[warp][i], a.from, i);
    copy_table(0);
    copy_table(1);
    wait_copies<1>();
    __syncwarp();
    OperandB even[STEPS], odd[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) fold<SPLIT>(even[i], odd[i], stages[warp][i]);
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

using Kernel = void (*)(TransformArguments);

template <bool SPLIT, bool EVEN> Kernel kernel_for(const TransformPlan &p) {
    switch (p.warp_tiles) {
    case 0: return p.steps == 1 ? dft_resident<1, SPLIT, EVEN> : dft_resident<2, SPLIT, EVEN>;
    case 1: return dft_streamed<1, SPLIT, EVEN>;
    case 2: return dft_streamed<2, SPLIT, EVEN>;
    default: return dft_streamed<3, SPLIT, EVEN>;
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_transform_axis(const turbofno_transform *t, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_transform_unsupported(t) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (t->input == nullptr || t->out == nullptr || t->table == nullptr) return TURBOFNO_NULL_POINTER;
    const TransformPlan p = plan(*t);
    const Axis points{t->inner, int64_t(t->points) * t->inner, t->points}, modes{t->pitch, t->inner, t->modes};
    TransformArguments a{};
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
                              ? (even ? kernel_for<true, true>(p) : kernel_for<true, false>(p))
                              : (even ? kernel_for<false, true>(p) : kernel_for<false, false>(p));
    return launch_pdl(kernel, dim3(unsigned(p.blocks)), 32 * kColumnWarps, 0, stream, a);
}
