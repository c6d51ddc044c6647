#include "architecture.h"

#include <cuda_runtime.h>

#include <atomic>

#include "../api/turbofno.h"
#include "warpgroup.cuh"

namespace turbofno {
namespace {

// Compiled as all kernels are, and asked instead of them; never launched. Code with warpgroups is known by its shared
// memory: the architecture's number does not tell 90 from 90a.
__global__ void probe() {
#ifdef TURBOFNO_WARPGROUPS
    __shared__ volatile int mark;
    mark = 1;
#endif
}

int asked() {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion;
    cudaGetLastError(); // not for whoever asks next
    return 0;
}

} // namespace

int code_architecture() {
    static std::atomic<int> known[64]; // plus one; 0 while nobody has asked
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return asked();
    int found = known[device].load(std::memory_order_relaxed);
    if (found == 0) {
        found = asked() + 1;
        known[device].store(found, std::memory_order_relaxed);
    }
    return found - 1;
}

} // namespace turbofno

extern "C" const char *turbofno_device_unsupported(void) {
    if (turbofno::code_architecture() != 0) return nullptr;
    return "the library holds neither machine code for it nor PTX that its driver can translate";
}

extern "C" int turbofno_device_warpgroups(void) {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, turbofno::probe) == cudaSuccess) return attributes.sharedSizeBytes > 0;
    cudaGetLastError(); // not for whoever asks next
    return 0;
}
