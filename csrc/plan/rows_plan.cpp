#include "rows_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kMostChannels = 256;
constexpr int kMostModes = 128;
constexpr int kMostPoints = 16384;
constexpr int64_t kMostBatch = 65536;
constexpr int64_t kMostRows = int64_t(1) << 32; // of analyze_rows; 2^30 rows (b, h) at most in fourier_rows
constexpr int kLaneWords = 32; // 16-byte words that a warp holds in one register quadruple
constexpr int kTileWords = 64; // a tile that warps multiply together starts at a multiple of so many

template <typename T> constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

int round_up(int words, int to) { return ceil_div(words, to) * to; }

int steps(int terms) { return ceil_div(terms, 16); }

bool known_precision(int precision) { return precision >= TURBOFNO_FP32 && precision <= TURBOFNO_BF16; }

// Pieces of a row such that `units` whole rows keep `workers` busy: as few as leave at most a tenth of them idle.
void split_row(int64_t units, int64_t workers, int points, int &splits, int &split_chunks) {
    const int chunks = ceil_div(points, kChunk);
    double best = 0.0;
    split_chunks = chunks;
    for (int wanted = 1; wanted <= chunks && best < 0.9; ++wanted) {
        const int each = ceil_div(chunks, wanted);
        const int64_t pieces = units * ceil_div(chunks, each);
        const double busy = double(units * chunks) / double(ceil_div(pieces, workers) * workers * each);
        if (busy > best * 1.05) {
            best = busy;
            split_chunks = each;
        }
    }
    splits = ceil_div(chunks, split_chunks);
}

// With tf32 and few modes four warps at once were slower.
bool gains_together(const turbofno_rows &r) { return r.precision != TURBOFNO_TF32 || r.modes > 16; }

int warps_together(const turbofno_rows &r) { return r.precision == TURBOFNO_BF16 ? kWarps : kWarpsTogether; }

void lay_out(const turbofno_rows &r, RowsPlan &p) {
    const int planes = r.precision == TURBOFNO_FP32 ? 2 : 1;
    const int tiles = p.warps * kTiles;
    // rows of points that do not fill whole words are stored through the tile
    p.slab = kRows * (r.w % 4 == 0 ? std::min(p.warps, ceil_div(r.c_in, kRows)) : p.warps);
    p.skip_scales = tiles * steps(r.c_in) * planes * kLaneWords;
    p.tables = p.skip_scales + kRows * p.warps / 4;
    const int table_words = (steps(2 * r.modes) + steps(2 * r.next_modes)) * (kChunk / 16) * kLaneWords;
    const int whole = p.together ? kTileWords : 1;
    p.first_group = round_up(p.tables + p.slots * table_words * (r.precision == TURBOFNO_BF16 ? 1 : 2), whole);
    p.spectra = planes * p.slab * kTilePitch * 2 / 16;
    p.sums = p.spectra + tiles * steps(2 * r.modes) * planes * kLaneWords;
    const int next = tiles * steps(2 * r.next_modes) * 2 * kLaneWords;
    const int projected = p.warps * r.projected * kChunk / 4;
    p.maxima = p.sums + std::max(next, projected);
    p.group_words = round_up(p.maxima + ceil_div(p.warps, 4), whole);
    p.shared_bytes = 16 * (p.first_group + p.groups * p.group_words);
}

// The most warps a multiprocessor holds with `slots` chunks of the tables, in as small blocks as will do that.
int fill(const turbofno_rows &r, RowsPlan &p, int slots, int shared_bytes, bool hopper) {
    const int64_t rows = r.batch * r.h;
    p.together = hopper && slots > 0 && p.warps == kGroupWarps && gains_together(r);
    const int limit = slots == 0 ? kWarpsThroughL1 : p.together ? warps_together(r) : kWarps;
    int most = 0, best = 1;
    p.slots = slots;
    for (p.groups = 1; p.groups * p.warps <= limit && p.groups <= rows; ++p.groups) {
        lay_out(r, p);
        const int blocks = std::min(limit / (p.groups * p.warps), shared_bytes / p.shared_bytes);
        if (blocks * p.groups * p.warps > most) {
            most = blocks * p.groups * p.warps;
            best = p.groups;
        }
        // rather than leave multiprocessors without a block
        if (rows * p.channel_tiles * ceil_div(r.w, kChunk) <= p.groups * int64_t(r.multiprocessors)) break;
    }
    p.groups = best;
    lay_out(r, p);
    return most;
}

// Tables in shared memory, of whole rows or two chunks, unless that leaves room for less than half of the warps.
int fill(const turbofno_rows &r, RowsPlan &p, int shared_bytes, bool hopper) {
    for (int slots : {ceil_div(r.w, kChunk), 2}) {
        const int warps = fill(r, p, slots, shared_bytes, hopper);
        if (2 * warps >= kWarps || (warps > 0 && p.groups * int64_t(r.multiprocessors) >= r.batch * r.h)) return warps;
    }
    return fill(r, p, 0, shared_bytes, hopper);
}

} // namespace

AnalysisPlan plan(const turbofno_analysis &a) {
    AnalysisPlan p{};
    const int64_t tiles = ceil_div(a.rows, int64_t(kRows));
    const int64_t workers = int64_t(std::max(a.multiprocessors, 1)) * kWarps;
    split_row(tiles, workers, a.points, p.splits, p.split_chunks);
    p.warps = tiles * p.splits < workers ? 1 : kAnalysisWarps; // few: spread over the multiprocessors
    p.shared_bytes = p.warps * kTiles * steps(2 * a.modes) * 2 * kLaneWords * 16;
    if (p.splits > 1) p.workspace_bytes = sizeof(float) * size_t(p.splits) * size_t(a.rows) * 2 * a.modes;
    return p;
}

RowsPlan plan(const turbofno_rows &r, int shared_bytes, bool hopper) {
    RowsPlan p{};
    p.channel_tiles = ceil_div(r.c_out, kRows * kGroupWarps);
    p.warps = ceil_div(r.c_out, kRows * p.channel_tiles);
    while (2 * fill(r, p, kRowsSharedBytes, false) < kWarpsThroughL1 && p.warps > 1) --p.warps;
    p.channel_tiles = ceil_div(r.c_out, kRows * p.warps);
    fill(r, p, shared_bytes, hopper);
    const int64_t rows = r.batch * r.h;
    // whatever the device: the workspace depends on the splits
    const int warps = p.warps == kGroupWarps && gains_together(r) ? warps_together(r) : kWarps;
    const int64_t workers = int64_t(std::max(r.multiprocessors, 1)) * (warps / p.warps);
    split_row(rows * p.channel_tiles, workers, r.w, p.splits, p.split_chunks);
    if (r.next_modes > 0 && p.splits > 1) {
        p.workspace_bytes = sizeof(float) * size_t(p.splits) * size_t(rows) * size_t(r.c_out) * 2 * r.next_modes;
    }
    if (r.projected > 0 && p.channel_tiles > 1) {
        p.workspace_bytes = sizeof(float) * size_t(p.channel_tiles) * size_t(rows) * size_t(r.projected) * size_t(r.w);
    }
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_analysis_unsupported(const turbofno_analysis *a) {
    using namespace turbofno;
    if (a->rows < 1 || a->rows > kMostRows) return "the rows to analyze are not in 1 .. 2^32";
    if (a->points < 1 || a->points > kMostPoints) return "the last axis is not in 1 .. 16384 points";
    if (a->modes < 1 || a->modes > kMostModes) return "the last axis does not keep 1 .. 128 modes";
    if (a->modes > a->points / 2 + 1) return "the last axis does not hold the kept modes";
    if (!known_precision(a->precision)) return "unknown precision";
    return nullptr;
}

extern "C" const char *turbofno_rows_unsupported(const turbofno_rows *r) {
    using namespace turbofno;
    if (r->batch < 1 || r->batch > kMostBatch) return "the batch is not in 1 .. 65536";
    if (r->c_in < 0 || r->c_in > kMostChannels) return "the skip's channels are not in 0 .. 256";
    if (r->c_out < 1 || r->c_out > kMostChannels) return "the output channels are not in 1 .. 256";
    if (r->h < 1 || r->h > kMostPoints || r->w < 1 || r->w > kMostPoints) {
        return "a grid axis is not in 1 .. 16384 points";
    }
    if (r->modes < 1 || r->modes > kMostModes) return "the last axis does not keep 1 .. 128 modes";
    if (r->next_modes < 0 || r->next_modes > kMostModes) return "the next layer keeps more than 128 modes";
    if (r->modes > r->w / 2 + 1 || r->next_modes > r->w / 2 + 1) return "the last axis does not hold the kept modes";
    if (r->projected < 0 || r->projected > kMostProjected) return "the projection is not to 1 .. 16 channels";
    if (r->projected > 0 && r->next_modes > 0) return "a projected layer has no next layer";
    if (r->activation < TURBOFNO_NONE || r->activation > TURBOFNO_TANH) return "unknown activation";
    if (!known_precision(r->precision)) return "unknown precision";
    return nullptr;
}

extern "C" size_t turbofno_analysis_workspace_bytes(const turbofno_analysis *analysis) {
    return turbofno_analysis_unsupported(analysis) == nullptr ? turbofno::plan(*analysis).workspace_bytes : 0;
}

extern "C" size_t turbofno_rows_workspace_bytes(const turbofno_rows *rows) {
    return turbofno_rows_unsupported(rows) == nullptr ? turbofno::plan(*rows).workspace_bytes : 0;
}
