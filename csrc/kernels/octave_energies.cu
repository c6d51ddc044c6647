// The energy of real fields by octave of wavenumber, from the half of their spectra that a real transform gives.
//
// A coefficient is of octave o if the largest |k_i| of its axes is in [2^o, 2^(o + 1)). It stands for its conjugate, too, but
// for those with k = 0 or k = points / 2 on the last axis.
#include "launch.h"
#include "pdl.cuh"

namespace turbofno {
namespace {

constexpr int kThreads = 256, kMaxOctaves = 24;
constexpr int kAtOnce = 4; // loads of a thread in flight

// A block takes a part of a field's places. A thread takes one place in so many, and one coefficient of the last axis in so
// many: the octave of the last axis is known before the loop. Its sums are its own column in shared memory.
__global__ void __launch_bounds__(kThreads) octave_energies(const turbofno_octaves a) {
    extern __shared__ float sums[]; // [octaves][kThreads]
    __shared__ float of_octaves[kMaxOctaves];
    const int thread = int(threadIdx.x), lane = thread % 32;
    for (int o = 0; o < a.octaves; ++o) sums[o * kThreads + thread] = 0.0f;
    pdl_wait();
    const int64_t field = blockIdx.x / a.parts, part = blockIdx.x % a.parts;
    const int begin = int(a.places * part / a.parts), end = int(a.places * (part + 1) / a.parts);
    const float2 *const spectrum = static_cast<const float2 *>(a.spectrum) + field * a.places * a.kept;
    const int at_once = max(1, kThreads / a.kept); // places
    const int first = begin + (at_once > 1 ? thread / a.kept : 0);
    for (int k = at_once > 1 ? thread % a.kept : thread; k < a.kept; k += kThreads) {
        if (first >= begin + at_once) break; // a thread more than there are coefficients
        const int octave_of_k = 31 - __clz(k); // -1 for k = 0
        const float weight = k == 0 || 2 * k == a.points ? 1.0f : 2.0f;
        for (int place = first; place < end; place += kAtOnce * at_once) {
            float2 value[kAtOnce];
            int octave[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int p = place + i * at_once;
                octave[i] = p < end ? max(octave_of_k, a.place_octaves[p]) : -1;
                value[i] = p < end ? spectrum[int64_t(p) * a.kept + k] : make_float2(0.0f, 0.0f);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const float re = a.scale * value[i].x, im = a.scale * value[i].y;
                if (octave[i] >= 0) sums[octave[i] * kThreads + thread] += weight * (re * re + im * im);
            }
        }
    }
    __syncthreads();
    for (int o = thread / 32; o < a.octaves; o += kThreads / 32) {
        float sum = 0.0f;
        for (int i = lane; i < kThreads; i += 32) sum += sums[o * kThreads + i];
#pragma unroll
        for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
        if (lane == 0) of_octaves[o] = sum;
    }
    __syncthreads();
    float *const out = a.out + int64_t(blockIdx.x) * (1 + a.octaves);
    if (thread < a.octaves) out[1 + thread] = of_octaves[thread];
    if (thread == 0) {
        float all = 0.0f;
        for (int o = 0; o < a.octaves; ++o) all += of_octaves[o];
        out[0] = all;
    }
    pdl_trigger();
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_octave_energies(const turbofno_octaves *a, CUstream_st *stream) {
    using namespace turbofno;
    if (a->octaves < 0 || a->octaves > kMaxOctaves || a->kept < 1 || a->places < 1) return TURBOFNO_UNSUPPORTED;
    if (a->parts < 1 || a->fields < 1 || a->fields * a->parts > 0x7fffffff) return TURBOFNO_UNSUPPORTED;
    if (a->spectrum == nullptr || a->place_octaves == nullptr || a->out == nullptr) return TURBOFNO_NULL_POINTER;
    const size_t shared_bytes = size_t(a->octaves) * kThreads * sizeof(float);
    return launch_pdl(octave_energies, dim3(unsigned(a->fields * a->parts)), kThreads, shared_bytes, stream, *a);
}
