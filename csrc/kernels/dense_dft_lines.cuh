// Lines of a dense DFT in the arrays: where a line and its values are, and which values of it are stored.
#pragma once

#include "../plan/dense_dft_plan.h"
#include "warp_mma.cuh"

namespace turbofno {

struct DenseDftArguments {
    turbofno_fft of;
    DenseDftPlan plan;
    unsigned lines, inner;
    bool in_along_lines, out_along_lines; // neighbouring lanes take neighbouring lines, else neighbouring values
    bool in_cut, out_cut; // not all values of a line are given, kept
};

// What the kind of a transform says of its input and its result.
template <int KIND> struct DftKind {
    static constexpr bool kComplexIn = KIND != TURBOFNO_REAL_TO_COMPLEX, kComplexOut = KIND != TURBOFNO_COMPLEX_TO_REAL;
    static constexpr int kLines = KIND == TURBOFNO_COMPLEX ? 8 : 16; // of a warp
    static constexpr bool kFoldsIn = KIND != TURBOFNO_COMPLEX_TO_REAL, kFoldsOut = KIND != TURBOFNO_REAL_TO_COMPLEX;
};

// Offset of a line in an array, in values.
__device__ __forceinline__ int64_t line_offset(const DenseDftArguments &a, unsigned line, int64_t outer, int64_t inner) {
    const unsigned o = line / a.inner;
    return o * outer + (line - o * a.inner) * inner;
}

// The values p of a line at first, first + step, ..: how far each is from the line's begin. An addition each, no product.
// CUT: only the first `head` and the last `tail` of the line's values are stored.
template <bool CUT> struct ValueWalk {
    int p, step;
    int64_t at, at_step, gap; // gap: between head and tail, which lie next to each other
    int head, tail; // the first value of the tail

    __device__ __forceinline__ ValueWalk(int first, int step, int values, int head, int tail, int64_t stride)
        : p(first), step(step), at(first * stride), at_step(step * stride), gap((values - head - tail) * stride), head(head),
          tail(values - tail) {}

    __device__ __forceinline__ bool inside() const { return !CUT || p < head || p >= tail; }
    __device__ __forceinline__ int64_t offset() const { return !CUT || p < head ? at : at - gap; }
    __device__ __forceinline__ void advance() {
        p += step;
        at += at_step;
    }
};

} // namespace turbofno
