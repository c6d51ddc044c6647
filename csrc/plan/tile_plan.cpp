#include "tile_plans.h"
#include "tile_programs.h"

#include <algorithm>
#include <cstring>

namespace turbofno {
namespace {

constexpr int kLanes = 32;
constexpr int kMaxWidth = 256;
constexpr int kMaxModes = 128;
constexpr int kMaxPoints = 16384;
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

bool reads_points(const turbofno_step &step, int kind) { return step.kind == kind && !step.channel_first; }

// Finds the steps whose channels-last field can be prefetched: those that read x, or else the load that begins the program.
void find_prefetch(const turbofno_tile &t, TilePlan &p) {
    p.prefetch_first = p.prefetch_last = -1;
    bool whole_points = p.channel_tiles == 1;
    for (int i = 0; i < t.steps; ++i) {
        const bool map = reads_points(t.step[i], TURBOFNO_ADD_MAP);
        if (!map && !reads_points(t.step[i], TURBOFNO_ADD_GATE)) continue;
        whole_points |= map;
        if (p.prefetch_first < 0) p.prefetch_first = i;
        p.prefetch_last = i;
    }
    if (p.prefetch_first < 0 && reads_points(t.step[0], TURBOFNO_LOAD)) p.prefetch_first = p.prefetch_last = 0;
    // Only a map needs channels of a point that other blocks hold.
    if (!whole_points) p.prefetch_first = p.prefetch_last = -1;
}

// 16-byte words of a B operand with its inverse scales.
int operand_words(int terms, int channels, int planes) {
    const int of_pairs = chunks(terms) * pairs(channels);
    return of_pairs * 2 * planes * kLanes + ceil_div(of_pairs, 4);
}

void lay_out(const turbofno_tile &t, TilePlan &p, bool copies_spectra, bool may_share) {
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
        if (step.kind == TURBOFNO_ADD_MAP) {
            p.first_at[i] = allocate(p.maps_few ? step.terms * block_channels / 4
                                                : operand_words(step.terms, block_channels, p.planes));
        }
        if (!is_mlp_or_projection(step)) continue;
        const int out = step.kind == TURBOFNO_PROJECT ? kMaxProjected : block_channels;
        if (step.hidden > 0) p.first_at[i] = allocate(operand_words(step.terms, step.hidden, p.planes));
        p.second_at[i] = allocate(projects_few(step) ? step.channels * step.hidden / 4
                                                     : operand_words(step.hidden > 0 ? step.hidden : step.terms, out, p.planes));
    }
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        const bool scales = step.kind == TURBOFNO_ADD_GATE || (step.kind == TURBOFNO_AFFINE && !step.per_sample);
        const bool maps = is_mlp_or_projection(step);
        p.vectors_at[i] = allocate(maps ? ceil_div(2 * step.hidden + block_channels, 4) : scales ? 2 * block_channels / 4 : 0);
    }
    const int next_pairs = pairs(2 * t.next_modes), next_fragments = ceil_div(2 * t.next_modes, 8);
    const int wgmma_table = round_up(p.segment_tiles, kWarpgroupWarps) * p.planes * p.columns * kLanes / 2;
    const int analysis = p.wgmma() ? (t.next_modes > 0 ? wgmma_table : 0) : p.segment_tiles * next_pairs * p.planes * kLanes;
    p.synthesis_at = allocate(p.synthesis_on_chip ? p.segment_tiles * chunks(2 * t.modes) * 2 * p.planes * kLanes : 0);
    p.analysis_at = allocate(analysis);
    p.first_group = at;
    at = 0;
    allocate(t.modes > 0 ? operand_words(2 * t.modes, block_channels, p.planes) : 0);
    const int copied = copied_words(t.modes, block_channels);
    const int staging = p.wgmma() && t.next_modes > 0 ? 1 + p.planes * 64 * p.fragments : 0;
    // where a map comes first the staged y is not in use yet
    const bool shares = may_share && copies_spectra && p.wgmma() && p.common && copied < staging;
    p.barrier_at = allocate(copies_spectra ? 1 : 0);
    const int apart = allocate(copies_spectra && !shares ? copied : 0);
    p.sums_at = at;
    p.copied_at = shares ? p.sums_at + 1 : copies_spectra ? apart : -1;
    p.sums_words = p.wgmma() ? 0 : p.fragments / 2 * next_fragments * kLanes;
    p.prefetch_at = p.sums_at + p.group_warps * p.sums_words + staging;
    p.prefetch_words = p.prefetch_first < 0 ? 0 : 1 + kTilePoints * words_of_point(t, t.step[p.prefetch_first]);
    p.group_words = p.prefetch_at + p.group_warps * p.prefetch_words;
    p.shared_bytes = 16 * (p.first_group + p.warps / p.group_warps * p.group_words);
}

// Derives what follows from the choices of a plan.
void distribute(const turbofno_tile &t, TilePlan &p) {
    const int64_t rows = t.batch * t.outer, groups = p.warps / p.group_warps;
    const int tiles = ceil_div(t.points, kTilePoints);
    p.stores_split = p.common && p.fragments <= kMostFragments && t.precision == TURBOFNO_FP32 && t.next_modes > 0;
    p.splits = ceil_div(tiles, p.split_tiles);
    p.split_segments = p.segment_tiles < tiles ? p.split_tiles / p.segment_tiles : 0;
    p.blocks = int(std::min<int64_t>(ceil_div(rows * p.splits, groups), ceil_div(t.multiprocessors, p.channel_tiles)));
    p.stride = int(p.blocks * groups);
    p.stride_split = p.stride % p.splits;
    p.stride_row = p.stride / p.splits;
    p.stride_batch = int(p.stride_row / t.outer);
    p.stride_outer = int(p.stride_row % t.outer);
    const size_t sums = t.next_modes > 0 && p.splits > 1 ? size_t(p.splits) * size_t(rows) : 0;
    p.workspace_bytes = sizeof(float) * sums * size_t(t.channels) * 2 * t.next_modes;
}

// What a program does to a tile, whatever its plan.
struct Work {
    double products; // matrix products for 8 channels
    int elementwise; // steps that load, store, add a field or activate
    int hidden; // hidden channels of channel MLPs and projections
    int mlps; // channel MLPs
    int read_chunks; // chunks of the channels of a field that can be prefetched
};

Work work_of(const turbofno_tile &t) {
    const double synthesis = 0.015 * chunks(2 * t.modes), analysis = 0.02 * ceil_div(2 * t.next_modes, 8);
    Work w{synthesis + analysis, 0, 0, 0, 0};
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        if (step.kind == TURBOFNO_ADD_MAP) w.products += 0.01 * chunks(step.terms);
        if (is_mlp_or_projection(step)) w.hidden += step.hidden;
        w.mlps += step.kind == TURBOFNO_MLP;
        w.elementwise += step.kind == TURBOFNO_LOAD || step.kind == TURBOFNO_ADD_GATE || step.kind == TURBOFNO_ACTIVATE ||
                         step.kind == TURBOFNO_STORE;
    }
    TilePlan p{};
    p.channel_tiles = 1;
    find_prefetch(t, p);
    if (p.prefetch_first >= 0) w.read_chunks = chunks(t.step[p.prefetch_first].channels);
    return w;
}

// Estimated run time. A warp waits for its own tile most of the time, so a tile takes the same time beside any other warps; the
// unit is that of an empty program. The constants fit measured times (`python -m benchmarks.gpu plans`); none is critical: a third
// more or less changes few choices.
double cost(const turbofno_tile &t, const TilePlan &p, const Work &w) {
    const int64_t units = t.batch * t.outer * p.splits;
    const int64_t rounds = ceil_div<int64_t>(units, p.stride);
    const double busy = double(std::min<int64_t>(p.warps, p.group_warps * ceil_div<int64_t>(units, p.blocks)));

    const double products = p.wgmma() ? 0.0 : (p.planes > 1 ? 1.0 : 0.6) * w.products;
    const double table = p.synthesis_on_chip ? 0.0 : (p.wgmma() ? 0.3 : 0.15) * chunks(2 * t.modes);
    const double direct = p.prefetch_first < 0 ? 0.2 * w.read_chunks : 0.0;
    const double alone = 1.0 + p.fragments * (products + 0.04 * w.elementwise) + 0.009 * w.hidden + table + direct;
    // Warpgroups of 32 channels: more than four of them share the multiprocessor's time, five where they take a row at once.
    const bool narrow = p.wgmma() && p.fragments == 4;
    const double at_once = p.split_tiles <= p.group_warps ? 20 : 16;
    const bool projects = t.step[t.steps - 1].kind == TURBOFNO_PROJECT;
    const bool slow = p.columns > kWgmmaColumns || (w.mlps > 0 && !projects); // measured alike
    const double kind = slow ? 1.15 : t.modes == 0 ? 1.08 : 0.82;
    const double wide = p.common && p.fragments > kMostFragments ? 0.7 : 1.0;
    const double pace = narrow ? (p.common ? 1.0 : 1.05) * kind : wide;
    const double tile = pace * (narrow ? std::max(1.0, busy / at_once) : 1.0) * alone;

    // Staging of spectra: a warp's blocks of 32 terms by 16 channels one after the other. A copy that is under way while the group
    // takes the tiles before costs less.
    const int segments = std::max(1, p.split_segments);
    const double staged = chunks(2 * t.modes) * p.fragments / 2.0 / p.group_warps;
    const double block = p.copied_at < 0 ? 0.2 : rounds * segments > 1 ? 0.1 : 0.37;
    const double segment = pace * std::max(1.0, busy / 8) * (0.5 + staged * block);

    const int tiles = segments * ceil_div(p.split_tiles / segments, p.group_warps);
    const double sums = p.workspace_bytes > 0 ? 1.2 + 0.03 * p.splits : 0.0;
    return p.first_group / 7500.0 + rounds * (tiles * tile + segments * segment) + sums;
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
    if (t.modes > t.window.points / 2 + 1 || t.next_modes > t.points / 2 + 1) {
        return "the last axis does not hold the kept modes";
    }
    if (!known(t.precision, TURBOFNO_FP32, TURBOFNO_BF16)) return "unknown precision";
    if (!known(t.steps, 1, TURBOFNO_MAX_STEPS)) return "the program is longer than 16 steps";
    for (int i = 0; i < t.steps; ++i) {
        const char *reason = unsupported(t.step[i], t);
        if (reason != nullptr) return reason;
    }
    if (t.multiprocessors < 1) return "the device has no multiprocessor";
    const turbofno_window &w = t.window;
    if (!known(w.points, t.points, kMaxPoints) || w.rows < 1 || w.pitch < w.rows || w.first < 0) {
        return "the window is not part of its grid";
    }
    if (w.outer > kMaxRows || t.batch * w.outer > kMaxRows) return "the rows are not in 1 .. 2^30";
    if (t.outer % w.rows != 0 || w.first + (t.outer / w.rows - 1) * w.pitch + w.rows > w.outer) {
        return "the window has rows that its grid has not";
    }
    return nullptr;
}

bool is_part(const turbofno_tile &t) { return t.window.points != t.points || t.window.outer != t.outer; }

} // namespace

void each_plan(const turbofno_tile &t, const std::function<void(const TilePlan &)> &visit) {
    TilePlan p{};
    p.wide = is_wide(t);
    p.planes = t.precision == TURBOFNO_FP32 ? 2 : 1;
    const int64_t rows = t.batch * t.outer;
    const int tiles = ceil_div(t.points, kTilePoints);
    // A split row's analysis is summed in memory: worth it where multiprocessors would have no row, or splits are much larger.
    const bool summed = t.next_modes > 0 && t.points < 64 * t.next_modes;
    const int64_t split_below = (summed ? 1 : 16) * int64_t(t.multiprocessors);
    const bool has_kernel = any_serves(kPrograms, t), has_wide_kernel = any_serves(kWidePrograms, t);
    const bool first = serves(kFirstLayer, t);
    const bool windowed = is_part(t), projects = t.step[t.steps - 1].kind == TURBOFNO_PROJECT;
    const Work work = work_of(t);
    for (p.fragments = 2; p.fragments <= kMaxFragments; p.fragments *= 2) {
        const bool whole = 8 * p.fragments >= t.width;
        if (!whole && (p.wide || p.fragments < 8)) continue;
        p.channel_tiles = ceil_div(t.width, 8 * p.fragments);
        p.maps_few = first && p.fragments <= kMostFragments;
        for (int choice = 0; choice < 8 * (kSegments + 2); ++choice) {
            // tables of a row in shared memory, of a row through L1, of shorter and shorter segments
            const int tables = choice / 8;
            const bool copies_spectra = choice & 4;
            // before Hopper a warp that waits for its points would wait for the spectra, too
            if (copies_spectra && (t.modes == 0 || !t.warpgroups)) continue;
            const bool wgmma = choice & 2;
            p.synthesis_on_chip = tables != 1;
            p.segment_tiles = tables < 2 ? tiles : kLongestSegment >> (tables - 2);
            if ((tables == 1 && t.modes == 0) || (tables > 1 && p.segment_tiles >= tiles)) continue;
            // of 32 channels only high and low parts together are the 64 rows of an analysis
            const int least = p.planes > 1 ? 4 : 8;
            if (wgmma && (!t.warpgroups || p.fragments < least || t.next_modes > kModesOfColumn * kManyColumns)) continue;
            const bool many = t.next_modes > kModesOfColumn * kWgmmaColumns;
            p.columns = !wgmma ? 0 : many ? kManyColumns : kWgmmaColumns;
            if (p.wgmma() && p.fragments > kSegmentedFragments && t.next_modes > 0 && p.segment_tiles < tiles) continue;
            find_prefetch(t, p);
            const bool reads_directly = choice & 1;
            if (reads_directly && p.prefetch_first < 0) continue;
            if (reads_directly) p.prefetch_first = p.prefetch_last = -1;
            const bool fits_kernel = p.fragments <= kMostFragments ? has_kernel && !reads_directly
                                                                   : has_wide_kernel && p.wgmma() && p.prefetch_first < 0;
            p.common = fits_kernel && t.width == 8 * p.fragments && p.synthesis_on_chip && is_common(t, t.width);
            if (windowed && !(p.common && projects)) continue;
            const bool analyses = t.step[t.steps - 1].kind == TURBOFNO_ANALYZE;
            if (wgmma && many && !(p.common && analyses && p.fragments == 4 && p.planes > 1)) continue;
            for (p.group_warps = p.wgmma() ? kWarpgroupWarps : 1; p.group_warps <= (p.wgmma() ? kWarpgroupWarps : 16);
                 p.group_warps *= 2) {
                // a warp's next tile is as far away in the next segment as in the same one
                if (p.segment_tiles < tiles && p.segment_tiles % p.group_warps != 0) continue;
                const int step = std::max(p.group_warps, 2), most = max_warps(p.fragments, p.wide, p.columns, p.common);
                const int whole_tiles = p.segment_tiles < tiles ? p.segment_tiles : p.wgmma() ? kWarpgroupWarps : 1;
                for (p.warps = p.group_warps; p.warps <= most; p.warps += p.warps < step ? p.group_warps : step) {
                    lay_out(t, p, copies_spectra, false);
                    if (p.shared_bytes > t.shared_bytes) lay_out(t, p, copies_spectra, true);
                    if (p.shared_bytes > t.shared_bytes || p.warps % p.group_warps != 0) continue;
                    for (int splits = 1; splits <= tiles && (splits == 1 || rows < split_below); splits *= 2) {
                        p.split_tiles = round_up(ceil_div(tiles, splits), whole_tiles);
                        distribute(t, p);
                        p.cost = cost(t, p, work);
                        visit(p);
                    }
                }
            }
        }
        if (whole) break; // more fragments would be padding
    }
}

TilePlan plan(const turbofno_tile &t) {
    TilePlan best{};
    each_plan(t, [&](const TilePlan &p) {
        if (best.warps == 0 || p.cost < best.cost) best = p;
    });
    return best;
}

void describe(const turbofno_tile &t, const TilePlan &p, turbofno_tile_plan &prepared) {
    static_assert(sizeof(TilePlan) <= sizeof(prepared.opaque), "TURBOFNO_PLAN_WORDS");
    std::memcpy(prepared.opaque, &p, sizeof p);
    prepared.segment_points = std::min(t.points, p.segment_tiles * kTilePoints);
    prepared.workspace_bytes = int64_t(p.workspace_bytes);
    prepared.cost = p.cost;
    prepared.stores_split = p.stores_split;
    prepared.maps_few = p.maps_few;
}

} // namespace turbofno

extern "C" const char *turbofno_tile_prepare(const turbofno_tile *tile, turbofno_tile_plan *prepared) {
    using namespace turbofno;
    *prepared = {};
    const char *reason = unsupported(*tile);
    if (reason != nullptr) return reason;
    const TilePlan p = plan(*tile);
    if (p.warps == 0 && is_part(*tile)) return "only kernels for the last layers of common networks compute a window";
    if (p.warps == 0) return "its weights and spectra do not fit in shared memory";
    describe(*tile, p, *prepared);
    return nullptr;
}
