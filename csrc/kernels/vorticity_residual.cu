// The residual of the vorticity equation on the unit torus between two times, from the low Fourier modes of the vorticity.
//
// A warp has one of a field's two times, on a grid of 32 x 32 points in shared memory; a lane transforms a row or a column in
// registers. A velocity is one complex field v1 + i v2: its square, and its product with another one, hold both products of the
// advection, (v1 u1 - v2 u2) + i (v1 u2 + v2 u1).
#include "complex.cuh"
#include "launch.h"
#include "pdl.cuh"
#include "radix.cuh"

namespace turbofno {
namespace {

constexpr int kSide = 32, kPitch = 33; // of a plane: lanes on neighbouring rows read different banks
constexpr int kMost = TURBOFNO_FLOW_MODES, kRows = 2 * kMost + 1, kColumns = kMost + 1, kModes = kRows * kColumns;
constexpr int kThreads = 64; // two warps
constexpr float kPi = 3.14159265358979f, kTwoPi = 2.0f * kPi;

struct Wave {
    int a, b; // wavenumbers of both axes

    // Of mode `index`, in the order of rfft2.
    __device__ explicit Wave(int index) : a(index / kColumns), b(index % kColumns) {
        if (a > kMost) a -= kRows;
    }
    __device__ int squared() const { return a * a + b * b; }
};

struct Time {
    float2 *velocity, *plane; // [kSide][kPitch]
    float2 *tendency, *rate; // [kModes]
};

__device__ int place(int a, int b) { return (a & (kSide - 1)) * kPitch + (b & (kSide - 1)); }

// Transforms a plane in place, unscaled.
__device__ __noinline__ void transform(float2 *plane, bool inverse, int lane) {
    for (int axis = 0; axis < 2; ++axis) {
        const int step = axis == 0 ? 1 : kPitch;
        float2 *const line = plane + lane * (axis == 0 ? kPitch : 1);
        float2 x[kSide];
#pragma unroll
        for (int i = 0; i < kSide; ++i) {
            const float2 v = line[i * step];
            x[i] = inverse ? make_float2(v.y, v.x) : v;
        }
        dft(x, [&](auto k, float2 v) { line[k * step] = inverse ? make_float2(v.y, v.x) : v; });
        __syncwarp();
    }
}

// The velocity v1 + i v2 on the grid of a flow whose vorticity has these modes.
__device__ void velocity_of(const float2 *vorticity, float2 *plane, int lane) {
    for (int i = lane; i < kSide * kPitch; i += 32) plane[i] = {};
    __syncwarp();
    for (int i = lane; i < kModes; i += 32) {
        const Wave k(i);
        if (k.squared() == 0) continue;
        const float2 w = vorticity[i], factor = {float(k.a) / (kTwoPi * float(k.squared())), float(k.b) / (kTwoPi * float(k.squared()))};
        plane[place(k.a, k.b)] = product(factor, w);
        if (k.b > 0) plane[place(-k.a, -k.b)] = product({-factor.x, -factor.y}, conjugate(w));
    }
    __syncwarp();
    transform(plane, true, lane);
}

// Twice the advection -v . grad of the other's vorticity, symmetric, from the product of two velocities in `plane`.
template <typename F> __device__ void advection(float2 *plane, int lane, const F &store) {
    transform(plane, false, lane);
    constexpr float kScale = 1.0f / (kSide * kSide);
    for (int i = lane; i < kModes; i += 32) {
        const Wave k(i);
        const float2 p = plane[place(k.a, k.b)], q = conjugate(plane[place(-k.a, -k.b)]);
        // spectra of the product's imaginary part, and of minus its real part
        const float2 imaginary = {0.5f * (p.y - q.y), 0.5f * (q.x - p.x)}, real = {-0.5f * (p.x + q.x), -0.5f * (p.y + q.y)};
        const float cross = kScale * 2 * kPi * kPi * float(k.a * k.a - k.b * k.b), other = kScale * 4 * kPi * kPi * float(k.a * k.b);
        store(i, float2{cross * imaginary.x + other * real.x, cross * imaginary.y + other * real.y});
    }
    __syncwarp();
}

__device__ float sum_over_lanes(float value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}

__global__ void __launch_bounds__(kThreads) vorticity_residual(const turbofno_flow f) {
    extern __shared__ float2 shared[];
    __shared__ float sums[2][2];
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    constexpr int kPlane = kSide * kPitch, kOfTime = 2 * (kPlane + kModes);
    const auto time_at = [&](int t) {
        float2 *const begin = shared + t * kOfTime;
        return Time{begin, begin + kPlane, begin + 2 * kPlane, begin + 2 * kPlane + kModes};
    };
    pdl_wait();
    const int64_t field = blockIdx.x;
    const float2 *const before = reinterpret_cast<const float2 *>(f.before) + field * kModes;
    const float2 *const after = reinterpret_cast<const float2 *>(f.after) + field * kModes;
    const float2 *const forcing = reinterpret_cast<const float2 *>(f.forcing);
    const float2 *const vorticity = warp == 0 ? before : after;
    const Time t = time_at(warp);
    const auto damped = [&](int i, float2 rate, float2 w) {
        const float damping = kTwoPi * kTwoPi * f.viscosity * float(Wave(i).squared());
        return float2{fmaf(-damping, w.x, rate.x), fmaf(-damping, w.y, rate.y)};
    };

    velocity_of(vorticity, t.velocity, lane);
    for (int i = lane; i < kPlane; i += 32) t.plane[i] = product(t.velocity[i], t.velocity[i]);
    __syncwarp();
    advection(t.plane, lane, [&](int i, float2 v) { t.tendency[i] = damped(i, v + forcing[i], vorticity[i]); });
    // advection is bilinear and symmetric, so its derivative along the tendency is twice that of both
    velocity_of(t.tendency, t.plane, lane);
    for (int i = lane; i < kPlane; i += 32) t.plane[i] = product(t.velocity[i], t.plane[i]);
    __syncwarp();
    advection(t.plane, lane, [&](int i, float2 v) { t.rate[i] = damped(i, v + v, t.tendency[i]); });
    __syncthreads();

    const Time first = time_at(0), last = time_at(1);
    const float half = f.time / 2, twelfth = f.time * f.time / 12;
    float missed = 0.0f, whole = 0.0f;
    for (int i = int(threadIdx.x); i < kModes; i += kThreads) {
        const float2 w = after[i], tendency = first.tendency[i] + last.tendency[i], rate = first.rate[i] - last.rate[i];
        const float re = w.x - before[i].x - half * tendency.x - twelfth * rate.x;
        const float im = w.y - before[i].y - half * tendency.y - twelfth * rate.y;
        const float weight = i % kColumns == 0 ? 1.0f : 2.0f; // of a mode and its conjugate
        missed += weight * (re * re + im * im);
        whole += weight * (w.x * w.x + w.y * w.y);
    }
    missed = sum_over_lanes(missed);
    whole = sum_over_lanes(whole);
    if (lane == 0) {
        sums[warp][0] = missed;
        sums[warp][1] = whole;
    }
    __syncthreads();
    if (threadIdx.x == 0) f.out[field] = sqrtf(sums[0][0] + sums[1][0]) / fmaxf(sqrtf(sums[0][1] + sums[1][1]), 1.17549435e-38f);
    pdl_trigger();
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_vorticity_residual(const turbofno_flow *f, CUstream_st *stream) {
    using namespace turbofno;
    if (f->fields < 1 || f->fields > 0x7fffffff) return TURBOFNO_UNSUPPORTED;
    if (f->before == nullptr || f->after == nullptr || f->forcing == nullptr || f->out == nullptr) return TURBOFNO_NULL_POINTER;
    constexpr size_t kBytes = 2 * 2 * (kSide * kPitch + kModes) * sizeof(float2);
    static_assert(kBytes <= 48 * 1024);
    return launch_pdl(vorticity_residual, dim3(unsigned(f->fields)), kThreads, kBytes, stream, *f);
}
