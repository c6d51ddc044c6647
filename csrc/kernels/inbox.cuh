// A warp's own copy of its next 16 points of a field, on its way into shared memory while the points before it are
// computed. Channels last, 16 neighbouring points of a row are neighbours in memory too, so this is one piece.
#pragma once

#include "products.cuh"

namespace turbofno {

#if __CUDA_ARCH__ >= 900

// Hopper's bulk copy, an mbarrier counts its bytes.
struct Inbox {
    unsigned buffer, barrier, phase;

    __device__ __forceinline__ Inbox(void *buffer, void *barrier_, bool used, int lane)
        : buffer(shared_address(buffer)), barrier(shared_address(barrier_)), phase(0) {
        if (used && lane == 0) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
        }
        __syncwarp();
    }

    // All lanes have read what was here.
    __device__ __forceinline__ void send_for(const char *from, int bytes, int lane) const {
        if (lane == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n"
                         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], %1, [%0];" ::"r"(barrier),
                         "r"(bytes), "r"(buffer), "l"(from)
                         : "memory");
        }
    }

    __device__ __forceinline__ void wait() {
        asm volatile("{\n.reg .pred done;\n"
                     "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier), "r"(phase)
                     : "memory");
        phase ^= 1;
    }
};

#else

struct Inbox {
    unsigned buffer;

    __device__ __forceinline__ Inbox(void *buffer, void *, bool, int) : buffer(shared_address(buffer)) {}

    __device__ __forceinline__ void send_for(const char *from, int bytes, int lane) const {
        for (int at = 16 * lane; at < bytes; at += 16 * 32) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(buffer + at), "l"(from + at) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ __forceinline__ void wait() {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
    }
};

#endif

} // namespace turbofno
