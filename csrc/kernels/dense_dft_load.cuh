// Loads of a dense DFT: a warp's chunks of lines from memory to a stage of the ring in shared memory.
#pragma once

#include "async_copy.cuh"
#include "dense_dft_lines.cuh"

namespace turbofno {

// A warp's chunk of lines in a stage: planes of rows of 32 terms, in 16-byte groups, which are swizzled so that neither
// copies along terms or lines nor the reads of a warp's lanes have bank conflicts.
template <int BYTES> struct StagedRows { // BYTES of a value
    static constexpr int kRowBytes = kDftTerms * BYTES;

    static __device__ __forceinline__ int at(int row, int term) {
        if constexpr (BYTES == 8) return row * kRowBytes + (term / 2 ^ (row & 7)) * 16 + term % 2 * 8;
        if constexpr (BYTES == 4) return row * kRowBytes + (term / 4 ^ ((row & 1) << 2 | (row >> 1 & 3))) * 16 + term % 4 * 4;
        return row * kRowBytes + term * BYTES;
    }
};

// Copies a warp's chunks from memory.
template <int KIND, bool HALVES> struct LineSource {
    static constexpr int kLines = DftKind<KIND>::kLines, kPlanes = DftKind<KIND>::kFoldsIn ? 2 : 1;
    static constexpr int kBytes = (HALVES ? 2 : 4) * (DftKind<KIND>::kComplexIn ? 2 : 1);
    static constexpr bool kAsync = kBytes >= 4;
    using Rows = StagedRows<kBytes>;
    static constexpr int kPlaneBytes = kLines * Rows::kRowBytes;

    int64_t offset; // of the line lane % kLines in bytes
    uint16_t halves[kPlanes][kLines]; // loaded values that are too small for asynchronous copies

    __device__ __forceinline__ void enter(const DenseDftArguments &a, unsigned first_line, int lane) {
        // beyond the last line read the last one again; its results are not stored
        const unsigned line = min(first_line + lane % kLines, a.lines - 1);
        offset = kBytes * line_offset(a, line, a.of.in_outer, a.of.in_inner);
    }

    static __device__ __forceinline__ int values_of(const DenseDftArguments &a) {
        return KIND == TURBOFNO_COMPLEX_TO_REAL ? a.of.points / 2 + 1 : a.of.points;
    }

    // True if a plane has a value of this term.
    static __device__ __forceinline__ bool exists(int points, int term, int plane) {
        return plane == 0 ? 2 * term <= points : term > 0 && 2 * term < points;
    }

    // Place of the lane's i-th value in a plane.
    static __device__ __forceinline__ int staged_at(bool along_lines, int i, int lane) {
        return along_lines ? Rows::at(lane % kLines, i * (kLanes / kLines) + lane / kLines) : Rows::at(i, lane);
    }

    __device__ __forceinline__ void take(int plane, int i, char *to, const char *from, bool inside) {
        if constexpr (kAsync) {
            copy_async<kBytes>(to, from, inside);
        } else {
            halves[plane][i] = inside ? __ldg(reinterpret_cast<const uint16_t *>(from)) : uint16_t(0);
        }
    }

    // Starts to copy a chunk to a stage; `finish` ends it, where values are not copied asynchronously.
    __device__ __forceinline__ void copy(const DenseDftArguments &a, char *stage, int chunk, int lane) {
        if (!a.in_along_lines) {
            copy_along_terms(a, stage, chunk, lane);
        } else if (a.in_cut) {
            copy_along_lines<true>(a, stage, chunk, lane);
        } else {
            copy_along_lines<false>(a, stage, chunk, lane);
        }
    }

    template <bool CUT>
    __device__ __forceinline__ void copy_along_lines(const DenseDftArguments &a, char *stage, int chunk, int lane) {
        constexpr int kTermsAtOnce = kLanes / kLines;
        const char *const line = static_cast<const char *>(a.of.input) + offset;
        const int points = a.of.points, first = chunk * kDftTerms + lane / kLines;
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            ValueWalk<CUT> walk(plane == 0 ? first : points - first, plane == 0 ? kTermsAtOnce : -kTermsAtOnce, values_of(a),
                           a.of.in_head, a.of.in_tail, kBytes * a.of.in_point);
#pragma unroll(kAsync && CUT ? 4 : kLines) // halves are registers: every index must be a constant
            for (int i = 0; i < kLines; ++i) {
                const bool inside = exists(points, first + i * kTermsAtOnce, plane) && walk.inside();
                take(plane, i, stage + plane * kPlaneBytes + staged_at(true, i, lane), line + walk.offset(), inside);
                walk.advance();
            }
        }
    }

    __device__ __forceinline__ void copy_along_terms(const DenseDftArguments &a, char *stage, int chunk, int lane) {
        const char *const input = static_cast<const char *>(a.of.input);
        const int points = a.of.points, term = chunk * kDftTerms + lane;
        const char *from[kPlanes];
        bool inside[kPlanes];
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const ValueWalk<true> walk(plane == 0 ? term : points - term, 0, values_of(a), a.of.in_head, a.of.in_tail,
                                  kBytes * a.of.in_point);
            inside[plane] = exists(points, term, plane) && walk.inside();
            from[plane] = inside[plane] ? input + walk.offset() : input;
        }
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
            const int64_t of_line = __shfl_sync(0xffffffffu, offset, i);
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane) {
                char *const to = stage + plane * kPlaneBytes + staged_at(false, i, lane);
                take(plane, i, to, from[plane] + of_line, inside[plane]);
            }
        }
    }

    __device__ __forceinline__ void finish(const DenseDftArguments &a, char *stage, int lane) const {
        if constexpr (!kAsync) {
#pragma unroll
            for (int i = 0; i < kLines; ++i) {
                const int at = staged_at(a.in_along_lines, i, lane);
#pragma unroll
                for (int plane = 0; plane < kPlanes; ++plane) {
                    *reinterpret_cast<uint16_t *>(stage + plane * kPlaneBytes + at) = halves[plane][i];
                }
            }
        }
    }
};

} // namespace turbofno
