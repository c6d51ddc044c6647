#include "spectral_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMaxModes = 128;
constexpr int kMaxPoints = 16384;
constexpr int64_t kMaxBatch = 65536, kMaxColumns = (int64_t(1) << 31) - 1;
constexpr int kMaxOthers = 1 << 24;
constexpr int64_t kMaxInner = 1 << 24;
constexpr int kMaxWarpTiles = 3;
constexpr int kMaxSpectralBatch = 8;
constexpr int kLatencyBlocks = 3; // of a multiprocessor

// Size of the pieces if `count` is cut into as few nearly equal pieces as possible, none above `most`.
int even_piece(int count, int most) { return ceil_div(count, ceil_div(count, most)); }

// Pitch between batch elements in shared memory: few bank conflicts when 4 elements x 4 channels are read, and even where two
// modes are copied at once.
int shared_pitch(int channels, int modes) {
    switch (modes) {
    case 1: return channels + (channels % 16 == 0 ? 4 : 12);
    case 2: return 2 * channels + 8;
    default: return 4 * channels + 2;
    }
}

ProductPlan product_plan(const turbofno_product &product, int batch_fragments, int modes, bool all_weights) {
    const int channel_tiles = even_piece(ceil_div(product.c_out, 16), kMaxModeWarps / modes);
    const int chunks = ceil_div(product.c_in, 8);
    ProductPlan p{};
    p.batch_fragments = batch_fragments;
    p.modes = modes;
    p.channel_tiles = channel_tiles;
    p.weight_stages = all_weights ? chunks : kWeightsAhead + 1;
    p.weights_ahead = all_weights ? chunks : kWeightsAhead;
    p.batch_tiles = ceil_div(product.batch, int64_t(8 * batch_fragments));
    p.mode_tiles = ceil_div(product.modes, modes);
    p.channel_groups = ceil_div(product.c_out, 16 * channel_tiles);
    p.blocks = p.batch_tiles * p.mode_tiles * p.channel_groups * product.others;
    p.threads = 32 * modes * channel_tiles;
    p.shared_in = shared_pitch(chunks * 8, modes);
    p.shared_out = shared_pitch(16 * channel_tiles, modes);
    p.shared_bytes = 32 * p.weight_stages * p.threads + 8 * 8 * batch_fragments * std::max(p.shared_in, p.shared_out);
    return p;
}

// From one frequency of a table to the next: 2 frequencies times 8 neighbouring numbers are in different banks.
int folded_pitch(int points) { return round_up(points / 2 + 1 - 8, 16) + 8; }

bool known_precision(int precision) { return precision >= TURBOFNO_FP32 && precision <= TURBOFNO_BF16; }

} // namespace

Divider divider(int by) { return {by, by == 1 ? 0 : unsigned(((uint64_t(1) << 32) + by - 1) / by)}; }

TransformPlan plan(const turbofno_transform &t) {
    const int from = t.inverse ? t.modes : t.points, to = t.inverse ? t.points : t.modes;
    TransformPlan p{};
    p.tiles = ceil_div(to / 2 + 1, 16);
    p.steps = ceil_div(from / 2 + 1, 8);
    const int64_t column_groups = ceil_div(t.outer * t.inner, int64_t(kWarpColumns));
    if (p.steps <= kMaxResidentSteps) {
        p.groups = int(std::min<int64_t>(p.tiles, ceil_div(8 * int64_t(t.multiprocessors), column_groups)));
    } else {
        p.warp_tiles = even_piece(p.tiles, kMaxWarpTiles);
        const int64_t wanted = 24 * int64_t(t.multiprocessors); // warps
        while (p.warp_tiles > 1 && column_groups * ceil_div(p.tiles, p.warp_tiles) < wanted) --p.warp_tiles;
        p.groups = ceil_div(p.tiles, p.warp_tiles);
    }
    p.blocks = ceil_div(column_groups, int64_t(kColumnWarps)) * p.groups;
    return p;
}

ProductPlan plan(const turbofno_product &product) {
    // Where all blocks run at once, latency counts: small ones, with all of their weights on chip.
    ProductPlan p = product_plan(product, 1, std::min(product.modes, 2), true);
    if (p.blocks <= kLatencyBlocks * int64_t(product.multiprocessors) && p.shared_bytes <= kMaxSharedBytes) return p;
    const int modes = product.modes >= 3 ? 4 : product.modes;
    for (int batch_fragments : {4, 2, 1}) {
        p = product_plan(product, batch_fragments, modes, false);
        const bool busy = batch_fragments < 4 || p.blocks >= 4 * int64_t(product.multiprocessors);
        const bool full = product.batch > 4 * batch_fragments; // more than half of the batch tile is there
        if (full && busy && p.shared_bytes <= kMaxSharedBytes) break;
    }
    return p;
}

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

extern "C" const char *turbofno_transform_unsupported(const turbofno_transform *t) {
    using namespace turbofno;
    if (t->outer < 1 || t->inner < 1 || t->outer * t->inner > kMaxColumns) return "the columns are not in 1 .. 2^31 - 1";
    if (t->inner > kMaxInner) return "the axes behind the transformed one have too many modes";
    if (t->points < 1 || t->points > kMaxPoints) return "a grid axis is not in 1 .. 16384 points";
    if (t->modes < 1 || t->modes > kMaxModes) return "an axis does not keep 1 .. 128 modes";
    if (t->modes > t->points) return "the grid does not hold the kept modes";
    if (!known_precision(t->precision)) return "unknown precision";
    return nullptr;
}

extern "C" const char *turbofno_product_unsupported(const turbofno_product *p) {
    using namespace turbofno;
    if (p->batch < 1 || p->batch > kMaxBatch) return "the batch is not in 1 .. 65536";
    if (p->c_in < 1 || p->c_in > kMaxChannels || p->c_out < 1 || p->c_out > kMaxChannels) {
        return "a channel count is not in 1 .. 256";
    }
    if (p->modes < 1 || p->modes > kMaxModes) return "the last axis does not keep 1 .. 128 modes";
    const bool made_even = p->modes >= 3 && p->modes % 2 == 1 && p->row_modes == p->modes + 1;
    if (p->row_modes != p->modes && !made_even) return "a row has neither the kept modes nor the next even number";
    if (p->others < 1 || p->others > kMaxOthers) return "the other axes keep more than 2^24 modes";
    if (!known_precision(p->precision)) return "unknown precision";
    return nullptr;
}

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
