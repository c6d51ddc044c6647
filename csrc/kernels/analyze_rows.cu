// Truncated DFT of a stored field along its last axis: spectra[channel][2 modes] = field^T . table for each row, by wgmma.
//
// One warp copies: chunks of 64 points of all channels to a ring in shared memory, each one piece of memory, and the table,
// which stays there if it fits and else streams through the same ring. Two warpgroups compute: a warp scales and splits 16
// channels of a row, transposes them in registers (rows are channels, terms points), and its warpgroup multiplies them by the
// table in shared memory. While the tensor cores work, it reads the next chunk. A row's sums stay in registers. Warps wait for
// each other only where the ring and wgmma make them.
//
// The table is an operand of 64 points for each 8 columns (turbofno_ops/_cuda_tables.py):
//     [chunk][8 columns][16 points of the chunk][high, low][8 points]     8 x 8 matrices (wgmma.cuh)
// Columns are ordered so that a lane's sums of two neighbouring fragments are two neighbouring modes.
#include "analyze_rows_operand.cuh"
#include "analyze_rows_pipeline.cuh"
#include "partial_sums.h"
#include "pdl.cuh"
#include "spectra_layout.cuh"

namespace turbofno {
namespace {

// Of the last warpgroup only one warp works. It is a whole one because registers move between warpgroups.
constexpr int kThreads = kLanes * (kComputingWarps + kWarpgroupWarps);

using Kernel = void (*)(AnalysisArguments);

#ifdef TURBOFNO_WGMMA_ENABLED

// The epilogue: writes a row's sums. Lane (g, t) has the modes 8m + 2t and 8m + 2t + 1 in fragments 2m and 2m + 1, of the two
// channels that are the rows g and g + 8 of A.
template <int FRAGMENTS>
__device__ __forceinline__ void write(const AnalysisArguments &a, const float (&sums)[FRAGMENTS][4], int row, int split,
                                      int first_channel, int lane) {
    const int modes = a.of.modes, outer = int(a.of.outer), channels = a.of.channels, b = row / outer, o = row - b * outer;
    const int first = blockIdx.y * (4 * FRAGMENTS), end = min(modes, first + 4 * FRAGMENTS);
    const int g = lane / 4, channel0 = first_channel + 4 * (g / 2) + g % 2;
    const int64_t part = int64_t(split) * a.of.batch * channels * outer * modes;
    with_layout<Layouts::kBoth>(a.of.channels_last, [&](auto channels_last) {
        constexpr bool kChannelsLast = decltype(channels_last)::value;
        const SpectraLayout<kChannelsLast> layout{outer, modes, channels};
        float2 *const to = a.to + part + layout.row(b, o);
        const ChannelsWriter<kChannelsLast> write_channels(layout, to, first + 2 * (lane % 4), end, channel0, lane);
#pragma unroll
        for (int m = 0; m < FRAGMENTS / 2; ++m) {
            const int mode = first + 8 * m + 2 * (lane % 4);
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                if constexpr (kChannelsLast) { // of two neighbouring modes
                    const float(&v)[4] = sums[2 * m + second];
                    write_channels(8 * m + second, 0, {v[0], v[1]}, {v[2], v[3]});
                } else if (mode < end && channel0 + 2 * second < channels) {
                    float2 *at = to + (channel0 + 2 * second) * layout.channel_step() + mode;
                    const float *even = &sums[2 * m][2 * second], *odd = &sums[2 * m + 1][2 * second];
                    if (modes % 2 == 0) {
                        *reinterpret_cast<float4 *>(at) = {even[0], even[1], odd[0], odd[1]};
                    } else {
                        at[0] = {even[0], even[1]};
                        if (mode + 1 < end) at[1] = {odd[0], odd[1]};
                    }
                }
            }
        }
    });
}

// The main loop of a computing warp, a consumer of the ring.
template <typename P, int FRAGMENTS>
__device__ void analyze_chunks(const AnalysisArguments &a, const char *shared, Ring ring, unsigned table_barrier, int warp,
                               int lane) {
    using Field = typename P::Field;
    const AnalysisPlan &plan = a.plan;
    const int rows = int(a.of.batch * a.of.outer), row_of_warp = warp / plan.row_warps;
    const int first_channel = kWarpChannels * (warp - row_of_warp * plan.row_warps);
    // of the warp in a stage
    const int first_byte = row_of_warp * (kChunkPoints * plan.point_bytes) + first_channel * int(sizeof(Field));
    const auto release = [&](unsigned barrier) {
        __syncwarp();
        if (lane == 0) arrive(barrier);
    };
    ChunkValues values;
    Scale scale{1.0f, 1.0f};
    const auto load = [&](const Cursor &at) {
        wait_for(ring.full + 8 * ring.stage, ring.parity);
        const int points = at.row + row_of_warp < rows ? a.of.points - at.chunk * kChunkPoints : 0;
        const char *from = shared + plan.ring_at + ring.stage * plan.stage_bytes + first_byte;
        values.load<Field>(from, plan.point_bytes, points, a.of.channels - at.first_channel - first_channel, lane);
        if constexpr (P::kScaled) scale = scale_of(values.largest());
        if (plan.resident) release(ring.empty + 8 * ring.stage);
    };
    Cursor at(plan);
    if (plan.resident) wait_for(table_barrier, 0);
    load(at);
    float sums[FRAGMENTS][4] = {}, part[FRAGMENTS][4];
    ChunkOperand<P> operand;
    while (true) {
        operand.take(values, scale.factor);
        const int table = plan.resident ? kBarrierBytes + at.chunk * plan.chunk_table_bytes
                                        : plan.ring_at + ring.stage * plan.stage_bytes + plan.stage_table;
        operand.multiply(part, shared_address(shared) + table);
        const float inv_scale = scale.inverse * a.table_inv_scale;
        const unsigned empty = ring.empty + 8 * ring.stage;
        const Cursor done = at;
        ring.advance();
        at.advance(plan);
        const bool more = at.exists(plan);
        if (more) load(at);
        wgmma_wait(part);
        operand.keep();
        if (!plan.resident) release(empty);
#pragma unroll
        for (int n = 0; n < FRAGMENTS; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[n][e] = fmaf(part[n][e], inv_scale, sums[n][e]);
        }
        if (done.chunk + 1 < done.end) continue;
        if (done.row + row_of_warp < rows) {
            write(a, sums, done.row + row_of_warp, done.split, done.first_channel + first_channel, lane);
        }
        if (!more) return;
#pragma unroll
        for (auto &fragment : sums) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
    }
}

#endif

template <typename P, int FRAGMENTS>
__global__ void __launch_bounds__(kThreads, 1) analyze_rows(const __grid_constant__ AnalysisArguments a) {
#ifdef TURBOFNO_WGMMA_ENABLED
    extern __shared__ uint4 shared[];
    const AnalysisPlan &plan = a.plan;
    const unsigned shared_at = shared_address(shared), table_barrier = shared_at + 16 * kMaxStages;
    // the shuffle tells the compiler that the warp index is uniform
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0), lane = threadIdx.x % kLanes;
    const Ring ring(shared_at, plan.stages);
    if (threadIdx.x == 0) {
        for (int i = 0; i < plan.stages; ++i) {
            init_barrier(ring.full + 8 * i, 1);
            init_barrier(ring.empty + 8 * i, kComputingWarps);
        }
        init_barrier(table_barrier, 1);
    }
    __syncthreads();
    if (!a.of.weights_settled) pdl_wait();
    if (warp >= kComputingWarps) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == kComputingWarps) {
            const TableCopy<P> table(a);
            if (plan.resident) {
                if (lane == 0) arrive_and_expect(table_barrier, plan.chunks * table.bytes);
                __syncwarp();
                for (int chunk = lane; chunk < plan.chunks; chunk += kLanes) {
                    table(shared_at + kBarrierBytes + chunk * plan.chunk_table_bytes, chunk, table_barrier);
                }
            }
            pdl_wait();
            copy_chunks<P>(a, table, ring, shared_at + plan.ring_at, lane);
        } else {
            pdl_wait(); // or else its trigger would let the kernel after the next one start
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        pdl_wait();
        analyze_chunks<P, FRAGMENTS>(a, reinterpret_cast<const char *>(shared), ring, table_barrier, warp, lane);
    }
    pdl_trigger();
#endif
}

template <typename P> Kernel kernel_for(int fragments) {
    switch (fragments) {
    case 4: return analyze_rows<P, 4>;
    case 6: return analyze_rows<P, 6>;
    case 8: return analyze_rows<P, 8>;
    case 12: return analyze_rows<P, 12>;
    default: return analyze_rows<P, 16>;
    }
}

Kernel kernel_for(int precision, int fragments) {
    switch (precision) {
    case TURBOFNO_TF32: return kernel_for<PrecisionTf32>(fragments);
    case TURBOFNO_BF16: return kernel_for<PrecisionBf16>(fragments);
    default: return kernel_for<PrecisionFp32>(fragments);
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_analyze_rows(const turbofno_row_analysis *analysis, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_analyze_rows_unsupported(analysis) != nullptr) return TURBOFNO_UNSUPPORTED;
    AnalysisArguments a{};
    a.of = *analysis;
    a.plan = plan(*analysis);
    const bool missing = a.of.field == nullptr || a.of.spectra == nullptr || a.of.table == nullptr ||
                         (a.plan.workspace_bytes > 0 && a.of.workspace == nullptr);
    if (missing) return TURBOFNO_NULL_POINTER;
    int exponent = 13; // analysis_exponent of _cuda_tables.py
    while ((1 << (exponent - 13)) < a.of.points) ++exponent;
    a.table_inv_scale = a.of.precision != TURBOFNO_BF16 ? 1.0f / float(int64_t(1) << exponent) : 1.0f;
    a.to = static_cast<float2 *>(a.plan.splits > 1 ? a.of.workspace : a.of.spectra);
    const Kernel kernel = kernel_for(a.of.precision, a.plan.fragments);
    allow_shared_memory(kernel, a.of.shared_bytes);
    const turbofno_status status = launch_pdl(kernel, dim3(unsigned(a.plan.blocks), unsigned(a.plan.column_tiles)), kThreads,
                                              size_t(a.plan.shared_bytes), stream, a);
    if (status != TURBOFNO_OK || a.plan.splits == 1) return status;
    const int64_t count = a.of.batch * a.of.outer * a.of.channels * 2 * a.of.modes;
    return add_parts(a.of.spectra, static_cast<const float *>(a.of.workspace), count, a.plan.splits, stream);
}
