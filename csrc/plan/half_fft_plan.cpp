#include "half_fft_plan.h"

#include <algorithm>
#include <cmath>

namespace turbofno {
namespace {

struct Side {
    int64_t outer, inner, point; // strides
};

// Words of 16 bytes begin at multiples of four values.
bool whole_words(const turbofno_fft &fft, const Side &s, bool rows) {
    const bool inner = fft.inner == 1 || s.inner % 4 == 0;
    return (fft.outer == 1 || s.outer % 4 == 0) && (rows ? inner : s.point % 4 == 0);
}

// The part of a factor that a sum takes: all of it, rounded down to a power of two, but not less than `least`.
float share(float factor, float least) { return std::max(least, std::exp2(std::floor(std::log2(std::fabs(factor))))); }

// No sum overflows float16 unless results do: with the whole factor it is no larger than the largest result, with the least
// shares it is within float16 for all values.
void share_factor(const turbofno_fft &fft, HalfFftPlan &p) {
    p.shares[0] = share(fft.scale, 1.0f / 32); // the largest values are complex: 1.41 times float16's largest
    p.shares[1] = share(fft.scale / p.shares[0], 1.0f / 16);
    p.shares[2] = fft.scale / (p.shares[0] * p.shares[1]);
}

const char *lay_out_rows(const turbofno_fft &fft, HalfFftPlan &p) {
    p.arranged = kRows;
    p.by_inner = quotient(unsigned(fft.inner));
    if (fft.points <= kMaxWarpPoints) {
        p.threads = kRowThreads;
        p.blocks = ceil_div(p.lines, int64_t(kRowThreads / 32 * lines_at_once(fft.points)));
        return nullptr;
    }
    const int matrices = tiles_of_line(fft.points) * kTileBytes;
    const int group_bytes = group_buffers(fft.points) * fft.points * 4;
    p.groups = group_threads(fft.points) == 256 && matrices + 2 * group_bytes <= fft.shared_bytes ? 2 : 1;
    p.shared_bytes = matrices + p.groups * group_bytes;
    if (p.shared_bytes > fft.shared_bytes) return "a line does not fit in shared memory";
    p.threads = p.groups * group_threads(fft.points);
    p.blocks = std::min(ceil_div(p.lines, int64_t(p.groups)), int64_t(std::max(fft.multiprocessors, 1)));
    return nullptr;
}

const char *lay_out_columns(const turbofno_fft &fft, bool from_rows, HalfFftPlan &p) {
    if (fft.points > kMaxColumnPoints) return "lines next to each other are longer than 512 points";
    if (fft.inner % kHalfColumns != 0) return "lines next to each other are not a multiple of 16";
    p.arranged = from_rows ? kRowsToColumns : kColumns;
    p.by_inner = quotient(unsigned(fft.inner / kHalfColumns));
    p.threads = kColumnThreads;
    p.shared_bytes = kHalfColumns * (fft.points * 4 + (fft.twiddle_points != 0 ? kColumnRoots * 8 : 0));
    if (p.shared_bytes > fft.shared_bytes) return "the lines of a block do not fit in shared memory";
    p.blocks = p.lines / kHalfColumns;
    return nullptr;
}

} // namespace

const char *prepare(const turbofno_fft &fft, HalfFftPlan &p) {
    if (fft.kind != TURBOFNO_COMPLEX) return "not a complex transform";
    if (fft.precision != TURBOFNO_FP16) return "values are not float16";
    const bool power = fft.points >= kMinHalfPoints && fft.points <= kMaxHalfPoints && (fft.points & (fft.points - 1)) == 0;
    if (!power) return "the size is no power of two in 128 .. 16384";
    if (!lines_are_counted(fft)) return "the lines are not in 1 .. 2^31 - 1";
    const bool tails = fft.in_tail >= 0 && fft.in_tail <= fft.points && fft.out_tail >= 0 && fft.out_tail <= fft.points;
    if (!tails || fft.in_head + fft.in_tail != fft.points || fft.out_head + fft.out_tail != fft.points) {
        return "values are not given or not kept";
    }
    p = {};
    p.lines = fft.outer * fft.inner;
    share_factor(fft, p);
    const Side in{fft.in_outer, fft.in_inner, fft.in_point}, out{fft.out_outer, fft.out_inner, fft.out_point};
    const bool rows_in = in.point == 1, rows_out = out.point == 1;
    if (!whole_words(fft, in, rows_in) || !whole_words(fft, out, rows_out)) return "strides are no multiples of four values";
    if (rows_in && rows_out) return fft.twiddle_points == 0 ? lay_out_rows(fft, p) : "only lines next to each other take twiddles";
    if (rows_out || out.inner != 1 || (!rows_in && in.inner != 1)) return "neither points nor lines are next to each other";
    if (fft.twiddle_points != 0) {
        if (rows_in) return "only lines next to each other take twiddles";
        const int64_t n = fft.twiddle_points;
        if (n != fft.inner * fft.points || (n & (n - 1)) != 0 || n > kMaxTwiddlePoints) {
            return "twiddles are not those of a power of two that the lines make up";
        }
    }
    return lay_out_columns(fft, rows_in, p);
}

} // namespace turbofno

extern "C" const char *turbofno_half_fft_unsupported(const turbofno_fft *fft) {
    turbofno::HalfFftPlan p;
    return turbofno::prepare(*fft, p);
}
