// Values of transforms as they are in memory: float32, or float16 in the lower bits.
#pragma once

#include <cuda_fp16.h>
#include <stdint.h>

namespace turbofno {

// Values are converted after all loads of a thread are on their way, because the conversion waits for its load.
__device__ __forceinline__ uint2 read_pair(const void *from, int64_t at, bool half) {
    if (half) return {__ldcs(static_cast<const unsigned *>(from) + at), 0};
    return __ldcs(static_cast<const uint2 *>(from) + at);
}
__device__ __forceinline__ unsigned read_real(const void *from, int64_t at, bool half) {
    if (half) return __ldcs(static_cast<const unsigned short *>(from) + at);
    return __ldcs(static_cast<const unsigned *>(from) + at);
}
__device__ __forceinline__ float to_float(unsigned real, bool half) {
    return half ? __half2float(__ushort_as_half(static_cast<unsigned short>(real))) : __uint_as_float(real);
}
__device__ __forceinline__ float2 to_float(uint2 pair, bool half) {
    if (!half) return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
    return {to_float(pair.x & 0xffff, true), to_float(pair.x >> 16, true)};
}
__device__ __forceinline__ void write(float2 *to, float2 v) { *to = v; }
__device__ __forceinline__ void write(__half2 *to, float2 v) { *to = __floats2half2_rn(v.x, v.y); }
__device__ __forceinline__ void write(void *to, int64_t at, float2 v, bool half) {
    if (half) {
        write(static_cast<__half2 *>(to) + at, v);
    } else {
        write(static_cast<float2 *>(to) + at, v);
    }
}
__device__ __forceinline__ void write(void *to, int64_t at, float v, bool half) {
    if (half) {
        static_cast<__half *>(to)[at] = __float2half_rn(v);
    } else {
        static_cast<float *>(to)[at] = v;
    }
}

} // namespace turbofno
