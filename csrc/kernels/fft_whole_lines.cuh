// The usual lines of a convolved size between an array and shared memory, without the work for all others (fft_staging.cuh):
// whole float32 lines that follow each other in the array, and complex lines beside each other, whole or not.
#pragma once

#include "fft_half_spectrum.cuh"

namespace turbofno {

// Of lines beside each other a thread has every `step`th value of one: half a warp has 128 bytes together. Stored value q is
// point q, behind the gap q + gap.
template <typename Shape> struct LineOfThread {
    static constexpr int step = Shape::kThreads / kConvolvedLines;
    const int line = int(threadIdx.x % kConvolvedLines), first = int(threadIdx.x / kConvolvedLines);
};

template <typename Shape> __device__ __forceinline__ void copy_following(const FftBlock<Shape> &block) {
    const float2 *const from = static_cast<const float2 *>(block.a.in) + block.line0 * Shape::size();
#pragma unroll 4
    for (int i = threadIdx.x; i < block.lines * Shape::size(); i += Shape::kThreads) {
        copy_async<8>(block.values + i, from + i, true);
    }
}

template <typename Shape> __device__ __forceinline__ void copy_beside(const FftBlock<Shape> &block) {
    const FftSide &in = block.p.in;
    constexpr int step = LineOfThread<Shape>::step;
    const LineOfThread<Shape> own;
    const bool exists = own.line < block.lines;
    const float2 *from = static_cast<const float2 *>(block.a.in);
    from += exists ? block.in_offsets[own.line] + own.first * in.point : 0;
    float2 *const to = block.values + own.line * Shape::size();
#pragma unroll 4
    for (int q = own.first; q < Shape::size() - in.gap; q += step) {
        copy_async<8>(to + (q < in.head ? q : q + in.gap), from, exists);
        from += exists ? step * in.point : 0;
    }
    for (int q = own.first; q < in.gap; q += step) to[in.head + q] = {};
}

template <typename Shape> __device__ __forceinline__ void write_following(const FftBlock<Shape> &block) {
    float2 *const to = static_cast<float2 *>(block.a.out) + block.line0 * Shape::size();
#pragma unroll 4
    for (int i = threadIdx.x; i < block.lines * Shape::size(); i += Shape::kThreads) {
        write(to + i, block.result(block.values[i]));
    }
}

template <typename Shape> __device__ __forceinline__ void write_beside(const FftBlock<Shape> &block) {
    const FftPlan &p = block.p;
    constexpr int step = LineOfThread<Shape>::step;
    const LineOfThread<Shape> own;
    if (own.line >= block.lines) return;
    int64_t to = block.out_offsets[own.line] + own.first * p.out.point;
    const float2 *const from = block.values + own.line * Shape::size();
    for (int q = own.first; q < Shape::size() - p.out.gap; q += step) {
        const int k = q < p.out.head ? q : q + p.out.gap;
        float2 v = block.result(from[k]);
        if (p.twiddle_points != 0) v = product(v, factor(block, block.line0 + own.line, k));
        write(block.a.out, to, v, p.half);
        to += step * p.out.point;
    }
}

// Two real lines, or their half spectra, are one complex line: both values at one place of lines of COUNT values, which follow each
// other. The array ends behind the first line if their number is odd.
template <typename V> struct Both {
    V first, second;
};

template <int COUNT, typename V> __device__ __forceinline__ Both<V> read_both(const V *from, unsigned item, unsigned end) {
    const unsigned at = item + item / COUNT * COUNT;
    from += at;
    return {__ldcs(from), at + COUNT < end ? __ldcs(from + COUNT) : V{}};
}

template <int COUNT, typename V> __device__ __forceinline__ void write_both(V *to, unsigned item, unsigned end, const Both<V> &both) {
    const unsigned at = item + item / COUNT * COUNT;
    to += at;
    to[0] = both.first;
    if (at + COUNT < end) to[COUNT] = both.second;
}

// Values of a block's lines in the array, where these have `count`.
template <typename Shape> __device__ __forceinline__ unsigned end_of_lines(const FftBlock<Shape> &block, int count) {
    return unsigned(min(int64_t(2 * block.lines), block.p.given - 2 * block.line0)) * count;
}

// Returns true if this thread read a value that is not finite.
template <typename Shape> __device__ __forceinline__ bool read_real_pairs(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size();
    const float *const from = static_cast<const float *>(block.a.in) + 2 * block.line0 * size;
    const unsigned end = end_of_lines(block, size);
    bool finite = true;
    each_held<8, Both<float>>(
        block, block.lines * size, [&](int item) { return read_both<size>(from, item, end); },
        [&](int item, const Both<float> &held) {
            const float2 v{held.first, held.second};
            check_finite(finite, v);
            block.values[item] = v;
        });
    return !finite;
}

template <typename Shape> __device__ __forceinline__ bool read_half_spectra(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size(), count = size / 2 + 1;
    const float2 *const from = static_cast<const float2 *>(block.a.in) + 2 * block.line0 * count;
    const unsigned end = end_of_lines(block, count);
    bool finite = true;
    each_held<4, Both<float2>>(
        block, block.lines * count, [&](int item) { return read_both<count>(from, item, end); },
        [&](int item, const Both<float2> &held) {
            const unsigned line = unsigned(item) / count, k = item - line * count;
            float2 v = conjugated(held.first, block.a.in_sign), u = conjugated(held.second, block.a.in_sign);
            if (k == 0) v.y = u.y = 0.0f;
            check_finite(finite, v);
            check_finite(finite, u);
            float2 *const to = block.values + line * size;
            to[k] = {v.x - u.y, v.y + u.x};
            if (k != 0) to[size - k] = {v.x + u.y, u.x - v.y};
        });
    return !finite;
}

template <typename Shape> __device__ __forceinline__ void write_real_pairs(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size();
    float *const to = static_cast<float *>(block.a.out) + 2 * block.line0 * size;
    const unsigned end = end_of_lines(block, size);
#pragma unroll 4
    for (int item = threadIdx.x; item < block.lines * size; item += Shape::kThreads) {
        const float2 v = block.values[item];
        write_both<size>(to, item, end, Both<float>{v.x * block.a.scale, v.y * block.a.scale});
    }
}

template <typename Shape> __device__ __forceinline__ void write_half_spectra(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size(), count = size / 2 + 1;
    float2 *const to = static_cast<float2 *>(block.a.out) + 2 * block.line0 * count;
    const unsigned end = end_of_lines(block, count);
#pragma unroll 2
    for (int item = threadIdx.x; item < block.lines * count; item += Shape::kThreads) {
        const unsigned line = unsigned(item) / count, k = item - line * count;
        const float2 *const from = block.values + line * size;
        const float2 v = from[k], u = conjugate(from[k == 0 ? 0 : size - k]), sum = v + u, difference = v - u;
        const float2 first{0.5f * sum.x, 0.5f * sum.y}, second{0.5f * difference.y, -0.5f * difference.x};
        write_both<count>(to, item, end, Both<float2>{block.result(first), block.result(second)});
    }
}

// Reads the block's lines, if they are some of these. Sets `bad` if this thread read a value of a pair that is not finite.
template <typename Shape>
__device__ __forceinline__ bool read_whole_lines(const FftBlock<Shape> &block, int pass, bool &bad) {
    const FftSide &in = block.p.in;
    if (block.p.half || pass != 0) return false;
    if (in.access == kFftComplex && (in.flat || in.lines_first)) {
        if (in.flat) {
            copy_following(block);
        } else {
            copy_beside(block);
        }
        commit_copies();
        wait_copies<0>();
        return true;
    }
    if (!in.flat) return false;
    bad = in.access == kFftTwoLines ? read_real_pairs(block) : read_half_spectra(block);
    return true;
}

// Writes the block's lines, if they are some of these.
template <typename Shape> __device__ __forceinline__ bool write_whole_lines(const FftBlock<Shape> &block, int pass) {
    const FftSide &out = block.p.out;
    if (out.access == kFftComplex && out.lines_first) {
        write_beside(block);
        return true;
    }
    if (!out.flat || block.p.half || block.p.twiddle_points != 0 || pass != 0) return false;
    if (out.access == kFftComplex) {
        write_following(block);
    } else if (out.access == kFftTwoLines) {
        write_real_pairs(block);
    } else {
        write_half_spectra(block);
    }
    return true;
}

} // namespace turbofno
