// A tile of a real matrix product on tensor cores at float32 accuracy: [BM, terms] . [terms, BN].
//
// Each operand is split into two TF32 numbers, value = high + low with |low| <= 2^-11 |value|, and three
// products are summed, high.high + high.low + low.high; what is left out is about 2^-22. Tensor cores add with
// truncation, a bias that would grow with the number of terms, so they start from zero every kStep terms and
// their sums are added in float32.
//
// Both operands pass through shared memory in steps of kStep terms and three buffers: while one is multiplied,
// the next two are on their way. mma.m16n8k8 takes its operands as follows, g = lane / 4, t = lane % 4:
//     left   (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)       of 16 rows, 8 terms
//     right  (t, g), (t + 4, g)                                   of 8 terms, 8 columns
//     sum    (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)   of 16 rows, 8 columns
// The paddings below put the 32 lanes of each of these reads into 32 different banks.
#pragma once

#include <stdint.h>

#include "async_copy.cuh"

namespace turbofno {

constexpr int kStep = 16;
constexpr int kBuffers = 3;

struct Split {
    uint32_t high, low;
};

__device__ __forceinline__ Split split(float value) {
    constexpr uint32_t half = 0x1000, kept = 0xffffe000; // TF32 keeps 10 bits of the fraction; the unit truncates
    const uint32_t high = (__float_as_uint(value) + half) & kept;
    return {high, __float_as_uint(value - __uint_as_float(high))}; // NaN and infinity leave NaN in low
}

__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// One operand of a tile, from the tile's first row (left) or column (right) on. A vector is 16 bytes, aligned. Rows of
// a grid of 85 points do not start at such addresses, so a row is copied from the vector that holds its first element
// on, and `shift` = 0 .. 3 is that element's place in it.
struct Operand {
    const float *from;
    int64_t stride; // between rows (left) or terms (right)
    int count; // rows or columns there are
    int offset; // place of `from` in its vector
    bool aligned; // all shifts are zero
    bool scalar; // left only: copy element by element, from any address; then shifts are zero

    __device__ int shift(int row) const {
        // only the last two bits count, so wrapping around does no harm
        return aligned ? 0 : int((unsigned(offset) + unsigned(row) * unsigned(stride)) & 3);
    }
};

// ROWS x COLUMNS fragments (16 x 8 each) a warp, WARPS_M x WARPS_N warps a block.
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N> struct Tile {
    static constexpr int BM = 16 * ROWS * WARPS_M, BN = 8 * COLUMNS * WARPS_N;
    static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
    static constexpr int kBlocks = (ROWS * COLUMNS > 8 ? 384 : 512) / kThreads; // of one multiprocessor, for registers
    static constexpr int COLUMNS_AT_ONCE = COLUMNS % 4 == 0 ? 4 : COLUMNS % 3 == 0 ? 3 : COLUMNS;
    static constexpr int LEFT = kStep + 4;
    static constexpr int RIGHT = BN + (BN % 32 == 16 ? 8 : BN % 32 == 0 ? 8 : 16); // 8 or 24 banks on, 4 spare at least

    struct Shared {
        __align__(16) float left[kBuffers][BM][LEFT];
        __align__(16) float right[kBuffers][kStep][RIGHT];
    };

    float sum[ROWS][COLUMNS][4] = {};

    // sum += left . right over terms [begin, end). Left: a row's terms are neighbours in memory. Right: a term's
    // columns are. All threads of the block call it together.
    __device__ void multiply(Shared &shared, const Operand &left, const Operand &right, int begin, int end) {
        load(shared, 0, left, right, begin, end);
        load(shared, 1, left, right, begin + kStep, end);
        int buffer = 0;
        for (int k0 = begin; k0 < end; k0 += kStep) {
            wait_copies<1>();
            __syncthreads(); // this step's values are there, and the buffer filled next has been read
            load(shared, (buffer + 2) % kBuffers, left, right, k0 + 2 * kStep, end);
            step(shared, buffer, k0, left, right);
            buffer = (buffer + 1) % kBuffers;
        }
        wait_copies<0>();
        __syncthreads();
    }

    // First row and column, within the block's tile, of this thread's elements of fragment (i, j); the four
    // elements are at rows +0 and +8, columns +0 and +1.
    __device__ int row(int i) const { return (threadIdx.x / 32 % WARPS_M * ROWS + i) * 16 + threadIdx.x % 32 / 4; }
    __device__ int column(int j) const {
        return (threadIdx.x / 32 / WARPS_M * COLUMNS + j) * 8 + threadIdx.x % 4 * 2;
    }

  private:
    __device__ __forceinline__ void load(Shared &shared, int buffer, const Operand &left, const Operand &right, int k0,
                                         int end) {
        if (k0 < end) {
            load_left(shared.left[buffer], left, k0, end);
            load_right(shared.right[buffer], right, k0, end);
        }
        commit_copies();
    }

    __device__ __forceinline__ void load_left(float (*to)[LEFT], const Operand &left, int k0, int end) {
        if (k0 + kStep > end || left.scalar) {
            // also because a vector beyond the end may hold the next row's values, and zero times these is not zero
            // if they are not finite
            for (int e = threadIdx.x; e < BM * kStep; e += kThreads) {
                const int row = e / kStep, k = e % kStep;
                copy_async<4>(&to[row][k + left.shift(row)], left.from + row * left.stride + k0 + k,
                              row < left.count && k0 + k < end);
            }
            return;
        }
        constexpr int WORDS = kStep / 4;
        const int row0 = threadIdx.x / WORDS, k = threadIdx.x % WORDS * 4;
        const float *from = left.from + row0 * left.stride + k0 + k;
#pragma unroll
        for (int n = 0; n < (BM * WORDS + kThreads - 1) / kThreads; ++n) {
            const int row = row0 + n * (kThreads / WORDS);
            if (row < BM) {
                copy_async<16>(&to[row][k], from + n * (kThreads / WORDS) * left.stride - left.shift(row),
                               row < left.count);
            }
        }
        if (left.aligned) return;
        for (int row = threadIdx.x; row < min(BM, left.count); row += kThreads) {
            if (left.shift(row) == 0) continue;
            copy_async<16>(&to[row][kStep], left.from + row * left.stride + k0 + kStep - left.shift(row), true);
        }
    }

    __device__ __forceinline__ void load_right(float (*to)[RIGHT], const Operand &right, int k0, int end) {
        constexpr int WORDS = BN / 4;
        if constexpr (kThreads % WORDS == 0) {
            const int row0 = threadIdx.x / WORDS, column = threadIdx.x % WORDS * 4;
            const float *from = right.from + (k0 + row0) * right.stride + column;
#pragma unroll
            for (int n = 0; n < (kStep * WORDS + kThreads - 1) / kThreads; ++n) {
                const int k = row0 + n * (kThreads / WORDS);
                if (k < kStep) {
                    const int shift = right.shift(k0 + k);
                    copy_async<16>(&to[k][column], from + n * (kThreads / WORDS) * right.stride - shift,
                                   k0 + k < end && column - shift < right.count);
                }
            }
        } else {
            for (int e = threadIdx.x; e < kStep * WORDS; e += kThreads) {
                const int k = e / WORDS, column = e % WORDS * 4, shift = right.shift(k0 + k);
                copy_async<16>(&to[k][column], right.from + (k0 + k) * right.stride + column - shift,
                               k0 + k < end && column - shift < right.count);
            }
        }
        if (right.aligned) return;
        for (int k = threadIdx.x; k < kStep; k += kThreads) {
            const int shift = right.shift(k0 + k);
            copy_async<16>(&to[k][BN], right.from + (k0 + k) * right.stride + BN - shift,
                           shift != 0 && k0 + k < end && BN - shift < right.count);
        }
    }

    __device__ __forceinline__ void step(const Shared &shared, int buffer, int k0, const Operand &left,
                                         const Operand &right) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const int row0 = threadIdx.x / 32 % WARPS_M * ROWS * 16 + g;
        const int column0 = threadIdx.x / 32 / WARPS_M * COLUMNS * 8 + g;
        float part[ROWS][COLUMNS][4] = {};
#pragma unroll
        for (int k = 0; k < kStep; k += 8) {
            uint32_t left_high[ROWS][4], left_low[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = row0 + i * 16 + e % 2 * 8;
                    const Split s = split(shared.left[buffer][row][k + t + e / 2 * 4 + left.shift(row)]);
                    left_high[i][e] = s.high;
                    left_low[i][e] = s.low;
                }
            }
            const int shift[2] = {right.shift(k0 + k + t), right.shift(k0 + k + t + 4)};
            // COLUMNS_AT_ONCE fragments side by side, and one kind of product after the other: a fragment's three
            // products depend on each other, and each waits for the one before.
#pragma unroll
            for (int j0 = 0; j0 < COLUMNS; j0 += COLUMNS_AT_ONCE) {
                uint32_t high[COLUMNS_AT_ONCE][2], low[COLUMNS_AT_ONCE][2];
#pragma unroll
                for (int j = 0; j < COLUMNS_AT_ONCE; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int column = column0 + (j0 + j) * 8 + shift[e];
                        const Split s = split(shared.right[buffer][k + t + e * 4][column]);
                        high[j][e] = s.high;
                        low[j][e] = s.low;
                    }
                }
#pragma unroll
                for (int product = 0; product < 3; ++product) {
#pragma unroll
                    for (int j = 0; j < COLUMNS_AT_ONCE; ++j) {
#pragma unroll
                        for (int i = 0; i < ROWS; ++i) {
                            multiply_add(part[i][j0 + j], product == 0 ? left_low[i] : left_high[i],
                                         product == 1 ? low[j] : high[j]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
            }
        }
    }
};

} // namespace turbofno
