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
#include "../plan/analysis_plan.h"
#include "mbarrier.cuh"
#include "partial_sums.h"
#include "pdl.cuh"
#include "tile_fields.cuh"
#include "wgmma.cuh"

namespace turbofno {
namespace {

// Of the last warpgroup only one warp works. It is a whole one because registers move between warpgroups.
constexpr int kThreads = kLanes * (kComputingWarps + kWarpgroupWarps);

struct AnalysisArguments {
    turbofno_row_analysis of;
    AnalysisPlan plan;
    float table_inv_scale;
    float2 *to; // spectra, or partial sums of them
};

using AnalysisKernel = void (*)(AnalysisArguments);

#ifdef TURBOFNO_WGMMA_ENABLED

constexpr int kStep = 16; // points that wgmma multiplies at once
constexpr int kSteps = kChunkPoints / kStep;
static_assert(kWarpChannels == 16, "wgmma takes 16 rows of each warp");

// The chunks of a block, unit after unit.
struct Cursor {
    unsigned unit; // at most 2^31
    int row, split, first_channel, chunk, end;

    __device__ __forceinline__ Cursor(const AnalysisPlan &plan) : unit(blockIdx.x) { enter(plan); }

    __device__ __forceinline__ void enter(const AnalysisPlan &plan) {
        const unsigned split_of_row = unit / unsigned(plan.channel_blocks), unit_row = split_of_row / unsigned(plan.splits);
        first_channel = int(unit - split_of_row * plan.channel_blocks) * kBlockChannels;
        split = int(split_of_row - unit_row * plan.splits);
        row = int(unit_row) * plan.unit_rows;
        chunk = split * plan.split_chunks;
        end = min(plan.chunks, chunk + plan.split_chunks);
    }

    __device__ __forceinline__ bool exists(const AnalysisPlan &plan) const { return unit < plan.units; }

    __device__ __forceinline__ void advance(const AnalysisPlan &plan) {
        if (++chunk < end) return;
        unit += gridDim.x;
        enter(plan);
    }
};

// The stages of the ring, in turns, and the mbarriers that say whether a stage is full or free.
struct Ring {
    unsigned full, free; // mbarriers, 8 bytes each
    int stages, stage;
    unsigned parity;

    __device__ __forceinline__ Ring(unsigned barriers, int stages)
        : full(barriers), free(barriers + 8 * kMaxStages), stages(stages), stage(0), parity(0) {}

    __device__ __forceinline__ void advance() {
        if (++stage < stages) return;
        stage = 0;
        parity ^= 1;
    }
};

template <typename P> constexpr int kFragmentBytes = kSteps * P::kPlanes * 2 * kMatrixBytes;

// Copies the part of the table that a chunk needs, as far as the table has these columns.
template <typename P> struct TableCopy {
    const char *from;
    int64_t stride; // between chunks
    int bytes;

    __device__ __forceinline__ TableCopy(const AnalysisArguments &a) {
        const int first = blockIdx.y * a.plan.fragments;
        stride = int64_t(a.plan.table_fragments) * kFragmentBytes<P>;
        from = static_cast<const char *>(a.of.table) + first * kFragmentBytes<P>;
        bytes = min(a.plan.fragments, a.plan.table_fragments - first) * kFragmentBytes<P>;
    }

    __device__ __forceinline__ void operator()(unsigned to, int chunk, unsigned barrier) const {
        bulk_copy(to, from + chunk * stride, bytes, barrier);
    }
};

// Fills the ring. Run by one warp.
template <typename P>
__device__ void copy_chunks(const AnalysisArguments &a, const TableCopy<P> &table, Ring ring, unsigned ring_at, int lane) {
    using Field = typename P::Field;
    const AnalysisPlan &plan = a.plan;
    const int pitch = pitch_of<Field>(a.of.channels) * int(sizeof(Field)), rows = int(a.of.batch * a.of.outer);
    bool filled = false; // the whole ring, once
    for (Cursor at(plan); at.exists(plan); at.advance(plan)) {
        const unsigned full = ring.full + 8 * ring.stage, to = ring_at + ring.stage * plan.stage_bytes;
        if (filled) wait_for(ring.free + 8 * ring.stage, ring.parity ^ 1);
        const int points = min(kChunkPoints, a.of.points - at.chunk * kChunkPoints), here = min(plan.unit_rows, rows - at.row);
        const int first_byte = at.first_channel * int(sizeof(Field)), point_bytes = min(plan.point_bytes, pitch - first_byte);
        if (lane == 0) arrive_and_expect(full, here * points * point_bytes + (plan.resident ? 0 : table.bytes));
        __syncwarp();
        const char *from = static_cast<const char *>(a.of.field) + first_byte +
                           (int64_t(at.row) * a.of.points + at.chunk * kChunkPoints) * pitch;
        if (plan.contiguous) {
            if (lane < here) {
                bulk_copy(to + lane * (kChunkPoints * plan.point_bytes), from + int64_t(lane) * a.of.points * pitch,
                          points * pitch, full);
            }
        } else {
            for (int point = lane; point < points; point += kLanes) {
                bulk_copy(to + point * plan.point_bytes, from + int64_t(point) * pitch, point_bytes, full);
            }
        }
        if (!plan.resident && lane == kLanes - 1) table(to + plan.stage_table, at.chunk, full);
        ring.advance();
        filled = filled || ring.stage == 0;
    }
}

// A warp's part of a chunk, 16 channels of 64 points, in the order of warp_mma.cuh: lane (g, t) has the channels 4t .. 4t + 3
// of the points g and g + 8 of every 16.
struct ChunkValues {
    float4 values[kSteps][2];

    // Points and channels that do not exist become zeros.
    template <typename Field>
    __device__ __forceinline__ void load(const char *from, int point_bytes, int points, int channels, int lane) {
        const int channel = 4 * (lane % 4), first = lane / 4;
        const bool exists = channel < channels;
        from += first * point_bytes + channel * int(sizeof(Field));
#pragma unroll
        for (int i = 0; i < 2 * kSteps; ++i) {
            float4 &to = values[i / 2][i % 2];
            to = float4{0.0f, 0.0f, 0.0f, 0.0f};
            if (exists && first + 8 * i < points) to = load_four(reinterpret_cast<const Field *>(from + 8 * i * point_bytes));
        }
    }

    // The largest magnitude of the warp's values.
    __device__ __forceinline__ float largest() const {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * kSteps; ++i) {
            const float4 &v = values[i / 2][i % 2];
            most = max_magnitude(max_magnitude(max_magnitude(max_magnitude(most, v.x), v.y), v.z), v.w);
        }
        // magnitudes are ordered as their bits are, NaN above all others
        return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
    }
};

// The values split and transposed: A operands of wgmma, rows are channels.
template <typename P> struct ChunkOperand {
    uint32_t high[kSteps][4], low[kSteps][4];

    __device__ __forceinline__ void take(const ChunkValues &from, float scale) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) { // rows of fragment r % 2, points of half r / 2
                const float4 &v = from.values[step][r / 2];
                split<P>(r % 2 ? v.z : v.x, r % 2 ? v.w : v.y, scale, high[step][r], low[step][r]);
                high[step][r] = transpose_8x8(high[step][r]);
                if constexpr (P::kSplit) low[step][r] = transpose_8x8(low[step][r]);
            }
        }
    }

    // Starts part = values . table: small products first. `table` is the shared address of the chunk's table.
    template <int FRAGMENTS> __device__ __forceinline__ void multiply(float (&part)[FRAGMENTS][4], unsigned table) {
        constexpr unsigned kPlane = 2 * kMatrixWords, kNext = P::kPlanes * kPlane;
        const unsigned b = descriptor_low(table, kMatrixBytes);
        const auto add = [&](const uint32_t(&a)[4], unsigned columns, bool sum) {
            wgmma<P>(part, a, columns, sum, kFragmentBytes<P> / 16);
        };
        keep();
        wgmma_fence();
        if constexpr (P::kSplit) {
#pragma unroll
            for (int i = 0; i < kSteps; ++i) add(low[i], b + i * kNext, i > 0);
#pragma unroll
            for (int i = 0; i < kSteps; ++i) add(high[i], b + kPlane + i * kNext, true);
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) add(high[i], b + i * kNext, P::kSplit || i > 0);
        wgmma_commit();
    }

    // Holds the values in their registers. Call after the wait for the product, too: until then it reads them.
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) {
            asm volatile("" : "+r"(high[i / 4][i % 4])::"memory");
            if constexpr (P::kSplit) asm volatile("" : "+r"(low[i / 4][i % 4])::"memory");
        }
    }
};

// Writes a row's sums. Lane (g, t) has the modes 8m + 2t and 8m + 2t + 1 in fragments 2m and 2m + 1, of the two channels
// that are the rows g and g + 8 of A.
template <int FRAGMENTS>
__device__ __forceinline__ void write(const AnalysisArguments &a, const float (&sums)[FRAGMENTS][4], int row, int split,
                                      int first_channel, int lane) {
    const int modes = a.of.modes, outer = int(a.of.outer), channels = a.of.channels, b = row / outer, o = row - b * outer;
    const int first = blockIdx.y * (4 * FRAGMENTS), end = min(modes, first + 4 * FRAGMENTS);
    const int g = lane / 4, channel0 = first_channel + 4 * (g / 2) + g % 2;
    const int64_t stride = int64_t(outer) * modes; // from one channel to the next
    float2 *const to = a.to + int64_t(split) * (a.of.batch * channels) * stride + (int64_t(b) * channels + channel0) * stride +
                       int64_t(o) * modes;
#pragma unroll
    for (int m = 0; m < FRAGMENTS / 2; ++m) {
        const int mode = first + 8 * m + 2 * (lane % 4);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            if (mode >= end || channel0 + 2 * second >= channels) continue;
            float2 *at = to + 2 * second * stride + mode;
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
        if (plan.resident) release(ring.free + 8 * ring.stage);
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
        const unsigned free = ring.free + 8 * ring.stage;
        const Cursor done = at;
        ring.advance();
        at.advance(plan);
        const bool more = at.exists(plan);
        if (more) load(at);
        wgmma_wait(part);
        operand.keep();
        if (!plan.resident) release(free);
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
            init_barrier(ring.free + 8 * i, kComputingWarps);
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
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        pdl_wait();
        analyze_chunks<P, FRAGMENTS>(a, reinterpret_cast<const char *>(shared), ring, table_barrier, warp, lane);
    }
    pdl_trigger();
#endif
}

template <typename P> AnalysisKernel kernel_of(int fragments) {
    switch (fragments) {
    case 4: return analyze_rows<P, 4>;
    case 6: return analyze_rows<P, 6>;
    case 8: return analyze_rows<P, 8>;
    case 12: return analyze_rows<P, 12>;
    default: return analyze_rows<P, 16>;
    }
}

AnalysisKernel kernel_of(int precision, int fragments) {
    switch (precision) {
    case TURBOFNO_TF32: return kernel_of<PrecisionTf32>(fragments);
    case TURBOFNO_BF16: return kernel_of<PrecisionBf16>(fragments);
    default: return kernel_of<PrecisionFp32>(fragments);
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
    const AnalysisKernel kernel = kernel_of(a.of.precision, a.plan.fragments);
    // always the maximum: a smaller value could break a concurrent launch of this kernel by another thread
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.of.shared_bytes);
    const turbofno_status status = launch_pdl(kernel, dim3(unsigned(a.plan.blocks), unsigned(a.plan.column_tiles)), kThreads,
                                              size_t(a.plan.shared_bytes), stream, a);
    if (status != TURBOFNO_OK || a.plan.splits == 1) return status;
    const int64_t count = a.of.batch * a.of.outer * a.of.channels * 2 * a.of.modes;
    return add_parts(a.of.spectra, static_cast<const float *>(a.of.workspace), count, a.plan.splits, stream);
}
