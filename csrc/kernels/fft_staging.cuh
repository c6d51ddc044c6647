// Values between an array and shared memory, in the order of the array, where the first or the last stage does not access
// global memory directly. `pass` is 0 for both lines of a pair, 1 for the first alone, 2 for the second alone.
#pragma once

#include "async_copy.cuh"
#include "fft_block.cuh"
#include "fft_twiddle.cuh"
#include "fft_values.cuh"

namespace turbofno {

constexpr int64_t kNoLine = INT64_MIN; // offset of a line that does not exist

// Notes where the array lines of a block start in both arrays. A line that does not exist has no offset.
template <typename Shape> __device__ __forceinline__ void note_offsets(const FftBlock<Shape> &block) {
    const FftPlan &p = block.p;
    const int64_t first = p.paired ? 2 * block.line0 : block.line0;
    for (int i = threadIdx.x; i < p.array_lines; i += p.threads) {
        const bool exists = first + i < p.given;
        block.in_offsets[i] = exists ? block.offset(p.in, first + i) : kNoLine;
        block.out_offsets[i] = exists ? block.offset(p.out, first + i) : kNoLine;
    }
}

// This thread's share of `total` items, with loads ahead: fetch(item) for several before use(item, what it returned).
template <int PER, typename Held, typename Shape, typename Fetch, typename Use>
__device__ __forceinline__ void each_held(const FftBlock<Shape> &block, int total, const Fetch &fetch, const Use &use) {
    const int step = Shape::kFixed ? block.p.threads : Shape::kThreads;
#pragma unroll 1
    for (int base = threadIdx.x; base < total; base += PER * step) {
        Held held[PER] = {}; // or else they would keep their registers from one call to the next
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            if (base + i * step < total) held[i] = fetch(base + i * step);
        }
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            if (base + i * step < total) use(base + i * step, held[i]);
        }
    }
}

// Loads of a thread on their way.
template <bool PLAIN> constexpr int kHeldLoads = PLAIN ? 4 : 2;

// PLAIN, here and below: the side has no gap and its neighbouring points are next to each other.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ uint2 fetch_pair(const FftBlock<Shape> &block, int array_line, int point) {
    const FftPlan &p = block.p;
    const int64_t from = block.in_offsets[array_line];
    if (from == kNoLine || (!PLAIN && in_gap(p.in, point))) return {};
    return read_pair(block.a.in, from + (PLAIN ? point : position(p.in, point)), p.half);
}

template <bool PLAIN, typename Shape>
__device__ __forceinline__ unsigned fetch_real(const FftBlock<Shape> &block, int array_line, int point) {
    const FftPlan &p = block.p;
    const int64_t from = block.in_offsets[array_line];
    if (from == kNoLine || (!PLAIN && in_gap(p.in, point))) return 0;
    return read_real(block.a.in, from + (PLAIN ? point : position(p.in, point)), p.half);
}

template <bool PLAIN, typename Shape, typename V>
__device__ __forceinline__ void put_value(const FftBlock<Shape> &block, int array_line, int point, V v) {
    const FftPlan &p = block.p;
    const int64_t to = block.out_offsets[array_line];
    if (to == kNoLine || (!PLAIN && in_gap(p.out, point))) return;
    write(block.a.out, to + (PLAIN ? point : position(p.out, point)), v, p.half);
}

// Clears `finite` if a value is not.
__device__ __forceinline__ void check_finite(bool &finite, float2 v) {
    finite = finite && v.x - v.x == 0.0f && v.y - v.y == 0.0f;
}

// Place in shared memory of a point of a line.
template <typename Shape> __device__ __forceinline__ int place(const FftBlock<Shape> &block, int line, int point) {
    return line * block.p.line_pitch + place_of_point(block.shape, point);
}

// Result q of a line, in shared memory.
template <typename Shape> __device__ __forceinline__ float2 result_at(const FftBlock<Shape> &block, int line, int q) {
    return block.values[line * block.p.line_pitch + place_of_results(block.shape, block.shape.stages(), q)];
}

// Values of complex or real lines to shared memory. Returns true if this thread read a real value that is not finite.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ bool stage_values(const FftBlock<Shape> &block, int pass) {
    const FftPlan &p = block.p;
    const Shape &shape = block.shape;
    const int size = shape.size();
    const auto where = [&](int item, int &line, int &point) {
        block.split(p.in.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
    };
    if (PLAIN && p.in.access == kFftComplex && !p.half) {
        const int total = p.lines * size;
#pragma unroll 2
        for (int item = threadIdx.x; item < total; item += p.threads) {
            int line, point;
            where(item, line, point);
            const int64_t from = block.in_offsets[line];
            const bool exists = from != kNoLine;
            const float2 *const value = static_cast<const float2 *>(block.a.in) + (exists ? from + point : 0);
            copy_async<8>(&block.values[place(block, line, point)], value, exists);
        }
        commit_copies();
        wait_copies<0>();
        return false;
    }
    bool finite = true;
    each_held<kHeldLoads<PLAIN>, uint2>(
        block, p.lines * size,
        [&](int item) {
            int line, point;
            where(item, line, point);
            if (p.in.access == kFftComplex) return fetch_pair<PLAIN>(block, line, point);
            if (p.in.access == kFftNeighbours) {
                return uint2{fetch_real<PLAIN>(block, line, 2 * point), fetch_real<PLAIN>(block, line, 2 * point + 1)};
            }
            return uint2{fetch_real<PLAIN>(block, 2 * line + (pass == 2), point),
                         pass == 0 ? fetch_real<PLAIN>(block, 2 * line + 1, point) : 0};
        },
        [&](int item, uint2 held) {
            int line, point;
            where(item, line, point);
            float2 v;
            if (p.in.access == kFftComplex) {
                v = to_float(held, p.half); // the first stage conjugates
            } else {
                v = {to_float(held.x, p.half), to_float(held.y, p.half)};
                check_finite(finite, v);
            }
            block.values[place(block, line, point)] = v;
        });
    return !finite;
}

// Results in shared memory to complex or real lines.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ void store_values(const FftBlock<Shape> &block, int pass) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    const Shape &shape = block.shape;
    const int size = shape.size(), total = p.lines * size;
#pragma unroll(PLAIN ? 2 : 1)
    for (int item = threadIdx.x; item < total; item += p.threads) {
        int line, point;
        block.split(p.out.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
        const float2 v = result_at(block, line, point);
        if (p.out.access == kFftComplex) {
            const float2 r = block.result(v);
            put_value<PLAIN>(block, line, point,
                             p.twiddle_points == 0 ? r : product(r, factor(block, block.line0 + line, point)));
        } else if (p.out.access == kFftNeighbours) {
            put_value<PLAIN>(block, line, 2 * point, v.x * a.scale);
            put_value<PLAIN>(block, line, 2 * point + 1, v.y * a.scale);
        } else {
            put_value<PLAIN>(block, 2 * line + (pass == 2), point, v.x * a.scale);
            if (pass == 0) put_value<PLAIN>(block, 2 * line + 1, point, v.y * a.scale);
        }
    }
}

} // namespace turbofno
