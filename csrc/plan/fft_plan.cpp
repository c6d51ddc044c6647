#include "fft_plan.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace turbofno {
namespace {

constexpr int kRegisterRadices[] = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17};
constexpr int kBlockValues = 2048; // complex values of a block of kAnyFftThreads, to hide latency
constexpr int kMaxFftSharedBytes = 72 * 1024; // three blocks on a multiprocessor

int twos(int n) {
    int count = 0;
    for (; n % 2 == 0; n /= 2) ++count;
    return count;
}

// The fewest stages; of these few operations, and all factors of two in one radix, which comes first: then the distance of
// first digits is odd without padding.
struct Stages {
    int count, radix[kMaxFftStages];

    int cost() const {
        int cost = 0, all_twos = 0, most_twos = 0;
        for (int i = 0; i < count; ++i) {
            cost += radix[i];
            all_twos += twos(radix[i]);
            most_twos = std::max(most_twos, twos(radix[i]));
        }
        return cost + (all_twos > most_twos ? 8 : 0);
    }
    bool better_than(const Stages &other) const {
        if (other.count == 0 || count != other.count) return other.count == 0 || count < other.count;
        return cost() < other.cost();
    }
};

void search(int size, Stages &taken, Stages &best) {
    if (size == 1) {
        if (taken.count > 0 && taken.better_than(best)) best = taken;
        return;
    }
    const int left = (best.count > 0 ? best.count : kMaxFftStages) - taken.count;
    const int largest = taken.count > 0 ? taken.radix[taken.count - 1] : kMaxRadix;
    int64_t most = 1; // that the stages left can hold
    for (int i = 0; i < left; ++i) most *= largest;
    if (size > most) return;
    for (const int radix : kRegisterRadices) {
        if (size % radix != 0 || radix > largest) continue;
        taken.radix[taken.count++] = radix;
        search(size / radix, taken, best);
        --taken.count;
    }
}

bool is_convolved(int size) { return convolution_radices(size).radix[0] != 0; }

// The stages of a transform; none if there are none.
Stages stages_of(int size) {
    if (size == 1 || is_convolved(size)) return {1, {size}};
    Stages fixed{};
    for (const int radix : fixed_radices(size).radix) {
        if (radix != 0) fixed.radix[fixed.count++] = radix;
    }
    if (fixed.count > 0) return fixed;
    Stages taken{}, best{};
    search(size, taken, best);
    std::stable_sort(best.radix, best.radix + best.count, [](int a, int b) { return twos(a) > twos(b); });
    return best;
}

int complex_size(const turbofno_fft &fft) {
    return fft.kind != TURBOFNO_COMPLEX && fft.points % 2 == 0 ? fft.points / 2 : fft.points;
}

// Values of a line of the input (side 0) or the result (side 1).
int length(const turbofno_fft &fft, int side) {
    const bool half = fft.kind == (side == 0 ? TURBOFNO_COMPLEX_TO_REAL : TURBOFNO_REAL_TO_COMPLEX);
    return half ? fft.points / 2 + 1 : fft.points;
}

// Runs of neighbouring threads are at least nearly whole sectors of 32 bytes.
bool whole_sectors(int run, int value_bytes) { return run * value_bytes >= 128 || run * value_bytes % 16 == 0; }

FftSide side_of(const turbofno_fft &fft, const FftPlan &p, int side) {
    const int head = side == 0 ? fft.in_head : fft.out_head, tail = side == 0 ? fft.in_tail : fft.out_tail;
    FftSide s{};
    s.outer = side == 0 ? fft.in_outer : fft.out_outer;
    s.inner = side == 0 ? fft.in_inner : fft.out_inner;
    s.point = side == 0 ? fft.in_point : fft.out_point;
    s.head = head;
    s.gap = length(fft, side) - head - tail;
    s.lines_first = fft.inner > 1 && std::abs(s.point) > std::abs(s.inner);
    const bool real = fft.kind == (side == 0 ? TURBOFNO_REAL_TO_COMPLEX : TURBOFNO_COMPLEX_TO_REAL);
    bool complex = fft.kind == TURBOFNO_COMPLEX;
    if (p.paired) {
        s.access = real ? kFftTwoLines : kFftTwoHalves;
    } else if (!complex && !real) {
        s.access = kFftHalf;
    } else if (real) {
        s.access = kFftNeighbours;
        complex = s.point == 1 && (p.joined || s.outer % 2 == 0) && s.inner % 2 == 0 && head % 2 == 0 && tail % 2 == 0;
        if (complex) { // pairs are aligned
            s.outer /= 2;
            s.inner /= 2;
            s.head /= 2;
            s.gap /= 2;
        }
    }
    s.plain = s.point == 1 && s.gap == 0;
    if (complex) {
        const int radix = p.radix[side == 0 ? 0 : p.stages - 1];
        const int value_bytes = fft.precision == TURBOFNO_FP16 ? 4 : 8;
        const bool direct = s.lines_first || whole_sectors(p.size / radix, value_bytes);
        s.access = direct && !p.convolved ? kFftDirect : kFftComplex;
    }
    s.flat = p.convolved && s.plain && p.joined && s.inner == length(fft, side);
    return s;
}

int power_of_two_below(int n) {
    int power = 1;
    while (2 * power <= n) power *= 2;
    return power;
}

// Lines of a block whose butterflies fill its threads: the share of threads at work, over all stages, is the largest.
int filling_lines(const FftPlan &p) {
    const int most = std::max(1, kBlockValues * 5 / 4 / p.size), least = std::max(1, most * 3 / 5);
    int best = most;
    double best_share = 0;
    for (int lines = most; lines >= least && lines > most - 64; --lines) {
        double work = 0, time = 0;
        for (int i = 0; i < p.stages; ++i) {
            const int butterflies = lines * (p.size / p.radix[i]);
            work += double(butterflies) * p.radix[i];
            time += double(round_up(butterflies, kAnyFftThreads)) * p.radix[i];
        }
        if (work > best_share * time) {
            best_share = work / time;
            best = lines;
        }
    }
    return best;
}

FftPlan lay_out(const turbofno_fft &given, const FftDigits &digits) {
    turbofno_fft fft = given;
    const int64_t all = fft.outer * fft.inner;
    const auto joined = [&](int64_t outer, int64_t inner) { return outer == inner * fft.inner; };
    if (fft.inner == 1) fft.twiddle_points = 0; // all are 1
    const bool outer_nearer = fft.outer > 1 && std::abs(fft.in_outer) < std::abs(fft.in_inner);
    if (fft.twiddle_points == 0 && (fft.inner == 1 || outer_nearer)) {
        std::swap(fft.inner, fft.outer);
        std::swap(fft.in_inner, fft.in_outer);
        std::swap(fft.out_inner, fft.out_outer);
    }
    if (fft.outer > 1 && fft.twiddle_points == 0 && joined(fft.in_outer, fft.in_inner) &&
        joined(fft.out_outer, fft.out_inner)) {
        fft.inner = all;
        fft.outer = 1;
    }

    FftPlan p{};
    static_cast<FftDigits &>(p) = digits;
    p.twiddle_points = fft.twiddle_points;
    p.paired = fft.kind != TURBOFNO_COMPLEX && fft.points % 2 == 1;
    p.joined = fft.outer == 1;
    p.half = fft.precision == TURBOFNO_FP16;
    p.given = all;
    p.total = p.paired ? ceil_div(all, int64_t(2)) : all;
    p.fixed = fixed_radices(p.size).radix[0] != 0;
    p.convolved = is_convolved(p.size);
    p.by_inner = quotient(unsigned(fft.inner));
    p.in = side_of(fft, p, 0);
    p.out = side_of(fft, p, 1);

    const int values = p.pitch[0] * p.radix[0];
    const bool lines_first = p.in.lines_first || p.out.lines_first;
    const int value_bytes = (fft.precision == TURBOFNO_FP16 ? 2 : 4) * (fft.kind == TURBOFNO_COMPLEX ? 2 : 1);
    const int sector_lines = lines_first ? 64 / value_bytes : 1; // lines that fill two sectors of 32 bytes
    const bool many = all * p.size >= kManyValues;
    const auto is_column = [](const FftSide &s) {
        return s.access == kFftDirect && s.lines_first && s.inner == 1 && s.gap == 0;
    };
    const bool columns = p.fixed && p.size >= kLeastColumn && p.size <= kMostColumn && many &&
                         fft.inner >= fft_columns(p.size) && !p.half && p.twiddle_points == 0 && is_column(p.in) &&
                         is_column(p.out);
    if (columns) {
        p.lines = fft_columns(p.size);
    } else if (p.fixed) {
        const int line_threads = p.size / p.radix[0];
        // Real lines have values of twice the size on their complex side.
        const int wanted = fft.kind == TURBOFNO_COMPLEX ? sector_lines : ceil_div(sector_lines, 2);
        p.lines = std::max(1, kFftThreads / line_threads);
        // With the most threads, lines of a small field fill one sector and not two: more blocks for the multiprocessors.
        while (p.lines < wanted && 2 * p.lines * line_threads <= kMaxFftThreads / 2) p.lines *= 2;
        while (p.lines < (many ? wanted : wanted / 2) && 2 * p.lines * line_threads <= kMaxFftThreads) p.lines *= 2;
    } else if (p.convolved) {
        p.lines = kConvolvedLines;
    } else {
        p.lines = lines_first ? power_of_two_below(std::max(kBlockValues / p.size, sector_lines)) : filling_lines(p);
    }
    const auto shared_bytes = [&] { // values, offsets of the array's lines, and whether one of them is not finite
        const int together = std::min(16, power_of_two_below(p.lines)); // neighbouring threads with neighbouring lines
        p.line_pitch = p.convolved ? p.size : fft_line_pitch(values, lines_first ? 16 / together : p.size / p.radix[0]);
        return p.lines * (8 * p.line_pitch + (p.paired ? 32 : 16)) + 16;
    };
    const int limit = lines_first ? std::min(given.shared_bytes, 2 * kMaxFftSharedBytes) : kMaxFftSharedBytes;
    while (!p.convolved && p.lines > 1 && shared_bytes() > limit) p.lines = lines_first ? p.lines / 2 : p.lines - 1;
    p.shared_bytes = shared_bytes();
    if (p.convolved) {
        p.threads = p.lines * convolution_radices(p.size).radix[1];
    } else {
        p.threads = p.fixed ? p.lines * (p.size / p.radix[0]) : kAnyFftThreads;
    }
    const bool near = std::max(std::abs(p.in.inner), std::abs(p.out.inner)) < (1 << 20);
    p.regular = p.fixed && p.joined && near && !lines_first && p.threads == kFftThreads;
    p.columns = columns && p.lines == fft_columns(p.size);
    p.by_lines = quotient(unsigned(p.lines));
    p.array_lines = (p.paired ? 2 : 1) * p.lines;
    p.blocks = ceil_div(p.total, int64_t(p.lines));
    return p;
}

} // namespace

bool split_into_digits(int size, FftDigits &d) {
    const Stages stages = stages_of(size);
    if (stages.count == 0) return false;
    d.size = size;
    d.stages = stages.count;
    std::copy(stages.radix, stages.radix + stages.count, d.radix);
    for (int i = 0; i < d.stages; ++i) {
        d.pitch[i] = fft_pitch(d.radix, d.stages, i);
        d.by_radix[i] = quotient(unsigned(d.radix[i]));
        d.by_butterflies[i] = quotient(unsigned(size / d.radix[i]));
    }
    for (int i = d.stages - 1, after = 1; i >= 0; after *= d.radix[i--]) d.by_after[i] = quotient(unsigned(after));
    d.by_size = quotient(unsigned(size));
    d.by_half = quotient(unsigned(ceil_div(size, 2)));
    return true;
}

bool lines_are_counted(const turbofno_fft &fft) {
    constexpr int64_t most = (int64_t(1) << 31) - 1;
    return fft.outer >= 1 && fft.inner >= 1 && fft.outer <= most / fft.inner;
}

Quotient quotient(unsigned by) {
    unsigned shift = 0;
    while ((uint64_t(1) << shift) < by) ++shift;
    return {by, unsigned(ceil_div(uint64_t(1) << (31 + shift), uint64_t(by))), shift};
}

const char *prepare(const turbofno_fft &fft, FftPlan &p) {
    if (fft.kind < TURBOFNO_COMPLEX || fft.kind > TURBOFNO_COMPLEX_TO_REAL) return "unknown kind of transform";
    if (fft.precision != TURBOFNO_FP32 && fft.precision != TURBOFNO_FP16) return "values are neither float32 nor float16";
    if (fft.points < 2) return "a line has fewer than 2 points";
    const int size = complex_size(fft);
    if (size > kMaxFftSize) return "a line is longer than 8192 complex values, of real ones 16384";
    FftDigits digits{};
    if (!split_into_digits(size, digits)) return "the size has a prime factor above 17";
    if (is_convolved(size) && fft.points != size) return "real lines of twice a prime above 17 are not in pairs";
    if (!lines_are_counted(fft)) return "the lines are not in 1 .. 2^31 - 1";
    for (int side = 0; side < 2; ++side) {
        const int head = side == 0 ? fft.in_head : fft.out_head, tail = side == 0 ? fft.in_tail : fft.out_tail;
        if (head < 0 || tail < 0 || head + tail < 1 || head + tail > length(fft, side)) {
            return "the values given or kept are not in 1 .. the length of a line";
        }
    }
    if (fft.twiddle_points < 0) return "the points of the twiddles are negative";
    if (fft.twiddle_points > 0 && fft.kind != TURBOFNO_COMPLEX) return "only complex transforms take twiddles";
    p = lay_out(fft, digits);
    if (p.shared_bytes > fft.shared_bytes) return "a line does not fit in shared memory";
    return nullptr;
}

} // namespace turbofno

extern "C" const char *turbofno_mixed_radix_fft_unsupported(const turbofno_fft *fft) {
    turbofno::FftPlan p;
    return turbofno::prepare(*fft, p);
}
