#include "mix_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMostChannels = 256;
constexpr int kMostModes = 128;
constexpr int kMostPoints = 16384;
constexpr int64_t kMostBatch = 65536;
constexpr int kSharedBytes = 48 * 1024; // what every device gives without asking
constexpr int kMostWarpTiles = 3;

template <typename T> constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// `count` cut into pieces of nearly one size, none over `most`
int even_piece(int count, int most) { return ceil_div(count, ceil_div(count, most)); }

ColumnsPlan plan_columns(int64_t columns, int from, int to, int multiprocessors) {
    ColumnsPlan p{};
    p.tiles = ceil_div(to / 2 + 1, 16);
    p.steps = ceil_div(from / 2 + 1, 8);
    const int64_t column_groups = ceil_div(columns, int64_t(kWarpColumns));
    p.warp_tiles = 1;
    for (int tiles = even_piece(p.tiles, kMostWarpTiles); tiles > 1; --tiles) {
        if (column_groups * ceil_div(p.tiles, tiles) >= 8 * int64_t(multiprocessors)) {
            p.warp_tiles = tiles;
            break;
        }
    }
    p.groups = ceil_div(p.tiles, p.warp_tiles);
    p.blocks = ceil_div(column_groups * p.groups, int64_t(kColumnWarps));
    return p;
}

int modes_shared_bytes(const turbofno_mix &mix, const ModesPlan &p) {
    const int batch = 8 * p.batch_fragments;
    const int in = p.modes * shared_channels(mix.c_in), out = p.modes * 16 * p.channel_tiles + 1;
    return 8 * batch * std::max(in, out);
}

ModesPlan plan_modes(const turbofno_mix &mix) {
    ModesPlan p{};
    const int channel_tiles = ceil_div(mix.c_out, 16);
    p.batch_fragments = mix.batch <= 8 ? 1 : mix.batch <= 16 ? 2 : 4;
    p.channel_tiles = even_piece(channel_tiles, 4);
    p.modes = mix.modes_w >= 3 ? 4 : mix.modes_w;
    const auto blocks = [&] {
        return ceil_div(mix.batch, int64_t(8 * p.batch_fragments)) * mix.modes_h * ceil_div(mix.modes_w, p.modes) *
               ceil_div(channel_tiles, p.channel_tiles);
    };
    while (p.modes > 1 && (p.modes * p.channel_tiles > 8 || blocks() < 2 * int64_t(mix.multiprocessors) ||
                           modes_shared_bytes(mix, p) > kSharedBytes)) {
        p.modes /= 2;
    }
    while (modes_shared_bytes(mix, p) > kSharedBytes) p.batch_fragments /= 2;
    while (p.channel_tiles > 1 && blocks() < 2 * int64_t(mix.multiprocessors)) {
        p.channel_tiles = ceil_div(p.channel_tiles, 2);
    }
    p.batch_tiles = ceil_div(mix.batch, int64_t(8 * p.batch_fragments));
    p.mode_tiles = ceil_div(mix.modes_w, p.modes);
    p.channel_groups = ceil_div(channel_tiles, p.channel_tiles);
    p.blocks = blocks();
    p.threads = 32 * p.modes * p.channel_tiles;
    p.shared_bytes = modes_shared_bytes(mix, p);
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
