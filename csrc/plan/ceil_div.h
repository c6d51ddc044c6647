#pragma once

#ifdef __CUDACC__
#define TURBOFNO_HOST_DEVICE __host__ __device__
#else
#define TURBOFNO_HOST_DEVICE
#endif

namespace turbofno {

template <typename T> TURBOFNO_HOST_DEVICE constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> TURBOFNO_HOST_DEVICE constexpr T round_up(T a, T b) { return ceil_div(a, b) * b; }

} // namespace turbofno
