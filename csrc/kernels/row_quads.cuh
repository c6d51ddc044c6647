// Four neighbouring points of a field row, in whole words where rows start at whole words.
//
// A lane's share of a fragment is made of such quads: points 4t .. 4t + 3 of the 16 points of a pair of fragments, two
// in each (g = lane / 4, t = lane % 4), rows g and g + 8. So column c = 2t + e of fragment f is point 4t + 2f + e, and
// the tables are written to match.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace turbofno {

// Fields are read once: they should not push tables out of L1.
__device__ __forceinline__ float4 load_stream(const float4 *from) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
    return v;
}

__device__ __forceinline__ uint2 load_stream(const uint2 *from) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

// Quad of the points from `from` on, `left` of which there are (zeros after them). WHOLE: rows have a multiple of four
// points.
template <bool WHOLE> __device__ __forceinline__ float4 load_quad(const float *from, int left) {
    if constexpr (WHOLE) return left > 0 ? load_stream(reinterpret_cast<const float4 *>(from)) : float4{};
    return {left > 0 ? __ldg(from) : 0.0f, left > 1 ? __ldg(from + 1) : 0.0f, left > 2 ? __ldg(from + 2) : 0.0f,
            left > 3 ? __ldg(from + 3) : 0.0f};
}

template <bool WHOLE> __device__ __forceinline__ uint2 load_quad(const __nv_bfloat16 *from, int left) {
    if constexpr (WHOLE) return left > 0 ? load_stream(reinterpret_cast<const uint2 *>(from)) : uint2{};
    const auto *bits = reinterpret_cast<const unsigned short *>(from);
    const auto at = [&](int i) -> unsigned { return left > i ? __ldg(bits + i) : 0; };
    return {at(0) | at(1) << 16, at(2) | at(3) << 16};
}

__device__ __forceinline__ void store_quad(float *to, float4 v) { *reinterpret_cast<float4 *>(to) = v; }

__device__ __forceinline__ void store_quad(__nv_bfloat16 *to, float4 v) {
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<uint2 *>(pair);
}

} // namespace turbofno
