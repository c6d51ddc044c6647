// Checks over a grid of shapes that plans of transforms and products of modes cover their work and respect the limits of
// the kernels and of all devices. Prints each violation. Exit status 1 if there is one, or if nothing was checked.
#include <cstdio>
#include <initializer_list>

#include "../../csrc/plan/product_plan.h"
#include "../../csrc/plan/spectral_plan.h"
#include "../../csrc/plan/transform_plan.h"

using namespace turbofno;

static int wrong = 0, transforms = 0, products = 0, few_products = 0, wholes = 0;

static void expect(bool holds, const char *what, const turbofno_transform &t) {
    if (holds) return;
    std::printf("%s: outer %lld, inner %lld, points %d, modes %d, inverse %d, multiprocessors %d\n", what,
                (long long)t.outer, (long long)t.inner, t.points, t.modes, t.inverse, t.multiprocessors);
    ++wrong;
}

static void expect(bool holds, const char *what, const turbofno_product &s) {
    if (holds) return;
    std::printf("%s: batch %lld, channels %d %d, modes %d others %d, multiprocessors %d\n", what, (long long)s.batch,
                s.c_in, s.c_out, s.modes, s.others, s.multiprocessors);
    ++wrong;
}

static void expect(bool holds, const char *what, const turbofno_spectral &s) {
    if (holds) return;
    std::printf("%s: batch %lld, channels %d %d, rows %d %d, modes %d %d, clusters %d\n", what, (long long)s.batch, s.c_in,
                s.c_out, s.rows, s.out_rows, s.kept, s.modes, s.clusters);
    ++wrong;
}

static void check(const turbofno_transform &t) {
    if (turbofno_transform_unsupported(&t) != nullptr) return;
    ++transforms;
    const TransformPlan p = plan(t);
    const int from = t.inverse ? t.modes : t.points, to = t.inverse ? t.points : t.modes;
    expect(16 * p.tiles > to / 2 && 16 * (p.tiles - 1) <= to / 2, "tiles cover what comes out", t);
    expect(8 * p.steps > from / 2 && 8 * (p.steps - 1) <= from / 2, "steps cover what goes in", t);
    if (p.warp_tiles == 0) {
        expect(p.steps <= kMaxResidentSteps, "a warp holds its terms", t);
        expect(p.groups >= 1 && p.groups <= p.tiles, "each block has a tile", t);
    } else {
        expect(p.warp_tiles >= 1 && p.warp_tiles <= 3, "there is a kernel for the tiles of a warp", t);
        expect(p.groups * p.warp_tiles >= p.tiles && (p.groups - 1) * p.warp_tiles < p.tiles, "blocks cover the tiles", t);
    }
    expect(p.blocks % p.groups == 0, "every group has the same columns", t);
    const int64_t covered = p.blocks / p.groups * kColumnWarps * kWarpColumns;
    expect(covered >= t.outer * t.inner, "blocks cover the columns", t);
    expect(covered - kColumnWarps * kWarpColumns < t.outer * t.inner, "no block is without columns", t);
    expect(p.blocks < (int64_t(1) << 31), "the grid is one that CUDA starts", t);
}

static void check_few(const turbofno_product &s, const ProductPlan &p) {
    expect(p.few == 1 || p.few == 2 || p.few == 4, "batch elements of a block", s);
    expect(p.modes == 4 || p.modes == 8, "modes of a block", s);
    expect(p.threads % (32 * p.modes) == 0 && p.threads <= kMaxFewThreads, "warps are a multiple of the modes", s);
    const int vector = s.c_out % 2 == 0 ? 2 : 1;
    expect(p.outputs % vector == 0 && p.outputs / vector >= 1 && p.outputs / vector <= 32, "a warp has the outputs", s);
    expect(p.batch_tiles * p.few >= s.batch && (p.batch_tiles - 1) * p.few < s.batch, "tiles cover the batch", s);
    expect(p.mode_tiles * p.modes >= s.row_modes, "tiles cover the modes", s);
    expect(p.channel_groups * p.outputs >= s.c_out && (p.channel_groups - 1) * p.outputs < s.c_out, "groups cover the channels", s);
    expect(p.blocks == p.batch_tiles * p.mode_tiles * p.channel_groups * s.others, "blocks", s);
    const int rows = 32 / (p.outputs / vector) * (p.threads / 32 / p.modes);
    expect(8 * p.few * p.modes * s.c_in <= p.shared_bytes, "input in shared memory", s);
    expect(8 * p.few * p.modes * rows * p.outputs <= p.shared_bytes, "sums in shared memory", s);
    expect(p.shared_bytes <= kMaxSharedBytes, "shared memory", s);
}

static void check(const turbofno_product &s) {
    if (turbofno_product_unsupported(&s) != nullptr) return;
    ++products;
    const ProductPlan p = plan(s);
    if (p.few) {
        ++few_products;
        return check_few(s, p);
    }
    expect(p.batch_fragments == 1 || p.batch_fragments == 2 || p.batch_fragments == 4, "batch fragments", s);
    expect(p.modes == 1 || p.modes == 2 || p.modes == 4, "modes of a block", s);
    expect(p.threads == 32 * p.modes * p.channel_tiles && p.threads >= 32 && p.threads <= 32 * kMaxModeWarps, "threads", s);
    expect(p.batch_tiles * p.batch_fragments * 8 >= s.batch, "tiles cover the batch", s);
    expect(p.mode_tiles * p.modes >= s.row_modes, "tiles cover the modes", s);
    expect(p.channel_groups * p.channel_tiles * 16 >= s.c_out, "tiles cover the channels", s);
    expect(p.blocks == p.batch_tiles * p.mode_tiles * p.channel_groups * s.others, "blocks", s);
    const int batch = 8 * p.batch_fragments, channels = (s.c_in + 7) / 8 * 8;
    const bool all = 8 * p.weight_stages == channels && p.weights_ahead == p.weight_stages;
    expect(all || (p.weights_ahead == kWeightsAhead && p.weight_stages == kWeightsAhead + 1), "stages of weights", s);
    const int weights = 32 * p.weight_stages * p.threads;
    expect(p.shared_in >= channels * p.modes && 8 * batch * p.shared_in + weights <= p.shared_bytes, "input in shared memory", s);
    expect(p.shared_out >= 16 * p.channel_tiles * p.modes && 8 * batch * p.shared_out + weights <= p.shared_bytes,
           "output in shared memory", s);
    expect(p.modes == 1 || (p.shared_in % 2 == 0 && p.shared_out % 2 == 0), "pairs of modes are aligned", s);
    expect(p.shared_bytes <= kMaxSharedBytes, "shared memory", s);
}

static void check(const turbofno_spectral &s) {
    if (turbofno_spectral_unsupported(&s) != nullptr) return;
    ++wholes;
    const SpectralPlan p = plan(s);
    expect(2 * p.mode_groups >= s.modes && 2 * (p.mode_groups - 1) < s.modes, "clusters cover the modes", s);
    expect(p.in_share.by * kCluster >= s.c_in && p.out_share.by * kCluster >= s.c_out, "blocks cover the channels", s);
    expect(p.mode_share * kCluster >= s.kept, "blocks cover the modes of the other axis", s);
    expect(p.folds.by > s.rows / 2 && p.folds.by % 8 == 0 && p.out_folds.by == s.out_rows / 2 + 1, "folds cover the points", s);
    expect(p.frequencies.by == s.kept / 2 + 1 && 16 * p.groups.by >= s.c_out, "frequencies and groups", s);
    expect(p.in_pitch >= p.folds.by && p.out_pitch >= p.out_folds.by, "rows of the tables", s);
    expect(p.in_pitch % 16 == 8 && p.out_pitch % 16 == 8, "rows of the tables avoid bank conflicts", s);
    expect(p.c_pitch >= s.c_in && p.c_pitch % (s.c_in <= 32 ? 32 : 64) == 0, "channels are whole steps of the product", s);
    expect(p.threads % 32 == 0 && p.threads >= 32 && p.threads <= kMaxSpectralThreads, "threads", s);
    expect(p.in_table_bytes == 8 * p.frequencies.by * p.in_pitch, "the first table", s);
    const bool shared_table = s.rows == s.out_rows;
    expect(p.out_table_bytes == (shared_table ? 0 : 8 * p.frequencies.by * p.out_pitch), "the second table", s);
    const int64_t columns = s.batch * 2, sizes[] = {p.in_table_bytes, p.out_table_bytes,
                                                    16 * columns * p.in_share.by * p.folds.by,
                                                    8 * columns * p.mode_share * p.c_pitch,
                                                    8 * columns * p.out_share.by * s.kept,
                                                    16 * columns * p.out_share.by * p.frequencies.by};
    const int places[] = {p.in_table_at, shared_table ? p.in_table_at + p.in_table_bytes : p.out_table_at, p.folded_at,
                          p.transformed_at, p.products_at, p.sums_at};
    int64_t free = 24; // after the mbarriers
    for (int i = 0; i < 6; ++i) {
        expect(places[i] >= free && places[i] % 16 == 0, "regions of shared memory are apart and aligned", s);
        free = places[i] + sizes[i];
    }
    expect(free <= p.shared_bytes && p.shared_bytes <= kMaxSharedBytes, "shared memory", s);
    const int64_t items[] = {s.batch * p.in_share.by * p.folds.by, s.batch * p.out_share.by * p.out_folds.by,
                             2 * s.batch * p.out_share.by * p.frequencies.by};
    for (int64_t count : items) expect(count + kMaxSpectralThreads <= kMaxDivided, "items are within the range of divisions", s);
    // an mbarrier counts less than 2^20 bytes
    expect(sizes[3] < 1 << 20 && sizes[4] < 1 << 20 && sizes[0] + sizes[1] < 1 << 20, "bytes of an mbarrier", s);
}

static void check_divisions() {
    for (int by : {1, 2, 3, 4, 5, 7, 9, 13, 40, 65, 72, 4096, 8193, 65535}) {
        const Divider d = divider(by);
        for (uint64_t n = 0; n < kMaxDivided; ++n) {
            const uint64_t quotient = d.magic == 0 ? n : n * d.magic >> 32;
            if (quotient == n / by) continue;
            std::printf("%llu / %d is not %llu\n", (unsigned long long)n, by, (unsigned long long)quotient);
            ++wrong;
            break;
        }
    }
}

int main() {
    check_divisions();
    for (int64_t batch : {1LL, 2LL, 3LL, 8LL, 9LL})
        for (int c_in : {2, 7, 8, 20, 32, 34, 64, 128, 256})
            for (int c_out : {2, 16, 18, 64, 255, 256})
                for (int rows : {1, 2, 15, 16, 64, 85, 128, 421, 2048, 16384})
                    for (int out_rows : {1, 8, 64, 128, 255, 16384})
                        for (int kept : {1, 2, 7, 16, 24, 33, 128})
                            for (int modes : {1, 2, 9, 12, 33, 128})
                                for (int clusters : {0, 1, 8}) {
                                    turbofno_spectral s{};
                                    s.batch = batch, s.c_in = c_in, s.c_out = c_out, s.rows = rows, s.out_rows = out_rows;
                                    s.kept = kept, s.modes = modes, s.row_modes = modes + modes % 2, s.clusters = clusters;
                                    check(s);
                                    s.row_modes = modes + 1 - modes % 2;
                                    expect(turbofno_spectral_unsupported(&s) != nullptr, "an odd row is refused", s);
                                }
    for (int64_t outer : {1LL, 3LL, 64LL, 4096LL, 1LL << 24})
        for (int64_t inner : {1LL, 2LL, 12LL, 33LL, 420LL, 1LL << 14})
            for (int points : {1, 2, 8, 31, 64, 421, 16384})
                for (int modes : {1, 2, 7, 24, 31, 32, 127, 128})
                    for (int inverse : {0, 1})
                        for (int multiprocessors : {1, 108, 132}) {
                            turbofno_transform t{};
                            t.outer = outer, t.inner = inner, t.points = points, t.modes = modes, t.inverse = inverse;
                            t.multiprocessors = multiprocessors;
                            check(t);
                        }
    for (int64_t batch : {1LL, 2LL, 9LL, 17LL, 4096LL, 65536LL})
        for (int c_in : {1, 4, 8, 20, 48, 255, 256})
            for (int c_out : {1, 7, 16, 32, 48, 64, 65, 255, 256})
                for (int others : {1, 2, 24, 576, 16384})
                    for (int modes : {1, 2, 3, 5, 12, 33, 64, 128})
                        for (int multiprocessors : {1, 108, 132}) {
                            turbofno_product s{};
                            s.batch = batch, s.c_in = c_in, s.c_out = c_out, s.others = others, s.modes = modes;
                            s.row_modes = modes;
                            s.multiprocessors = multiprocessors;
                            check(s);
                            s.row_modes = modes + 1;
                            const bool even = modes >= 3 && modes % 2 == 1;
                            expect((turbofno_product_unsupported(&s) == nullptr) == even, "a row's modes are refused or not", s);
                            if (even) check(s);
                        }
    return wrong != 0 || transforms == 0 || products == few_products || few_products == 0 || wholes == 0;
}
