#include "product_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMaxOthers = 1 << 24;
constexpr int kLatencyBlocks = 3; // of a multiprocessor

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

} // namespace

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

} // namespace turbofno

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
