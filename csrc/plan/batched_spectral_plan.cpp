#include "batched_spectral_plan.h"

#include <algorithm>

#include "limits.h"

namespace turbofno {
namespace {

constexpr int kStepBytes = 1024; // of a warp's columns: 8 points
constexpr int kTableWords = 128; // of a step: 32 columns, high and low parts
constexpr int kMaxBatchedPoints = 512; // longer tables would not fit
constexpr int kReservedBytes = 1024; // of shared memory, by CUDA, for each block
constexpr int kFewModes = 16, kFewChannels = 32;
constexpr int64_t kMaxBlocks = (int64_t(1) << 31) - 1;

} // namespace

BatchedSpectralPlan plan(const turbofno_batched_spectral &b) {
    BatchedSpectralPlan p{};
    p.cluster = b.channels / kSliceChannels;
    p.mode_share = ceil_div(b.kept, p.cluster);
    p.share = divider(p.mode_share);
    p.steps = 2 * ceil_div(b.rows, 16); // two at once
    p.out_groups = ceil_div(b.kept / 2 + 1, 8);
    p.out_chunks = ceil_div(b.out_rows, kOutChunk);
    p.batch_tiles = ceil_div(b.batch, int64_t(kBatchTile));
    p.clusters = p.batch_tiles * b.others * b.row_modes;
    // rows that a half or a quarter of a warp reads at once are in different banks
    p.z_batch = b.channels + 4;
    p.y_batch = kSliceChannels;
    p.y_mode = kBatchTile * p.y_batch + 4;
    p.in_table_words = kTableWords * p.steps;
    p.out_table_words = kTableWords * 2 * p.out_groups * p.out_chunks;
    p.z_at = 128;
    p.y_at = p.z_at + 8 * p.mode_share * kBatchTile * p.z_batch;
    const int ring = kBatchTile * kBatchedStages * kStepBytes; // its place is y's, once the columns have been read
    p.table_at = p.y_at + std::max(ring, 8 * b.kept * p.y_mode);
    p.shared_bytes = p.table_at + 16 * std::max(p.in_table_words, p.out_table_words); // one after the other
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_batched_spectral_unsupported(const turbofno_batched_spectral *b) {
    using namespace turbofno;
    if (!b->warpgroups) return "the device has no wgmma";
    if (b->batch < 1 || b->batch > kMaxBatch) return "the batch is not in 1 .. 65536";
    if (b->channels != 32 && b->channels != 64 && b->channels != 128) return "the channels are not 32, 64 or 128";
    if (b->rows < 1 || b->rows > kMaxBatchedPoints || b->out_rows < 1 || b->out_rows > kMaxBatchedPoints) {
        return "the first axis is not in 1 .. 512 points";
    }
    if (b->kept < 1 || b->kept / 2 + 1 > kBatchedFrequencies) return "the first axis does not keep 1 .. 31 modes";
    if (b->kept > std::min(b->rows, b->out_rows)) return "the grid does not hold the kept modes";
    if (b->modes < 1 || b->modes > kMaxModes) return "the last axis does not keep 1 .. 128 modes";
    if (b->row_modes != b->modes && b->row_modes != b->modes + 1) return "a row has neither the kept modes nor one more";
    if (b->others < 1 || b->others > 1 << 24) return "the other axes keep more than 2^24 modes";
    if (b->in_pitch % 2 != 0 || b->out_pitch % 2 != 0) return "a pitch is odd";
    if (!known_precision(b->precision)) return "unknown precision";
    const BatchedSpectralPlan p = plan(*b);
    if (p.shared_bytes > b->shared_bytes) return "modes and columns do not fit in shared memory";
    const int64_t blocks = p.clusters * p.cluster;
    if (blocks > kMaxBlocks) return "more than 2^31 - 1 blocks";
    // Measured on an H100. While all blocks run at once, three launches spend most of their time waiting for each other.
    const int of_multiprocessor = 2 * (p.shared_bytes + kReservedBytes) <= b->shared_bytes + kReservedBytes ? 2 : 1;
    const bool at_once = blocks <= int64_t(of_multiprocessor) * b->multiprocessors;
    if (b->batch <= kBatchTile || (!at_once && b->channels > kFewChannels && b->kept > kFewModes)) return "separate launches are faster";
    return nullptr;
}
