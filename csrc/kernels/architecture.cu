#include "architecture.h"

#include <cuda_runtime.h>

#include <atomic>

#include "../api/turbofno.h"
#include "wgmma.cuh"

namespace turbofno {
namespace {

// Never launched: its attributes tell how all kernels of this library were compiled. Code with wgmma declares shared
// memory, because the PTX version does not tell sm_90 from sm_90a.
__global__ void probe() {
#ifdef TURBOFNO_WGMMA_ENABLED
    __shared__ volatile int mark;
    mark = 1;
#endif
}

int compiled_ptx_version() {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion;
    cudaGetLastError(); // clear it for the next caller
    return 0;
}

} // namespace

int compiled_architecture() {
    static std::atomic<int> known[64]; // version + 1 by device; 0 means not queried yet
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return compiled_ptx_version();
    int found = known[device].load(std::memory_order_relaxed);
    if (found == 0) {
        found = compiled_ptx_version() + 1;
        known[device].store(found, std::memory_order_relaxed);
    }
    return found - 1;
}

} // namespace turbofno

extern "C" const char *turbofno_device_unsupported(void) {
    if (turbofno::compiled_architecture() != 0) return nullptr;
    return "the library holds neither machine code for it nor PTX that its driver can translate";
}

extern "C" int turbofno_device_warpgroups(void) {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, turbofno::probe) == cudaSuccess) return attributes.sharedSizeBytes > 0;
    cudaGetLastError(); // clear it for the next caller
    return 0;
}
