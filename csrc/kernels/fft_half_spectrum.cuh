// Half spectra of real transforms between an array and shared memory, where values k and -k are combined: an even size is a
// complex transform of pairs of values, of an odd size two lines are one complex line.
#pragma once

#include "fft_staging.cuh"

namespace turbofno {

// A half spectrum's value as it was read.
__device__ __forceinline__ float2 conjugated(float2 v, float in_sign) { return {v.x, v.y * in_sign}; }

// Half spectra to shared memory. Returns true if this thread read a value of a pair of lines that is not finite.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ bool stage_half_spectra(const FftBlock<Shape> &block, int pass) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    const Shape &shape = block.shape;
    struct Held {
        uint2 low, high;
    };
    const int size = shape.size(), count = (size + 1) / 2;
    const bool even = p.in.access == kFftHalf;
    bool finite = true;
    const auto taken = [&](uint2 pair) { return conjugated(to_float(pair, p.half), a.in_sign); };
    const auto where = [&](int item, int &line, int &k) {
        block.split(p.in.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
    };
    const auto fetch = [&](int item) {
        int line, k;
        where(item, line, k);
        if (Shape::kFixed || even) return Held{fetch_pair<PLAIN>(block, line, k), fetch_pair<PLAIN>(block, line, size - k)};
        return Held{fetch_pair<PLAIN>(block, 2 * line + (pass == 2), k),
                    pass == 0 ? fetch_pair<PLAIN>(block, 2 * line + 1, k) : uint2{}};
    };
    const auto use = [&](int item, const Held &held) {
        int line, k;
        where(item, line, k);
        float2 v = taken(held.low), u = taken(held.high), low, high;
        if (k == 0) v.y = u.y = 0.0f;
        if (Shape::kFixed || even) {
            const float2 sum = v + conjugate(u), turned = product(v - conjugate(u), __ldg(a.table + k));
            low = {sum.x - turned.y, sum.y + turned.x};
            high = {sum.x + turned.y, turned.x - sum.y};
        } else {
            check_finite(finite, v);
            check_finite(finite, u);
            low = {v.x - u.y, v.y + u.x};
            high = {v.x + u.y, u.x - v.y};
        }
        block.values[place(block, line, k)] = low;
        if (k != 0) block.values[place(block, line, size - k)] = high;
    };
    // value size / 2 of even sizes is its own partner
    const bool alone = even && size % 2 == 0 && int(threadIdx.x) < p.lines;
    const uint2 ahead = alone ? fetch_pair<PLAIN>(block, threadIdx.x, size / 2) : uint2{};
    each_held<kHeldLoads<PLAIN> / 2, Held>(block, p.lines * count, fetch, use);
    if (alone) {
        for (int line = threadIdx.x; line < p.lines; line += p.threads) {
            const float2 v = taken(line == int(threadIdx.x) ? ahead : fetch_pair<PLAIN>(block, line, size / 2));
            block.values[place(block, line, size / 2)] = v + v;
        }
    }
    return !finite;
}

// Results in shared memory to half spectra.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ void store_half_spectra(const FftBlock<Shape> &block, int pass) {
    const FftPlan &p = block.p;
    const Shape &shape = block.shape;
    const int size = shape.size();
    const auto combine = [&](int line, int k) {
        const float2 v = result_at(block, line, k), u = conjugate(result_at(block, line, k == 0 ? 0 : size - k));
        const float2 sum = v + u, difference = v - u;
        const float2 even{0.5f * sum.x, 0.5f * sum.y}, odd{0.5f * difference.y, -0.5f * difference.x};
        if (Shape::kFixed || p.out.access == kFftHalf) {
            const float2 turned = product(odd, __ldg(block.a.table + k));
            put_value<PLAIN>(block, line, k, block.result(even + turned));
            if (2 * k != size) put_value<PLAIN>(block, line, size - k, block.result(conjugate(even - turned)));
        } else {
            put_value<PLAIN>(block, 2 * line + (pass == 2), k, block.result(even));
            if (pass == 0) put_value<PLAIN>(block, 2 * line + 1, k, block.result(odd));
        }
    };
    const int count = (size + 1) / 2, total = p.lines * count;
#pragma unroll(PLAIN ? 2 : 1)
    for (int item = threadIdx.x; item < total; item += p.threads) {
        int line, k;
        block.split(p.out.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
        combine(line, k);
    }
    if (size % 2 == 0) {
#pragma unroll 1
        for (int line = threadIdx.x; line < block.lines; line += p.threads) combine(line, size / 2);
    }
}

// Both again for even sizes of fixed kernels, where lines and threads are those that the kernel knows (FftPlan::regular). Pair
// is the type of a value in the array.

// Line and k of pair i of this thread.
template <typename Shape> __device__ __forceinline__ void regular_pair(int i, int &line, int &k) {
    constexpr int count = Shape::size() / 2;
    if constexpr (count <= kFftThreads) {
        line = int(threadIdx.x) / count + i * (kFftThreads / count);
        k = int(threadIdx.x) % count;
    } else {
        line = i / (count / kFftThreads);
        k = int(threadIdx.x) + i % (count / kFftThreads) * kFftThreads;
    }
}

template <typename Shape>
constexpr int kRegularLinePitch = fft_line_pitch(Shape::radix(0) * Shape::pitch(0), Shape::after(0));

template <typename Pair, typename Shape>
__device__ __forceinline__ void stage_regular_half_spectra(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size(), pairs = Shape::radix(0) / 2, line_pitch = kRegularLinePitch<Shape>;
    const FftArguments &a = block.a;
    const Shape &shape = block.shape;
    const Pair *const from = static_cast<const Pair *>(a.in) + block.line0 * block.p.in.inner;
    const int step = int(block.p.in.inner);
    const auto taken = [&](Pair pair) {
        if constexpr (sizeof(Pair) == 4) {
            return conjugated(to_float(uint2{pair, 0}, true), a.in_sign);
        } else {
            return conjugated(to_float(pair, false), a.in_sign);
        }
    };
    Pair middle{};
    if (int(threadIdx.x) < block.lines) middle = __ldcs(from + (int(threadIdx.x) * step + size / 2));
#pragma unroll 1
    for (int part = 0; part < pairs; part += 4) { // eight loads of a thread on their way
        Pair low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int line, k;
            regular_pair<Shape>(part + i, line, k);
            const int at = (line < block.lines ? line : 0) * step;
            low[i] = __ldcs(from + (at + k));
            high[i] = __ldcs(from + (at + size - k));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int line, k;
            regular_pair<Shape>(part + i, line, k);
            float2 v = taken(low[i]), u = taken(high[i]);
            if (k == 0) v.y = u.y = 0.0f;
            const float2 sum = v + conjugate(u), turned = product(v - conjugate(u), __ldg(a.table + k));
            float2 *const to = block.values + line * line_pitch;
            to[place_of_point(shape, k)] = {sum.x - turned.y, sum.y + turned.x};
            if (k != 0) to[place_of_point(shape, size - k)] = {sum.x + turned.y, turned.x - sum.y};
        }
    }
    if (int(threadIdx.x) < block.lines) {
        const float2 v = taken(middle);
        block.values[threadIdx.x * line_pitch + place_of_point(shape, size / 2)] = v + v;
    }
}

template <typename Pair, typename Shape>
__device__ __forceinline__ void store_regular_half_spectra(const FftBlock<Shape> &block) {
    constexpr int size = Shape::size(), pairs = Shape::radix(0) / 2, line_pitch = kRegularLinePitch<Shape>;
    const FftArguments &a = block.a;
    const Shape &shape = block.shape;
    const float half_scale = 0.5f * a.scale;
    Pair *const to = static_cast<Pair *>(a.out) + block.line0 * block.p.out.inner;
    const int step = int(block.p.out.inner);
#pragma unroll 4
    for (int i = 0; i < pairs; ++i) {
        int line, k;
        regular_pair<Shape>(i, line, k);
        if (line >= block.lines) break;
        const float2 *const from = block.values + line * line_pitch;
        const float2 w = __ldg(a.table + k), turn{half_scale * w.y, -half_scale * w.x}; // -i w scale / 2
        const float2 v = from[place_of_results(shape, Shape::kStages, k)];
        const float2 u = from[place_of_results(shape, Shape::kStages, k == 0 ? 0 : size - k)];
        const float2 sum{v.x + u.x, v.y - u.y}, turned = product({v.x - u.x, v.y + u.y}, turn);
        write(to + (line * step + k), {fmaf(sum.x, half_scale, turned.x), a.out_sign * fmaf(sum.y, half_scale, turned.y)});
        write(to + (line * step + size - k),
              {fmaf(sum.x, half_scale, -turned.x), a.out_sign * fmaf(-sum.y, half_scale, turned.y)});
    }
    if (int(threadIdx.x) < block.lines) {
        const float2 v = block.values[threadIdx.x * line_pitch + place_of_results(shape, Shape::kStages, size / 2)];
        write(to + (int(threadIdx.x) * step + size / 2), block.result(conjugate(v)));
    }
}

} // namespace turbofno
