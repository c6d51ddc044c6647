#include "plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMostChannels = 256;
constexpr int kMostModesW = 128;
constexpr int kMostModesH = 128;
constexpr int kMostPoints = 16384;
constexpr int64_t kMostBatch = 65536;
constexpr int kSharedBytes = 48 * 1024; // what every device gives without asking

template <typename T> constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// `count` cut into pieces of nearly one size, none over `most`
int even_piece(int count, int most) { return ceil_div(count, ceil_div(count, most)); }

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t complex_bytes(int64_t a, int64_t b, int64_t c, int64_t d) {
    return aligned(sizeof(float) * 2 * size_t(a) * size_t(b) * size_t(c) * size_t(d));
}

void plan_analysis(const turbofno_layer &layer, Plan &p) {
    const int columns = 2 * layer.modes_w;
    const int fragments = ceil_div(columns, 8);
    p.column_fragments = 8;
    for (int choice : {1, 2, 3, 4, 6}) {
        if (fragments <= choice) {
            p.column_fragments = choice;
            break;
        }
    }
    const int64_t rows = layer.batch * layer.c_in * layer.h_in;
    const int64_t column_tiles = ceil_div(columns, 8 * p.column_fragments);
    const int64_t wanted = 4 * int64_t(layer.multiprocessors);
    p.row_fragments = ceil_div(rows, int64_t(128)) * column_tiles >= wanted ? 2 : 1;
    const int64_t tiles = ceil_div(rows, int64_t(64 * p.row_fragments)) * column_tiles;
    const int64_t useful = std::max(1, layer.w_in / 256);
    p.splits = int(std::clamp(wanted / std::max<int64_t>(tiles, 1), int64_t(1), useful));
    p.split_points = ceil_div(ceil_div(layer.w_in, p.splits), 16) * 16;
    p.splits = ceil_div(layer.w_in, p.split_points);
}

void plan_mix(const turbofno_layer &layer, Plan &p) {
    const int sums = layer.modes_h / 2 + 1;
    p.analysis_ky = even_piece(layer.modes_w, 16);
    p.analysis_pairs = even_piece(ceil_div(sums, 2), 8);
    const int fitting = kSharedBytes / (sums * kChannelsAtOnce * 16);
    p.synthesis_ky = even_piece(layer.modes_w, std::min(16, fitting));
    p.synthesis_slots = std::min(128 / p.synthesis_ky, ceil_div(layer.h_out, 4));
    p.mix_batch = layer.batch >= 8 ? 8 : layer.batch >= 2 ? 4 : 1;
    p.mix_pair = layer.c_out % 2 == 0 ? 2 : 1;
    const int lanes = layer.c_out / p.mix_pair;
    const int room = kSharedBytes / (8 * layer.c_in * p.mix_batch);
    const int needed = int(ceil_div(layer.batch, int64_t(p.mix_batch)));
    p.mix_groups = std::max(1, std::min({kMixThreads / lanes, room, needed}));
}

void plan_rows(const turbofno_layer &layer, Plan &p) {
    p.tile_channels = layer.c_out <= 16 ? 16 : layer.c_out <= 32 ? 32 : layer.c_out <= 48 ? 48 : 64;
    // the width that computes the fewest points beyond the row's end; the widest of equals
    p.tile_points = 32;
    for (int width : {64, 128}) {
        if (ceil_div(layer.w_out, width) * width <= ceil_div(layer.w_out, p.tile_points) * p.tile_points) {
            p.tile_points = width;
        }
    }
}

void plan_workspace(const turbofno_layer &layer, Plan &p) {
    const int64_t modes = int64_t(layer.modes_h) * layer.modes_w;
    const size_t in = is_1d(layer) ? 0 : complex_bytes(layer.batch, layer.c_in, layer.h_in, layer.modes_w);
    const size_t out = complex_bytes(layer.batch, layer.c_out, layer.h_out, layer.modes_w);
    p.rows = 0;
    p.modes = std::max(in, out);
    p.mixed = p.modes + complex_bytes(modes, layer.batch, layer.c_in, 1);
    p.partial = p.mixed + (is_1d(layer) ? 0 : complex_bytes(modes, layer.batch, layer.c_out, 1));
    const int64_t rows = layer.batch * layer.c_in * layer.h_in;
    p.bytes = p.partial + (p.splits > 1 ? complex_bytes(p.splits, rows, layer.modes_w, 1) : 0);
}

} // namespace

bool is_1d(const turbofno_layer &layer) {
    return layer.h_in == 1 && layer.h_out == 1 && layer.modes_h == 1;
}

Plan plan(const turbofno_layer &layer) {
    Plan p{};
    plan_analysis(layer, p);
    plan_mix(layer, p);
    plan_rows(layer, p);
    plan_workspace(layer, p);
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_unsupported(const turbofno_layer *layer) {
    using namespace turbofno;
    if (layer->batch < 1 || layer->batch > kMostBatch) return "the batch is not in 1 .. 65536";
    if (layer->c_in < 1 || layer->c_in > kMostChannels || layer->c_out < 1 || layer->c_out > kMostChannels) {
        return "a channel count is not in 1 .. 256";
    }
    for (int points : {layer->h_in, layer->h_out, layer->w_in, layer->w_out}) {
        if (points < 1 || points > kMostPoints) return "a grid axis is not in 1 .. 16384 points";
    }
    if (layer->modes_w < 1 || layer->modes_w > kMostModesW) return "the last axis keeps more than 128 modes";
    if (layer->modes_h < 1 || layer->modes_h > kMostModesH) return "the first axis keeps more than 128 modes";
    if (layer->modes_w > layer->w_in / 2 + 1 || layer->modes_w > layer->w_out / 2 + 1 ||
        layer->modes_h > layer->h_in || layer->modes_h > layer->h_out) {
        return "the grid does not hold the kept modes";
    }
    if (layer->activation < TURBOFNO_NONE || layer->activation > TURBOFNO_TANH) return "unknown activation";
    return nullptr;
}

extern "C" size_t turbofno_workspace_bytes(const turbofno_layer *layer) {
    return turbofno_unsupported(layer) == nullptr ? turbofno::plan(*layer).bytes : 0;
}
