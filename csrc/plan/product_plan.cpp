#include "product_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMaxOthers = 1 << 24;
constexpr int kLatencyBlocks = 3; // of a multiprocessor
constexpr int kBusyWarps = 12; // of a multiprocessor
constexpr int kMaxWeightBytes = 48 * 1024; // of a mode, all on chip
constexpr int kMultiprocessorBytes = 200 * 1024; // of shared memory
constexpr int kFewChannels = 16; // input channels of a thread, about
constexpr int kWaves = 4; // of blocks, so that the last one is short

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
    if (chunks <= kWeightsAhead + 1) all_weights = true; // a ring would have as many stages
    ProductPlan p{};
    p.batch_fragments = batch_fragments;
    p.modes = modes;
    p.channel_tiles = channel_tiles;
    p.weight_stages = all_weights ? chunks : kWeightsAhead + 1;
    p.weights_ahead = all_weights ? chunks : kWeightsAhead;
    p.tiles_each = 1;
    p.batch_tiles = p.tile_groups = ceil_div(product.batch, int64_t(8 * batch_fragments));
    p.mode_tiles = ceil_div(product.row_modes, modes);
    p.channel_groups = ceil_div(product.c_out, 16 * channel_tiles);
    p.blocks = p.batch_tiles * p.mode_tiles * p.channel_groups * product.others;
    p.threads = 32 * modes * channel_tiles;
    p.shared_in = shared_pitch(chunks * 8, modes);
    p.shared_out = product.channels_last ? 0 : shared_pitch(16 * channel_tiles, modes);
    p.shared_bytes = 32 * p.weight_stages * p.threads + 8 * 8 * batch_fragments * std::max(p.shared_in, p.shared_out);
    if (product.channels_last) p.shared_bytes += 4 * p.weight_stages * channel_tiles; // scales of weights
    return p;
}

// Blocks that run at once, about.
int64_t blocks_at_once(const ProductPlan &p, int multiprocessors) {
    const int registers = p.batch_fragments == 4 ? 128 : p.batch_fragments == 2 ? 80 : 64; // __launch_bounds__ of the kernel
    const int by_memory = kMultiprocessorBytes / (p.shared_bytes + 1024), by_registers = 65536 / (registers * p.threads);
    return int64_t(multiprocessors) * std::max(1, std::min({by_memory, by_registers, 32}));
}

// With the channels last a block has one mode. Tiles of the batch are small enough for many warps. Where more blocks are left
// than run at once, and the weights are on chip, each takes several tiles.
ProductPlan plan_of_channels(const turbofno_product &product) {
    const int weights = 8 * ceil_div(product.c_in, 8) * 8 * 16 * even_piece(ceil_div(product.c_out, 16), kMaxModeWarps);
    const bool all_weights = weights <= kMaxWeightBytes;
    ProductPlan p{};
    for (int batch_fragments : {4, 2, 1}) {
        p = product_plan(product, batch_fragments, 1, all_weights);
        const int64_t warps = p.blocks * (p.threads / 32);
        const bool busy = warps >= kBusyWarps * int64_t(product.multiprocessors);
        const bool full = product.batch > 4 * batch_fragments; // more than half of the batch tile is there
        if (busy && full && p.shared_bytes <= kMaxSharedBytes) break;
    }
    const int64_t at_once = blocks_at_once(p, product.multiprocessors), units = p.blocks / p.batch_tiles;
    if (!all_weights || p.blocks <= at_once) return p;
    const int64_t groups = units <= at_once ? at_once / units : ceil_div(kWaves * at_once, units);
    p.tiles_each = ceil_div(p.batch_tiles, std::min(groups, p.batch_tiles));
    p.tile_groups = ceil_div(p.batch_tiles, p.tiles_each);
    p.blocks = units * p.tile_groups;
    return p;
}

// Measured on an H100. Tensor cores compute 8 batch elements, 8 input and 16 output channels. One batch element costs no more
// without them, two to four do unless much of that would be padding.
bool is_of_few(const turbofno_product &product) {
    if (product.batch == 1) return true;
    if (product.batch > (product.c_out % 2 == 0 ? 4 : 2)) return false;
    const int computed = round_up(product.c_in, 8) * round_up(product.c_out, 16);
    return 2 * computed >= 3 * product.c_in * product.c_out;
}

ProductPlan plan_of_few(const turbofno_product &product) {
    const int vector = product.c_out % 2 == 0 ? 2 : 1;
    ProductPlan p{};
    p.few = product.batch > 2 ? 4 : int(product.batch);
    p.outputs = round_up(even_piece(product.c_out, 32 * vector), vector);
    p.modes = round_up(product.row_modes, 8) > round_up(product.row_modes, 4) ? 4 : 8;
    const int rows = 32 * vector / p.outputs; // of lanes: input channels that a warp reads at once
    const int splits = std::clamp(ceil_div(product.c_in, kFewChannels * rows), 1, kMaxFewThreads / (32 * p.modes));
    p.tiles_each = 1;
    p.batch_tiles = p.tile_groups = ceil_div(product.batch, int64_t(p.few));
    p.mode_tiles = ceil_div(product.row_modes, p.modes);
    p.channel_groups = ceil_div(product.c_out, p.outputs);
    p.blocks = p.batch_tiles * p.mode_tiles * p.channel_groups * product.others;
    p.threads = 32 * p.modes * splits;
    p.shared_bytes = 8 * p.few * p.modes * std::max(product.c_in, rows * splits * p.outputs);
    return p;
}

} // namespace

ProductPlan plan(const turbofno_product &product) {
    if (product.channels_last) return plan_of_channels(product);
    if (product.slabs) return plan_of_few(product);
    if (is_of_few(product)) {
        const ProductPlan p = plan_of_few(product);
        const int64_t least = product.batch == 1 ? product.multiprocessors / 4 : product.multiprocessors;
        if (p.blocks >= least) return p;
    }
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
    const bool odd = (p->input_channels_last && p->c_in % 2 != 0) || (p->channels_last && p->c_out % 2 != 0);
    if (odd) return "channels are last and their number is odd";
    if (p->input_channels_last && !p->channels_last) return "channels are last in the input only";
    if (p->modes < 1 || p->modes > kMaxModes) return "the last axis does not keep 1 .. 128 modes";
    const bool made_even = p->modes >= 3 && p->modes % 2 == 1 && p->row_modes == p->modes + 1;
    if (p->row_modes != p->modes && !made_even) return "a row has neither the kept modes nor the next even number";
    if (p->others < 1 || p->others > kMaxOthers) return "the other axes keep more than 2^24 modes";
    if (!known_precision(p->precision)) return "unknown precision";
    if (p->slabs < 0 || p->slabs > TURBOFNO_MAX_SLABS) return "more than 8 slabs";
    if (p->slabs && p->channels_last) return "channels of slabs are last";
    return nullptr;
}
