// A block's planes in shared memory: where their values are, the ways in and out, and the two rows of a real pair.
#pragma once

#include <type_traits>

#include "../plan/plane_fft_plan.h"
#include "async_copy.cuh"
#include "complex.cuh"
#include "fft_shape.cuh"

namespace turbofno {

struct PlaneArguments {
    PlanePlan plan;
    const void *in;
    void *out;
    const float2 *height_table, *width_table;
    float scale;
    int kind;
    bool inverse;
};

// Rows are next to each other in shared memory, without the padding of a first digit.
template <typename Shape> struct Unpadded : Shape {
    __device__ explicit Unpadded(const FftDigits &digits) : Shape(digits) {}
    template <typename Stage> __device__ int pitch(Stage stage) const { return Shape::after(stage); }
};

// Index of a stored value on its axis.
__device__ __forceinline__ int point_of(const PlaneSpan &span, int stored) {
    return stored < span.head ? stored : stored + span.gap;
}

// Places in shared memory of a plane's rows and columns, of one side; the sum of both is the place of a value. A column has one for
// each part of a complex row. Of real planes a row has twice its place, plus 1 if it is an imaginary part.
struct PlanePlaces {
    int *rows, *columns;
};

// How a side's values are in memory.
enum PlaneValues { kComplexValues, kRealValues, kHalfSpectrum };

template <typename Height, typename Width, bool REAL> struct PlaneBlock {
    const PlaneArguments &a;
    const PlanePlan &p;
    const Unpadded<Height> height;
    const Width width;
    float2 *const values;
    const PlanePlaces in, out;

    __device__ PlaneBlock(const PlaneArguments &arguments, float2 *shared)
        : a(arguments), p(a.plan), height(p.height), width(p.width), values(shared), in(places(0)), out(places(1)) {}

    __device__ PlanePlaces places(int side) const {
        int *at = reinterpret_cast<int *>(values + p.together * p.rows * p.pitch);
        if (side == 1) at += p.in.height.stored + 2 * p.in.width.stored;
        return {at, at + (side == 0 ? p.in : p.out).height.stored};
    }
    __device__ bool is_half(int side) const {
        return REAL && a.kind == (side == 0 ? TURBOFNO_COMPLEX_TO_REAL : TURBOFNO_REAL_TO_COMPLEX);
    }

    __device__ __forceinline__ int pitch() const {
        if constexpr (Width::kFixed) {
            return plane_pitch(Width::pitch(0) * Width::radix(0), Width::size(), REAL);
        } else {
            return p.pitch;
        }
    }
    __device__ __forceinline__ int rows() const {
        if constexpr (Height::kFixed) {
            return REAL ? (Height::size() + 1) / 2 : Height::size();
        } else {
            return p.rows;
        }
    }

    // Of a point, or of result q, along an axis. The inverse is the transform in the reverse order.
    template <typename Shape> __device__ int place(const Shape &shape, int side, bool reversed, int q) const {
        if (side == 0) return place_of_point(shape, q);
        return place_of_results(shape, shape.stages(), reversed && q > 0 ? shape.size() - q : q);
    }

    __device__ void note_places(int side) const {
        const PlaneSide &s = side == 0 ? p.in : p.out;
        const PlanePlaces to = side == 0 ? in : out;
        const int behind = rows() * pitch();
        const bool half = is_half(side);
#pragma unroll 1
        for (int i = threadIdx.x; i < s.height.stored; i += p.threads) {
            const int row = place(height, side, a.inverse, point_of(s.height, i));
            const bool lower = REAL && row >= rows();
            to.rows[i] = REAL ? 2 * (row - (lower && !half ? rows() : 0)) * pitch() + lower : row * pitch();
        }
        const bool reversed = a.inverse && a.kind != TURBOFNO_REAL_TO_COMPLEX;
#pragma unroll 1
        for (int i = threadIdx.x; i < s.width.stored; i += p.threads) {
            const int k = point_of(s.width, i), at = place(width, side, reversed, k);
            to.columns[2 * i] = at;
            to.columns[2 * i + 1] = half ? partner(side, k) - behind : at;
        }
    }

    // Where value k of the lower of two real rows is.
    __device__ int partner(int side, int k) const {
        const int size = width.size(), behind = width.pitch(0) * width.radix(0);
        if (k == 0) return behind;
        if (2 * k == size) return behind + 1;
        return place(width, side, false, size - k);
    }

    // Clears rows of which not all values are given.
    __device__ void clear() const {
        const int count = (rows() - p.cleared) * pitch();
        for (int plane = 0; plane < p.together; ++plane) {
            float2 *const from = values + (plane * rows() + p.cleared) * pitch();
            for (int i = threadIdx.x; i < count; i += p.threads) from[i] = float2{};
        }
    }

    // Calls f(index, place) for this thread's share of the values of so many planes, which are next to each other in an array. A thread
    // keeps its column: several rows of few values are as many neighbours as there are threads.
    template <PlaneValues KIND, typename F>
    __device__ __forceinline__ void each(const PlaneSide &side, const PlanePlaces &at, int planes, const F &f) const {
        const int rows_at_once = max(1, p.threads / side.width.stored), stored = side.width.stored;
        const int first_row = int(side.by_width(threadIdx.x));
        if (first_row >= rows_at_once) return;
        const int step = rows_at_once * stored;
        for (int column = int(threadIdx.x) - first_row * stored; column < stored; column += p.threads) {
            const int upper = at.columns[2 * column], lower = at.columns[2 * column + 1];
            for (int plane = 0; plane < planes; ++plane) {
                const int begin = plane * rows() * pitch();
                int index = (plane * side.height.stored + first_row) * stored + column;
#pragma unroll 4
                for (int row = first_row; row < side.height.stored; row += rows_at_once, index += step) {
                    const int found = at.rows[row];
                    if constexpr (KIND == kComplexValues) {
                        f(index, begin + upper + found);
                    } else if constexpr (KIND == kRealValues) {
                        f(index, 2 * (begin + upper) + found);
                    } else {
                        f(index, begin + (found & 1 ? lower : upper) + (found >> 1));
                    }
                }
            }
        }
    }

    template <PlaneValues KIND> __device__ __forceinline__ void read_values(int64_t first, int planes) const {
        using Value = std::conditional_t<KIND == kRealValues, float, float2>;
        const Value *const from = static_cast<const Value *>(a.in) + first * p.in.height.stored * p.in.width.stored;
        Value *const to = reinterpret_cast<Value *>(values);
        each<KIND>(p.in, in, planes, [&](int index, int place) { copy_async<sizeof(Value)>(to + place, from + index, true); });
        commit_copies();
        wait_copies<0>();
    }

    template <PlaneValues KIND> __device__ __forceinline__ void write_values(int64_t first, int planes) const {
        using Value = std::conditional_t<KIND == kRealValues, float, float2>;
        Value *const to = static_cast<Value *>(a.out) + first * p.out.height.stored * p.out.width.stored;
        const Value *const from = reinterpret_cast<const Value *>(values);
        each<KIND>(p.out, out, planes, [&](int index, int place) { to[index] = scaled(from[place]); });
    }

    __device__ __forceinline__ float scaled(float v) const { return v * a.scale; }
    __device__ __forceinline__ float2 scaled(float2 v) const { return {v.x * a.scale, v.y * a.scale}; }
};

} // namespace turbofno
