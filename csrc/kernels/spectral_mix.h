// The kernels that spectral_mix is made of, as calls on the host.
#pragma once

#include "../plan/mix_plan.h"
#include "launch.h"

namespace turbofno {

turbofno_status analyze_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream);
turbofno_status multiply_modes(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream);
turbofno_status synthesize_columns(const turbofno_mix &mix, const MixPlan &plan, cudaStream_t stream);

inline float2 *coefficients(const turbofno_mix &mix, const MixPlan &plan) {
    return reinterpret_cast<float2 *>(static_cast<char *>(mix.workspace) + plan.coefficients);
}

inline float2 *products(const turbofno_mix &mix, const MixPlan &plan) {
    return reinterpret_cast<float2 *>(static_cast<char *>(mix.workspace) + plan.products);
}

} // namespace turbofno
