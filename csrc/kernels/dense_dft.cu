// Discrete Fourier transforms of many lines as matrix products, for sizes that have a large prime factor.
//
// n and N - n share their products, as do k and N - k:
//     C[k] = sum over n of cos(n k) e[n],   e[n] = x[n] + x[N - n]       n, k = 0 .. N / 2
//     S[k] = sum over n of sin(n k) o[n],   o[n] = x[n] - x[N - n]       x[N - n] is zero where it is x[n]
// This is a quarter of the products of the full sum. From real to complex X[k] = C + iS. From complex to real e and o are
// the real and imaginary parts, n and k change places, and x[n], x[N - n] are C + S, C - S. A complex line is two real ones,
// its real and imaginary part, which a lane holds as two rows of the same fragment; X[k] and X[N - k] come from both. Sign
// and weights are in the table.
//
// Rows of the tensor cores are lines, terms n, columns k. A warpgroup has 64 rows and up to 112 columns; each of its warps
// loads, splits and stores its own 16 rows. Lines arrive in chunks of 32 terms: x[n] and x[N - n] as two planes, in a ring
// of stages in shared memory that runs on from one unit of 64 rows to the next. A lane takes four neighbouring terms of a
// row in 16-byte words, adds and subtracts, and splits the results, which are the A operand as they are. Every row and chunk
// has its own scale, so no line is read twice, and one that is not finite does not touch another. Sums are restarted for
// each chunk, because tensor cores truncate. At the end the sums go through the stage that their last chunk has left, so
// that stores are coalesced.
//
// The table, turbofno_ops/_dft_table.py, is the B operand of wgmma (wgmma.cuh) and of mma.sync alike:
//     [chunk][8 columns][cos, sin][16 terms][high, low][8 terms]     8 x 8 matrices, a row is 8 terms of a column
// All of it stays in shared memory if it fits: then warps never wait for each other. Else its chunks come through the ring,
// and the warps of a block go from chunk to chunk together. More than 112 columns are other blocks' work. Term 4 (i / 2) +
// 2h + i % 2 of 16 is term i of half h, so a lane's terms are neighbours; column 2t + e of a fragment is 4e + t, so four
// lanes' results are.
#include "../plan/dense_dft_plan.h"
#include "async_copy.cuh"
#include "dense_dft_epilogue.cuh"
#include "dense_dft_load.cuh"
#include "dense_dft_mma.cuh"
#include "pdl.cuh"

namespace turbofno {
namespace {

constexpr int kWarpgroupThreads = kWarpgroupWarps * kLanes;

// Waits for the copies of the current stage: all but the last stages - 2 that were committed.
__device__ __forceinline__ void wait_for_stage(int stages) {
    if (stages == 2) {
        wait_copies<0>();
    } else if (stages == 3) {
        wait_copies<1>();
    } else {
        wait_copies<2>();
    }
}

template <typename P, int KIND, int FRAGMENTS, int TILES>
__global__ void __launch_bounds__(kWarpgroupThreads *dense_dft_warpgroups(FRAGMENTS), 1)
    dense_dft(const __grid_constant__ DenseDftArguments a) {
    constexpr bool kHalves = !P::kSplit;
    using Target = LineTarget<KIND, kHalves>;
    extern __shared__ uint4 shared[];
    const DenseDftPlan &plan = a.plan;
    // the shuffle tells the compiler that the warp index is uniform
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0), lane = threadIdx.x % kLanes;
    char *const lines = reinterpret_cast<char *>(shared) + plan.lines_at + warp * (plan.stages * kDftLineBytes);
    const int first_fragment = blockIdx.y * plan.group_fragments, chunk_words = plan.group_fragments * kDftFragmentWords<P>;

    const auto copy_table = [&](int chunk, int stage) {
        const uint4 *from = static_cast<const uint4 *>(a.of.table) +
                            (int64_t(chunk) * plan.table_fragments + first_fragment) * kDftFragmentWords<P>;
        const int words = min(plan.group_fragments, plan.table_fragments - first_fragment) * kDftFragmentWords<P>;
        for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(shared + stage * chunk_words + i, from + i, true);
    };
    const auto first_line_of = [&](int unit) {
        return unsigned(unit * kWarpgroupWarps + warp % kWarpgroupWarps) * DftKind<KIND>::kLines;
    };
    const int first_unit = blockIdx.x * plan.warpgroups, unit_stride = gridDim.x * plan.warpgroups;
    // all warpgroups make as many turns; some units of the last one do not exist and have no lines
    const int turns = ceil_div(plan.units - first_unit, unit_stride) * plan.chunks;

    pdl_wait();
    if (plan.resident) {
        for (int chunk = 0; chunk < plan.chunks; ++chunk) copy_table(chunk, chunk);
    }
    LineSource<KIND, kHalves> source;
    DftSums<P, FRAGMENTS, TILES> sums;
    sums.clear();
    int unit = first_unit + warp / kWarpgroupWarps, chunk = 0, stage = 0;
    int next_unit = unit, next_chunk = 0, next_stage = 0; // of the next copy
#pragma unroll 1
    for (int turn = 1 - plan.stages; turn < turns; ++turn) { // the first ones only copy
        if (turn >= 0) wait_for_stage(plan.stages);
        if (turn == 0 || !plan.resident) {
            fence_proxy_async(); // wgmma reads the table
            __syncthreads();
        } else {
            __syncwarp();
        }
        const bool copies = turn + plan.stages - 1 < turns;
        char *const next = lines + next_stage * kDftLineBytes; // the stage that all have left
        if (copies) {
            if (next_chunk == 0) source.enter(a, first_line_of(next_unit), lane);
            if (!plan.resident) copy_table(next_chunk, next_stage);
            source.copy(a, next, next_chunk, lane);
            if (++next_stage == plan.stages) next_stage = 0;
            if (++next_chunk == plan.chunks) {
                next_chunk = 0;
                next_unit += unit_stride;
            }
        }
        commit_copies();
        if (turn < 0) {
            if (copies) source.finish(a, next, lane);
            continue;
        }

        char *const staged = lines + stage * kDftLineBytes;
        const auto add = [&](auto steps) {
            FoldedOperandA<P, decltype(steps)::value> a_operand;
            a_operand.template load<KIND, kHalves>(staged, chunk, a.of.points, lane);
            sums.add(a_operand, shared + (plan.resident ? chunk : stage) * chunk_words, lane);
        };
        if (plan.last_is_short && chunk == plan.chunks - 1) {
            add(std::integral_constant<int, 1>{});
        } else {
            add(std::integral_constant<int, kDftSteps>{});
        }
        if (copies) source.finish(a, next, lane);
        if (++stage == plan.stages) stage = 0;
        if (++chunk < plan.chunks) continue;
        chunk = 0;

        const Target target(a, first_line_of(unit), lane);
        auto *const results = reinterpret_cast<typename Target::Value *>(staged);
        const int end = kDftColumns * (first_fragment + plan.group_fragments);
        target.store_from(a, results, sums.of, kDftColumns * first_fragment, end, lane);
        sums.clear();
        unit += unit_stride;
    }
    pdl_trigger();
}

using Kernel = void (*)(DenseDftArguments);

template <typename P, int KIND> Kernel kernel_for(int fragments) {
    switch (fragments) {
    case 4: return dense_dft<P, KIND, 4, 1>;
    case 6: return dense_dft<P, KIND, 6, 1>;
    case 5: return dense_dft<P, KIND, 5, 2>;
    default: return dense_dft<P, KIND, 7, 2>;
    }
}

template <typename P> Kernel kernel_for(int kind, int fragments) {
    switch (kind) {
    case TURBOFNO_COMPLEX: return kernel_for<P, TURBOFNO_COMPLEX>(fragments);
    case TURBOFNO_REAL_TO_COMPLEX: return kernel_for<P, TURBOFNO_REAL_TO_COMPLEX>(fragments);
    default: return kernel_for<P, TURBOFNO_COMPLEX_TO_REAL>(fragments);
    }
}

// True if neighbouring lines are nearer to each other than neighbouring values of a line.
bool along_lines(const turbofno_fft &of, int64_t outer, int64_t inner, int64_t point) {
    const int64_t line = of.inner > 1 ? inner : outer;
    return of.inner * of.outer > 1 && (line < 0 ? -line : line) < (point < 0 ? -point : point);
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_dense_dft(const turbofno_fft *fft, CUstream_st *stream) {
    using namespace turbofno;
    DenseDftArguments a{};
    if (prepare(*fft, a.plan) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (fft->input == nullptr || fft->out == nullptr || fft->table == nullptr) return TURBOFNO_NULL_POINTER;
    a.of = *fft;
    a.lines = unsigned(fft->outer * fft->inner);
    a.inner = unsigned(fft->inner);
    a.in_along_lines = along_lines(*fft, fft->in_outer, fft->in_inner, fft->in_point);
    a.out_along_lines = along_lines(*fft, fft->out_outer, fft->out_inner, fft->out_point);
    const Kernel kernel = fft->precision == TURBOFNO_FP32 ? kernel_for<PrecisionFp32>(fft->kind, a.plan.fragments)
                                                               : kernel_for<PrecisionTf32>(fft->kind, a.plan.fragments);
    a.in_cut = fft->in_head + fft->in_tail < dft_values(*fft, fft->kind != TURBOFNO_REAL_TO_COMPLEX);
    a.out_cut = fft->out_head + fft->out_tail < dft_values(*fft, fft->kind != TURBOFNO_COMPLEX_TO_REAL);
    allow_shared_memory(kernel, fft->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks), unsigned(a.plan.groups)), kWarpgroupThreads * a.plan.warpgroups,
                      size_t(a.plan.shared_bytes), stream, a);
}
