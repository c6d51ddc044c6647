// Stages and block layout of mixed_radix_fft. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kMaxRadix = 17, kMaxFftStages = 5;
constexpr int kMaxFftSize = 8192; // complex values of a line
// Threads of a block of fixed kernels; more than kFftThreads only for long lines and where lines are first.
constexpr int kFftThreads = 256, kMaxFftThreads = 1024;
constexpr int kAnyFftThreads = 128; // of other blocks

// Division by a constant of numbers below 2^31.
struct Quotient {
    unsigned by, magic, shift; // magic is 2^(31 + shift) / by, rounded up

    TURBOFNO_HOST_DEVICE unsigned operator()(unsigned n) const {
        return unsigned((uint64_t(2 * n) * magic) >> 32) >> shift;
    }
};

Quotient quotient(unsigned by);

// How values pass between an array and the complex values of the transform.
enum FftAccess {
    kFftDirect, // complex values between global memory and the registers of the first or last stage
    // all others pass through shared memory in another order
    kFftComplex,
    kFftNeighbours, // real values 2p and 2p + 1 as one complex value
    kFftHalf, // complex side of a real transform of even size
    kFftTwoLines, // one value of two real lines as one complex value
    kFftTwoHalves // complex side of these
};

struct FftSide {
    int64_t outer, inner, point; // strides in values, or in pairs of real values where these are accessed as complex ones
    int head, gap; // values before and in the part that is not stored
    int access; // FftAccess
    bool lines_first; // neighbouring threads have neighbouring lines, not points
    bool plain; // no gap, neighbouring points next to each other
    bool flat; // of a convolved size: plain, and each line follows the one before it
};

// A line of `size` complex values has digits d[0], d[1], .. of the radices; value p = sum of d[i] radix[i + 1] radix[i + 2] ..
// Stage i transforms digit i in place. Value p is in shared memory at the sum of d[i] pitch[i].
struct FftDigits {
    int size;
    int stages;
    int radix[kMaxFftStages], pitch[kMaxFftStages];
    Quotient by_radix[kMaxFftStages], by_butterflies[kMaxFftStages]; // butterflies of a line: size / radix
    Quotient by_after[kMaxFftStages]; // combinations of the later digits
    Quotient by_size, by_half; // by_half: (size + 1) / 2
};

// `size` is that of a complex transform: points, or half as many for real transforms of even size. by_half: pairs of kFftHalf
// and kFftTwoHalves.
struct FftPlan : FftDigits {
    FftSide in, out;
    int64_t twiddle_points; // turbofno_fft.twiddle_points, or 0 where they are all 1
    int64_t given; // lines of the arrays
    int64_t total; // complex lines
    Quotient by_inner, by_lines;
    int lines, line_pitch; // of a block; complex numbers in shared memory from one to the next
    int threads, shared_bytes;
    int64_t blocks;
    bool fixed; // threads = lines * size / radix[0], in a kernel for these radices
    bool columns; // fixed, in a kernel for fft_columns(size) lines of complex float32 values. On both sides lines are whole
                  // and next to each other; there are no twiddles
    bool convolved; // one stage in a kernel for this size; lines are next to each other in shared memory
    bool regular; // joined, fixed, kFftThreads threads, line_pitch as fft_line_pitch has it, places of a block's
                  // values in the arrays below 2^31
    bool paired; // two real lines are one complex line
    bool joined; // all lines are `inner` strides apart
    bool half; // float16 values
    int array_lines; // of a block: lines, or 2 * lines where paired
};

// Radices of the kernels that are compiled for one list of them, by the transform's size; zeros: none.
struct FftRadices {
    int radix[4];
};
TURBOFNO_HOST_DEVICE constexpr FftRadices fixed_radices(int size) {
    switch (size) {
    case 32: return {{8, 4}};
    case 64: return {{8, 8}};
    case 128: return {{16, 8}};
    case 256: return {{16, 16}};
    case 512: return {{16, 8, 4}};
    case 1024: return {{16, 8, 8}};
    case 2048: return {{16, 16, 8}};
    case 4096: return {{16, 16, 16}};
    case 8192: return {{16, 8, 8, 8}};
    default: return {};
    }
}

constexpr int kLeastColumn = 256, kMostColumn = 4096; // sizes that have a kernel of columns
// From this many complex values on, blocks are wide; with fewer, wide blocks leave some of an H200's 132 multiprocessors
// without work.
constexpr int kManyValues = 1 << 22;

// Lines of a block of such a kernel: with 512 threads or more they fill 128 bytes at each point, as far as 1024 threads go.
// Where points are megabytes apart, memory is a quarter slower with 64 bytes.
TURBOFNO_HOST_DEVICE constexpr int fft_columns(int size) {
    const int line_threads = size / fixed_radices(size).radix[0];
    int lines = 2 * kFftThreads / line_threads;
    while (lines < 16 && 2 * lines * line_threads <= kMaxFftThreads) lines *= 2;
    return lines;
}

// Radices of prime sizes that are transformed as a convolution (fft_rader.cuh): two coprime factors of size - 1, the
// smaller and even one first.
constexpr FftRadices convolution_radices(int size) {
    switch (size) {
    case 211: return {{14, 15}};
    case 421: return {{20, 21}};
    default: return {};
    }
}

constexpr int kConvolvedLines = 16; // of a block: half a warp has the same butterfly of each

// Distance in shared memory of neighbouring values of digit i. That of the first digit is odd: in the last stage
// neighbouring threads have neighbouring first digits, and 16 of them read different banks.
TURBOFNO_HOST_DEVICE constexpr int fft_pitch(const int *radix, int stages, int digit) {
    int pitch = 1;
    for (int i = stages - 1; i > digit; --i) pitch *= radix[i];
    return digit == 0 ? pitch | 1 : pitch;
}

// Distance of lines that take `values` places: `wanted` modulo 16. In the first stage neighbouring threads have the
// `wanted` neighbouring values of a line, then those of the next one.
TURBOFNO_HOST_DEVICE constexpr int fft_line_pitch(int values, int wanted) {
    return values + (((wanted - values) % 16) + 16) % 16;
}

// The digits of a size; false if it has a prime factor above 17 and is no convolution.
bool split_into_digits(int size, FftDigits &d);

// True if there are lines, and 31 bits count them.
bool lines_are_counted(const turbofno_fft &fft);

// Plans a transform, or returns the reason why the kernel does not support it.
const char *prepare(const turbofno_fft &fft, FftPlan &p);

} // namespace turbofno
