#include "dense_dft_plan.h"

#include <algorithm>
#include <iterator>

namespace turbofno {
namespace {

constexpr int kMaxPoints = 1024, kMaxStages = 4;
constexpr int64_t kMaxLines = int64_t(1) << 30, kMaxTwiddlePoints = int64_t(1) << 31;

// Terms or columns 0 .. points / 2 of which n or points - n is among the line's first `head` or last `tail` values.
int folded(const turbofno_fft &f, bool half_spectrum, int head, int tail) {
    const int all = f.points / 2 + 1;
    if (half_spectrum) return tail > 0 ? all : head;
    return std::min(all, std::max(head, tail > 0 ? tail + 1 : 0));
}

void set_shared_memory(DenseDftPlan &p, int fragment_bytes, int shared_bytes) {
    const int lines = p.warpgroups * 4 * kDftLineBytes, chunk = p.group_fragments * fragment_bytes;
    for (const bool resident : {true, false}) {
        p.resident = resident;
        const int64_t table = resident ? int64_t(p.chunks) * chunk : 0;
        const int64_t fit = (shared_bytes - table) / (lines + (resident ? 0 : chunk));
        p.stages = int(std::clamp<int64_t>(fit, 0, kMaxStages));
        if (p.stages >= 2) break;
    }
    p.lines_at = (p.resident ? p.chunks : p.stages) * chunk;
    p.shared_bytes = p.lines_at + p.stages * lines;
    if (p.stages < 2) p.stages = 0;
}

DenseDftPlan lay_out(const turbofno_fft &f) {
    DenseDftPlan p{};
    const int most = std::rbegin(kDenseDftShapes)->fragments * std::rbegin(kDenseDftShapes)->tiles;
    const int columns = folded(f, f.kind == TURBOFNO_REAL_TO_COMPLEX, f.out_head, f.out_tail);
    const int terms = folded(f, f.kind == TURBOFNO_COMPLEX_TO_REAL, f.in_head, f.in_tail);
    const int fragments = ceil_div(columns, kDftColumns), rows = f.kind == TURBOFNO_COMPLEX ? 2 : 1;
    p.table_fragments = ceil_div(f.points / 2 + 1, kDftColumns);
    p.groups = ceil_div(fragments, most);
    p.group_fragments = ceil_div(fragments, p.groups);
    p.chunks = ceil_div(terms, kDftTerms);
    p.last_is_short = (terms - 1) % kDftTerms < kDftTerms / 2;
    p.units = int(ceil_div(f.outer * f.inner * rows, int64_t(kDftRows)));
    const DenseDftShape shape = *std::find_if(std::begin(kDenseDftShapes), std::end(kDenseDftShapes),
                                              [&](DenseDftShape s) { return s.fragments * s.tiles >= p.group_fragments; });
    p.fragments = shape.fragments;
    p.tiles = shape.tiles;
    const int blocks = std::max(1, f.multiprocessors / p.groups); // few units are spread over all multiprocessors
    p.warpgroups = std::min(shape.warpgroups, ceil_div(p.units, blocks));
    const int planes = f.precision == TURBOFNO_FP32 ? 2 : 1;
    while (true) {
        set_shared_memory(p, planes * kDftPlaneBytes, f.shared_bytes);
        if (p.stages > 0 || p.warpgroups == 1) break;
        --p.warpgroups;
    }
    p.blocks = std::min(blocks, ceil_div(p.units, p.warpgroups));
    return p;
}

} // namespace

int dft_values(const turbofno_fft &f, bool complex_side) {
    return complex_side && f.kind != TURBOFNO_COMPLEX ? f.points / 2 + 1 : f.points;
}

const char *prepare(const turbofno_fft &f, DenseDftPlan &p) {
    if (f.points < 2 || f.points > kMaxPoints) return "the points are not in 2 .. 1024";
    if (f.kind < TURBOFNO_COMPLEX || f.kind > TURBOFNO_COMPLEX_TO_REAL) return "unknown kind of transform";
    if (f.precision != TURBOFNO_FP32 && f.precision != TURBOFNO_FP16) return "unknown precision";
    if (f.outer < 1 || f.inner < 1 || f.outer > kMaxLines || f.inner > kMaxLines || f.outer * f.inner > kMaxLines) {
        return "the lines are not in 1 .. 2^30";
    }
    const bool real_in = f.kind == TURBOFNO_REAL_TO_COMPLEX, real_out = f.kind == TURBOFNO_COMPLEX_TO_REAL;
    const int64_t given = int64_t(f.in_head) + f.in_tail, kept = int64_t(f.out_head) + f.out_tail;
    if (f.in_head < 0 || f.in_tail < 0 || given < 1 || given > dft_values(f, !real_in)) {
        return "the line does not have the given values";
    }
    if (f.out_head < 0 || f.out_tail < 0 || kept < 1 || kept > dft_values(f, !real_out)) {
        return "the result does not have the kept values";
    }
    if (f.twiddle_points < 0 || f.twiddle_points > kMaxTwiddlePoints) return "the twiddle points are not in 0 .. 2^31";
    if (f.twiddle_points > 0 && real_out) return "a real result has no twiddle factors";
    if (f.multiprocessors < 1) return "the device has no multiprocessor";
    p = lay_out(f);
    if (p.stages == 0) return "a chunk of lines does not fit in shared memory";
    return nullptr;
}

} // namespace turbofno

extern "C" const char *turbofno_dense_dft_unsupported(const turbofno_fft *fft) {
    turbofno::DenseDftPlan p;
    return turbofno::prepare(*fft, p);
}
