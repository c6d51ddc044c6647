// Prefetch of a warp's next 16 points of a field to shared memory, while it computes the current ones. In a channels-last
// field 16 neighbouring points of a row are contiguous, so one bulk copy does it.
#pragma once

#include "async_copy.cuh"
#include "mbarrier.cuh"
#include "warp_mma.cuh"

namespace turbofno {

#if __CUDA_ARCH__ >= 900

// Hopper's bulk copy; an mbarrier counts the bytes that have arrived.
struct PrefetchBuffer {
    unsigned buffer, barrier, phase;

    __device__ __forceinline__ PrefetchBuffer(void *buffer, void *barrier_, bool used, int lane)
        : buffer(shared_address(buffer)), barrier(shared_address(barrier_)), phase(0) {
        if (used && lane == 0) init_barrier(barrier, 1);
        __syncwarp();
    }

    // Call when this lane has read the previous contents. Bulk copies are not ordered with reads: without the fence one may
    // overtake reads that wait behind stores.
    __device__ __forceinline__ void load_async(const char *from, int bytes, uint64_t policy, int lane) const {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) {
            arrive_and_expect(barrier, bytes);
            bulk_copy(buffer, from, bytes, barrier, policy);
        }
    }

    __device__ __forceinline__ void wait() {
        wait_for(barrier, phase);
        phase ^= 1;
    }
};

#else

struct PrefetchBuffer {
    char *buffer;

    __device__ __forceinline__ PrefetchBuffer(void *buffer, void *, bool, int) : buffer(static_cast<char *>(buffer)) {}

    // Without the policy: with it, this loop was an illegal instruction on an H100.
    __device__ __forceinline__ void load_async(const char *from, int bytes, uint64_t, int lane) const {
        __syncwarp();
        for (int at = 16 * lane; at < bytes; at += 16 * 32) {
            copy_async<16>(buffer + at, from + at, true);
        }
        commit_copies();
    }

    __device__ __forceinline__ void wait() {
        wait_copies<0>();
        __syncwarp();
    }
};

#endif

} // namespace turbofno
