#include "spectral_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMaxSpectralBatch = 8;

// From one frequency of a table to the next: 2 frequencies times 8 neighbouring numbers are in different banks.
int folded_pitch(int points) { return round_up(points / 2 + 1 - 8, 16) + 8; }

} // namespace

Divider divider(int by) { return {by, by == 1 ? 0 : unsigned(ceil_div(uint64_t(1) << 32, uint64_t(by)))}; }

SpectralPlan plan(const turbofno_spectral &s) {
    SpectralPlan p{};
    p.mode_groups = ceil_div(s.modes, 2);
    p.mode_share = ceil_div(s.kept, kCluster);
    p.in_share = divider(ceil_div(s.c_in, kCluster));
    p.out_share = divider(ceil_div(s.c_out, kCluster));
    p.folds = divider(round_up(s.rows / 2 + 1, 8));
    p.out_folds = divider(s.out_rows / 2 + 1);
    p.frequencies = divider(s.kept / 2 + 1);
    p.groups = divider(ceil_div(s.c_out, 16));
    // at best a thread folds one value, transforms one point and multiplies once
    const int64_t loads = s.batch * p.in_share.by * p.folds.by, stores = s.batch * p.out_share.by * p.out_folds.by;
    const int64_t lanes = std::max({loads, stores, int64_t(64) * p.mode_share * p.groups.by, int64_t(256)});
    p.threads = int(std::min<int64_t>(kMaxSpectralThreads, round_up(lanes, int64_t(32))));
    p.c_pitch = round_up(s.c_in, s.c_in <= 32 ? 32 : 64);
    p.in_pitch = folded_pitch(s.rows);
    p.out_pitch = folded_pitch(s.out_rows);
    p.in_table_bytes = 8 * p.frequencies.by * p.in_pitch;
    p.out_table_bytes = s.rows == s.out_rows ? 0 : 8 * p.frequencies.by * p.out_pitch;
    int64_t at = 32; // after the mbarriers
    const auto take = [&at](int64_t bytes) {
        const int here = int(at);
        at = std::min<int64_t>(1 << 30, at + round_up(bytes, int64_t(16)));
        return here;
    };
    p.in_table_at = take(p.in_table_bytes);
    p.out_table_at = s.rows == s.out_rows ? p.in_table_at : take(p.out_table_bytes);
    p.folded_at = take(32 * loads);
    p.transformed_at = take(16 * s.batch * p.mode_share * p.c_pitch);
    p.products_at = take(16 * s.batch * p.out_share.by * s.kept);
    p.sums_at = take(32 * s.batch * p.out_share.by * p.frequencies.by);
    p.shared_bytes = int(at);
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_spectral_unsupported(const turbofno_spectral *s) {
    using namespace turbofno;
    if (s->clusters < 1) return "the device runs no clusters of 16 blocks";
    if (s->batch < 1 || s->batch > kMaxSpectralBatch) return "the batch is not in 1 .. 8";
    if (s->c_in < 1 || s->c_in > kMaxChannels || s->c_out < 1 || s->c_out > kMaxChannels) {
        return "a channel count is not in 1 .. 256";
    }
    if (s->c_in % 2 != 0 || s->c_out % 2 != 0) return "a channel count is odd";
    if (s->rows < 1 || s->rows > kMaxPoints || s->out_rows < 1 || s->out_rows > kMaxPoints) {
        return "a grid axis is not in 1 .. 16384 points";
    }
    if (s->kept < 1 || s->kept > kMaxModes || s->modes < 1 || s->modes > kMaxModes) {
        return "an axis does not keep 1 .. 128 modes";
    }
    if (s->kept > std::min(s->rows, s->out_rows)) return "the grid does not hold the kept modes";
    if (s->row_modes != round_up(s->modes, 2)) return "a row has an odd number of modes";
    const SpectralPlan p = plan(*s);
    if (p.shared_bytes > kMaxSharedBytes) return "columns and tables do not fit in shared memory";
    const int64_t loads = s->batch * p.in_share.by * p.folds.by, stores = s->batch * p.out_share.by * p.out_folds.by;
    if (std::max(loads, stores) + kMaxSpectralThreads > kMaxDivided) return "a block has too many points";
    // Costs fitted to times on an H200, in 0.3 ns. Most of three launches is latency, which grows with the length of the sums.
    const int64_t batch_element = 700 + (loads + stores) / s->batch * p.frequencies.by +
                                  int64_t(p.mode_share) * s->c_in * s->c_out * 2 / 5;
    const int64_t whole = s->batch * batch_element * ceil_div(p.mode_groups, int64_t(s->clusters));
    const int64_t separate = 12000 + 170 * p.folds.by + 100 * s->c_in;
    if (whole > separate) return "separate launches are faster";
    return nullptr;
}
