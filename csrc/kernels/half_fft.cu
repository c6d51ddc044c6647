// Discrete Fourier transforms of float16 lines of 128 to 16384 points, powers of two, on tensor cores.
//
// A line of 256 r points has r tiles (half_fft_tile.cuh), whose results at the same frequency are r values of a butterfly. Rows
// have points next to each other (half_fft_rows.cuh), columns lines (half_fft_columns.cuh).
#include "half_fft_columns.cuh"

namespace turbofno {
namespace {

using Kernel = void (*)(HalfFftArguments);

template <int POINTS> Kernel short_lines(const HalfFftPlan &p, bool twiddled) {
    if (p.arranged == kRows) return transform_rows_of_warps<POINTS>;
    if (p.arranged == kRowsToColumns) return transform_columns<POINTS, true, false>;
    return twiddled ? Kernel(transform_columns<POINTS, false, true>) : Kernel(transform_columns<POINTS, false, false>);
}

Kernel kernel_for(const HalfFftPlan &p, int points, bool twiddled) {
    switch (points) {
    case 128: return short_lines<128>(p, twiddled);
    case 256: return short_lines<256>(p, twiddled);
    case 512: return short_lines<512>(p, twiddled);
    case 1024: return transform_rows_of_warps<1024>;
    case 2048: return transform_rows_of_warps<2048>;
    case 4096: return p.groups == 2 ? Kernel(transform_rows_of_groups<4096, 2>) : Kernel(transform_rows_of_groups<4096, 1>);
    case 8192: return p.groups == 2 ? Kernel(transform_rows_of_groups<8192, 2>) : Kernel(transform_rows_of_groups<8192, 1>);
    default: return transform_rows_of_groups<16384, 1>;
    }
}

bool on_word(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_half_fft(const turbofno_fft *fft, CUstream_st *stream) {
    using namespace turbofno;
    HalfFftPlan p;
    if (prepare(*fft, p) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (fft->input == nullptr || fft->out == nullptr || fft->table == nullptr) return TURBOFNO_NULL_POINTER;
    if (!on_word(fft->input) || !on_word(fft->out) || !on_word(fft->table)) return TURBOFNO_UNSUPPORTED;
    HalfFftArguments a{};
    a.in = static_cast<const uint32_t *>(fft->input);
    a.out = static_cast<uint32_t *>(fft->out);
    a.table = static_cast<const uint4 *>(fft->table);
    a.lines = p.lines;
    a.in_outer = fft->in_outer, a.in_inner = fft->in_inner, a.in_point = fft->in_point;
    a.out_outer = fft->out_outer, a.out_inner = fft->out_inner, a.out_point = fft->out_point;
    a.by_inner = p.by_inner;
    for (int n = 0; n < 3; ++n) a.shares[n] = p.shares[n];
    const bool twiddled = fft->twiddle_points != 0;
    a.turns = twiddled ? 1.0f / float(fft->twiddle_points) : 0.0f;
    a.inverse = fft->inverse != 0;
    const Kernel kernel = kernel_for(p, fft->points, twiddled);
    allow_shared_memory(kernel, fft->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(p.blocks)), p.threads, size_t(p.shared_bytes), stream, a);
}
