// Matrix products of four warps at once: Hopper's wgmma, on sm_90a alone.
//
// The left operand, 64 rows x 16 terms, is in registers, each warp's 16 rows as mma.m16n8k16 takes them; so is the sum
// (split_half.cuh). The right operand, 16 terms x 8 FRAGMENTS columns, is read from shared memory once for all four
// warps, in one of two orders:
//     table   blocks of 8 columns x 8 terms, 128 bytes [column][term]; the block of the next 8 terms follows at once,
//             that of the next 8 columns `pitch` bytes on
//     tile    [term][64 columns] in rows of 128 bytes, whose 16-byte words change places: word w of row r is at
//             w ^ r % 8; the tile starts at a multiple of 1024 bytes
#pragma once

#include "split_half.cuh"

namespace turbofno {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kWarpgroups = true;
#else
constexpr bool kWarpgroups = false;
#endif

constexpr int kSwizzledPitch = 64; // halves between the rows of a tile

// A right operand's place, as wgmma wants it described; in 16-byte words: from one step of 16 terms to the next, and
// from high to low halves.
struct SharedOperand {
    uint64_t high;
    int step, low;
};

__device__ __forceinline__ uint64_t place_word(const void *shared) {
    return (__cvta_generic_to_shared(shared) & 0x3ffff) >> 4;
}

__device__ __forceinline__ SharedOperand table_operand(const void *table, int pitch, int step_words) {
    return {place_word(table) | uint64_t(128 >> 4) << 16 | uint64_t(pitch >> 4) << 32, step_words, 256 >> 4};
}

__device__ __forceinline__ SharedOperand tile_operand(const void *tile, int low_words) {
    return {place_word(tile) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62, 2048 >> 4, low_words};
}

// What this thread wrote to shared memory is there for the tensor cores, once a barrier has been passed.
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// All products begun are done.
__device__ __forceinline__ void finish_products() {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Sums of finished products pass through here, or the compiler would read them before they are.
template <int FRAGMENTS> __device__ __forceinline__ void receive(float (&sums)[FRAGMENTS][4]) {
#pragma unroll
    for (auto &sum : sums) asm volatile("" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])::"memory");
}

#define TURBOFNO_SUM(s) "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
#define TURBOFNO_LEFT                                                                                                  \
    "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(int(!FRESH)), "n"(int(TILE))
#define TURBOFNO_WGMMA_16(type)                                                                                        \
    asm volatile("{.reg .pred add;\nsetp.ne.b32 add, %13, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7}, "     \
                 "{%8, %9, %10, %11}, %12, add, 1, 1, %14;}"                                                           \
                 : TURBOFNO_SUM(sum[0]), TURBOFNO_SUM(sum[1])                                                          \
                 : TURBOFNO_LEFT)
#define TURBOFNO_WGMMA_32(type)                                                                                        \
    asm volatile("{.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, "  \
                 "%9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, add, 1, 1, %22;}"                      \
                 : TURBOFNO_SUM(sum[0]), TURBOFNO_SUM(sum[1]), TURBOFNO_SUM(sum[2]), TURBOFNO_SUM(sum[3])              \
                 : TURBOFNO_LEFT)
#define TURBOFNO_WGMMA_64(type)                                                                                        \
    asm volatile("{.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, "  \
                 "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, " \
                 "%29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;}"                                         \
                 : TURBOFNO_SUM(sum[0]), TURBOFNO_SUM(sum[1]), TURBOFNO_SUM(sum[2]), TURBOFNO_SUM(sum[3]),             \
                   TURBOFNO_SUM(sum[4]), TURBOFNO_SUM(sum[5]), TURBOFNO_SUM(sum[6]), TURBOFNO_SUM(sum[7])              \
                 : TURBOFNO_LEFT)

// sum += left . right, or if FRESH sum = left . right; only begun.
template <typename P, bool TILE, bool FRESH, int FRAGMENTS>
__device__ __forceinline__ void begin_product(float (&sum)[FRAGMENTS][4], const uint32_t (&left)[4], uint64_t right) {
    static_assert(FRAGMENTS == 2 || FRAGMENTS == 4 || FRAGMENTS == 8);
    if constexpr (P::kScaled) {
        if constexpr (FRAGMENTS == 2) TURBOFNO_WGMMA_16("f16");
        if constexpr (FRAGMENTS == 4) TURBOFNO_WGMMA_32("f16");
        if constexpr (FRAGMENTS == 8) TURBOFNO_WGMMA_64("f16");
    } else {
        if constexpr (FRAGMENTS == 2) TURBOFNO_WGMMA_16("bf16");
        if constexpr (FRAGMENTS == 4) TURBOFNO_WGMMA_32("bf16");
        if constexpr (FRAGMENTS == 8) TURBOFNO_WGMMA_64("bf16");
    }
}

#undef TURBOFNO_WGMMA_64
#undef TURBOFNO_WGMMA_32
#undef TURBOFNO_WGMMA_16
#undef TURBOFNO_LEFT
#undef TURBOFNO_SUM

// sum = left . right over 16 STEPS terms, small products first; only begun.
template <typename P, bool TILE, int STEPS, int FRAGMENTS>
__device__ __forceinline__ void begin_chain(float (&sum)[FRAGMENTS][4], const Left *left, const SharedOperand &right) {
    if constexpr (P::kSplit) {
        begin_product<P, TILE, true>(sum, left[0].low, right.high);
        begin_product<P, TILE, false>(sum, left[0].high, right.high + right.low);
        if constexpr (STEPS == 2) {
            begin_product<P, TILE, false>(sum, left[1].low, right.high + right.step);
            begin_product<P, TILE, false>(sum, left[1].high, right.high + right.step + right.low);
        }
    }
    begin_product<P, TILE, !P::kSplit>(sum, left[0].high, right.high);
    if constexpr (STEPS == 2) begin_product<P, TILE, false>(sum, left[1].high, right.high + right.step);
}

} // namespace turbofno
