// Hopper's warpgroup products (wgmma): four warps of 16 rows each. B, and in an analysis A too, is read from shared memory.
//
// Operands in shared memory are 8 x 8 matrices of halves, 128 bytes each, without swizzle:
//     B     [16 terms][high, low][8 terms][8 columns]     a row is 8 terms of a column
//     A     [high, low][8 points][8 channels]             a row is 8 channels of a point, points are the terms
#pragma once

#include "../plan/tile_plan.h"
#include "warp_mma.cuh"

// Only sm_90a has these instructions.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TURBOFNO_WGMMA_ENABLED
#endif

namespace turbofno {

constexpr int kMatrixBytes = 128;

// Lower half of the matrix descriptor of 16 terms of an operand: its address, and the bytes from 8 terms to the next 8. To move
// within an operand, add the distance in 16-byte words.
__device__ __forceinline__ unsigned descriptor_low(unsigned address, int term_bytes) {
    return address >> 4 | unsigned(term_bytes >> 4) << 16;
}
constexpr int kMatrixWords = kMatrixBytes / 16;
// The whole descriptor; `group_words` is the distance from a group of 8 rows or columns to the next in 16-byte words.
__device__ __forceinline__ uint64_t full_descriptor(unsigned low, int group_words = kMatrixWords) {
    return uint64_t(group_words) << 32 | low;
}

// Makes this thread's writes to shared memory visible to wgmma after the next barrier.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef TURBOFNO_WGMMA_ENABLED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Stores four 8 x 8 matrices of halves, one row per four lanes. Lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(unsigned address, uint4 halves) {
#ifdef TURBOFNO_WGMMA_ENABLED
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(halves.x),
                 "r"(halves.y), "r"(halves.z), "r"(halves.w)
                 : "memory");
#endif
}

__device__ __forceinline__ void wgmma_fence() {
#ifdef TURBOFNO_WGMMA_ENABLED
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit() {
#ifdef TURBOFNO_WGMMA_ENABLED
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all committed products but those of the last PENDING commits. `d` is the result of one that has ended.
template <int PENDING, int FRAGMENTS> __device__ __forceinline__ void wgmma_wait_but(float (&d)[FRAGMENTS][4]) {
#ifdef TURBOFNO_WGMMA_ENABLED
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
#pragma unroll
    for (auto &fragment : d) { // keeps the compiler from reading d before the wait
#pragma unroll
        for (float &v : fragment) asm volatile("" : "+f"(v)::"memory");
    }
}

// Waits for all committed products.
template <int FRAGMENTS> __device__ __forceinline__ void wgmma_wait(float (&d)[FRAGMENTS][4]) { wgmma_wait_but<0>(d); }

template <int FRAGMENTS> __device__ __forceinline__ void wgmma_commit_and_wait(float (&d)[FRAGMENTS][4]) {
    wgmma_commit();
    wgmma_wait(d);
}

#define TURBOFNO_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TURBOFNO_SUMS_2 TURBOFNO_SUM(0), TURBOFNO_SUM(1)
#define TURBOFNO_SUMS_4 TURBOFNO_SUMS_2, TURBOFNO_SUM(2), TURBOFNO_SUM(3)
#define TURBOFNO_SUMS_5 TURBOFNO_SUMS_4, TURBOFNO_SUM(4)
#define TURBOFNO_SUMS_6 TURBOFNO_SUMS_5, TURBOFNO_SUM(5)
#define TURBOFNO_SUMS_7 TURBOFNO_SUMS_6, TURBOFNO_SUM(6)
#define TURBOFNO_SUMS_8 TURBOFNO_SUMS_7, TURBOFNO_SUM(7)
#define TURBOFNO_SUMS_12 TURBOFNO_SUMS_8, TURBOFNO_SUM(8), TURBOFNO_SUM(9), TURBOFNO_SUM(10), TURBOFNO_SUM(11)
#define TURBOFNO_SUMS_16 TURBOFNO_SUMS_12, TURBOFNO_SUM(12), TURBOFNO_SUM(13), TURBOFNO_SUM(14), TURBOFNO_SUM(15)
#define TURBOFNO_OPERANDS_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TURBOFNO_OPERANDS_4 TURBOFNO_OPERANDS_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TURBOFNO_OPERANDS_5 TURBOFNO_OPERANDS_4 ", %16, %17, %18, %19"
#define TURBOFNO_OPERANDS_6 TURBOFNO_OPERANDS_5 ", %20, %21, %22, %23"
#define TURBOFNO_OPERANDS_7 TURBOFNO_OPERANDS_6 ", %24, %25, %26, %27"
#define TURBOFNO_OPERANDS_8 TURBOFNO_OPERANDS_7 ", %28, %29, %30, %31"
#define TURBOFNO_OPERANDS_12                                                                                           \
    TURBOFNO_OPERANDS_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TURBOFNO_OPERANDS_16                                                                                           \
    TURBOFNO_OPERANDS_12 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d = a . b, or +=. A, B and ADD are the asm operand numbers after those of d.
#define TURBOFNO_WGMMA(FRAGMENTS, COLUMNS, TYPE, A, B, ADD, TRANSPOSED, ...)                                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE                                  \
                 " {" TURBOFNO_OPERANDS_##FRAGMENTS "}, " A ", " B ", p, 1, 1, " TRANSPOSED ";\n}"                     \
                 : TURBOFNO_SUMS_##FRAGMENTS                                                                           \
                 : __VA_ARGS__)

#define TURBOFNO_WGMMA_OF_REGISTERS(FRAGMENTS, COLUMNS, TYPE, A, B, ADD)                                               \
    TURBOFNO_WGMMA(FRAGMENTS, COLUMNS, TYPE, A, B, ADD, "0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),              \
                   "l"(full_descriptor(b, group_words)), "r"(int(add)))
#define TURBOFNO_WGMMA_REGISTERS(TYPE)                                                                                 \
    if constexpr (FRAGMENTS == 2) {                                                                                    \
        TURBOFNO_WGMMA_OF_REGISTERS(2, "16", TYPE, "{%8, %9, %10, %11}", "%12", "%13");                                \
    } else if constexpr (FRAGMENTS == 4) {                                                                             \
        TURBOFNO_WGMMA_OF_REGISTERS(4, "32", TYPE, "{%16, %17, %18, %19}", "%20", "%21");                              \
    } else if constexpr (FRAGMENTS == 5) {                                                                             \
        TURBOFNO_WGMMA_OF_REGISTERS(5, "40", TYPE, "{%20, %21, %22, %23}", "%24", "%25");                              \
    } else if constexpr (FRAGMENTS == 6) {                                                                             \
        TURBOFNO_WGMMA_OF_REGISTERS(6, "48", TYPE, "{%24, %25, %26, %27}", "%28", "%29");                              \
    } else if constexpr (FRAGMENTS == 7) {                                                                             \
        TURBOFNO_WGMMA_OF_REGISTERS(7, "56", TYPE, "{%28, %29, %30, %31}", "%32", "%33");                              \
    } else if constexpr (FRAGMENTS == 8) {                                                                             \
        TURBOFNO_WGMMA_OF_REGISTERS(8, "64", TYPE, "{%32, %33, %34, %35}", "%36", "%37");                              \
    } else if constexpr (FRAGMENTS == 12) {                                                                            \
        TURBOFNO_WGMMA_OF_REGISTERS(12, "96", TYPE, "{%48, %49, %50, %51}", "%52", "%53");                             \
    } else {                                                                                                           \
        TURBOFNO_WGMMA_OF_REGISTERS(16, "128", TYPE, "{%64, %65, %66, %67}", "%68", "%69");                            \
    }
#define TURBOFNO_WGMMA_TF32(...)                                                                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                                         \
                 "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32"                                                 \
                 " {" TURBOFNO_OPERANDS_4 "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"                                  \
                 : TURBOFNO_SUMS_4                                                                                     \
                 : __VA_ARGS__)
#define TURBOFNO_WGMMA_SHARED(TYPE)                                                                                    \
    TURBOFNO_WGMMA(4, "32", TYPE, "%16", "%17", "%18", "1, 0", "l"(full_descriptor(a)), "l"(full_descriptor(b)), "r"(int(add)));

// d = a . b over 16 terms (+= if `add`): 16 rows per warp by 8 FRAGMENTS columns, A from registers.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void wgmma(float (&d)[FRAGMENTS][4], const uint32_t (&a)[4], unsigned b, bool add,
                                      int group_words = kMatrixWords) {
    static_assert(FRAGMENTS == 2 || (FRAGMENTS >= 4 && FRAGMENTS <= 8) || FRAGMENTS == 12 || FRAGMENTS == 16);
#ifdef TURBOFNO_WGMMA_ENABLED
    if constexpr (P::kScaled) {
        TURBOFNO_WGMMA_REGISTERS("f16")
    } else {
        TURBOFNO_WGMMA_REGISTERS("bf16")
    }
#endif
}

// The same for 32 columns, with A in shared memory, rows contiguous.
template <typename P>
__device__ __forceinline__ void wgmma(float (&d)[kWgmmaColumns][4], unsigned a, unsigned b, bool add) {
    static_assert(kWgmmaColumns == 4);
#ifdef TURBOFNO_WGMMA_ENABLED
    if constexpr (P::kScaled) {
        TURBOFNO_WGMMA_SHARED("f16")
    } else {
        TURBOFNO_WGMMA_SHARED("bf16")
    }
#endif
}

// d = a . b over 8 terms in TF32 (+= if `add`): 16 rows per warp by 32 columns, A from registers. B is 8 columns by 4 terms, 128
// bytes: [8 terms][4 terms][8 columns], a row is 4 terms of a column.
__device__ __forceinline__ void wgmma_tf32(float (&d)[4][4], const uint32_t (&a)[4], unsigned b, bool add) {
#ifdef TURBOFNO_WGMMA_ENABLED
    TURBOFNO_WGMMA_TF32("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(full_descriptor(b)), "r"(int(add)));
#endif
}

// Starts d = a . b over STEPS steps of 16 terms, a commit of its own: of split operands the small products come first
// (precision.cuh). `b` is the lower half of B's first descriptor; its steps and planes are so many 16-byte words apart.
template <typename P, int STEPS, int HELD, int FRAGMENTS>
__device__ __forceinline__ void start_product(float (&d)[FRAGMENTS][4], const uint32_t (&high)[HELD][4],
                                              const uint32_t (&low)[HELD][4], unsigned b, unsigned step_words,
                                              unsigned plane_words, int group_words = kMatrixWords) {
    wgmma_fence();
    if constexpr (P::kSplit) {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) wgmma<P>(d, low[i], b + i * step_words, i > 0, group_words);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) wgmma<P>(d, high[i], b + i * step_words + plane_words, true, group_words);
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) wgmma<P>(d, high[i], b + i * step_words, P::kSplit || i > 0, group_words);
    wgmma_commit();
}

#undef TURBOFNO_WGMMA_SHARED
#undef TURBOFNO_WGMMA_TF32
#undef TURBOFNO_WGMMA_REGISTERS
#undef TURBOFNO_WGMMA_OF_REGISTERS
#undef TURBOFNO_WGMMA
#undef TURBOFNO_OPERANDS_16
#undef TURBOFNO_OPERANDS_12
#undef TURBOFNO_OPERANDS_8
#undef TURBOFNO_OPERANDS_7
#undef TURBOFNO_OPERANDS_6
#undef TURBOFNO_OPERANDS_5
#undef TURBOFNO_OPERANDS_4
#undef TURBOFNO_OPERANDS_2
#undef TURBOFNO_SUMS_16
#undef TURBOFNO_SUMS_12
#undef TURBOFNO_SUMS_8
#undef TURBOFNO_SUMS_7
#undef TURBOFNO_SUMS_6
#undef TURBOFNO_SUMS_5
#undef TURBOFNO_SUMS_4
#undef TURBOFNO_SUMS_2
#undef TURBOFNO_SUM

} // namespace turbofno
