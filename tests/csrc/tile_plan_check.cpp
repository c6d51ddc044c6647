// Checks plans of random tile programs: the regions of shared memory that csrc/kernels/tile_program.cuh reads do not
// overlap and fit; warps, groups and splits cover the work. Prints each violation. Exit status 1 if there is one, or if a
// kind of plan was never drawn. The argument is the seed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "../../csrc/plan/tile_plan.h"

using namespace turbofno;

static constexpr int kLanes = 32;
static int wrong = 0, checked = 0, splits = 0, cut = 0, prefetched = 0, with_wgmma = 0, with_many_modes = 0, segments = 0, common = 0;
static int shared_copies = 0, own_copies = 0, of_inputs = 0, of_128 = 0, of_20 = 0, windows = 0, projected_at_once = 0;

static void expect(bool holds, const char *what, const turbofno_tile &t) {
    if (holds) return;
    std::printf("%s: batch %lld, outer %lld, points %d, width %d, modes %d, next %d, precision %d, shared %d, steps", what,
                (long long)t.batch, (long long)t.outer, t.points, t.width, t.modes, t.next_modes, t.precision, t.shared_bytes);
    for (int i = 0; i < t.steps; ++i) std::printf(" %d(%d %d)", t.step[i].kind, t.step[i].terms, t.step[i].hidden);
    std::printf("\n");
    ++wrong;
}

struct Region {
    int begin, words;
};

// True if all regions are between `begin` and `end` and do not overlap.
static bool disjoint(std::vector<Region> regions, int begin, int end) {
    std::sort(regions.begin(), regions.end(), [](const Region &a, const Region &b) { return a.begin < b.begin; });
    for (const Region &region : regions) {
        if (region.words == 0) continue;
        if (region.begin < begin) return false;
        begin = region.begin + region.words;
    }
    return begin <= end;
}

// Words of a B operand as the kernel reads it: fragment pairs for every 32 terms, and one inverse scale for each.
static int operand_words(int terms, int fragment_pairs, int planes) {
    const int of_pairs = ceil_div(terms, 32) * fragment_pairs;
    return of_pairs * 2 * planes * kLanes + ceil_div(of_pairs, 4);
}

static void check_memory(const turbofno_tile &t, const TilePlan &p) {
    const int pairs = p.fragments / 2, columns = ceil_div(2 * t.next_modes, 8);
    std::vector<Region> block, group;
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        const bool wide = step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT;
        const int out = step.kind == TURBOFNO_PROJECT ? 1 : pairs;
        if (step.kind == TURBOFNO_ADD_MAP) {
            block.push_back({p.first_at[i], p.maps_few ? step.terms * 2 * p.fragments : operand_words(step.terms, pairs, p.planes)});
        }
        if (wide && step.hidden > 0) {
            block.push_back({p.first_at[i], operand_words(step.terms, step.hidden / 16, p.planes)});
        }
        if (wide) {
            const int operand = operand_words(step.hidden > 0 ? step.hidden : step.terms, out, p.planes);
            const bool dots = step.kind == TURBOFNO_PROJECT && step.hidden > 0 && step.channels <= TURBOFNO_DOT_OUTPUTS;
            block.push_back({p.second_at[i], dots ? step.channels * step.hidden / 4 : operand});
            const int second = step.kind == TURBOFNO_PROJECT ? kMaxProjected : 8 * p.fragments;
            block.push_back({p.vectors_at[i], ceil_div(2 * step.hidden + second, 4)});
        }
        const bool affine = step.kind == TURBOFNO_AFFINE || step.kind == TURBOFNO_ADD_GATE;
        if (affine && !step.per_sample) block.push_back({p.vectors_at[i], ceil_div(2 * 8 * p.fragments, 4)});
    }
    const int tiles = p.segment_tiles;
    if (p.synthesis_on_chip) block.push_back({p.synthesis_at, tiles * ceil_div(2 * t.modes, 32) * 2 * p.planes * kLanes});
    if (t.next_modes > 0) {
        // with wgmma: whole steps of four tiles, all columns
        const int of_pairs = p.wgmma() ? round_up(tiles, kWarpgroupWarps) * p.columns / 2 : tiles * ceil_div(columns, 2);
        block.push_back({p.analysis_at, of_pairs * p.planes * kLanes});
    }
    const int groups = p.warps / p.group_warps, words = p.shared_bytes / 16;
    expect(disjoint(block, 0, p.first_group), "regions of the block are disjoint", t);
    expect(p.first_group + groups * p.group_words <= words, "regions of the groups fit", t);
    if (t.modes > 0) group.push_back({0, operand_words(2 * t.modes, pairs, p.planes)});
    for (int warp = 0; warp < p.group_warps; ++warp) {
        if (!p.wgmma()) group.push_back({p.sums_at + warp * p.sums_words, pairs * columns * kLanes});
        if (p.prefetch_first < 0) continue;
        const int bytes = ceil_div(t.step[p.prefetch_first].channels * (t.precision == TURBOFNO_BF16 ? 2 : 4), 16) * 16;
        group.push_back({p.prefetch_at + warp * p.prefetch_words, 1 + kTilePoints * bytes / 16}); // an mbarrier, then the points
    }
    if (t.modes > 0 && p.copied_at >= 0) {
        const int copied = copied_words(t.modes, 8 * p.fragments);
        // the copy of the spectra may lie where y is staged later
        const bool shares = p.wgmma() && p.common && t.next_modes > 0 && p.copied_at == p.sums_at + 1;
        if (shares) {
            expect(copied <= p.planes * 64 * p.fragments, "the copied spectra fit into the staged y", t);
            ++shared_copies;
        } else {
            group.push_back({p.copied_at, copied});
            ++own_copies;
        }
    }
    const bool may_split = p.common && p.channel_tiles == 1 && p.planes == 2 && t.next_modes > 0;
    expect(!p.stores_split || may_split, "a split field is stored once, by a common program that analyses it", t);
    // the warps' maxima, then 64 points by all channels
    if (p.wgmma() && t.next_modes > 0) group.push_back({p.sums_at, 1 + 64 * 8 * p.fragments * p.planes / 8});
    expect(disjoint(group, 0, p.group_words), "regions of a group are disjoint", t);
    expect(p.shared_bytes % 16 == 0 && p.shared_bytes <= t.shared_bytes, "shared memory", t);
}

static void check_prefetch(const turbofno_tile &t, const TilePlan &p) {
    if (p.prefetch_first < 0) {
        expect(p.prefetch_last < 0, "a plan without prefetch has no last prefetched step", t);
        return;
    }
    ++prefetched;
    for (int i : {p.prefetch_first, p.prefetch_last}) {
        const turbofno_step &step = t.step[i];
        const bool reads = step.kind == TURBOFNO_LOAD || step.kind == TURBOFNO_ADD_MAP || step.kind == TURBOFNO_ADD_GATE;
        expect(reads && !step.channel_first, "only a channels-last field is prefetched", t);
        expect(step.channels == t.step[p.prefetch_first].channels, "all prefetched steps read one field", t);
    }
}

static void check(const turbofno_tile &t) {
    turbofno_tile_plan prepared;
    if (turbofno_tile_prepare(&t, &prepared) != nullptr) return;
    ++checked;
    const TilePlan p = plan(t);
    expect(std::memcmp(&p, prepared.opaque, sizeof p) == 0, "turbofno_tile_prepare returns the plan", t);
    const int64_t rows = t.batch * t.outer;
    const int tiles = ceil_div(t.points, kTilePoints);
    expect(p.fragments == 2 || p.fragments == 4 || p.fragments == 8 || p.fragments == 16, "fragments", t);
    expect(8 * p.fragments * p.channel_tiles >= t.width, "channel tiles cover the channels", t);
    expect(8 * p.fragments * (p.channel_tiles - 1) < t.width, "no empty channel tile", t);
    expect(!p.wide || p.channel_tiles == 1, "an MLP sees all channels", t);
    expect(p.planes == (t.precision == TURBOFNO_FP32 ? 2 : 1), "planes", t);
    expect(p.group_warps >= 1 && p.warps >= p.group_warps && p.warps % p.group_warps == 0, "warps make whole groups", t);
    expect(p.warps <= max_warps(p.fragments, p.wide, p.columns, p.common), "the registers suffice for the warps", t);
    expect(!p.wgmma() || (t.warpgroups && p.group_warps == kWarpgroupWarps), "wgmma only where the device has it", t);
    expect(!p.wgmma() || p.split_tiles % kWarpgroupWarps == 0, "a split is whole steps of a warpgroup", t);
    expect(!p.wgmma() || t.next_modes <= kModesOfColumn * p.columns, "columns of the analysis", t);
    const bool many = p.columns > kWgmmaColumns;
    expect(!many || (p.common && p.fragments == 4 && p.planes == 2 && t.next_modes > 0), "a kernel of many modes", t);
    with_wgmma += p.wgmma();
    with_many_modes += many;
    expect(p.group_warps == 1 || p.warps / p.group_warps <= 15, "one named barrier per group", t);
    expect(p.splits >= 1 && p.split_tiles >= 1 && p.splits * p.split_tiles >= tiles, "splits cover the row", t);
    expect((p.splits - 1) * p.split_tiles < tiles, "no empty split", t);
    const bool segmented = p.segment_tiles < tiles;
    expect(p.segment_tiles >= 1 && p.segment_tiles <= tiles, "a segment is part of the row", t);
    expect(prepared.segment_points == std::min(t.points, p.segment_tiles * kTilePoints), "points of a segment", t);
    expect(!segmented || p.segment_tiles % p.group_warps == 0, "a group's warps go on evenly in the next segment", t);
    expect(p.split_segments * p.segment_tiles == (segmented ? p.split_tiles : 0), "a split is whole segments", t);
    expect(!segmented || !p.wgmma() || t.next_modes == 0 || p.fragments <= kSegmentedFragments, "whole rows", t);
    expect(p.synthesis_on_chip || (!segmented && !p.common), "a table read through L1 is a row's", t);
    segments += segmented;
    common += p.common;
    of_128 += p.common && p.fragments > 8;
    of_inputs += p.common && p.maps_few;
    const bool of_input = t.step[0].kind == TURBOFNO_SYNTHESIS && t.step[2].kind == TURBOFNO_ADD_MAP && t.step[2].channel_first;
    expect(!p.maps_few || (of_input && t.step[2].terms <= 6), "few channels of the input are mapped on ordinary cores", t);
    expect(prepared.maps_few == p.maps_few, "the caller packs the weights of such a map", t);
    expect(!p.common || 8 * p.fragments == t.width, "common programs have all channels in a tile", t);
    const bool plain = t.step[0].kind == TURBOFNO_SYNTHESIS && t.step[2].kind == TURBOFNO_ADD_MAP &&
                       (t.steps == 4 ? t.step[3].kind == TURBOFNO_PROJECT : t.step[4].kind == TURBOFNO_STORE);
    const bool of_plain_20 = t.channels == 20 && t.width == 32 && plain;
    expect(!p.common || t.channels == t.width || of_plain_20, "and no others, but plain ones of 20 channels", t);
    of_20 += p.common && t.channels < t.width;
    const turbofno_step &last = t.step[t.steps - 1];
    const bool projects = last.kind == TURBOFNO_PROJECT, whole = t.window.points == t.points && t.window.outer == t.outer;
    expect(whole || (p.common && projects), "only kernels for common last layers compute a window", t);
    windows += !whole;
    expect(!p.common || !projects || last.hidden > 0 || t.width == 32, "a common projection of one map has 32 channels", t);
    projected_at_once += p.common && projects && last.hidden == 0;
    const int64_t groups = p.warps / p.group_warps;
    expect(p.blocks >= 1 && p.blocks <= ceil_div(rows * p.splits, groups), "every block has a row", t);
    expect(p.channel_tiles * (p.blocks - 1) < t.multiprocessors, "one block a multiprocessor", t);
    size_t parts = 0;
    if (p.splits > 1) parts = size_t(8) * size_t(p.splits) * size_t(rows) * size_t(t.channels) * size_t(t.next_modes);
    expect(p.workspace_bytes == parts && prepared.workspace_bytes == int64_t(parts), "workspace", t);
    splits += p.splits > 1;
    cut += p.channel_tiles > 1;
    check_memory(t, p);
    check_prefetch(t, p);
}

static turbofno_step step(int kind, int channels, int terms = 0, int hidden = 0) {
    turbofno_step s{};
    s.kind = kind, s.channels = channels, s.terms = terms, s.hidden = hidden;
    return s;
}

static void add(turbofno_tile &t, const turbofno_step &s) { t.step[t.steps++] = s; }

// The begin of a layer as most networks have it: its map is of x, or of so many channels of the network's input.
static void begin_layer(turbofno_tile &t, int input) {
    add(t, step(TURBOFNO_SYNTHESIS, t.channels));
    add(t, step(TURBOFNO_AFFINE, t.channels));
    add(t, step(TURBOFNO_ADD_MAP, input > 0 ? input : t.channels, input > 0 ? input : t.channels));
    t.step[t.steps - 1].channel_first = input > 0;
}

static void go_on_with_mlp(turbofno_tile &t) {
    add(t, step(TURBOFNO_MLP, t.channels, t.channels, 32));
    add(t, step(TURBOFNO_ADD_GATE, t.channels));
    add(t, step(TURBOFNO_ACTIVATE, t.channels));
}

static void activate_all(turbofno_tile &t, int activation) {
    for (int i = 0; i < t.steps; ++i) t.step[i].activation = activation;
}

struct Draw {
    std::mt19937_64 random;

    bool coin() { return random() % 2 == 0; }

    int of(std::initializer_list<int> values) { return values.begin()[random() % values.size()]; }

    // A tile on a grid, or on a window of it: planes of some rows each.
    turbofno_tile tile() {
        turbofno_tile t = program();
        t.window = {t.outer, t.points, int(t.outer), int(t.outer), 0};
        if (random() % 3 == 0) {
            const int planes = t.outer % 8 == 0 ? 8 : 1, rows = int(t.outer) / planes, pitch = rows + of({0, 1, 9});
            const int before = of({0, 1, 2}) * pitch + (pitch - rows) / 2;
            t.window = {before + planes * pitch, t.points + of({0, 1, 8}), rows, pitch, before};
        }
        return t;
    }

    turbofno_tile program() {
        turbofno_tile t{};
        t.batch = of({1, 2, 3, 8, 33, 256, 4096, 65536});
        t.outer = of({1, 5, 16, 85, 128, 1024, 16384});
        t.points = of({1, 7, 16, 17, 33, 64, 85, 128, 421, 1024, 16384});
        t.precision = of({TURBOFNO_FP32, TURBOFNO_TF32, TURBOFNO_BF16});
        t.multiprocessors = of({1, 108, 132});
        t.shared_bytes = 1024 * of({99, 163, 227});
        t.warpgroups = coin();
        const int channels = of({1, 3, 8, 16, 20, 32, 33, 48, 64, 80, 96, 128, 200, 256}), of_x = of({1, 3, 16, 32, 64, 128, 256});
        const int most = t.points / 2 + 1;
        const auto modes = [&] { return std::min(most, of({1, 2, 5, 12, 16, 18, 24, 32, 33, 64, 128})); };
        const auto hidden = [&] { return of({32, 64, 96, 128, 256, 544, 1024}); };
        t.channels = channels;
        t.width = ceil_div(channels, 16) * 16;
        const auto add = [&](const turbofno_step &s) { ::add(t, s); };
        if (random() % 4 == 0) { // a layer as most networks have it
            t.channels = of({16, 20, 32, 64, 128});
            t.width = round_up(t.channels, of({16, 16, 16, 64}));
            t.modes = modes();
            begin_layer(t, of({0, 0, 1, 4, 6, 7}));
            if (random() % 3 == 0) { // the last one
                if (coin()) {
                    add(step(TURBOFNO_PROJECT, 1, t.channels, 64));
                } else {
                    add(step(TURBOFNO_ACTIVATE, t.channels));
                    add(step(TURBOFNO_PROJECT, 1, t.channels));
                }
                turbofno_step &last = t.step[t.steps - 1];
                last.channel_first = 1;
                activate_all(t, last.hidden == 0 ? TURBOFNO_SILU : TURBOFNO_GELU);
                if (last.hidden == 0) last.activation = TURBOFNO_NONE;
                return t;
            }
            add(step(TURBOFNO_ACTIVATE, t.channels));
            if (coin()) go_on_with_mlp(t);
            add(step(TURBOFNO_STORE, t.channels));
            activate_all(t, TURBOFNO_GELU);
            if (coin()) t.next_modes = t.modes, add(step(TURBOFNO_ANALYZE, t.channels));
            return t;
        }
        if (coin()) {
            t.modes = modes();
            add(step(TURBOFNO_SYNTHESIS, channels));
        } else {
            add(step(TURBOFNO_LOAD, channels));
            t.step[0].channel_first = coin();
        }
        const bool first = coin(); // of x
        if (coin()) {
            add(step(TURBOFNO_AFFINE, channels));
            t.step[t.steps - 1].per_sample = 1;
        }
        if (coin()) {
            add(step(TURBOFNO_ADD_MAP, of_x, of_x));
            t.step[t.steps - 1].channel_first = first;
        }
        if (coin()) add(step(TURBOFNO_AFFINE, channels));
        const int activation = of({TURBOFNO_GELU, TURBOFNO_GELU, TURBOFNO_RELU});
        if (coin()) {
            add(step(TURBOFNO_ACTIVATE, channels));
            t.step[t.steps - 1].activation = activation;
        }
        if (random() % 3 == 0) {
            add(step(TURBOFNO_MLP, channels, channels, hidden()));
            t.step[t.steps - 1].activation = activation;
        }
        if (of_x == channels && coin()) {
            add(step(TURBOFNO_ADD_GATE, of_x));
            t.step[t.steps - 1].channel_first = first;
        }
        if (coin()) add(step(TURBOFNO_STORE, channels));
        if (coin()) {
            t.next_modes = modes();
            add(step(TURBOFNO_ANALYZE, channels));
        } else if (coin()) {
            add(step(TURBOFNO_PROJECT, of({1, 3, 4, 5, 16}), channels, coin() ? hidden() : 0));
            t.step[t.steps - 1].channel_first = 1;
        }
        return t;
    }
};

// The programs and shapes with which tests/turbofno_ops/test_cuda_programs.py runs rare kernels take these.
static void check_tested_plans() {
    struct Shape {
        int64_t batch, outer;
        int points, modes;
    };
    enum Program { kOfField, kOfInput, kOfBlock, kOfNorm, kOfLifting, kLast };
    const auto program_of = [](Program program, int channels, const Shape &shape) {
        turbofno_tile t{};
        t.batch = shape.batch, t.outer = shape.outer, t.points = shape.points;
        t.next_modes = program == kLast ? 0 : shape.modes;
        t.width = 32, t.channels = channels;
        t.precision = TURBOFNO_FP32;
        t.multiprocessors = 132, t.shared_bytes = 227 * 1024, t.warpgroups = 1;
        t.window = {t.outer, t.points, int(t.outer), int(t.outer), 0};
        if (program <= kOfBlock || program == kLast) {
            t.modes = shape.modes;
            begin_layer(t, program == kOfInput ? 3 : 0);
            if (program != kLast) add(t, step(TURBOFNO_ACTIVATE, channels));
            if (program == kOfBlock) go_on_with_mlp(t);
        } else if (program == kOfNorm) {
            add(t, step(TURBOFNO_LOAD, channels));
            add(t, step(TURBOFNO_AFFINE, channels));
            t.step[1].per_sample = 1;
            add(t, step(TURBOFNO_ACTIVATE, channels));
        } else {
            add(t, step(TURBOFNO_LOAD, 3));
            t.step[0].channel_first = 1;
            add(t, step(TURBOFNO_MLP, channels, 3, 64));
        }
        if (program == kLast) {
            add(t, step(TURBOFNO_PROJECT, 2, channels, 128));
            t.step[3].channel_first = 1;
        } else {
            add(t, step(TURBOFNO_STORE, channels));
            add(t, step(TURBOFNO_ANALYZE, channels));
        }
        activate_all(t, TURBOFNO_GELU);
        return t;
    };
    for (const Shape &shape : {Shape{1, 5, 64, 18}, Shape{17, 1, 1000, 22}, Shape{8, 128, 128, 30}}) {
        const auto has_many = [&](Program program, int channels) {
            const turbofno_tile t = program_of(program, channels, shape);
            expect(plan(t).columns == kManyColumns, "a kernel of many modes is tested", t);
        };
        for (const Program program : {kOfField, kOfInput, kOfBlock, kOfNorm, kOfLifting}) has_many(program, 32);
        for (const Program program : {kOfField, kOfInput}) has_many(program, 20);
    }
    for (const Shape &shape : {Shape{32, 66, 66, 12}, Shape{32, 130, 130, 12}}) {
        for (const Program program : {kOfField, kOfInput, kLast}) {
            const turbofno_tile t = program_of(program, 20, shape);
            const TilePlan p = plan(t);
            expect(p.common && !p.wgmma() && p.splits == 1, "a common kernel of 20 channels by mma.sync is tested", t);
            expect(shape.points < 130 || p.copied_at >= 0, "with a copy of the spectra", t);
        }
    }
    const turbofno_tile t = program_of(kOfField, 20, {1, 128, 2048, 24});
    expect(plan(t).copied_at > plan(t).sums_at, "a copy of spectra where y is staged later is tested with 20 channels", t);
}

int main(int count, char **arguments) {
    check_tested_plans();
    Draw draw;
    draw.random.seed(count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 0);
    const auto one_kind_is_missing = [] {
        for (const int kind : {splits, segments, cut, prefetched, with_wgmma, with_many_modes, common, of_inputs, of_128, of_20,
                               projected_at_once, windows, own_copies, shared_copies}) {
            if (kind == 0) return true;
        }
        return false;
    };
    // the rarest kind is drawn about once in a thousand times
    for (int i = 0; i < 5000 || (one_kind_is_missing() && i < 100000); ++i) check(draw.tile());
    std::printf("%d plans, %d of split rows, %d of segments, %d of cut channels, %d with prefetch, %d with wgmma, %d of many "
                "modes, %d common, %d of them of the input, %d of 128 channels, %d of 20 channels, %d projected at once, %d of windows, "
                "%d and %d that copy spectra to a place of their own and to a shared one\n",
                checked, splits, segments, cut, prefetched, with_wgmma, with_many_modes, common, of_inputs, of_128, of_20,
                projected_at_once, windows, own_copies, shared_copies);
    return wrong != 0 || checked < 1000 || one_kind_is_missing();
}
