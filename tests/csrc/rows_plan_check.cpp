// Every plan of the row kernels fits what the kernels and A100 and Hopper allow, over a grid of shapes. Prints what is
// wrong; exit 1 if anything is, or if nothing was checked.
#include <cstdio>
#include <initializer_list>

#include "../../csrc/plan/rows_plan.h"

using namespace turbofno;

static int wrong = 0, checked = 0;

static void expect(bool holds, const char *what, const turbofno_rows &r) {
    if (holds) return;
    std::printf("%s: batch %lld, channels %d %d, grid %dx%d, modes %d next %d, projected %d, precision %d\n", what,
                (long long)r.batch, r.c_in, r.c_out, r.h, r.w, r.modes, r.next_modes, r.projected, r.precision);
    ++wrong;
}

static bool covers(int splits, int split_chunks, int points) {
    const int chunks = (points + kChunk - 1) / kChunk;
    return splits >= 1 && split_chunks >= 1 && splits * split_chunks >= chunks && (splits - 1) * split_chunks < chunks;
}

static void check(const turbofno_rows &r) {
    if (turbofno_rows_unsupported(&r) != nullptr) return;
    ++checked;
    const int chunks = (r.w + kChunk - 1) / kChunk;
    const RowsPlan smallest = plan(r);
    for (int shared_bytes : {kRowsSharedBytes, 163 * 1024, 227 * 1024, -227 * 1024}) { // the last: of Hopper
        const bool hopper = shared_bytes < 0;
        shared_bytes = hopper ? -shared_bytes : shared_bytes;
        const RowsPlan p = plan(r, shared_bytes, hopper);
        const int most = p.slots > 0 ? kWarps : kWarpsThroughL1;
        expect(p.warps >= 1 && p.warps <= kGroupWarps && p.groups >= 1 && p.groups * p.warps <= most, "warps", r);
        expect(p.warps == 1 || p.groups < 16, "one hardware barrier a group", r);
        expect(kRows * p.warps * p.channel_tiles >= r.c_out, "channel tiles cover the channels", r);
        expect(kRows * p.warps * (p.channel_tiles - 1) < r.c_out, "no empty channel tile", r);
        expect(p.shared_bytes > 0 && p.shared_bytes <= shared_bytes, "shared memory", r);
        expect(hopper || !p.together, "warps multiply together on Hopper alone", r);
        expect(!p.together || (p.warps == kGroupWarps && p.slots > 0 && p.first_group % 64 == 0 &&
                               p.group_words % 64 == 0 &&
                               p.groups * p.warps <= (r.precision == TURBOFNO_BF16 ? kWarps : kWarpsTogether)),
               "groups of four warps, with tables in shared memory and tiles at 1024 bytes", r);
        expect(p.slots == 0 || p.slots == chunks || p.slots == 2, "tables of the row, or two that take turns", r);
        expect(covers(p.splits, p.split_chunks, r.w), "splits cover the row", r);
        expect(p.slab % kRows == 0 && p.slab <= kRows * p.warps && (r.c_in == 0 || p.slab > 0), "slab", r);
        expect(p.spectra < p.sums && p.sums <= p.maxima && p.maxima < p.group_words, "order within a group", r);
        expect(p.skip_scales < p.tables && p.tables <= p.first_group, "order within a block", r);
        expect(p.workspace_bytes == smallest.workspace_bytes && p.splits == smallest.splits &&
                   p.channel_tiles == smallest.channel_tiles,
               "the workspace does not depend on the device's shared memory", r);
    }
}

static void check(const turbofno_analysis &a) {
    if (turbofno_analysis_unsupported(&a) != nullptr) return;
    ++checked;
    const AnalysisPlan p = plan(a);
    const bool fits = p.warps >= 1 && p.warps <= kAnalysisWarps && p.shared_bytes <= kRowsSharedBytes;
    const size_t parts = p.splits > 1 ? size_t(8) * p.splits * a.rows * a.modes : 0;
    if (fits && covers(p.splits, p.split_chunks, a.points) && p.workspace_bytes == parts) return;
    std::printf("analysis: rows %lld, points %d, modes %d\n", (long long)a.rows, a.points, a.modes);
    ++wrong;
}

static void check_rows(turbofno_rows r) {
    for (int modes : {1, 5, 12, 33, 64, 128})
        for (int extra : {0, 1, 12, 128, -1, -16}) // next modes or, negative, projected channels
            for (int precision : {TURBOFNO_FP32, TURBOFNO_TF32, TURBOFNO_BF16}) {
                r.modes = modes, r.next_modes = extra > 0 ? extra : 0, r.projected = extra < 0 ? -extra : 0;
                r.precision = precision, r.multiprocessors = 132;
                check(r);
            }
}

int main() {
    for (int64_t batch : {1LL, 9LL, 65536LL})
        for (int c_in : {0, 1, 20, 64, 256})
            for (int c_out : {1, 16, 33, 64, 80, 128, 256})
                for (int h : {1, 64, 16384})
                    for (int w : {1, 8, 64, 85, 421, 16384}) {
                        turbofno_rows r{};
                        r.batch = batch, r.c_in = c_in, r.c_out = c_out, r.h = h, r.w = w;
                        check_rows(r);
                    }
    for (int64_t rows : {1LL, 17LL, 4096LL, 4294967296LL})
        for (int points : {1, 85, 128, 8191, 16384})
            for (int modes : {1, 12, 128})
                for (int multiprocessors : {1, 108, 132}) {
                    turbofno_analysis a{};
                    a.rows = rows, a.points = points, a.modes = modes, a.multiprocessors = multiprocessors;
                    check(a);
                }
    return wrong != 0 || checked == 0;
}
