// A block's part of a mixed-radix transform: its arguments, its lines, and how its threads share them.
#pragma once

#include "fft_shape.cuh"

namespace turbofno {

struct FftArguments {
    FftPlan plan;
    const void *in;
    void *out;
    const float2 *table;
    int table_step; // table values from one root of the complex transform to the next
    float in_sign, out_sign; // -1: conjugate complex values that come in, that go out
    float scale;
};

template <typename Shape> struct FftBlock {
    const FftArguments &a;
    const FftPlan &p;
    const Shape shape;
    int64_t *const in_offsets, *const out_offsets; // shared memory: of lines of the arrays, for fft_staging.cuh
    float2 *const values; // shared memory
    const int64_t line0;
    const int lines; // of this block

    __device__ FftBlock(const FftArguments &arguments, int64_t *offsets)
        : a(arguments), p(a.plan), shape(a.plan), in_offsets(offsets), out_offsets(offsets + p.array_lines),
          values(reinterpret_cast<float2 *>(offsets + 2 * p.array_lines)), line0(int64_t(blockIdx.x) * p.lines),
          lines(int(min(int64_t(p.lines), p.total - line0))) {}

    // Offset of a line of the array.
    __device__ __forceinline__ int64_t offset(const FftSide &side, int64_t line) const {
        if (p.joined) return line * side.inner;
        const unsigned o = p.by_inner(unsigned(line));
        return o * side.outer + (unsigned(line) - o * p.by_inner.by) * side.inner;
    }

    // Splits a block-wide index into line and index within the line of `count` items.
    template <typename Over>
    __device__ __forceinline__ void split(bool lines_first, int item, int count, const Over &over, int &line,
                                          int &index) const {
        if constexpr (Shape::kColumns) {
            index = item / Shape::kLines;
            line = item % Shape::kLines;
        } else if (lines_first) {
            index = int(p.by_lines(unsigned(item)));
            line = item - index * int(p.by_lines.by);
        } else {
            line = over(item);
            index = item - line * count;
        }
    }

    // Calls f(item) for this thread's share of `count` items of each line. PER is how many these are in a fixed kernel.
    template <int PER, typename F> __device__ __forceinline__ void each(int count, const F &f) const {
        if constexpr (Shape::kFixed) {
#pragma unroll
            for (int i = 0; i < PER; ++i) f(int(threadIdx.x) + i * p.threads);
        } else {
            const int total = p.lines * count;
#pragma unroll 1
            for (int item = threadIdx.x; item < total; item += p.threads) f(item);
        }
    }

    // Kernels of columns know that these are so.
    __device__ __forceinline__ bool direct(const FftSide &side) const { return Shape::kColumns || side.access == kFftDirect; }
    __device__ __forceinline__ bool whole(const FftSide &side) const { return Shape::kColumns || side.gap == 0; }
    __device__ __forceinline__ bool half() const { return !Shape::kColumns && p.half; }
    __device__ __forceinline__ bool twiddled() const { return !Shape::kColumns && p.twiddle_points != 0; }

    // A result as it is stored.
    __device__ __forceinline__ float2 result(float2 v) const { return {v.x * a.scale, v.y * (a.scale * a.out_sign)}; }
};

// True if a point is not stored.
__device__ __forceinline__ bool in_gap(const FftSide &side, int point) {
    return unsigned(point - side.head) < unsigned(side.gap);
}

// Offset of a stored point within its line.
__device__ __forceinline__ int64_t position(const FftSide &side, int point) {
    return (point < side.head ? point : point - side.gap) * side.point;
}

} // namespace turbofno
