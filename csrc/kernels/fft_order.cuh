// FFT order of points and modes: index i of `size` means i below (size + 1) / 2, else i - size.
#pragma once

namespace turbofno {

// True if i (or -i) exists on an axis of `size`, for any i >= 0.
__device__ __forceinline__ bool has_positive(int i, int size) { return i < (size + 1) / 2; }
__device__ __forceinline__ bool has_negative(int i, int size) { return i >= 1 && i <= size / 2; }

} // namespace turbofno
