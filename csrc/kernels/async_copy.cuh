// Copies from global to shared memory that need no register on the way (sm_80 and later).
#pragma once

namespace turbofno {

// One float; zero where `inside` is false, and `from` is then not read.
__device__ __forceinline__ void copy_async(float *to, const float *from, bool inside) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(inside ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `kPending` of the groups committed last are still on their way.
template <int kPending> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

} // namespace turbofno
