// Asynchronous copies from global to shared memory, without registers (cp.async, sm_80 and later).
#pragma once

#include <stdint.h>

namespace turbofno {

// Copies 4, 8 or 16 bytes, both sides aligned to that size. If `inside` is false, writes zeros and does not read `from`.
template <int BYTES> __device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) { // .cg: do not keep whole vectors in L1
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(bytes)
                     : "memory");
    }
}

// The same, with a policy of L2 (l2_policy.h).
template <int BYTES> __device__ __forceinline__ void copy_async(void *to, const void *from, bool inside, uint64_t policy) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(address), "l"(from), "r"(bytes),
                     "l"(policy)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3, %4;" ::"r"(address), "l"(from), "n"(BYTES),
                     "r"(bytes), "l"(policy)
                     : "memory");
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the last `kPending` committed groups are in flight.
template <int kPending> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

} // namespace turbofno
