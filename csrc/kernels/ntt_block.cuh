// The values of a block of a number-theoretic transform: loads, passes, stores, and the exchange through shared memory.
#pragma once

#include "ntt_registers.cuh"
#include "ntt_stage.cuh"
#include "residues.cuh"

namespace turbofno {

struct NttArguments {
    NttLaunch of;
    const void *from, *factor;
    void *to;
    const void *table; // roots w^n, then psi^n, then the factors of the inverse's results; constants
    bool words_in, words_out; // values of the workspace, not of an int64 tensor
    bool twisted; // values are multiplied by psi^n when they are read
    bool scaled, reversed; // results of the inverse, when they are written
};

// Spreads a block's values over the banks of shared memory.
__device__ __forceinline__ int swizzled(int at) { return at ^ ((at >> 5 ^ at >> 10) & 31); }

// The values of a block, in registers.
template <typename F, int RADIX_BITS> struct Block {
    using Word = typename F::Word;
    static constexpr int kRadix = 1 << RADIX_BITS;

    const NttArguments &a;
    int64_t transform; // first value of the block's first transform
    int first_part, lines; // the block's lines: the first one's number within its transform, how many there are
    Word x[kRadix];
    int position[RADIX_BITS]; // in k of the register's bits
    int k_of_lane;

    __device__ __forceinline__ Block(const NttArguments &a) : a(a) {
        const int part_bits = a.of.done + a.of.tail; // a transform has so many lines, as a power of two
        const int64_t first = int64_t(blockIdx.x) << a.of.line_bits;
        transform = (first >> part_bits) << (part_bits + a.of.bits);
        first_part = int(first) & ((1 << part_bits) - 1);
        lines = int(min(a.of.lines - first, int64_t(1) << a.of.line_bits));
    }

    __device__ __forceinline__ int transform_bits() const { return a.of.done + a.of.bits + a.of.tail; }
    __device__ __forceinline__ const Word *table(int part) const {
        return static_cast<const Word *>(a.table) + (part << transform_bits());
    }
    __device__ __forceinline__ int part_of(int line) const {
        return (first_part + line) & ((1 << (a.of.done + a.of.tail)) - 1);
    }

    // Where value n of a line, or result k, is: after `transform`, and its index within its own transform.
    struct Place {
        int at, index;
        bool exists;
    };
    __device__ __forceinline__ Place place(int line, int index) const {
        const int others = (first_part + line) >> (a.of.done + a.of.tail); // transforms of the block before this line's
        return {others << transform_bits() | index, index, line < lines};
    }
    __device__ __forceinline__ Place place_of_value(int line, int n) const {
        // after the first of two launches the known bits of k come first
        return place(line, a.of.done > 0 ? part_of(line) << a.of.bits | n : n << a.of.tail | part_of(line));
    }
    __device__ __forceinline__ Place place_of_result(int line, int k) const {
        const int index = a.of.done > 0 ? k << a.of.done | part_of(line) : k << a.of.tail | part_of(line);
        return place(line, a.reversed ? -index & ((1 << transform_bits()) - 1) : index);
    }

    // All loads of a kind come before the first use of one, so that they are in flight together.
    template <int BITS> __device__ __forceinline__ void fetch(const Stage &stage, const Word *shared, bool first) {
        const auto n_of = [&](int m, const Element &e) {
            const int digit = (m & ((1 << BITS) - 1)) << stage.bits.lane_bits | stage.lane_digit;
            return digit << stage.low_bits() | e.low;
        };
        const auto place_of = [&](int m) {
            const Element e = stage.element(m >> BITS);
            return place_of_value(e.line, n_of(m, e));
        };
        if (!first) {
#pragma unroll
            for (int m = 0; m < kRadix; ++m) {
                const Element e = stage.element(m >> BITS);
                x[m] = shared[swizzled(e.line << a.of.bits | n_of(m, e) << stage.bits.processed | e.k)];
            }
        } else if (a.words_in) {
#pragma unroll
            for (int m = 0; m < kRadix; ++m) {
                const Place from = place_of(m);
                x[m] = from.exists ? (static_cast<const Word *>(a.from) + transform)[from.at] : 0;
            }
        } else {
            load<BITS>(x, static_cast<const int64_t *>(a.from) + transform, place_of);
            if (a.factor != nullptr) {
                Word factors[kRadix];
                load<BITS>(factors, static_cast<const int64_t *>(a.factor) + transform, place_of);
#pragma unroll
                for (int m = 0; m < kRadix; ++m) x[m] = F::multiply_values(x[m], factors[m]);
            }
            if (a.twisted) {
#pragma unroll
                for (int m = 0; m < kRadix; ++m) x[m] = F::multiply(x[m], __ldg(table(1) + place_of(m).index));
            }
        }
    }

    template <int BITS, typename PlaceOf>
    __device__ __forceinline__ void load(Word (&to)[kRadix], const int64_t *from, const PlaceOf &place_of) const {
#pragma unroll
        for (int m = 0; m < kRadix; ++m) {
            const Place of = place_of(m);
            to[m] = of.exists ? Word(from[of.at]) : 0;
        }
    }

    // One pass over the lowest BITS bits of the register's number. `digit` of `digit_bits`: this stage's bits still in lanes.
    // ONE: no register holds bits of `low`.
    template <int BITS, bool ONE>
    __device__ __forceinline__ void pass(const Stage &stage, int digit, int processed) {
        transform_registers<F, RADIX_BITS, BITS>(x);
#pragma unroll
        for (int i = 0; i < BITS; ++i) position[i] = processed + i;
        if (processed + BITS == a.of.bits && a.of.tail == 0) return; // nothing is left
        multiply_by_powers<F, RADIX_BITS, BITS, ONE>(x, [&](int group) {
            const Element e = stage.element(ONE ? 0 : group);
            int low = digit << stage.low_bits() | e.low;
            if (a.of.tail > 0) low = low << a.of.tail | part_of(e.line);
            return __ldg(table(0) + (low << (a.of.done + processed)));
        });
    }

    template <int BITS> __device__ __forceinline__ void store(const Stage &stage, Word *shared, bool last) {
        const auto k_of = [&](int m, const Element &e) {
            int k = e.k | k_of_lane;
#pragma unroll
            for (int i = 0; i < BITS; ++i) k |= (m >> i & 1) << position[i];
            return k;
        };
        const auto place_of = [&](int m) {
            const Element e = stage.element(m >> BITS);
            return place_of_result(e.line, k_of(m, e));
        };
        if (!last) {
#pragma unroll
            for (int m = 0; m < kRadix; ++m) {
                const Element e = stage.element(m >> BITS);
                const int low_first = stage.bits.processed + stage.bits.bits;
                shared[swizzled(e.line << a.of.bits | e.low << low_first | k_of(m, e))] = x[m];
            }
            return;
        }
        if (a.scaled) {
#pragma unroll
            for (int m = 0; m < kRadix; ++m) x[m] = F::multiply(x[m], __ldg(table(2) + place_of(m).index));
        }
#pragma unroll
        for (int m = 0; m < kRadix; ++m) {
            const Place to = place_of(m);
            if (!to.exists) continue;
            if (a.words_out) {
                (static_cast<Word *>(a.to) + transform)[to.at] = x[m];
            } else {
                (static_cast<int64_t *>(a.to) + transform)[to.at] = int64_t(x[m]);
            }
        }
    }
};

} // namespace turbofno
