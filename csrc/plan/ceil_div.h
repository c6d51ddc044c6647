#pragma once

#ifdef __CUDACC__
#define TURBOFNO_HOST_DEVICE __host__ __device__
#else
#define TURBOFNO_HOST_DEVICE
#endif

namespace turbofno {

template <typename T> TURBOFNO_HOST_DEVICE constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> TURBOFNO_HOST_DEVICE constexpr T round_up(T a, T b) { return ceil_div(a, b) * b; }

// Size of the pieces if `count` is cut into as few nearly equal pieces as possible, none above `most`.
constexpr int even_piece(int count, int most) { return ceil_div(count, ceil_div(count, most)); }

} // namespace turbofno
