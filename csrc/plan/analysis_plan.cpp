#include "analysis_plan.h"

#include <algorithm>
#include <iterator>

#include "limits.h"

namespace turbofno {
namespace {

constexpr int64_t kMaxRows = int64_t(1) << 30;
constexpr int kFewestStages = 2; // beside a resident table: one is filled while the other is read
constexpr int kFewestChunks = 4; // of a split; fewer would not pay for adding up the splits

} // namespace

AnalysisPlan plan(const turbofno_row_analysis &a) {
    const bool narrow = a.precision == TURBOFNO_BF16;
    const int planes = a.precision == TURBOFNO_FP32 ? 2 : 1, value = narrow ? 2 : 4;
    const int pitch_bytes = round_up(a.channels * value, 16);
    const int64_t rows = a.batch * a.outer;
    AnalysisPlan p{};
    p.row_warps = 1;
    while (p.row_warps < kComputingWarps && p.row_warps * kWarpChannels < a.channels) p.row_warps *= 2;
    p.unit_rows = kComputingWarps / p.row_warps;
    p.channel_blocks = ceil_div(a.channels, kBlockChannels);
    p.contiguous = p.channel_blocks == 1;
    p.point_bytes = p.contiguous ? pitch_bytes : kBlockChannels * value;
    p.chunks = ceil_div(a.points, kChunkPoints);
    p.table_fragments = 2 * ceil_div(2 * a.modes, 16);
    p.column_tiles = ceil_div(p.table_fragments, kMostFragments);
    const int even = ceil_div(p.table_fragments, p.column_tiles);
    p.fragments = *std::find_if(std::begin(kFragmentSizes), std::end(kFragmentSizes), [&](int n) { return n >= even; });
    const int64_t whole = ceil_div(rows, int64_t(p.unit_rows)) * p.channel_blocks; // units, if rows are not split
    const int64_t blocks = std::max(1, a.multiprocessors / p.column_tiles);
    const int most = int(std::min<int64_t>(blocks / whole, p.chunks / kFewestChunks));
    p.split_chunks = ceil_div(p.chunks, std::max(1, most));
    p.splits = ceil_div(p.chunks, p.split_chunks);
    p.units = whole * p.splits;
    p.blocks = int(std::min(p.units, blocks));

    p.chunk_table_bytes = p.fragments * planes * kChunkPoints * 8 * 2;
    p.stage_table = round_up(p.unit_rows * kChunkPoints * p.point_bytes, 128);
    for (const bool resident : {true, false}) {
        p.resident = resident;
        p.stage_bytes = p.stage_table + (resident ? 0 : p.chunk_table_bytes);
        // in 64 bits: the table of many points exceeds any shared memory
        const int64_t ring_at = kBarrierBytes + (resident ? int64_t(p.chunks) * p.chunk_table_bytes : 0);
        const int64_t fit = (a.shared_bytes - ring_at) / p.stage_bytes;
        p.stages = int(std::clamp<int64_t>(fit, 0, kMaxStages));
        p.ring_at = int(std::min<int64_t>(ring_at, a.shared_bytes));
        if (p.stages >= kFewestStages) break;
    }
    p.shared_bytes = p.ring_at + p.stages * p.stage_bytes;
    if (p.splits > 1) p.workspace_bytes = sizeof(float) * size_t(p.splits) * size_t(rows) * size_t(a.channels) * 2 * a.modes;
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_analyze_rows_unsupported(const turbofno_row_analysis *a) {
    using namespace turbofno;
    if (!a->warpgroups) return "the device has no wgmma";
    if (a->batch < 1 || a->batch > kMaxBatch) return "the batch is not in 1 .. 65536";
    if (a->outer < 1 || a->batch * a->outer > kMaxRows) return "the rows are not in 1 .. 2^30";
    if (a->points < 1 || a->points > kMaxPoints) return "the last axis is not in 1 .. 16384 points";
    if (a->channels < 1 || a->channels > kMaxChannels) return "the channels are not in 1 .. 256";
    if (a->modes < 1 || a->modes > kMaxModes) return "the last axis does not keep 1 .. 128 modes";
    if (a->modes > a->points / 2 + 1) return "the last axis does not hold the kept modes";
    if (!known_precision(a->precision)) return "unknown precision";
    if (a->multiprocessors < 1) return "the device has no multiprocessor";
    if (plan(*a).stages == 0) return "a chunk of points does not fit in shared memory";
    return nullptr;
}

extern "C" size_t turbofno_analyze_rows_workspace_bytes(const turbofno_row_analysis *a) {
    return turbofno::plan(*a).workspace_bytes;
}
