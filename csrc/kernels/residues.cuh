// Arithmetic of integers modulo a prime: 15 * 2^27 + 1 in Montgomery form, 2^64 - 2^32 + 1 by its special form.
//
// Values are residues below the prime. Constants (twiddles, scales) are in a form of their own, in which a product with a
// value is a value and a product with a constant is a constant.
#pragma once

#include <stdint.h>

namespace turbofno {

// 2013265921. A constant c is stored as c 2^32 mod p: multiply() divides by 2^32.
struct BabyBear {
    using Word = uint32_t;
    static constexpr Word kPrime = 2013265921u, kInverse = 2281701377u; // kPrime * kInverse = 1 mod 2^32
    static constexpr Word kSquare = 1172168163u; // the constant of 2^32: 2^64 mod p
    static constexpr uint64_t kRoot16 = 196396260u; // 31^((p - 1) / 16) mod p

    __device__ static __forceinline__ Word add(Word a, Word b) {
        const Word sum = a + b;
        return min(sum, sum - kPrime); // the smaller one did not wrap around
    }
    __device__ static __forceinline__ Word subtract(Word a, Word b) {
        const Word difference = a - b;
        return min(difference, difference + kPrime);
    }
    __device__ static __forceinline__ Word multiply(Word value, Word constant) {
        const uint64_t product = uint64_t(value) * constant;
        const Word quotient = Word(product) * kInverse;
        return subtract(Word(product >> 32), __umulhi(quotient, kPrime));
    }
    __device__ static __forceinline__ Word multiply_values(Word a, Word b) { return multiply(multiply(a, b), kSquare); }

    __host__ __device__ static constexpr Word power_of_root(int exponent) {
        uint64_t result = (uint64_t(1) << 32) % kPrime;
        for (int i = 0; i < exponent; ++i) result = result * kRoot16 % kPrime;
        return Word(result);
    }
    // (a - b) w, w the 16th root of unity to the power of EXPONENT, 0 .. 7.
    template <int EXPONENT> __device__ static __forceinline__ Word rotated_difference(Word a, Word b) {
        if constexpr (EXPONENT == 0) {
            return subtract(a, b);
        } else {
            constexpr Word kPower = power_of_root(EXPONENT);
            return multiply(a + (kPrime - b), kPower); // below 2^32, which is enough for a value
        }
    }
};

// 2^64 - 2^32 + 1: 2^64 = 2^32 - 1 and 2^96 = -1. A constant is stored as it is.
struct Goldilocks {
    using Word = uint64_t;
    static constexpr Word kPrime = 0xffffffff00000001u, kFold = 0xffffffffu; // 2^64 mod p
    static constexpr Word kRoot16 = 17293822564807737345u; // 7^((p - 1) / 16) mod p

    __device__ static __forceinline__ Word add(Word a, Word b) { return subtract(a, kPrime - b); }
    __device__ static __forceinline__ Word subtract(Word a, Word b) {
        const Word difference = a - b;
        return a < b ? difference + kPrime : difference;
    }
    // high 2^64 + low, any two words
    __device__ static __forceinline__ Word reduce(Word high, Word low) {
        const Word top = high >> 32; // times 2^96
        Word rest = low - top;
        if (low < top) rest -= kFold;
        const Word middle = (high & kFold) * kFold;
        Word sum = rest + middle;
        if (sum < middle) sum += kFold;
        return sum >= kPrime ? sum - kPrime : sum;
    }
    __device__ static __forceinline__ Word multiply(Word value, Word constant) {
        return reduce(__umul64hi(value, constant), value * constant);
    }
    __device__ static __forceinline__ Word multiply_values(Word a, Word b) { return multiply(a, b); }

    // The exponent e of 2, 0 .. 191, that gives a power of the 16th root of unity.
    __host__ __device__ static constexpr int exponent_of_two(int exponent) {
        Word power = 1, two = 1;
        for (int i = 0; i < exponent; ++i) power = times(power, kRoot16);
        int e = 0;
        for (; e < 192 && two != power; ++e) two = times(two, 2);
        return e;
    }
    __host__ __device__ static constexpr Word times(Word a, Word b) {
        Word result = 0;
        for (; b != 0; b >>= 1) {
            if (b & 1) result = result >= kPrime - a ? result - (kPrime - a) : result + a;
            a = a >= kPrime - a ? a - (kPrime - a) : a + a;
        }
        return result;
    }
    // (a - b) w: w is a power of two, so the product is a shift.
    template <int EXPONENT> __device__ static __forceinline__ Word rotated_difference(Word a, Word b) {
        constexpr int kExponent = exponent_of_two(EXPONENT), kShift = kExponent % 96;
        static_assert(kExponent < 192, "a power of two");
        const Word difference = kExponent < 96 ? subtract(a, b) : subtract(b, a);
        if constexpr (kShift == 0) {
            return difference;
        } else if constexpr (kShift < 64) {
            return reduce(difference >> (64 - kShift), difference << kShift);
        } else {
            constexpr int kOver = kShift - 64; // at least 8, because kShift is a multiple of 12
            return subtract(reduce(difference << kOver, 0), (difference >> (64 - kOver)) << 32); // 2^128 = -2^32
        }
    }
};

} // namespace turbofno
