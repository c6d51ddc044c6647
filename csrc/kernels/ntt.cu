// Number-theoretic transforms of many lines: X[k] = sum of x[n] w^(n k) modulo a prime, w a root of unity of the line's order.
//
// Decimation in frequency. A thread holds as many values as the radix. A pass is a DFT over index bits that its registers
// hold, then a product of each result d with w to the power of d * rest, `rest` the index bits not processed yet: one root is
// read, its powers are computed. The next bits come into the registers by an exchange (csrc/plan/ntt_plan.h): lanes swap
// bits of their index for bits of the register's number by shuffles, or the block writes all values to shared memory and
// reads them in another order.
//
// The inverse is the same transform with the results k and -k swapped, times 1 / points. A negacyclic transform multiplies
// value n by psi^n before the forward transform and by psi^-n after the inverse, psi^2 = w.
#include <type_traits>

#include "pdl.cuh"
#include "residues.cuh"
#include "../plan/ntt_plan.h"

namespace turbofno {
namespace {

constexpr int kLanes = 32, kLaneBits = 5;

struct NttArguments {
    NttLaunch of;
    const void *from, *factor;
    void *to;
    const void *table; // roots w^n, then psi^n, then the factors of the inverse's results; constants
    bool words_in, words_out; // values of the workspace, not of an int64 tensor
    bool twisted; // values are multiplied by psi^n when they are read
    bool scaled, reversed; // results of the inverse, when they are written
};

// Bits of an element's index at one stage. An element is one of a line; `rest` counts those that a thread's bits of this
// stage do not.
struct StageBits {
    int bits, lane_bits, processed; // of this stage; of these in lanes; before this stage
    int rest_bits;
    bool lines_first; // neighbouring threads have neighbouring lines
};

// The element that a register holds: the line within the block, the processed bits k, the bits `low` after this stage's.
struct Element {
    int line, k, low;
};

struct Stage {
    StageBits bits;
    int line_bits, in_thread; // bits of u that the thread's index gives
    int lane_digit, u;

    __device__ __forceinline__ Stage(const NttLaunch &launch, int index, int processed) {
        const NttStage &of = launch.stage[index];
        const bool first = index == 0, last = index == launch.stages - 1;
        bits = {of.bits, of.lane_bits, processed, launch.bits - of.bits,
                (first && launch.tail > 0) || (last && launch.done > 0)};
        line_bits = launch.line_bits;
        in_thread = launch.thread_bits - of.lane_bits;
        const int lane = threadIdx.x % kLanes, free = kLaneBits - of.lane_bits;
        lane_digit = lane >> free;
        u = (lane & ((1 << free) - 1)) | int(threadIdx.x / kLanes) << free;
    }

    // `above`: the register's bits above this stage's.
    __device__ __forceinline__ Element element(int above) const {
        const int all = u | above << in_thread;
        const int line = bits.lines_first ? all & ((1 << line_bits) - 1) : all >> bits.rest_bits;
        const int rest = bits.lines_first ? all >> line_bits : all & ((1 << bits.rest_bits) - 1);
        return {line, rest & ((1 << bits.processed) - 1), rest >> bits.processed};
    }

    __device__ __forceinline__ int low_bits() const { return bits.rest_bits - bits.processed; }
};

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

// Bounds the registers: 16 words of 32 bits need no more than 640 threads leave to each, though no block has so many.
template <typename F, int RADIX_BITS>
constexpr int kMostThreads = RADIX_BITS == 4 && sizeof(typename F::Word) == 4 ? 640 : 1 << max_thread_bits(RADIX_BITS);

template <typename F, int RADIX_BITS> __global__ void __launch_bounds__(kMostThreads<F, RADIX_BITS>)
    ntt(const NttArguments a) {
    extern __shared__ uint4 shared[];
    auto *values = reinterpret_cast<typename F::Word *>(shared);
    const int lane = threadIdx.x % kLanes;
    Block<F, RADIX_BITS> block(a);
    pdl_wait();
    int processed = 0;
#pragma unroll 1
    for (int index = 0; index < a.of.stages; ++index) {
        const Stage stage(a.of, index, processed);
        const bool first = index == 0, last = index == a.of.stages - 1;
        const int in_registers = stage.bits.bits - stage.bits.lane_bits;
        int left = stage.bits.lane_bits; // bits in lanes
        block.k_of_lane = 0;
        with_bits<RADIX_BITS>(in_registers, [&](auto count) {
            constexpr int kBits = decltype(count)::value;
            block.template fetch<kBits>(stage, values, first);
            block.template pass<kBits, kBits == RADIX_BITS>(stage, stage.lane_digit, processed);
        });
        processed += in_registers;
#pragma unroll 1
        while (left > 0) { // all registers hold bits of k, and the lanes' highest bits are next
            const int bits = min(left, RADIX_BITS), lane_bit = kLaneBits - stage.bits.lane_bits + left - bits;
            left -= bits;
            with_bits<RADIX_BITS>(bits, [&](auto count) {
                constexpr int kBits = decltype(count)::value;
                swap_with_lanes<typename F::Word, RADIX_BITS, kBits>(block.x, lane_bit);
#pragma unroll
                for (int i = 0; i < kBits; ++i) block.k_of_lane |= (lane >> (lane_bit + i) & 1) << block.position[i];
                block.template pass<kBits, true>(stage, stage.lane_digit & ((1 << left) - 1), processed);
            });
            processed += bits;
        }
        if (!first && !last) __syncthreads(); // all have read what is overwritten
        with_bits<RADIX_BITS>(in_registers, [&](auto count) {
            block.template store<decltype(count)::value>(stage, values, last);
        });
        if (!last) __syncthreads();
    }
    pdl_trigger();
}

using Kernel = void (*)(NttArguments);

template <typename F> Kernel kernel_of(int radix) {
    switch (radix) {
    case 2: return ntt<F, 1>;
    case 4: return ntt<F, 2>;
    case 8: return ntt<F, 3>;
    default: return ntt<F, 4>;
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_number_theoretic_transform(const turbofno_ntt *t, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_ntt_unsupported(t) != nullptr) return TURBOFNO_UNSUPPORTED;
    const NttPlan p = plan(*t);
    if (t->input == nullptr || t->out == nullptr || t->table == nullptr) return TURBOFNO_NULL_POINTER;
    if (p.workspace_bytes > 0 && t->workspace == nullptr) return TURBOFNO_NULL_POINTER;
    const Kernel kernel = t->prime == TURBOFNO_GOLDILOCKS ? kernel_of<Goldilocks>(t->radix) : kernel_of<BabyBear>(t->radix);
    // always the maximum: a smaller value could break a concurrent launch of this kernel by another thread
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, t->shared_bytes);
    for (int i = 0; i < p.launches; ++i) {
        const bool first = i == 0, last = i == p.launches - 1;
        NttArguments a{};
        a.of = p.launch[i];
        a.from = first ? t->input : t->workspace;
        a.factor = first ? t->factor : nullptr;
        a.to = last ? t->out : t->workspace;
        a.table = t->table;
        a.words_in = !first;
        a.words_out = !last;
        a.twisted = first && t->negacyclic && !t->inverse;
        a.scaled = a.reversed = last && t->inverse;
        const turbofno_status status = launch_pdl(kernel, dim3(unsigned(a.of.blocks)), 1 << a.of.thread_bits,
                                                  size_t(a.of.shared_bytes), stream, a);
        if (status != TURBOFNO_OK) return status;
    }
    return TURBOFNO_OK;
}
