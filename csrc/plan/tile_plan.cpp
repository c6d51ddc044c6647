#include "tile_plan.h"

#include <algorithm>
#include <cstring>

namespace turbofno {
namespace {

constexpr int kLanes = 32;
constexpr int kMostWidth = 256;
constexpr int kMostModes = 128;
constexpr int kMostPoints = 16384;
constexpr int64_t kMostBatch = 65536, kMostRows = int64_t(1) << 30;

int chunks(int terms) { return ceil_div(terms, 32); }

int pairs(int channels) { return ceil_div(channels, 16); }

bool makes_wide(const turbofno_step &step) {
    return step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT;
}

bool is_wide(const turbofno_tile &t) {
    return std::any_of(t.step, t.step + t.steps, makes_wide);
}

// 16-byte words of a point of a channels-last field.
int words_of_point(const turbofno_tile &t, const turbofno_step &step) {
    return ceil_div(step.channels, t.precision == TURBOFNO_BF16 ? 8 : 4);
}

// Which steps read a channels-last field that may come through the inbox: x, or else what the program begins with.
void find_inbox(const turbofno_tile &t, TilePlan &p) {
    p.inbox_step = p.inbox_last = -1;
    for (int i = 0; i < t.steps; ++i) {
        const int kind = t.step[i].kind;
        if ((kind != TURBOFNO_ADD_MAP && kind != TURBOFNO_ADD_GATE) || t.step[i].channel_first) continue;
        if (p.inbox_step < 0) p.inbox_step = i;
        p.inbox_last = i;
    }
    if (p.inbox_step < 0 && t.step[0].kind == TURBOFNO_LOAD && !t.step[0].channel_first) p.inbox_step = p.inbox_last = 0;
}

// Words of a B operand with its scales.
int operand_words(int terms, int channels, int planes) {
    const int of_pairs = chunks(terms) * pairs(channels);
    return of_pairs * 2 * planes * kLanes + ceil_div(of_pairs, 4);
}

void lay_out(const turbofno_tile &t, TilePlan &p) {
    const int held = 8 * p.fragments, tiles = ceil_div(t.points, kTilePoints);
    int at = 0;
    const auto place = [&](int words) {
        const int begin = at;
        at += words;
        return begin;
    };
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        p.first_at[i] = p.second_at[i] = -1;
        if (step.kind == TURBOFNO_ADD_MAP) p.first_at[i] = place(operand_words(step.terms, held, p.planes));
        if (!makes_wide(step)) continue;
        const int out = step.kind == TURBOFNO_PROJECT ? kMostProjected : held;
        if (step.hidden > 0) p.first_at[i] = place(operand_words(step.terms, step.hidden, p.planes));
        p.second_at[i] = place(operand_words(step.hidden > 0 ? step.hidden : step.terms, out, p.planes));
    }
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        const bool affine = step.kind == TURBOFNO_AFFINE || step.kind == TURBOFNO_ADD_GATE;
        p.vector_width[i] = makes_wide(step) ? step.hidden : affine && !step.per_sample ? held : 0;
        const bool any = makes_wide(step) || p.vector_width[i] > 0;
        p.vectors_at[i] = place(any ? ceil_div(2 * p.vector_width[i] + held, 4) : 0);
    }
    const int next_pairs = pairs(2 * t.next_modes), next_fragments = ceil_div(2 * t.next_modes, 8);
    const int of_groups = round_up(tiles, kGroupWarps) * p.planes * kGroupColumns * kLanes / 2;
    const int analysis = p.groups ? (t.next_modes > 0 ? of_groups : 0) : tiles * next_pairs * p.planes * kLanes;
    p.synthesis_at = place(p.synthesis_on_chip ? tiles * chunks(2 * t.modes) * 2 * p.planes * kLanes : 0);
    p.analysis_at = place(p.analysis_on_chip ? analysis : 0);
    p.first_team = at;
    at = 0;
    place(t.modes > 0 ? operand_words(2 * t.modes, held, p.planes) : 0);
    p.sums_at = at;
    p.sums_words = p.groups ? 0 : p.fragments / 2 * next_fragments * kLanes;
    const int staging = p.groups && t.next_modes > 0 ? 1 + p.planes * 64 * p.fragments : 0;
    p.inbox_at = p.sums_at + p.team * p.sums_words + staging;
    p.inbox_words = p.inbox_step < 0 ? 0 : 1 + kTilePoints * words_of_point(t, t.step[p.inbox_step]);
    p.team_words = p.inbox_at + p.team * p.inbox_words;
    p.shared_bytes = 16 * (p.first_team + p.warps / p.team * p.team_words);
}

// About how long a plan takes, in the time that a scheduler needs to issue a tile's instructions: with fewer than
// some 10 warps these are too few to hide what they wait for.
double cost(const turbofno_tile &t, const TilePlan &p, int64_t rows) {
    const int64_t units = rows * p.splits, teams = p.warps / p.team;
    const int64_t blocks = std::max(1, t.multiprocessors / p.channel_tiles);
    const double rounds = double(ceil_div(units, blocks * teams));
    const double busy = double(std::min<int64_t>(p.warps, p.team * ceil_div(units, blocks)));
    const double slower = (p.synthesis_on_chip ? 1.0 : p.groups ? 1.1 : 1.3) * (p.inbox_step < 0 ? 1.2 : 1.0);
    const double tile = (p.groups ? 0.6 * std::max(4.0, busy / 4) : std::max(2.5, busy / 4)) * slower;
    const double row = (t.modes > 0 ? 0.15 * chunks(2 * t.modes) * p.fragments / 8 / p.team : 0.0) + 0.3;
    return rounds * (ceil_div(p.split_tiles, p.team) * tile + row * std::max(1.0, busy / 8)) + (p.splits > 1 ? 4 : 0);
}

bool known(int value, int least, int most) { return value >= least && value <= most; }

const char *unsupported(const turbofno_step &step, const turbofno_tile &t) {
    if (!known(step.kind, TURBOFNO_LOAD, TURBOFNO_PROJECT)) return "unknown step";
    if (!known(step.activation, TURBOFNO_NONE, TURBOFNO_HARDSIGMOID)) return "unknown activation";
    const bool reads = step.kind == TURBOFNO_LOAD || step.kind == TURBOFNO_ADD_GATE || step.kind == TURBOFNO_STORE;
    if (reads && (step.channels < 1 || step.channels > t.width)) return "a field has more channels than the tile";
    if (step.kind == TURBOFNO_ADD_MAP && !known(step.terms, 1, kMostWidth)) return "a map takes more than 256 channels";
    if (step.kind == TURBOFNO_PROJECT && !known(step.channels, 1, kMostProjected)) {
        return "the projection is not to 1 .. 16 channels";
    }
    if (makes_wide(step)) {
        if (t.width > 8 * kMostFragments) return "a channel MLP or projection has more than 128 channels beside it";
        if (step.terms < 1 || step.terms > t.width) return "a channel MLP takes more channels than the tile has";
        if (step.hidden % 32 != 0) return "hidden channels are not a multiple of 32";
    }
    return nullptr;
}

const char *unsupported(const turbofno_tile &t) {
    if (t.batch < 1 || t.batch > kMostBatch) return "the batch is not in 1 .. 65536";
    if (t.outer < 1 || t.batch * t.outer > kMostRows) return "the rows are not in 1 .. 2^30";
    if (!known(t.points, 1, kMostPoints)) return "the last axis is not in 1 .. 16384 points";
    if (!known(t.width, 1, kMostWidth)) return "the channels are not in 1 .. 256";
    if (!known(t.modes, 0, kMostModes) || !known(t.next_modes, 0, kMostModes)) {
        return "the last axis does not keep 1 .. 128 modes";
    }
    if (t.modes > t.points / 2 + 1 || t.next_modes > t.points / 2 + 1) {
        return "the last axis does not hold the kept modes";
    }
    if (!known(t.precision, TURBOFNO_FP32, TURBOFNO_BF16)) return "unknown precision";
    if (!known(t.steps, 1, TURBOFNO_MOST_STEPS)) return "the program is longer than 16 steps";
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
    double least = 0.0;
    for (p.fragments = 2; p.fragments <= kMostFragments; p.fragments *= 2) {
        const bool whole = 8 * p.fragments >= t.width;
        if (!whole && (p.wide || p.fragments < 8)) continue;
        p.channel_tiles = ceil_div(t.width, 8 * p.fragments);
        for (int choice = 0; choice < 8; ++choice) {
            p.groups = choice & 4;
            p.synthesis_on_chip = choice & 1;
            p.analysis_on_chip = p.groups || p.synthesis_on_chip;
            if (p.groups && (!t.warpgroups || p.fragments < 8 || t.next_modes > kMostGroupModes)) continue;
            find_inbox(t, p);
            if (choice & 2) p.inbox_step = p.inbox_last = -1;
            for (p.team = p.groups ? kGroupWarps : 1; p.team <= (p.groups ? kGroupWarps : 16); p.team *= 2) {
                const int step = std::max(p.team, 2), most = most_warps(p.fragments, p.wide, p.groups);
                for (p.warps = p.team; p.warps <= most; p.warps += p.warps < step ? p.team : step) {
                    lay_out(t, p);
                    if (p.shared_bytes > t.shared_bytes || p.warps % p.team != 0) continue;
                    for (p.splits = 1; p.splits <= tiles && (p.splits == 1 || rows < t.multiprocessors); p.splits *= 2) {
                        p.split_tiles = round_up(ceil_div(tiles, p.splits), p.groups ? kGroupWarps : 1);
                        const double now = cost(t, p, rows);
                        if (best.warps > 0 && now >= least) continue;
                        least = now;
                        best = p;
                    }
                }
            }
        }
        if (whole) break; // more would hold channels that do not exist
    }
    best.splits = best.split_tiles > 0 ? ceil_div(tiles, best.split_tiles) : 0;
    const int64_t teams = best.team > 0 ? best.warps / best.team : 1;
    best.blocks = int(std::min<int64_t>(ceil_div(rows * best.splits, teams),
                                        ceil_div(t.multiprocessors, std::max(best.channel_tiles, 1))));
    best.stride = int(best.blocks * teams);
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
    prepared->workspace_bytes = int64_t(p.workspace_bytes);
    return nullptr;
}
