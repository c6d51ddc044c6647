// Checks over all sizes that plans of mixed_radix_fft cover their work and respect the limits of the kernel and of all
// devices, and that exactly the sizes without such a plan are refused. Prints each violation. Exit status 1 if there is one,
// or if nothing was checked.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <set>

#include "../../csrc/plan/fft_plan.h"

using namespace turbofno;

static int wrong = 0, plans = 0, refused = 0;

static void expect(bool holds, const char *what, const turbofno_fft &f) {
    if (holds) return;
    std::printf("%s: points %d, kind %d, outer %lld, inner %lld, precision %d, point stride %lld\n", what, f.points, f.kind,
                (long long)f.outer, (long long)f.inner, f.precision, (long long)f.in_point);
    ++wrong;
}

static int largest_prime(int n) {
    int largest = 1;
    for (int d = 2; n > 1; ++d) {
        for (; n % d == 0; n /= d) largest = d;
    }
    return largest;
}

static void check(const turbofno_fft &f) {
    const bool halved = f.kind != TURBOFNO_COMPLEX && f.points % 2 == 0;
    const int size = halved ? f.points / 2 : f.points;
    FftPlan p;
    const bool served = prepare(f, p) == nullptr;
    const bool convolved = convolution_radices(size).radix[0] != 0;
    const bool has_kernel = convolved ? !halved : largest_prime(size) <= kMaxRadix;
    expect(served == (has_kernel && size <= kMaxFftSize), "sizes are refused or not", f);
    if (!served) {
        ++refused;
        return;
    }
    ++plans;
    int product = 1;
    for (int i = 0; i < p.stages; ++i) {
        product *= p.radix[i];
        expect(p.radix[i] >= 1 && (convolved || p.radix[i] <= kMaxRadix) && p.radix[i] != 14, "there is code for a radix", f);
        expect(p.by_radix[i].by == unsigned(p.radix[i]), "the divisor of a radix", f);
        expect(int(p.by_butterflies[i].by) * p.radix[i] == size, "butterflies of a stage", f);
        expect(p.by_radix[i](unsigned(size)) == unsigned(size) / unsigned(p.radix[i]), "quotients", f);
    }
    expect(p.size == size && product == size, "radices make up the size", f);
    expect(p.stages >= 1 && p.stages <= kMaxFftStages, "number of stages", f);
    const int most_threads = p.fixed || convolved ? kMaxFftThreads : kAnyFftThreads;
    expect(p.threads >= 1 && p.threads <= most_threads, "threads of a block", f);
    expect(!convolved || (p.lines == kConvolvedLines && p.line_pitch == size), "lines where the kernel has them", f);
    expect(!p.fixed || p.threads * p.radix[0] == p.lines * size, "a thread of a fixed kernel has one butterfly", f);
    if (p.columns) {
        expect(p.fixed && p.lines == fft_columns(size), "the lines that a kernel of columns knows", f);
        for (const FftSide &side : {p.in, p.out}) {
            expect(side.access == kFftDirect && side.lines_first && side.gap == 0, "columns are read and written directly", f);
            expect(side.inner == 1, "columns are next to each other", f);
        }
    }
    if (p.regular) expect(p.line_pitch == fft_line_pitch(p.radix[0] * p.pitch[0], p.size / p.radix[0]), "the pitch that a kernel knows", f);
    expect(p.shared_bytes <= f.shared_bytes, "shared memory of the device", f);
    expect(p.shared_bytes >= 8 * p.lines * p.line_pitch + 16 * p.array_lines + 16, "shared memory holds the block", f);
    expect(p.lines >= 1 && p.blocks * p.lines >= p.total && (p.blocks - 1) * p.lines < p.total, "blocks cover the lines", f);
    expect(p.blocks < (int64_t(1) << 31), "the grid is one that CUDA starts", f);
    expect(int64_t(p.lines) * p.size < (1 << 30), "indices of a block", f);
}

// Every value of a line has a place of its own in shared memory.
static void check_places(const turbofno_fft &f) {
    FftPlan p;
    if (prepare(f, p) != nullptr) return;
    std::set<int> places;
    for (int value = 0; value < p.size; ++value) {
        int place = 0, rest = value;
        for (int i = p.stages - 1; i >= 0; rest /= p.radix[i--]) place += rest % p.radix[i] * p.pitch[i];
        expect(place < p.line_pitch, "a line's place in shared memory", f);
        places.insert(place);
    }
    expect(int(places.size()) == p.size, "values have places of their own", f);
}

// A field that is no longer one of columns with any of these changes.
static void check_almost_columns(const turbofno_fft &columns) {
    const auto is_column = [](const turbofno_fft &f) {
        FftPlan p;
        return prepare(f, p) == nullptr && p.columns;
    };
    turbofno_fft f = columns;
    f.in_inner = 2, f.in_point *= 2, f.in_outer *= 2;
    expect(!is_column(f), "every second line is read", f);
    f = columns;
    f.out_inner = 2, f.out_point *= 2, f.out_outer *= 2;
    expect(!is_column(f), "every second line is written", f);
    f = columns;
    f.in_head = f.points / 2, f.in_tail = 1;
    expect(!is_column(f), "a part of a line is given", f);
    f = columns;
    f.out_head = f.points / 2, f.out_tail = 1;
    expect(!is_column(f), "a part of a line is kept", f);
    f = columns;
    f.twiddle_points = int(f.points * f.inner);
    expect(!is_column(f), "results are turned", f);
    f = columns;
    f.precision = TURBOFNO_FP16;
    expect(!is_column(f), "values are float16", f);
}

// Small fields have narrow blocks, so that there are more of them.
static void check_blocks_of_small_fields() {
    turbofno_fft f{};
    f.points = f.in_head = f.out_head = 2048, f.kind = TURBOFNO_COMPLEX, f.precision = TURBOFNO_FP32;
    f.multiprocessors = 132, f.shared_bytes = 227 * 1024, f.outer = 1;
    int64_t blocks[2];
    for (const bool many : {false, true}) {
        f.inner = kManyValues / 2048 - !many, f.in_inner = f.out_inner = 2, f.in_point = f.out_point = 2 * f.inner;
        FftPlan p;
        expect(prepare(f, p) == nullptr && !p.columns, "every second line", f);
        blocks[many] = p.blocks;
    }
    expect(blocks[0] == 2 * blocks[1], "blocks of a small field are half as wide", f);
}

// Large fields take kernels of columns where there are enough neighbouring lines and shared memory.
static void check_columns(int points, int64_t inner, int kilobytes) {
    const int64_t field = points * inner;
    turbofno_fft f{};
    f.points = f.in_head = f.out_head = points, f.kind = TURBOFNO_COMPLEX, f.precision = TURBOFNO_FP32;
    f.multiprocessors = 132, f.shared_bytes = kilobytes * 1024;
    f.inner = f.in_point = f.out_point = inner, f.in_inner = f.out_inner = 1, f.in_outer = f.out_outer = field;
    for (const bool many : {true, false}) {
        f.outer = many ? ceil_div(int64_t(kManyValues), field) : (kManyValues - 1) / field;
        check(f);
        FftPlan p;
        const bool served = prepare(f, p) == nullptr;
        const bool fits = kilobytes > 99 || points <= 512;
        const bool columns = many && fits && inner >= fft_columns(points);
        expect(served && p.columns == columns, "columns or not", f);
        if (columns) check_almost_columns(f);
    }
}

int main(int, char **arguments) {
    std::srand(unsigned(std::strtoul(arguments[1], nullptr, 10)));
    for (int points = 2; points <= 4096; ++points)
        for (int kind : {TURBOFNO_COMPLEX, TURBOFNO_REAL_TO_COMPLEX, TURBOFNO_COMPLEX_TO_REAL})
            for (int precision : {TURBOFNO_FP32, TURBOFNO_FP16})
                for (bool last_axis : {true, false}) {
                    const int64_t columns = 1 + std::rand() % 300;
                    turbofno_fft f{};
                    f.outer = 1 + std::rand() % 1000, f.inner = last_axis ? 1 : columns;
                    f.points = points, f.kind = kind, f.precision = precision;
                    f.multiprocessors = 132, f.shared_bytes = 99 * 1024;
                    f.in_head = kind == TURBOFNO_COMPLEX_TO_REAL ? points / 2 + 1 : points;
                    f.out_head = kind == TURBOFNO_REAL_TO_COMPLEX ? points / 2 + 1 : points;
                    f.in_inner = f.out_inner = 1, f.in_point = f.out_point = f.inner;
                    f.in_outer = f.in_head * f.inner, f.out_outer = f.out_head * f.inner;
                    check(f);
                    if (std::rand() % 16 == 0) check_places(f);
                }
    for (int points = kLeastColumn; points <= kMostColumn; points *= 2)
        for (int kilobytes : {99, 163, 227})
            for (int64_t inner : {2, fft_columns(points) - 1, fft_columns(points), 700}) check_columns(points, inner, kilobytes);
    check_blocks_of_small_fields();
    for (unsigned by : {1u, 2u, 3u, 17u, 4096u, 4095u, (1u << 30) + 1, (1u << 31) - 1})
        for (unsigned n : {0u, 1u, 16u, 17u, 4095u, 65537u, (1u << 30) + 1, (1u << 31) - 2, (1u << 31) - 1}) {
            turbofno_fft f{};
            expect(quotient(by)(n) == n / by, "quotients of large numbers", f);
        }
    return wrong != 0 || plans == 0 || refused == 0;
}
