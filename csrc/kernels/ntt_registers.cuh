// Number-theoretic transforms in registers: butterflies, twiddles, and the exchange of register bits for lane bits by shuffles.
#pragma once

#include <type_traits>

namespace turbofno {

// The `bits` lowest bits of an index below 16 in reverse order.
__device__ __forceinline__ int reversed(int index, int bits) {
    return ((index & 1) << 3 | (index & 2) << 1 | (index & 4) >> 1 | (index & 8) >> 3) >> (4 - bits);
}

// Butterflies of the values first + 0 .. first + 2 HALF - 1 whose distance is HALF, then those of smaller distances.
template <typename F, int HALF, int I = 0>
__device__ __forceinline__ void butterflies(typename F::Word *x) {
    if constexpr (I < HALF) {
        const typename F::Word a = x[I], b = x[I + HALF];
        x[I] = F::add(a, b);
        x[I + HALF] = F::template rotated_difference<I * (8 / HALF)>(a, b);
        butterflies<F, HALF, I + 1>(x);
    } else if constexpr (HALF > 1) {
        butterflies<F, HALF / 2>(x);
        butterflies<F, HALF / 2>(x + HALF);
    }
}

// Multiplies value d of each group of 2^BITS values by root^d; ONE: all groups have the same root.
template <typename F, int RADIX_BITS, int BITS, bool ONE, typename RootOf>
__device__ __forceinline__ void multiply_by_powers(typename F::Word (&x)[1 << RADIX_BITS], const RootOf &root_of) {
    constexpr int kSize = 1 << BITS;
    typename F::Word powers[kSize];
#pragma unroll
    for (int group = 0; group < 1 << (RADIX_BITS - BITS); ++group) {
        if (!ONE || group == 0) {
            powers[1] = root_of(group);
#pragma unroll
            for (int d = 2; d < kSize; ++d) powers[d] = F::multiply(powers[d / 2], powers[d - d / 2]);
        }
#pragma unroll
        for (int d = 1; d < kSize; ++d) {
            typename F::Word &value = x[group * kSize + d];
            value = F::multiply(value, powers[d]);
        }
    }
}

// DFTs over the lowest BITS bits of the register's number, results in order.
template <typename F, int RADIX_BITS, int BITS>
__device__ __forceinline__ void transform_registers(typename F::Word (&x)[1 << RADIX_BITS]) {
    constexpr int kSize = 1 << BITS;
#pragma unroll
    for (int group = 0; group < 1 << (RADIX_BITS - BITS); ++group) {
        typename F::Word *const values = x + group * kSize;
        butterflies<F, kSize / 2>(values);
        typename F::Word unordered[kSize];
#pragma unroll
        for (int i = 0; i < kSize; ++i) unordered[i] = values[i];
#pragma unroll
        for (int i = 0; i < kSize; ++i) values[i] = unordered[reversed(i, BITS)];
    }
}

// Swaps the lowest BITS bits of the register's number for the lane's bits lane_bit, lane_bit + 1, ..
template <typename Word, int RADIX_BITS, int BITS>
__device__ __forceinline__ void swap_with_lanes(Word (&x)[1 << RADIX_BITS], int lane_bit) {
#pragma unroll
    for (int bit = 0; bit < BITS; ++bit) {
        const bool upper = threadIdx.x >> (lane_bit + bit) & 1;
#pragma unroll
        for (int i = 0; i < 1 << RADIX_BITS; ++i) {
            if (i >> bit & 1) continue;
            const Word low = x[i], high = x[i | 1 << bit];
            const Word got = __shfl_xor_sync(0xffffffffu, upper ? low : high, 1 << (lane_bit + bit));
            x[i] = upper ? got : low;
            x[i | 1 << bit] = upper ? high : got;
        }
    }
}

// Calls `call` with a constant of the value of `bits`, 1 .. MOST.
template <int MOST, typename Call> __device__ __forceinline__ void with_bits(int bits, const Call &call) {
    if constexpr (MOST == 1) {
        call(std::integral_constant<int, 1>{});
    } else if (bits == MOST) {
        call(std::integral_constant<int, MOST>{});
    } else {
        with_bits<MOST - 1>(bits, call);
    }
}

} // namespace turbofno
