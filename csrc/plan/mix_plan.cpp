#include "mix_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMostChannels = 256;
constexpr int kMostModes = 128;
constexpr int kMostPoints = 16384;
constexpr int64_t kMostBatch = 65536;
constexpr int kMostWarpTiles = 3;

template <typename T> constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// `count` cut into pieces of nearly one size, none over `most`
int even_piece(int count, int most) { return ceil_div(count, ceil_div(count, most)); }

ColumnsPlan plan_columns(int64_t columns, int from, int to, int multiprocessors) {
    ColumnsPlan p{};
    p.tiles = ceil_div(to / 2 + 1, 16);
    p.steps = ceil_div(from / 2 + 1, 8);
    const int64_t column_groups = ceil_div(columns, int64_t(kWarpColumns));
    if (p.steps <= kHeldSteps) {
        p.groups = int(std::min<int64_t>(p.tiles, ceil_div(8 * int64_t(multiprocessors), column_groups)));
    } else {
        p.warp_tiles = even_piece(p.tiles, kMostWarpTiles);
        const int64_t wanted = 24 * int64_t(multiprocessors); // warps
        while (p.warp_tiles > 1 && column_groups * ceil_div(p.tiles, p.warp_tiles) < wanted) --p.warp_tiles;
        p.groups = ceil_div(p.tiles, p.warp_tiles);
    }
    p.blocks = ceil_div(column_groups, int64_t(kColumnWarps)) * p.groups;
    return p;
}

// Batch elements lie so far apart in shared memory that a read of 4 of them x 4 channels meets few banks twice, and at
// even places wherever two modes are copied at once.
int shared_pitch(int channels, int modes) {
    switch (modes) {
    case 1: return channels + (channels % 16 == 0 ? 4 : 12);
    case 2: return 2 * channels + 8;
    default: return 4 * channels + 2;
    }
}

ModesPlan modes_plan(const turbofno_mix &mix, int batch_fragments, int modes, int channel_tiles) {
    ModesPlan p{};
    p.batch_fragments = batch_fragments;
    p.modes = modes;
    p.channel_tiles = channel_tiles;
    p.batch_tiles = ceil_div(mix.batch, int64_t(8 * batch_fragments));
    p.mode_tiles = ceil_div(mix.modes_w, modes);
    p.channel_groups = ceil_div(mix.c_out, 16 * channel_tiles);
    p.blocks = p.batch_tiles * p.mode_tiles * p.channel_groups * mix.modes_h;
    p.threads = 32 * modes * channel_tiles;
    p.shared_in = shared_pitch(ceil_div(mix.c_in, 8) * 8, modes);
    p.shared_out = shared_pitch(16 * channel_tiles, modes);
    p.shared_bytes = 32 * kWeightStages * p.threads + 8 * 8 * batch_fragments * std::max(p.shared_in, p.shared_out);
    return p;
}

ModesPlan plan_modes(const turbofno_mix &mix) {
    const int modes = mix.modes_w >= 3 ? 4 : mix.modes_w;
    const int channel_tiles = even_piece(ceil_div(mix.c_out, 16), kMostModeWarps / modes);
    ModesPlan p{};
    for (int batch_fragments : {4, 2, 1}) {
        p = modes_plan(mix, batch_fragments, modes, channel_tiles);
        const bool busy = batch_fragments < 4 || p.blocks >= 4 * int64_t(mix.multiprocessors);
        const bool full = mix.batch > 4 * batch_fragments; // more than half of the batch tile is there
        if (full && busy && p.shared_bytes <= kMostSharedBytes) break;
    }
    return p;
}

// a row of coefficients, so that rows start at lines of 128 bytes
int64_t pitch(int64_t columns) { return ceil_div(columns, int64_t(16)) * 16; }

} // namespace

MixPlan plan_mix(const turbofno_mix &mix) {
    MixPlan p{};
    p.one_row = mix.h_in == 1 && mix.h_out == 1 && mix.modes_h == 1;
    p.modes = plan_modes(mix);
    if (p.one_row) return p;
    const int64_t in = mix.batch * mix.c_in * mix.modes_w, out = mix.batch * mix.c_out * mix.modes_w;
    p.analysis = plan_columns(in, mix.h_in, mix.modes_h, mix.multiprocessors);
    p.synthesis = plan_columns(out, mix.modes_h, mix.h_out, mix.multiprocessors);
    p.in_pitch = pitch(in);
    p.out_pitch = pitch(out);
    p.products = 8 * size_t(mix.modes_h) * size_t(p.in_pitch);
    p.bytes = p.products + 8 * size_t(mix.modes_h) * size_t(p.out_pitch);
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_mix_unsupported(const turbofno_mix *mix) {
    using namespace turbofno;
    if (mix->batch < 1 || mix->batch > kMostBatch) return "the batch is not in 1 .. 65536";
    if (mix->c_in < 1 || mix->c_in > kMostChannels || mix->c_out < 1 || mix->c_out > kMostChannels) {
        return "a channel count is not in 1 .. 256";
    }
    if (mix->h_in < 1 || mix->h_in > kMostPoints || mix->h_out < 1 || mix->h_out > kMostPoints) {
        return "a grid axis is not in 1 .. 16384 points";
    }
    if (mix->modes_w < 1 || mix->modes_w > kMostModes) return "the last axis does not keep 1 .. 128 modes";
    if (mix->modes_h < 1 || mix->modes_h > kMostModes) return "the first axis does not keep 1 .. 128 modes";
    if (mix->modes_h > mix->h_in || mix->modes_h > mix->h_out) return "the grid does not hold the kept modes";
    if (mix->precision < TURBOFNO_FP32 || mix->precision > TURBOFNO_BF16) return "unknown precision";
    return nullptr;
}

extern "C" size_t turbofno_mix_workspace_bytes(const turbofno_mix *mix) {
    return turbofno_mix_unsupported(mix) == nullptr ? turbofno::plan_mix(*mix).bytes : 0;
}
