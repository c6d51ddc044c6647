// Discrete Fourier transforms of many lines, each a product of small radices.
//
// A thread holds one butterfly: the R values of a digit of radix R (csrc/plan/fft_plan.h), all other digits fixed. Stage i
// multiplies them by twiddles and transforms them in registers. Between stages they are exchanged through shared memory,
// each butterfly at its own places, so one barrier an exchange is enough and no second buffer is needed. Only in the last
// stage digits become frequencies in their order: digit i of the result is k[i], and result k[0] + k[1] radix[0] + .. goes
// where it belongs.
//
// First and last stage read and write global memory directly where a warp then covers whole sectors: neighbouring threads
// have neighbouring points, or neighbouring lines where these are nearer in memory. The two sides may differ. All else
// passes through shared memory once more, in the order of the array (fft_staging.cuh): short lines, and real transforms,
// whose values k and -k are combined there (fft_half_spectrum.cuh).
//
// The inverse is the conjugate of the transform of the conjugate.
//
// `FixedRadices` kernels know their radices, so that indices and distances are constants; those of `FixedColumns` also know that
// lines are next to each other. `AnyRadices` has every radix. Kernels of a `ConvolvedSize` are for a prime above these: between
// the same ways in and out it is a convolution (fft_rader.cuh).
#include "fft_butterfly.cuh"
#include "fft_half_spectrum.cuh"
#include "fft_rader.cuh"
#include "fft_staging.cuh"
#include "fft_whole_lines.cuh"
#include "pdl.cuh"

namespace turbofno {
namespace {

// The input's lines to shared memory. Returns true if this thread read a value of a pair that is not finite.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ bool stage_lines_of(const FftBlock<Shape> &block, int pass) {
    const FftSide &in = block.p.in;
    if (in.access == kFftHalf || in.access == kFftTwoHalves) return stage_half_spectra<PLAIN>(block, pass);
    return stage_values<PLAIN>(block, pass);
}

template <typename Shape> __device__ __forceinline__ bool stage_lines(const FftBlock<Shape> &block, int pass) {
    const FftPlan &p = block.p;
    if constexpr (Shape::kConvolved) {
        bool bad = false;
        if (read_whole_lines(block, pass, bad)) return bad;
    }
    if constexpr (Shape::kFixed) {
        if (p.regular && p.in.access == kFftHalf && p.in.plain) {
            if (p.half) {
                stage_regular_half_spectra<unsigned>(block);
            } else {
                stage_regular_half_spectra<uint2>(block);
            }
            return false;
        }
    } else if (p.in.plain) {
        return stage_lines_of<true>(block, pass);
    }
    return stage_lines_of<false>(block, pass);
}

// The results in shared memory to the lines of the output.
template <bool PLAIN, typename Shape>
__device__ __forceinline__ void store_lines_of(const FftBlock<Shape> &block, int pass) {
    const FftSide &out = block.p.out;
    if (out.access == kFftHalf || out.access == kFftTwoHalves) {
        store_half_spectra<PLAIN>(block, pass);
    } else {
        store_values<PLAIN>(block, pass);
    }
}

template <typename Shape> __device__ __forceinline__ void store_lines(const FftBlock<Shape> &block, int pass) {
    const FftPlan &p = block.p;
    if constexpr (Shape::kConvolved) {
        if (write_whole_lines(block, pass)) return;
    }
    if constexpr (Shape::kFixed) {
        if (p.regular && p.out.access == kFftHalf && p.out.plain) {
            if (p.half) {
                store_regular_half_spectra<__half2>(block);
            } else {
                store_regular_half_spectra<float2>(block);
            }
            return;
        }
    } else if (p.out.plain) {
        store_lines_of<true>(block, pass);
        return;
    }
    store_lines_of<false>(block, pass);
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) transform_lines(const __grid_constant__ FftArguments a) {
    extern __shared__ uint4 shared[];
    const FftPlan &p = a.plan;
    const FftBlock<Shape> block(a, reinterpret_cast<int64_t *>(shared + 1));
    int *const spoilt = reinterpret_cast<int *>(shared);
    if (!block.direct(p.in) || !block.direct(p.out)) {
        note_offsets(block);
        if (threadIdx.x == 0) *spoilt = 0;
        __syncthreads();
    }
    pdl_wait();
    // If a line of a pair has a value that is not finite, a block transforms both lines alone.
    for (int pass = 0;;) {
        if (!block.direct(p.in)) {
            const bool bad = stage_lines(block, pass);
            if (!Shape::kFixed && p.paired && bad) *spoilt = 1;
            __syncthreads();
        }
        if (!Shape::kFixed && p.paired && pass == 0 && *spoilt != 0) {
            pass = 1;
            __syncthreads();
            continue;
        }
        run_stages(block);
        if (!block.direct(p.out)) {
            __syncthreads();
            store_lines(block, pass);
        }
        if (Shape::kFixed || pass != 1) break;
        pass = 2;
        __syncthreads();
    }
    pdl_trigger();
}

using Kernel = void (*)(FftArguments);

Kernel kernel_of_columns(int size) {
    switch (size) {
    case 256: return transform_lines<FixedColumns<16, 16>>;
    case 512: return transform_lines<FixedColumns<16, 8, 4>>;
    case 1024: return transform_lines<FixedColumns<16, 8, 8>>;
    case 2048: return transform_lines<FixedColumns<16, 16, 8>>;
    default: return transform_lines<FixedColumns<16, 16, 16>>;
    }
}

Kernel kernel_for(const FftPlan &p) {
    if (p.columns) return kernel_of_columns(p.size);
    switch (p.fixed || p.convolved ? p.size : 0) {
    case 32: return transform_lines<FixedRadices<8, 4>>;
    case 64: return transform_lines<FixedRadices<8, 8>>;
    case 128: return transform_lines<FixedRadices<16, 8>>;
    case 256: return transform_lines<FixedRadices<16, 16>>;
    case 512: return transform_lines<FixedRadices<16, 8, 4>>;
    case 1024: return transform_lines<FixedRadices<16, 8, 8>>;
    case 2048: return transform_lines<FixedRadices<16, 16, 8>>;
    case 4096: return transform_lines<FixedRadices<16, 16, 16>>;
    case 8192: return transform_lines<FixedRadices<16, 8, 8, 8>>;
    case 211: return transform_lines<ConvolvedSize<14, 15, 4>>;
    case 421: return transform_lines<ConvolvedSize<20, 21, 2>>;
    default: return transform_lines<AnyRadices<kMaxRadix, kAnyFftThreads, 5>>;
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_mixed_radix_fft(const turbofno_fft *fft, CUstream_st *stream) {
    using namespace turbofno;
    FftArguments a{};
    if (prepare(*fft, a.plan) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (fft->input == nullptr || fft->out == nullptr || fft->table == nullptr) return TURBOFNO_NULL_POINTER;
    a.in = fft->input;
    a.out = fft->out;
    a.table = static_cast<const float2 *>(fft->table);
    a.table_step = fft->points / a.plan.size;
    a.in_sign = fft->inverse && fft->kind != TURBOFNO_REAL_TO_COMPLEX ? -1.0f : 1.0f;
    a.out_sign = fft->inverse && fft->kind != TURBOFNO_COMPLEX_TO_REAL ? -1.0f : 1.0f;
    a.scale = fft->scale;
    const Kernel kernel = kernel_for(a.plan);
    allow_shared_memory(kernel, fft->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks)), a.plan.threads, size_t(a.plan.shared_bytes), stream, a);
}
