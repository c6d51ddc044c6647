// A small part of CUDA that runs on a CPU, for tests without a GPU: a kernel's own source is compiled by a C++ compiler, and
// a launch runs its blocks one after the other. Every thread of a block is a fiber, which runs until a barrier or a
// collective of its warp. All pointers are host pointers.
//
// It checks results and barriers, not speed. A thread runs as far as it can before the next one starts, in rising order in
// even blocks and in falling order in odd ones, so a missing barrier usually gives a wrong result. A barrier that not all of
// its threads reach, shared memory beyond what a launch asked for and an unknown instruction fail the launch.
//
// tests/turbofno_ops/cuda_on_cpu.py compiles kernels with it. It turns inline PTX into calls of execute(), and
// `extern __shared__` into a call of dynamic_shared().
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <type_traits>

#define CUDA_ON_CPU
#define __CUDACC__ // headers that are shared with host code ask for it
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static thread_local // one for the fibers of a block

#define CUDA_ON_CPU_VECTORS(type, name, align1, align2, align4)                                                               \
    struct alignas(align1) name##1 {                                                                                          \
        type x;                                                                                                               \
    };                                                                                                                        \
    struct alignas(align2) name##2 {                                                                                          \
        type x, y;                                                                                                            \
    };                                                                                                                        \
    struct name##3 {                                                                                                          \
        type x, y, z;                                                                                                         \
    };                                                                                                                        \
    struct alignas(align4) name##4 {                                                                                          \
        type x, y, z, w;                                                                                                      \
    };                                                                                                                        \
    inline name##1 make_##name##1(type x) { return {x}; }                                                                     \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                          \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                               \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

CUDA_ON_CPU_VECTORS(signed char, char, 1, 2, 4)
CUDA_ON_CPU_VECTORS(unsigned char, uchar, 1, 2, 4)
CUDA_ON_CPU_VECTORS(short, short, 2, 4, 8)
CUDA_ON_CPU_VECTORS(unsigned short, ushort, 2, 4, 8)
CUDA_ON_CPU_VECTORS(int, int, 4, 8, 16)
CUDA_ON_CPU_VECTORS(unsigned, uint, 4, 8, 16)
CUDA_ON_CPU_VECTORS(long long, longlong, 8, 16, 16)
CUDA_ON_CPU_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
CUDA_ON_CPU_VECTORS(float, float, 4, 8, 16)
CUDA_ON_CPU_VECTORS(double, double, 8, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

using cudaStream_t = struct CUstream_st *;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout,
    cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

// __thread: access without a check for initialisation
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;

cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error); // with the failed launch's own words
cudaError_t cuda_on_cpu_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
inline cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cuda_on_cpu_set_attribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

namespace cuda_on_cpu {

// Runs `thread` for every thread of the grid.
cudaError_t launch(const cudaLaunchConfig_t &config, const void *kernel, const std::function<void()> &thread);

// The block's dynamic shared memory. Every block finds NaN there.
void *dynamic_shared();

// Fails the launch from within a thread; does not return.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Waits until `threads` threads of the block (0: all) have reached the barrier.
void barrier(int index, unsigned threads);

int lane();

// Waits until all lanes of `mask` call with the same `name`. The last one calls `together` with the address that each lane
// gave, by lane; it may read and write what is there. Lanes outside the mask are null.
void collective(unsigned mask, const char *name, void *mine, const std::function<void(void *const (&)[32])> &together);

// The same with a type: together(T *const (&lanes)[32]). A product of a warp's tensor cores, say:
//     struct Operands { float sum[4]; uint32_t a[4], b[2]; } mine = ..;
//     cuda_on_cpu::warp("mma", mine, [](auto &lanes) { .. lanes[4 * g + t]->sum[0] += ..; });
template <typename T, typename Together> void warp(const char *name, T &mine, const Together &together, unsigned mask = ~0u) {
    collective(mask, name, &mine, [&](void *const(&at)[32]) {
        T *lanes[32];
        for (int i = 0; i < 32; ++i) lanes[i] = static_cast<T *>(at[i]);
        together(lanes);
    });
}

// Addresses in shared memory have 32 bits.
void *from_shared(uint32_t address);

// Inline PTX. An output (or an operand that is read and written) is given by its address, an input by its bits.
struct Operand {
    void *to;
    uint64_t bits;
};
template <typename T> Operand output(T &value) {
    static_assert(sizeof(T) <= 8, "a register");
    return {&value, 0};
}
template <typename T> Operand input(const T &value) {
    Operand operand{nullptr, 0};
    static_assert(sizeof(T) <= 8, "a register");
    memcpy(&operand.bits, &value, sizeof(T));
    return operand;
}
template <typename T> Operand input(T *const &pointer) { return {nullptr, reinterpret_cast<uint64_t>(pointer)}; }
void execute(const char *instruction, std::initializer_list<Operand> operands);

template <typename T, typename Source> T shuffle(unsigned mask, T value, int width, const Source &source) {
    struct Mine {
        T value, result;
        int from;
    } mine{value, value, 0};
    const int self = lane(), first = self / width * width, wanted = source(self - first, self);
    mine.from = wanted >= 0 && wanted < width ? first + wanted : self;
    warp(
        "shuffle", mine,
        [](Mine *const(&lanes)[32]) {
            for (Mine *each : lanes) {
                if (each == nullptr) continue;
                if (lanes[each->from] == nullptr) fail("a shuffle reads lane %d, which is not in its mask", each->from);
                each->result = lanes[each->from]->value;
            }
        },
        mask);
    return mine.result;
}

template <typename T, typename Sum> T reduce(unsigned mask, const char *name, T value, const Sum &sum) {
    T mine = value;
    warp(
        name, mine,
        [&](T *const(&lanes)[32]) {
            const T *before = nullptr;
            for (T *each : lanes) {
                if (each == nullptr) continue;
                if (before != nullptr) *each = sum(*before, *each);
                before = each;
            }
            const T result = *before;
            for (T *each : lanes) {
                if (each != nullptr) *each = result;
            }
        },
        mask);
    return mine;
}

} // namespace cuda_on_cpu

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...), Arguments &&...arguments) {
    return cuda_on_cpu::launch(*config, reinterpret_cast<const void *>(kernel), [&] { kernel(arguments...); });
}

inline void __syncthreads() { cuda_on_cpu::barrier(0, 0); }
inline void __syncwarp(unsigned mask = ~0u) {
    char none = 0;
    cuda_on_cpu::warp("syncwarp", none, [](char *const(&)[32]) {}, mask);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, width, [=](int, int) { return from & (width - 1); });
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, width, [=](int self, int) { return self ^ bits; });
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, width, [=](int self, int) { return self + int(by); });
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, width, [=](int self, int) { return self - int(by); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return cuda_on_cpu::reduce(mask, "ballot", predicate ? 1u << cuda_on_cpu::lane() : 0u,
                               [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <typename T> T __reduce_max_sync(unsigned mask, T value) {
    return cuda_on_cpu::reduce(mask, "reduce_max", value, [](T a, T b) { return a < b ? b : a; });
}
template <typename T> T __reduce_min_sync(unsigned mask, T value) {
    return cuda_on_cpu::reduce(mask, "reduce_min", value, [](T a, T b) { return b < a ? b : a; });
}
template <typename T> T __reduce_add_sync(unsigned mask, T value) {
    return cuda_on_cpu::reduce(mask, "reduce_add", value, [](T a, T b) { return T(a + b); });
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return result;
}

template <typename T> T __ldg(const T *from) { return *from; }
template <typename T> T __ldcs(const T *from) { return *from; }
template <typename T> T __ldcg(const T *from) { return *from; }
template <typename T> void __stcs(T *to, T value) { *to = value; }
template <typename T> void __stcg(T *to, T value) { *to = value; }
template <typename T> T atomicAdd(T *to, T value) {
    const T before = *to;
    *to = T(before + value);
    return before;
}

template <typename To, typename From> To cuda_on_cpu_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
inline unsigned __float_as_uint(float v) { return cuda_on_cpu_bits<unsigned>(v); }
inline int __float_as_int(float v) { return cuda_on_cpu_bits<int>(v); }
inline float __uint_as_float(unsigned v) { return cuda_on_cpu_bits<float>(v); }
inline float __int_as_float(int v) { return cuda_on_cpu_bits<float>(v); }
inline long long __double_as_longlong(double v) { return cuda_on_cpu_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return cuda_on_cpu_bits<double>(v); }
inline size_t __cvta_generic_to_shared(const void *pointer) { return uint32_t(reinterpret_cast<uintptr_t>(pointer)); }

template <typename A, typename B, typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B, typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(b) : T(a);
}

inline float rsqrtf(float v) { return float(1.0 / sqrt(double(v))); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __expf(float v) { return expf(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline void sincospi(double v, double *sine, double *cosine) {
    const double r = v - 2.0 * nearbyint(0.5 * v); // exact, within -1 .. 1
    *sine = fabs(r) == 1.0 ? 0.0 : sin(M_PI * r);
    *cosine = fabs(r) == 0.5 ? 0.0 : cos(M_PI * r);
}
inline void sincospif(float v, float *sine, float *cosine) {
    double s, c;
    sincospi(double(v), &s, &c);
    *sine = float(s);
    *cosine = float(c);
}
inline float sinpif(float v) {
    float s, c;
    sincospif(v, &s, &c);
    return s;
}
inline float cospif(float v) {
    float s, c;
    sincospif(v, &s, &c);
    return c;
}

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(unsigned(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline unsigned __brev(unsigned v) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (v >> i & 1u) << (31 - i);
    return result;
}
inline unsigned long long __brevll(unsigned long long v) {
    return static_cast<unsigned long long>(__brev(unsigned(v))) << 32 | __brev(unsigned(v >> 32));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((uint64_t(high) << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
