// Checks over a grid of shapes that plans of row analyses cover their work and respect the limits of the kernel and of
// devices with wgmma. Prints each violation. Exit status 1 if there is one, or if nothing was checked.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <iterator>

#include "../../csrc/plan/analysis_plan.h"

using namespace turbofno;

static int wrong = 0, checked = 0;

static void expect(bool holds, const char *what, const turbofno_row_analysis &a) {
    if (holds) return;
    std::printf("%s: batch %lld, outer %lld, points %d, channels %d, modes %d, precision %d, multiprocessors %d\n", what,
                (long long)a.batch, (long long)a.outer, a.points, a.channels, a.modes, a.precision, a.multiprocessors);
    ++wrong;
}

static void check(const turbofno_row_analysis &a) {
    if (turbofno_analyze_rows_unsupported(&a) != nullptr) return;
    ++checked;
    const AnalysisPlan p = plan(a);
    const int64_t rows = a.batch * a.outer;
    const int value = a.precision == TURBOFNO_BF16 ? 2 : 4, planes = a.precision == TURBOFNO_FP32 ? 2 : 1;
    expect(p.unit_rows * p.row_warps == kComputingWarps, "each warp has a row", a);
    expect(p.channel_blocks * p.row_warps * kWarpChannels >= a.channels, "warps cover the channels", a);
    expect(p.channel_blocks == 1 || p.row_warps == kComputingWarps, "units of a part of a row are whole", a);
    expect(p.chunks * kChunkPoints >= a.points && (p.chunks - 1) * kChunkPoints < a.points, "chunks cover the points", a);
    expect(p.splits * p.split_chunks >= p.chunks && (p.splits - 1) * p.split_chunks < p.chunks, "splits cover the chunks", a);
    expect(p.units == (rows + p.unit_rows - 1) / p.unit_rows * p.channel_blocks * p.splits, "units cover the rows", a);
    expect(p.units <= int64_t(1) << 31, "units are counted in 32 bits", a);
    expect(std::count(std::begin(kFragmentSizes), std::end(kFragmentSizes), p.fragments) == 1, "there is a kernel", a);
    expect(4 * p.table_fragments >= a.modes && p.table_fragments % 2 == 0, "the table covers the modes", a);
    expect(p.column_tiles * p.fragments >= p.table_fragments && (p.column_tiles - 1) * p.fragments < p.table_fragments,
           "tiles cover the columns", a);
    expect(p.blocks >= 1 && p.blocks <= p.units, "each block has a unit", a);
    expect(p.blocks * p.column_tiles <= std::max(a.multiprocessors, p.column_tiles), "a block for each multiprocessor", a);
    expect((p.workspace_bytes > 0) == (p.splits > 1), "only splits need a workspace", a);

    const int bytes = (a.channels * value + 15) / 16 * 16;
    expect(p.point_bytes % 16 == 0 && (p.contiguous ? p.point_bytes == bytes : p.point_bytes < bytes), "bytes of a point", a);
    expect(p.point_bytes >= std::min(bytes, kBlockChannels * value), "a stage holds the channels", a);
    expect(p.chunk_table_bytes == p.fragments * 8 * kChunkPoints * planes * 2, "bytes of a chunk's table", a);
    expect(p.stage_table >= p.unit_rows * kChunkPoints * p.point_bytes && p.stage_table % 16 == 0, "points in a stage", a);
    expect(p.stage_bytes == p.stage_table + (p.resident ? 0 : p.chunk_table_bytes), "bytes of a stage", a);
    expect(p.ring_at == kBarrierBytes + (p.resident ? p.chunks * p.chunk_table_bytes : 0), "the ring is behind the table", a);
    expect(p.stages >= 1 && p.stages <= kMaxStages, "stages", a);
    expect(p.shared_bytes == p.ring_at + p.stages * p.stage_bytes && p.shared_bytes <= a.shared_bytes, "shared memory", a);
    // mbarriers count the bytes of a copy in 20 bits; a full and a free one for each stage, one for the table
    expect(std::max(p.stage_bytes, p.ring_at) < 1 << 20, "bytes of an mbarrier", a);
}

int main() {
    static_assert(8 * (2 * kMaxStages + 1) <= kBarrierBytes, "mbarriers");
    for (int64_t batch : {1LL, 3LL, 256LL, 65536LL})
        for (int64_t outer : {1LL, 37LL, 256LL, 16384LL})
            for (int points : {1, 63, 64, 101, 128, 256, 1024, 16384})
                for (int channels : {1, 16, 20, 32, 48, 64, 65, 96, 128, 129, 255, 256})
                    for (int modes : {1, 8, 17, 32, 33, 64, 65, 70, 128})
                        for (int precision : {TURBOFNO_FP32, TURBOFNO_TF32, TURBOFNO_BF16})
                            for (int multiprocessors : {1, 78, 132}) {
                                turbofno_row_analysis a{};
                                a.batch = batch, a.outer = outer, a.points = points, a.channels = channels, a.modes = modes;
                                a.precision = precision, a.multiprocessors = multiprocessors, a.warpgroups = 1;
                                a.shared_bytes = 227 * 1024;
                                check(a);
                                turbofno_row_analysis unserved = a;
                                unserved.shared_bytes = 64 * 1024;
                                check(unserved);
                            }
    return wrong != 0 || checked == 0;
}
