// The shape of a mixed-radix transform: its radices, known to the compiler or read from the plan, and where the values of a
// line are in shared memory.
#pragma once

#include "../plan/fft_plan.h"

namespace turbofno {

// Radices that the compiler knows, so that indices and distances are constants.
template <int... R> struct FixedRadices {
    static constexpr bool kFixed = true, kConvolved = false, kColumns = false;
    static constexpr int kStages = sizeof...(R);
    static constexpr int kThreads = kMaxFftThreads, kBlocks = 1;

    __device__ explicit FixedRadices(const FftDigits &) {}
    static __device__ constexpr int radix(int stage) {
        const int list[] = {R...};
        return list[stage];
    }
    static __device__ constexpr int pitch(int stage) {
        const int list[] = {R...};
        return fft_pitch(list, kStages, stage);
    }
    static __device__ constexpr int size() { return (R * ...); }
    static __device__ constexpr int stages() { return kStages; }
    static __device__ constexpr int after(int stage) {
        const int list[] = {R...};
        int count = 1;
        for (int i = stage + 1; i < kStages; ++i) count *= list[i];
        return count;
    }
    static __device__ int over_after(int stage, int n) { return n / after(stage); }
    static __device__ int over_radix(int stage, int n) { return n / radix(stage); }
    static __device__ int over_butterflies(int stage, int n) { return n / (size() / radix(stage)); }
    static __device__ int over_size(int n) { return n / size(); }
    static __device__ int over_half(int n) { return n / ((size() + 1) / 2); }
};

// The same for FftPlan.columns.
template <int... R> struct FixedColumns : FixedRadices<R...> {
    using FixedRadices<R...>::FixedRadices;
    static constexpr bool kColumns = true;
    static constexpr int kSize = (R * ...), kLines = fft_columns(kSize);
    static constexpr int kThreads = kLines * kSize / FixedRadices<R...>::radix(0), kBlocks = kMaxFftThreads / kThreads;
};

// All radices up to MAX_RADIX. BLOCKS: on a multiprocessor.
template <int MAX_RADIX, int THREADS, int BLOCKS> struct AnyRadices {
    static constexpr bool kFixed = false, kConvolved = false, kColumns = false;
    static constexpr int kMaxRadix = MAX_RADIX, kThreads = THREADS, kBlocks = BLOCKS;
    const FftDigits &p;

    __device__ explicit AnyRadices(const FftDigits &digits) : p(digits) {}
    __device__ int radix(int stage) const { return p.radix[stage]; }
    __device__ int pitch(int stage) const { return p.pitch[stage]; }
    __device__ int size() const { return p.size; }
    __device__ int stages() const { return p.stages; }
    __device__ int after(int stage) const { return int(p.by_after[stage].by); }
    __device__ int over_after(int stage, int n) const { return int(p.by_after[stage](unsigned(n))); }
    __device__ int over_radix(int stage, int n) const { return int(p.by_radix[stage](n)); }
    __device__ int over_butterflies(int stage, int n) const { return int(p.by_butterflies[stage](n)); }
    __device__ int over_size(int n) const { return int(p.by_size(n)); }
    __device__ int over_half(int n) const { return int(p.by_half(n)); }
};

// A prime size, transformed as a convolution of A * B = size - 1 points (fft_rader.cuh). Before and after, values are in shared
// memory as those of a single stage: in their order. BLOCKS: on a multiprocessor.
template <int A, int B, int BLOCKS> struct ConvolvedSize {
    static constexpr bool kFixed = false, kConvolved = true, kColumns = false;
    static constexpr int kThreads = kConvolvedLines * B, kBlocks = BLOCKS;

    __device__ explicit ConvolvedSize(const FftPlan &) {}
    static __device__ constexpr int size() { return A * B + 1; }
    static __device__ constexpr int radix(int) { return size(); }
    static __device__ constexpr int pitch(int) { return 1; }
    static __device__ constexpr int stages() { return 1; }
    static __device__ constexpr int after(int) { return 1; }
    static __device__ int over_radix(int, int) { return 0; }
    static __device__ int over_butterflies(int, int n) { return n; }
    static __device__ int over_size(int n) { return n / size(); }
    static __device__ int over_half(int n) { return n / (size() / 2 + 1); }
};

// Place in shared memory of value d of a line.
template <typename Shape> __device__ __forceinline__ int place_of_point(const Shape &shape, int d) {
    const int padding = shape.pitch(0) - shape.after(0); // 0 or 1
    return padding == 0 ? d : d + shape.over_butterflies(0, d);
}

// Place of result q whose digits are those before `end`, the first digit fastest.
template <typename Shape> __device__ __forceinline__ int place_of_results(const Shape &shape, int end, int q) {
    int place = 0;
#pragma unroll
    for (int i = 0; i < end - 1; ++i) {
        const int rest = shape.over_radix(i, q);
        place += (q - rest * shape.radix(i)) * shape.pitch(i);
        q = rest;
    }
    return end == 0 ? 0 : place + q * shape.pitch(end - 1);
}

// Reorders results of the stages before a middle one, 16 first digits at a time. 16 threads read `after` neighbouring values
// for each of 16 / after results: of these the first digits are `after` apart, because the first pitch is odd and then no two
// of the threads read the same bank.
__device__ __forceinline__ int apart(int result, int after) {
    if (after >= 16) return result;
    const int first = result % 16, together = 16 / after;
    return result - first + first / together + first % together * after;
}

} // namespace turbofno
