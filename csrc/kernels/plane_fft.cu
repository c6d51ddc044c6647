// Discrete Fourier transforms of planes along both axes, each plane in shared memory from its one read to its one write.
//
// A thread holds one butterfly, as in mixed_radix_fft. Both axes are transformed in place, with neighbouring threads on
// neighbouring lines: these are at odd distances or next to each other, and twiddles are the same for most of a warp. Digits
// become frequencies in their order only when values are written. Rows r and H + r of a real plane are one complex row.
#include "fft_twiddle.cuh"
#include "pdl.cuh"
#include "plane_fft_block.cuh"
#include "radix.cuh"

namespace turbofno {
namespace {

struct Row {
    float2 *first;

    __device__ __forceinline__ float2 &operator[](int place) const { return first[place]; }
};

template <typename Block, bool REAL> struct Column {
    const Block &block;
    float2 *upper, *lower;

    __device__ __forceinline__ float2 &operator[](int row) const {
        return (!REAL || row < block.rows() ? upper : lower)[row * block.pitch()];
    }
};

// Butterfly `index` of a line.
template <int R, typename Shape, typename Stage, typename Line>
__device__ __forceinline__ void butterfly(const Shape &shape, Stage stage, const float2 *table, int index, const Line &line) {
    const int after = shape.after(stage), pitch = shape.pitch(stage);
    int place = index, before = 0; // digits before this one, as a result's index
    if (stage > 0) {
        before = shape.over_after(stage, index);
        place = index - before * after + place_of_results(shape, stage, before);
    }
    float2 x[R];
#pragma unroll
    for (int r = 0; r < R; ++r) x[r] = line[place + r * pitch];
    if constexpr (R > 1) {
        if (stage > 0) twiddle(table, x, before * after);
    }
    dft(x, [&](auto k, float2 v) { line[place + k * pitch] = v; });
}

template <int R, typename Shape, typename Stage, typename LineOf>
__device__ __forceinline__ void run_stage(const Shape &shape, Stage stage, const float2 *table, int threads,
                                          const Quotient &by_lines, const LineOf &line_of) {
    const int lines = int(by_lines.by), total = lines * (shape.size() / R);
#pragma unroll 1
    for (int item = threadIdx.x; item < total; item += threads) {
        const int index = int(by_lines(unsigned(item)));
        butterfly<R>(shape, stage, table, index, line_of(item - index * lines));
    }
}

// Transforms lines in place, with a barrier before each stage.
template <typename Shape, typename LineOf>
__device__ __forceinline__ void transform(const Shape &shape, const float2 *table, int threads, const Quotient &by_lines,
                                          const LineOf &line_of) {
    if constexpr (Shape::kFixed) {
        unrolled<0, Shape::kStages>([&](auto stage) {
            __syncthreads();
            run_stage<Shape::radix(stage.value)>(shape, stage, table, threads, by_lines, line_of);
        });
    } else {
        for (int stage = 0; stage < shape.stages(); ++stage) {
            __syncthreads();
            const int radix = shape.radix(stage);
            unrolled<2, Shape::kMaxRadix + 1>([&](auto r) {
                if constexpr (r != 14) {
                    if (radix == r) run_stage<r>(shape, stage, table, threads, by_lines, line_of);
                }
            });
        }
    }
}

// Calls f(k, value k of the upper row, that of the lower row or width - k) for the values of half spectra in a block.
template <typename Block, typename F>
__device__ __forceinline__ void each_pair(const Block &block, const PlaneSpan &span, const PlanePlaces &places, const F &f) {
    const int rows = int(block.p.by_rows.by), total = rows * span.stored;
    for (int item = threadIdx.x; item < total; item += block.p.threads) {
        const int column = int(block.p.by_rows(unsigned(item)));
        float2 *const row = block.values + (item - column * rows) * block.pitch();
        f(point_of(span, column), row[places.columns[2 * column]],
          row[places.columns[2 * column + 1] + block.rows() * block.pitch()]);
    }
}

// Half spectra of two real rows from the transform of one complex row.
template <typename Block> __device__ __forceinline__ void separate_rows(const Block &block) {
    const float sign = block.a.inverse ? -0.5f : 0.5f;
    each_pair(block, block.p.out.width, block.out, [&](int k, float2 &upper, float2 &lower) {
        const bool alone = k == 0 || 2 * k == block.width.size();
        const float2 v = upper, u = alone ? v : lower;
        upper = {0.5f * (v.x + u.x), sign * (v.y - u.y)};
        lower = {0.5f * (v.y + u.y), sign * (u.x - v.x)};
    });
}

// The transform of one complex row from half spectra of two real rows.
template <typename Block> __device__ __forceinline__ void combine_rows(const Block &block) {
    each_pair(block, block.p.in.width, block.in, [&](int k, float2 &upper, float2 &lower) {
        const float2 v = upper, u = lower;
        if (k == 0 || 2 * k == block.width.size()) {
            upper = {v.x, u.x};
        } else {
            upper = {v.x - u.y, v.y + u.x};
            lower = {v.x + u.y, u.x - v.y};
        }
    });
}

template <typename Block> __device__ __forceinline__ void transform_rows(const Block &block) {
    transform(block.width, block.a.width_table, block.p.threads, block.p.by_rows,
              [&](int line) { return Row{block.values + line * block.pitch()}; });
}

// Transforms the columns that are given or kept.
template <bool REAL, typename Block> __device__ __forceinline__ void transform_columns(const Block &block) {
    const PlanePlan &p = block.p;
    const int *const columns = (p.columns_first ? block.in : block.out).columns;
    transform(block.height, block.a.height_table, p.threads, p.by_columns, [&](int line) {
        const int plane = int(p.by_plane_columns(unsigned(line))), column = line - plane * int(p.by_plane_columns.by);
        float2 *const first = block.values + plane * block.rows() * block.pitch();
        return Column<Block, REAL>{block, first + columns[2 * column], REAL ? first + columns[2 * column + 1] : nullptr};
    });
}

template <typename Height, typename Width, bool REAL>
__global__ void __launch_bounds__(kMaxPlaneThreads, kPlaneBlocks) transform_planes(const __grid_constant__ PlaneArguments a) {
    extern __shared__ uint4 shared[];
    const PlaneBlock<Height, Width, REAL> block(a, reinterpret_cast<float2 *>(shared));
    const PlanePlan &p = a.plan;
    block.note_places(0);
    block.note_places(1);
    pdl_wait();
    const int64_t first = int64_t(blockIdx.x) * p.together;
    const int planes = int(min(int64_t(p.together), p.planes - first));
    if (p.cleared < block.rows()) block.clear();
    __syncthreads();
    if (!REAL) {
        block.template read_values<kComplexValues>(first, planes);
    } else if (block.is_half(0)) {
        block.template read_values<kHalfSpectrum>(first, planes);
    } else {
        block.template read_values<kRealValues>(first, planes);
    }
    if (p.columns_first) {
        transform_columns<REAL>(block);
        if constexpr (REAL) {
            __syncthreads();
            combine_rows(block);
        }
        transform_rows(block);
    } else {
        transform_rows(block);
        if constexpr (REAL) {
            __syncthreads();
            separate_rows(block);
        }
        transform_columns<REAL>(block);
    }
    __syncthreads();
    if (!REAL) {
        block.template write_values<kComplexValues>(first, planes);
    } else if (block.is_half(1)) {
        block.template write_values<kHalfSpectrum>(first, planes);
    } else {
        block.template write_values<kRealValues>(first, planes);
    }
    pdl_trigger();
}

using PlaneKernel = void (*)(PlaneArguments);

template <typename Height, typename Width> PlaneKernel plane_kernel(const PlanePlan &p) {
    return p.real ? transform_planes<Height, Width, true> : transform_planes<Height, Width, false>;
}

PlaneKernel plane_kernel_for(const PlanePlan &p) {
    switch (p.height.size == p.width.size ? p.height.size : 0) {
    case 32: return plane_kernel<FixedRadices<8, 4>, FixedRadices<8, 4>>(p);
    case 48: return plane_kernel<FixedRadices<16, 3>, FixedRadices<16, 3>>(p);
    case 64: return plane_kernel<FixedRadices<8, 8>, FixedRadices<8, 8>>(p);
    case 85: return plane_kernel<FixedRadices<17, 5>, FixedRadices<17, 5>>(p);
    case 96: return plane_kernel<FixedRadices<8, 12>, FixedRadices<8, 12>>(p);
    case 100: return plane_kernel<FixedRadices<10, 10>, FixedRadices<10, 10>>(p);
    case 121: return plane_kernel<FixedRadices<11, 11>, FixedRadices<11, 11>>(p);
    case 128: return plane_kernel<FixedRadices<16, 8>, FixedRadices<16, 8>>(p);
    default: {
        using Any = AnyRadices<kMaxRadix, kMaxPlaneThreads, kPlaneBlocks>;
        return plane_kernel<Any, Any>(p);
    }
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_plane_fft(const turbofno_plane_transform *transform, CUstream_st *stream) {
    using namespace turbofno;
    PlaneArguments a{};
    if (prepare(*transform, a.plan) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (transform->input == nullptr || transform->out == nullptr || transform->height.table == nullptr ||
        transform->width.table == nullptr) {
        return TURBOFNO_NULL_POINTER;
    }
    a.in = transform->input;
    a.out = transform->out;
    a.height_table = static_cast<const float2 *>(transform->height.table);
    a.width_table = static_cast<const float2 *>(transform->width.table);
    a.scale = transform->scale;
    a.kind = transform->kind;
    a.inverse = transform->inverse != 0;
    const PlaneKernel kernel = plane_kernel_for(a.plan);
    allow_shared_memory(kernel, transform->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks)), a.plan.threads, size_t(a.plan.shared_bytes), stream, a);
}
