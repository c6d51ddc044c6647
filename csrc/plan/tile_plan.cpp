#include "tile_programs.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace turbofno {
namespace {

constexpr int kLanes = 32;
constexpr int kMaxWidth = 256;
constexpr int kMaxModes = 128;
constexpr int kMaxPoints = 16384;
constexpr double kManyRounds = 4; // rows that each group takes in turn
constexpr int kLongestSegment = 16, kSegments = 5; // tiles of a segment that is not the whole row: 16, 8, 4, 2, 1
constexpr int64_t kMaxBatch = 65536, kMaxRows = int64_t(1) << 30;

int chunks(int terms) { return ceil_div(terms, 32); }

int pairs(int channels) { return ceil_div(channels, 16); }

bool is_mlp_or_projection(const turbofno_step &step) {
    return step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT;
}

bool is_wide(const turbofno_tile &t) {
    return std::any_of(t.step, t.step + t.steps, is_mlp_or_projection);
}

// 16-byte words of a point of a channels-last field.
int words_of_point(const turbofno_tile &t, const turbofno_step &step) {
    return ceil_div(step.channels, t.precision == TURBOFNO_BF16 ? 8 : 4);
}

// Finds the steps whose channels-last field is prefetched: those that read x, or else the load that begins the program.
void find_prefetch(const turbofno_tile &t, TilePlan &p) {
    p.prefetch_first = p.prefetch_last = -1;
    for (int i = 0; i < t.steps; ++i) {
        const int kind = t.step[i].kind;
        if ((kind != TURBOFNO_ADD_MAP && kind != TURBOFNO_ADD_GATE) || t.step[i].channel_first) continue;
        if (p.prefetch_first < 0) p.prefetch_first = i;
        p.prefetch_last = i;
    }
    if (p.prefetch_first < 0 && t.step[0].kind == TURBOFNO_LOAD && !t.step[0].channel_first) {
        p.prefetch_first = p.prefetch_last = 0;
    }
}

// 16-byte words of a B operand with its inverse scales.
int operand_words(int terms, int channels, int planes) {
    const int of_pairs = chunks(terms) * pairs(channels);
    return of_pairs * 2 * planes * kLanes + ceil_div(of_pairs, 4);
}

void lay_out(const turbofno_tile &t, TilePlan &p, bool copies_spectra) {
    const int block_channels = 8 * p.fragments;
    int at = 0;
    const auto allocate = [&](int words) {
        const int begin = at;
        at += words;
        return begin;
    };
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        p.first_at[i] = p.second_at[i] = -1;
        if (step.kind == TURBOFNO_ADD_MAP) p.first_at[i] = allocate(operand_words(step.terms, block_channels, p.planes));
        if (!is_mlp_or_projection(step)) continue;
        const int out = step.kind == TURBOFNO_PROJECT ? kMaxProjected : block_channels;
        if (step.hidden > 0) p.first_at[i] = allocate(operand_words(step.terms, step.hidden, p.planes));
        p.second_at[i] = allocate(operand_words(step.hidden > 0 ? step.hidden : step.terms, out, p.planes));
    }
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        const bool affine = step.kind == TURBOFNO_AFFINE || step.kind == TURBOFNO_ADD_GATE;
        p.vector_width[i] = is_mlp_or_projection(step) ? step.hidden : affine && !step.per_sample ? block_channels : 0;
        const bool any = is_mlp_or_projection(step) || p.vector_width[i] > 0;
        p.vectors_at[i] = allocate(any ? ceil_div(2 * p.vector_width[i] + block_channels, 4) : 0);
    }
    const int next_pairs = pairs(2 * t.next_modes), next_fragments = ceil_div(2 * t.next_modes, 8);
    const int wgmma_table = round_up(p.segment_tiles, kWarpgroupWarps) * p.planes * kWgmmaColumns * kLanes / 2;
    const int analysis = p.wgmma ? (t.next_modes > 0 ? wgmma_table : 0) : p.segment_tiles * next_pairs * p.planes * kLanes;
    p.synthesis_at = allocate(p.synthesis_on_chip ? p.segment_tiles * chunks(2 * t.modes) * 2 * p.planes * kLanes : 0);
    p.analysis_at = allocate(analysis);
    p.first_group = at;
    at = 0;
    allocate(t.modes > 0 ? operand_words(2 * t.modes, block_channels, p.planes) : 0);
    const int copied = copied_words(t.modes, block_channels);
    const int staging = p.wgmma && t.next_modes > 0 ? 1 + p.planes * 64 * p.fragments : 0;
    // where a map comes first the staged y is not in use yet
    const bool shares = p.wgmma && p.common && t.modes > 0 && copied < staging;
    const int apart = allocate(copies_spectra && !shares ? copied : 0);
    p.sums_at = at;
    p.copied_at = shares ? p.sums_at + 1 : copies_spectra ? apart : -1;
    p.sums_words = p.wgmma ? 0 : p.fragments / 2 * next_fragments * kLanes;
    p.prefetch_at = p.sums_at + p.group_warps * p.sums_words + staging;
    p.prefetch_words = p.prefetch_first < 0 ? 0 : 1 + kTilePoints * words_of_point(t, t.step[p.prefetch_first]);
    p.group_words = p.prefetch_at + p.group_warps * p.prefetch_words;
    p.shared_bytes = 16 * (p.first_group + p.warps / p.group_warps * p.group_words);
}

// Estimated run time, in units of the time to issue a tile's instructions on one scheduler. Below about 10 warps latency is
// not hidden, hence the lower bounds; further warps still hide some.
double cost(const turbofno_tile &t, const TilePlan &p, int64_t rows) {
    const int64_t units = rows * p.splits, groups = p.warps / p.group_warps;
    const int64_t blocks = std::max(1, t.multiprocessors / p.channel_tiles);
    const double rounds = double(ceil_div(units, blocks * groups));
    const double busy = double(std::min<int64_t>(p.warps, p.group_warps * ceil_div(units, blocks)));
    // few warps wait for a table in L1 longer
    const double table = p.synthesis_on_chip ? 1.0 : p.wgmma ? (p.fragments > kSegmentedFragments ? 1.2 : 1.1) : 1.3;
    const double slower = table * (p.prefetch_first < 0 ? 1.2 : 1.0) * (p.common ? 1.0 : 1.15);
    const double tile = (p.wgmma ? 0.6 * std::max(4.0, busy / 4) : std::max(2.5, 0.8 + 0.2 * busy)) * slower;
    // staging of spectra: a warp's blocks of 32 terms by 16 channels one after the other, then a barrier
    const double staged = chunks(2 * t.modes) * p.fragments / 2.0 / p.group_warps;
    const double crowd = std::max(1.0, busy / 8), latency = (p.copied_at < 0 ? 0.5 : 0.2) * crowd;
    // measured on Hopper; other cards keep a cost with which they are fast
    const double block = t.warpgroups ? 0.15 * std::max(1.0, busy / 4) + latency : 0.0375 * crowd;
    const double segments = ceil_div(p.split_tiles, p.segment_tiles) * (staged * block + 0.3 * crowd);
    // Of plans that cost about the same, those with more groups are faster by up to 30 %, measured on Hopper with many rows: a
    // group's warps wait for each other, and other groups work meanwhile.
    const bool waits = t.warpgroups && !p.wgmma && rounds > kManyRounds;
    const double alone = waits ? 1.0 + 0.02 * std::max<int64_t>(0, 4 - groups) : 1.0;
    const double prologue = p.first_group / 8000.0;
    return prologue + alone * rounds * (ceil_div(p.split_tiles, p.group_warps) * tile + segments) + (p.splits > 1 ? 4 : 0);
}

bool known(int value, int least, int most) { return value >= least && value <= most; }

const char *unsupported(const turbofno_step &step, const turbofno_tile &t) {
    if (!known(step.kind, TURBOFNO_LOAD, TURBOFNO_PROJECT)) return "unknown step";
    if (!known(step.activation, TURBOFNO_NONE, TURBOFNO_HARDSIGMOID)) return "unknown activation";
    const bool reads = step.kind == TURBOFNO_LOAD || step.kind == TURBOFNO_ADD_GATE || step.kind == TURBOFNO_STORE;
    if (reads && (step.channels < 1 || step.channels > t.width)) return "a field has more channels than the tile";
    if (step.kind == TURBOFNO_ADD_MAP && !known(step.terms, 1, kMaxWidth)) return "a map takes more than 256 channels";
    if (step.kind == TURBOFNO_PROJECT && !known(step.channels, 1, kMaxProjected)) {
        return "the output channels are not in 1 .. 16";
    }
    if (is_mlp_or_projection(step)) {
        if (t.width > 8 * kMaxFragments) return "a program with a channel MLP or projection has more than 128 channels";
        if (step.terms < 1 || step.terms > t.width) return "a channel MLP takes more channels than the tile has";
        if (step.hidden % 32 != 0) return "hidden channels are not a multiple of 32";
    }
    return nullptr;
}

const char *unsupported(const turbofno_tile &t) {
    if (t.batch < 1 || t.batch > kMaxBatch) return "the batch is not in 1 .. 65536";
    if (t.outer < 1 || t.batch * t.outer > kMaxRows) return "the rows are not in 1 .. 2^30";
    if (!known(t.points, 1, kMaxPoints)) return "the last axis is not in 1 .. 16384 points";
    if (!known(t.width, 1, kMaxWidth)) return "the channels are not in 1 .. 256";
    if (!known(t.modes, 0, kMaxModes) || !known(t.next_modes, 0, kMaxModes)) {
        return "the last axis does not keep 1 .. 128 modes";
    }
    if (t.modes > t.points / 2 + 1 || t.next_modes > t.points / 2 + 1) {
        return "the last axis does not hold the kept modes";
    }
    if (!known(t.precision, TURBOFNO_FP32, TURBOFNO_BF16)) return "unknown precision";
    if (!known(t.steps, 1, TURBOFNO_MAX_STEPS)) return "the program is longer than 16 steps";
    for (int i = 0; i < t.steps; ++i) {
        const char *reason = unsupported(t.step[i], t);
        if (reason != nullptr) return reason;
    }
    if (t.multiprocessors < 1) return "the device has no multiprocessor";
    return nullptr;
}

} // namespace

TilePlan plan(const turbofno_tile &t) {
    TilePlan best{};
    TilePlan p{};
    p.wide = is_wide(t);
    p.planes = t.precision == TURBOFNO_FP32 ? 2 : 1;
    const int64_t rows = t.batch * t.outer;
    const int tiles = ceil_div(t.points, kTilePoints);
    // A split row's analysis is summed in memory: worth it where multiprocessors would have no row, or splits are much larger.
    const bool summed = t.next_modes > 0 && t.points < 64 * t.next_modes;
    const int64_t split_below = (summed ? 1 : 16) * int64_t(t.multiprocessors);
    const bool has_kernel = std::any_of(std::begin(kPrograms), std::end(kPrograms), [&](uint64_t one) { return serves(one, t); });
    double least = 0.0;
    for (p.fragments = 2; p.fragments <= kMaxFragments; p.fragments *= 2) {
        const bool whole = 8 * p.fragments >= t.width;
        if (!whole && (p.wide || p.fragments < 8)) continue;
        p.channel_tiles = ceil_div(t.width, 8 * p.fragments);
        for (int choice = 0; choice < 8 * (kSegments + 2); ++choice) {
            // tables of a row in shared memory, of a row through L1, of shorter and shorter segments
            const int tables = choice / 8;
            const bool copies_spectra = choice & 4;
            // before Hopper a warp that waits for its points would wait for the spectra, too
            if (copies_spectra && (t.modes == 0 || !t.warpgroups)) continue;
            p.wgmma = choice & 2;
            p.synthesis_on_chip = tables != 1;
            p.segment_tiles = tables < 2 ? tiles : kLongestSegment >> (tables - 2);
            if ((tables == 1 && t.modes == 0) || (tables > 1 && p.segment_tiles >= tiles)) continue;
            if (p.wgmma && (!t.warpgroups || p.fragments < 8 || t.next_modes > kMaxWgmmaModes)) continue;
            if (p.wgmma && p.fragments > kSegmentedFragments && t.next_modes > 0 && p.segment_tiles < tiles) continue;
            find_prefetch(t, p);
            p.common = has_kernel && (p.fragments == 4 || p.fragments == 8) && p.synthesis_on_chip && is_common(t, 8 * p.fragments);
            if (choice & 1) {
                if (p.prefetch_first < 0) continue;
                p.common = false;
                p.prefetch_first = p.prefetch_last = -1;
            }
            for (p.group_warps = p.wgmma ? kWarpgroupWarps : 1; p.group_warps <= (p.wgmma ? kWarpgroupWarps : 16);
                 p.group_warps *= 2) {
                // a warp's next tile is as far away in the next segment as in the same one
                if (p.segment_tiles < tiles && p.segment_tiles % p.group_warps != 0) continue;
                const int step = std::max(p.group_warps, 2), most = max_warps(p.fragments, p.wide, p.wgmma, p.common);
                const int whole_tiles = p.segment_tiles < tiles ? p.segment_tiles : p.wgmma ? kWarpgroupWarps : 1;
                for (p.warps = p.group_warps; p.warps <= most; p.warps += p.warps < step ? p.group_warps : step) {
                    lay_out(t, p, copies_spectra);
                    if (p.shared_bytes > t.shared_bytes || p.warps % p.group_warps != 0) continue;
                    for (p.splits = 1; p.splits <= tiles && (p.splits == 1 || rows < split_below); p.splits *= 2) {
                        p.split_tiles = round_up(ceil_div(tiles, p.splits), whole_tiles);
                        const double now = cost(t, p, rows);
                        if (best.warps > 0 && now >= least) continue;
                        least = now;
                        best = p;
                    }
                }
            }
        }
        if (whole) break; // more fragments would be padding
    }
    best.stores_split = best.common && t.precision == TURBOFNO_FP32 && t.next_modes > 0;
    best.splits = best.split_tiles > 0 ? ceil_div(tiles, best.split_tiles) : 0;
    best.split_segments = best.segment_tiles < tiles ? best.split_tiles / std::max(best.segment_tiles, 1) : 0;
    const int64_t groups = best.group_warps > 0 ? best.warps / best.group_warps : 1;
    best.blocks = int(std::min<int64_t>(ceil_div(rows * best.splits, groups),
                                        ceil_div(t.multiprocessors, std::max(best.channel_tiles, 1))));
    best.stride = int(best.blocks * groups);
    const int64_t splits = std::max(best.splits, 1);
    best.stride_split = int(best.stride % splits);
    best.stride_row = int(best.stride / splits);
    best.stride_batch = int(best.stride_row / t.outer);
    best.stride_outer = int(best.stride_row % t.outer);
    if (t.next_modes > 0 && best.splits > 1) {
        best.workspace_bytes = sizeof(float) * size_t(best.splits) * size_t(rows) * size_t(t.channels) * 2 * t.next_modes;
    }
    return best;
}

} // namespace turbofno

extern "C" const char *turbofno_tile_prepare(const turbofno_tile *tile, turbofno_tile_plan *prepared) {
    using namespace turbofno;
    static_assert(sizeof(TilePlan) <= sizeof(prepared->opaque), "TURBOFNO_PLAN_WORDS");
    *prepared = {};
    const char *reason = unsupported(*tile);
    if (reason != nullptr) return reason;
    const TilePlan p = plan(*tile);
    if (p.warps == 0) return "its weights and spectra do not fit in shared memory";
    std::memcpy(prepared->opaque, &p, sizeof p);
    prepared->segment_points = std::min(tile->points, p.segment_tiles * kTilePoints);
    prepared->workspace_bytes = int64_t(p.workspace_bytes);
    prepared->stores_split = p.stores_split;
    return nullptr;
}
