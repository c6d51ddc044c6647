// Arithmetic of complex numbers, (real, imaginary).
#pragma once

#include <cuda_runtime.h>

namespace turbofno {

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ float2 operator-(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
__device__ __forceinline__ float2 conjugate(float2 a) { return {a.x, -a.y}; }

__device__ __forceinline__ float2 product(float2 a, float2 b) {
    return {fmaf(a.x, b.x, -(a.y * b.y)), fmaf(a.x, b.y, a.y * b.x)};
}

// sum + a b
__device__ __forceinline__ float2 plus_product(float2 sum, float2 a, float2 b) {
    return {fmaf(a.x, b.x, fmaf(-a.y, b.y, sum.x)), fmaf(a.x, b.y, fmaf(a.y, b.x, sum.y))};
}

} // namespace turbofno
