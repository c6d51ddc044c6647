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
#include "ntt_block.cuh"
#include "ntt_registers.cuh"
#include "ntt_stage.cuh"
#include "pdl.cuh"
#include "residues.cuh"

namespace turbofno {
namespace {

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

template <typename F> Kernel kernel_for(int radix) {
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
    const Kernel kernel = t->prime == TURBOFNO_GOLDILOCKS ? kernel_for<Goldilocks>(t->radix) : kernel_for<BabyBear>(t->radix);
    allow_shared_memory(kernel, t->shared_bytes);
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
