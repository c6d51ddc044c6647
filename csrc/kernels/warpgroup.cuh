// Hopper's products of a warpgroup (wgmma): four warps, 16 rows each, by all columns at once. The B operand, and for an
// analysis the A operand too, come from shared memory without passing registers.
//
// Operands lie in shared memory as 8 x 8 matrices of halves, 128 bytes each, without swizzle:
//     B     [16 terms][high, low][8 terms][8 columns]     a row is 8 terms of a column
//     A     [high, low][8 points][8 channels]             a row is 8 channels of a point, points are the terms
#pragma once

#include "../plan/tile_plan.h"
#include "products.cuh"

// Only code for sm_90a has these instructions.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TURBOFNO_WARPGROUPS
#endif

namespace turbofno {

constexpr int kMatrixBytes = 128;

// 16 terms of an operand: its address, bytes from 8 terms to the next; 8 rows or columns and the next 8 are neighbours.
// As the lower half of a descriptor; to another place of the same operand add its distance in 16-byte words.
__device__ __forceinline__ unsigned descriptor(unsigned address, int term_bytes) {
    return address >> 4 | unsigned(term_bytes >> 4) << 16;
}
constexpr int kMatrixWords = kMatrixBytes / 16;
__device__ __forceinline__ uint64_t whole(unsigned descriptor) { return uint64_t(kMatrixWords) << 32 | descriptor; }

// What this thread wrote to shared memory may be read by products after the next barrier.
__device__ __forceinline__ void show_to_products() {
#ifdef TURBOFNO_WARPGROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void begin_products() {
#ifdef TURBOFNO_WARPGROUPS
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

template <int FRAGMENTS> __device__ __forceinline__ void finish_products(float (&d)[FRAGMENTS][4]) {
#ifdef TURBOFNO_WARPGROUPS
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
#pragma unroll
    for (auto &fragment : d) { // not read before
#pragma unroll
        for (float &v : fragment) asm volatile("" : "+f"(v)::"memory");
    }
}

#define TURBOFNO_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TURBOFNO_SUMS_2 TURBOFNO_SUM(0), TURBOFNO_SUM(1)
#define TURBOFNO_SUMS_4 TURBOFNO_SUMS_2, TURBOFNO_SUM(2), TURBOFNO_SUM(3)
#define TURBOFNO_SUMS_8 TURBOFNO_SUMS_4, TURBOFNO_SUM(4), TURBOFNO_SUM(5), TURBOFNO_SUM(6), TURBOFNO_SUM(7)
#define TURBOFNO_PLACES_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TURBOFNO_PLACES_4 TURBOFNO_PLACES_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TURBOFNO_PLACES_8                                                                                              \
    TURBOFNO_PLACES_4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// d = a . b, or +=; A, B and ADD are the places of the operands behind d's.
#define TURBOFNO_PRODUCT(FRAGMENTS, COLUMNS, TYPE, A, B, ADD, TURNED, ...)                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE                                  \
                 " {" TURBOFNO_PLACES_##FRAGMENTS "}, " A ", " B ", p, 1, 1, " TURNED ";\n}"                           \
                 : TURBOFNO_SUMS_##FRAGMENTS                                                                           \
                 : __VA_ARGS__)

#define TURBOFNO_HELD(TYPE)                                                                                            \
    if constexpr (FRAGMENTS == 2) {                                                                                    \
        TURBOFNO_PRODUCT(2, "16", TYPE, "{%8, %9, %10, %11}", "%12", "%13", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]),      \
                         "r"(a[3]), "l"(whole(b)), "r"(int(add)));                                                            \
    } else if constexpr (FRAGMENTS == 4) {                                                                             \
        TURBOFNO_PRODUCT(4, "32", TYPE, "{%16, %17, %18, %19}", "%20", "%21", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]),    \
                         "r"(a[3]), "l"(whole(b)), "r"(int(add)));                                                            \
    } else {                                                                                                           \
        TURBOFNO_PRODUCT(8, "64", TYPE, "{%32, %33, %34, %35}", "%36", "%37", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]),    \
                         "r"(a[3]), "l"(whole(b)), "r"(int(add)));                                                            \
    }
#define TURBOFNO_SHARED(TYPE)                                                                                          \
    TURBOFNO_PRODUCT(4, "32", TYPE, "%16", "%17", "%18", "1, 0", "l"(whole(a)), "l"(whole(b)), "r"(int(add)));

// d = a . b over 16 terms, or += if told to: 16 rows a warp by 8 FRAGMENTS columns, A from registers.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void multiply(float (&d)[FRAGMENTS][4], const uint32_t (&a)[4], unsigned b, bool add) {
    static_assert(FRAGMENTS == 2 || FRAGMENTS == 4 || FRAGMENTS == 8);
#ifdef TURBOFNO_WARPGROUPS
    if constexpr (P::kScaled) {
        TURBOFNO_HELD("f16")
    } else {
        TURBOFNO_HELD("bf16")
    }
#endif
}

// The same by 32 columns, with an A operand in shared memory, its rows neighbours there.
template <typename P>
__device__ __forceinline__ void multiply(float (&d)[kGroupColumns][4], unsigned a, unsigned b, bool add) {
    static_assert(kGroupColumns == 4);
#ifdef TURBOFNO_WARPGROUPS
    if constexpr (P::kScaled) {
        TURBOFNO_SHARED("f16")
    } else {
        TURBOFNO_SHARED("bf16")
    }
#endif
}

#undef TURBOFNO_SHARED
#undef TURBOFNO_HELD
#undef TURBOFNO_PRODUCT
#undef TURBOFNO_PLACES_8
#undef TURBOFNO_PLACES_4
#undef TURBOFNO_PLACES_2
#undef TURBOFNO_SUMS_8
#undef TURBOFNO_SUMS_4
#undef TURBOFNO_SUMS_2
#undef TURBOFNO_SUM

} // namespace turbofno
