// Butterflies of a mixed-radix transform and its stages, with the exchange through shared memory between them.
#pragma once

#include "fft_load_store.cuh"
#include "radix.cuh"

namespace turbofno {

// One butterfly of a stage. `stage` is an int or, in a fixed kernel, a constant.
template <int R, typename Shape, typename Stage>
__device__ __forceinline__ void butterfly(const FftBlock<Shape> &block, Stage stage, bool direct_in, bool direct_out, int item) {
    const FftArguments &a = block.a;
    const FftPlan &p = block.p;
    const Shape &shape = block.shape;
    const bool last = stage == shape.stages() - 1;
    const int count = shape.size() / R;
    int line, index;
    block.split(direct_in ? p.in.lines_first : last && p.out.lines_first, item, count,
                [&](int n) { return shape.over_butterflies(stage, n); }, line, index);
    const int after = shape.after(stage);
    int place, before = 0; // digits before this one, as a result's index
    if (stage == 0) {
        place = index;
    } else if (last) {
        before = index;
        place = place_of_results(shape, stage, index);
    } else {
        before = shape.over_after(stage, index);
        place = index - before * after;
        if constexpr (Shape::kFixed) {
            static_assert(Shape::kStages == 2 || Shape::radix(0) == 16);
            before = apart(before, after);
        }
        place += place_of_results(shape, stage, before);
    }
    float2 *const here = block.values + line * p.line_pitch + place;
    const int pitch = shape.pitch(stage);
    float2 x[R];
    if (direct_in) {
        load(block, x, line, index, count);
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r) x[r] = here[r * pitch];
        if (stage == 0 && p.in.access == kFftComplex) {
#pragma unroll
            for (int r = 0; r < R; ++r) x[r].y *= a.in_sign;
        }
    }
    if constexpr (R > 1) {
        if (stage > 0) twiddle(a.table, x, before * after * a.table_step);
    }
    if constexpr (Shape::kFixed) {
        float2 y[R];
        dft(x, [&](auto k, float2 v) { y[k] = v; });
        if (direct_out) {
            if (line < block.lines) store(block, y, block.line0 + line, index, count);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) here[r * pitch] = y[r];
        }
    } else {
        const int64_t to = direct_out && line < block.lines ? block.offset(p.out, block.line0 + line) : 0;
        dft(x, [&](auto k, float2 v) {
            if (!direct_out) {
                here[k * pitch] = v;
            } else if (line < block.lines) {
                store_point(block, to, block.line0 + line, index + k * count, v);
            }
        });
    }
}

// All butterflies of a stage.
template <typename Shape, typename Stage> __device__ __forceinline__ void run_stage(const FftBlock<Shape> &block, Stage stage) {
    const FftPlan &p = block.p;
    const bool direct_in = stage == 0 && block.direct(p.in);
    const bool direct_out = stage == block.shape.stages() - 1 && block.direct(p.out);
    if constexpr (Shape::kFixed) {
        constexpr int R = Shape::radix(Stage::value), per = Shape::radix(0) / R;
        block.template each<per>(0, [&](int item) { butterfly<R>(block, stage, direct_in, direct_out, item); });
    } else {
        const int radix = block.shape.radix(stage);
        unrolled<1, Shape::kMaxRadix + 1>([&](auto r) {
            if constexpr (r != 14) {
                if (radix != r) return;
                block.template each<0>(block.shape.size() / r,
                                       [&](int item) { butterfly<r>(block, stage, direct_in, direct_out, item); });
            }
        });
    }
}

// All stages, with a barrier between two: each butterfly has its own places in shared memory.
template <typename Shape> __device__ __forceinline__ void run_stages(const FftBlock<Shape> &block) {
    if constexpr (Shape::kFixed) {
        unrolled<0, Shape::kStages>([&](auto stage) {
            if (stage > 0) __syncthreads();
            run_stage(block, stage);
        });
    } else {
        for (int stage = 0; stage < block.p.stages; ++stage) {
            if (stage > 0) __syncthreads();
            run_stage(block, stage);
        }
    }
}

} // namespace turbofno
