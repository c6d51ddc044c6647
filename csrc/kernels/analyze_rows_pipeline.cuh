// The pipeline of analyze_rows: the chunks that a block takes in turns, the ring of stages with its mbarriers, and the
// producer that fills it.
#pragma once

#include "../plan/analysis_plan.h"
#include "mbarrier.cuh"
#include "tile_fields.cuh"
#include "wgmma.cuh"

namespace turbofno {

struct AnalysisArguments {
    turbofno_row_analysis of;
    AnalysisPlan plan;
    float table_inv_scale;
    float2 *to; // spectra, or partial sums of them
};

#ifdef TURBOFNO_WGMMA_ENABLED

constexpr int kStepPoints = 16; // points that wgmma multiplies at once
constexpr int kChunkSteps = kChunkPoints / kStepPoints;
static_assert(kWarpChannels == 16, "wgmma takes 16 rows of each warp");

template <typename P> constexpr int kTableFragmentBytes = kChunkSteps * P::kPlanes * 2 * kMatrixBytes;

// The scheduler: the chunks of a block, unit after unit.
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

// The pipeline's state: the stages of the ring, in turns, and the mbarriers that say whether a stage is full or empty.
struct Ring {
    unsigned full, empty; // mbarriers, 8 bytes each
    int stages, stage;
    unsigned parity;

    __device__ __forceinline__ Ring(unsigned barriers, int stages)
        : full(barriers), empty(barriers + 8 * kMaxStages), stages(stages), stage(0), parity(0) {}

    __device__ __forceinline__ void advance() {
        if (++stage < stages) return;
        stage = 0;
        parity ^= 1;
    }
};

// Copies the part of the table that a chunk needs, as far as the table has these columns.
template <typename P> struct TableCopy {
    const char *from;
    int64_t stride; // between chunks
    int bytes;

    __device__ __forceinline__ TableCopy(const AnalysisArguments &a) {
        const int first = blockIdx.y * a.plan.fragments;
        stride = int64_t(a.plan.table_fragments) * kTableFragmentBytes<P>;
        from = static_cast<const char *>(a.of.table) + first * kTableFragmentBytes<P>;
        bytes = min(a.plan.fragments, a.plan.table_fragments - first) * kTableFragmentBytes<P>;
    }

    __device__ __forceinline__ void operator()(unsigned to, int chunk, unsigned barrier) const {
        bulk_copy(to, from + chunk * stride, bytes, barrier);
    }
};

// The producer: fills the ring. Run by one warp.
template <typename P>
__device__ void copy_chunks(const AnalysisArguments &a, const TableCopy<P> &table, Ring ring, unsigned ring_at, int lane) {
    using Field = typename P::Field;
    const AnalysisPlan &plan = a.plan;
    const int pitch = pitch_of<Field>(a.of.channels) * int(sizeof(Field)), rows = int(a.of.batch * a.of.outer);
    bool filled = false; // the whole ring, once
    for (Cursor at(plan); at.exists(plan); at.advance(plan)) {
        const unsigned full = ring.full + 8 * ring.stage, to = ring_at + ring.stage * plan.stage_bytes;
        if (filled) wait_for(ring.empty + 8 * ring.stage, ring.parity ^ 1);
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

#endif

} // namespace turbofno
