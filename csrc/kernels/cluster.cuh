// Thread block clusters (sm_90): the blocks of a cluster write into each other's shared memory.
#pragma once

#include "mbarrier.cuh"

namespace turbofno {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
}

// All threads of all blocks arrive and then wait, for init_barrier's fence to have taken effect everywhere. Orders nothing
// else. Between the two a block may work without the others.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Address of this block's shared `address` in the block `rank` of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned address, int rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Write to another block's shared memory; that block's mbarrier counts the 8 or 16 bytes when they have arrived.
__device__ __forceinline__ void store_async(unsigned to, float2 value, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(value.x),
                 "f"(value.y), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void store_async(unsigned to, float4 value, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
                 : "memory");
}

#endif

} // namespace turbofno
