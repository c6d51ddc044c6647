// Loads and stores of a butterfly's values where the first or the last stage accesses global memory directly.
#pragma once

#include "fft_block.cuh"
#include "fft_twiddle.cuh"
#include "fft_values.cuh"

namespace turbofno {

// Loads the points index + r step of a line of the block.
template <int R, typename Shape>
__device__ __forceinline__ void load(const FftBlock<Shape> &block, float2 (&x)[R], int line, int index, int step) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    const bool inside = line < block.lines;
    const int64_t from = inside ? block.offset(p.in, block.line0 + line) : 0;
    uint2 read[R];
    if (inside && block.whole(p.in)) {
        const int64_t first = from + index * p.in.point, stride = step * p.in.point;
        if (block.half()) {
#pragma unroll
            for (int r = 0; r < R; ++r) read[r] = read_pair(a.in, first + r * stride, true);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) read[r] = read_pair(a.in, first + r * stride, false);
        }
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int point = index + r * step;
            read[r] = uint2{};
            if (inside && !in_gap(p.in, point)) read[r] = read_pair(a.in, from + position(p.in, point), block.half());
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        x[r] = to_float(read[r], block.half());
        x[r].y *= a.in_sign;
    }
}

// Stores one result. `to`: offset of the line.
template <typename Shape>
__device__ __forceinline__ void store_point(const FftBlock<Shape> &block, int64_t to, int64_t line, int point, float2 v) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    v = block.result(v);
    if (p.out.gap == 0 && p.twiddle_points == 0) {
        write(a.out, to + point * p.out.point, v, p.half);
        return;
    }
    if (in_gap(p.out, point)) return;
    if (p.twiddle_points != 0) v = product(v, factor(block, line, point));
    write(a.out, to + position(p.out, point), v, p.half);
}

// Stores the results index + r step of a line of the array.
template <int R, typename Shape>
__device__ __forceinline__ void store(const FftBlock<Shape> &block, float2 (&y)[R], int64_t line, int index, int step) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    const int64_t to = block.offset(p.out, line);
    constexpr bool few = R <= 8; // more have no registers for factors
    if (block.whole(p.out) && (few || !block.twiddled())) {
#pragma unroll
        for (int r = 0; r < R; ++r) y[r] = block.result(y[r]);
        if constexpr (few) {
            if (block.twiddled()) twiddle_results(block, y, line, index, step);
        }
        const int64_t first = to + index * p.out.point, stride = step * p.out.point;
        if (block.half()) {
#pragma unroll
            for (int r = 0; r < R; ++r) write(a.out, first + r * stride, y[r], true);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) write(a.out, first + r * stride, y[r], false);
        }
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r) store_point(block, to, line, index + r * step, y[r]);
    }
}

} // namespace turbofno
