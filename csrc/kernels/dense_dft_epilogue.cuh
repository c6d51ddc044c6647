// Epilogue of a dense DFT: sums become values X[k] and X[N - k], pass through shared memory and are stored.
#pragma once

#include <type_traits>

#include "complex.cuh"
#include "dense_dft_lines.cuh"

namespace turbofno {

constexpr int kDftResultPitch = 36; // of a row of 32 results in a stage; no bank conflicts
constexpr int kDftResults = 32; // columns that a warp stores at once, four fragments

// exp(sign 2 pi i index k / points)
__device__ __forceinline__ float2 twiddle(const turbofno_fft &of, unsigned index, int k) {
    const auto points = unsigned(of.twiddle_points);
    const unsigned turns = points <= 1u << 22 ? index % points * unsigned(k) % points
                                              : unsigned(uint64_t(index) * unsigned(k) % points);
    const float signed_turns = turns > points / 2 ? -float(points - turns) : float(turns);
    float2 factor;
    sincospif(2.0f * signed_turns / float(points), &factor.y, &factor.x);
    if (!of.inverse) factor.y = -factor.y;
    return factor;
}

// Stores a warp's results, 32 columns at a time.
template <int KIND, bool HALVES> struct LineTarget {
    static constexpr int kLines = DftKind<KIND>::kLines, kPlanes = DftKind<KIND>::kFoldsOut ? 2 : 1;
    using Value = std::conditional_t<DftKind<KIND>::kComplexOut, float2, float>;
    using Stored = std::conditional_t<HALVES, std::conditional_t<DftKind<KIND>::kComplexOut, __half2, __half>, Value>;
    static_assert(kPlanes * kLines * kDftResultPitch * sizeof(Value) <= kDftLineBytes,
                  "the results of 32 columns fit in a stage");

    int64_t offset; // of the line lane % kLines
    unsigned index; // i of that line (o, i)
    int lines; // that exist

    __device__ __forceinline__ LineTarget(const DenseDftArguments &a, unsigned first_line, int lane) {
        const unsigned line = min(first_line + lane % kLines, a.lines - 1);
        offset = line_offset(a, line, a.of.out_outer, a.of.out_inner);
        index = line % a.inner;
        lines = first_line < a.lines ? int(min(a.lines - first_line, unsigned(kLines))) : 0;
    }

    // Puts a fragment's sums to its place among 32 columns.
    static __device__ __forceinline__ void put(Value *stage, const float (&c)[4], const float (&s)[4], float scale,
                                               int first_column, int lane) {
        const int g = lane / 4;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            Value *to = stage + g * kDftResultPitch + first_column + 4 * e + lane % 4;
            const float c0 = c[e] * scale, c1 = c[2 + e] * scale, s0 = s[e] * scale, s1 = s[2 + e] * scale;
            constexpr int kSecond = kLines * kDftResultPitch; // plane
            if constexpr (KIND == TURBOFNO_COMPLEX) {
                to[0] = {c0 - s1, c1 + s0};
                to[kSecond] = {c0 + s1, c1 - s0};
            } else if constexpr (KIND == TURBOFNO_REAL_TO_COMPLEX) {
                to[0] = {c0, s0};
                to[8 * kDftResultPitch] = {c1, s1};
            } else {
                to[0] = c0 + s0;
                to[kSecond] = c0 - s0;
                to[8 * kDftResultPitch] = c1 + s1;
                to[kSecond + 8 * kDftResultPitch] = c1 - s1;
            }
        }
    }

    // True if a plane has a result of column k.
    static __device__ __forceinline__ bool exists(int points, int k, int end, int plane) {
        return k < end && (plane == 0 ? 2 * k <= points : k > 0 && 2 * k < points);
    }

    static __device__ __forceinline__ void store(Stored *to, Value value) {
        if constexpr (!HALVES) {
            *to = value;
        } else if constexpr (DftKind<KIND>::kComplexOut) {
            *to = __floats2half2_rn(value.x, value.y);
        } else {
            *to = __float2half_rn(value);
        }
    }

    // Stores the columns first .. of a stage, as far as they are below `end`.
    template <bool TWIDDLES>
    __device__ __forceinline__ void store_columns(const DenseDftArguments &a, const Value *stage, int first, int end,
                                                  int lane) const {
        if (!a.out_along_lines) {
            store_along_columns<TWIDDLES>(a, stage, first, end, lane);
        } else if (TWIDDLES || a.out_cut) {
            store_along_lines<TWIDDLES, true>(a, stage, first, end, lane);
        } else {
            store_along_lines<false, false>(a, stage, first, end, lane);
        }
    }

    template <bool CUT>
    static __device__ __forceinline__ ValueWalk<CUT> walk(const DenseDftArguments &a, int plane, int k, int step) {
        const int points = a.of.points, values = KIND == TURBOFNO_REAL_TO_COMPLEX ? points / 2 + 1 : points;
        return {plane == 0 ? k : points - k, plane == 0 ? step : -step, values, a.of.out_head, a.of.out_tail, a.of.out_point};
    }

    template <bool TWIDDLES, bool CUT>
    __device__ __forceinline__ void store_along_lines(const DenseDftArguments &a, const Value *stage, int first, int end,
                                                      int lane) const {
        constexpr int kColumnsAtOnce = kLanes / kLines;
        const int line = lane % kLines, first_column = lane / kLines;
        if (line >= lines) return;
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const Value *const from = stage + (plane * kLines + line) * kDftResultPitch;
            Stored *const to = static_cast<Stored *>(a.of.out) + offset;
            ValueWalk<CUT> at = walk<CUT>(a, plane, first + first_column, kColumnsAtOnce);
#pragma unroll(CUT ? 4 : kLines)
            for (int i = 0; i < kLines; ++i) {
                const int column = i * kColumnsAtOnce + first_column;
                if (exists(a.of.points, first + column, end, plane) && at.inside()) {
                    Value value = from[column];
                    if constexpr (TWIDDLES) value = product(value, twiddle(a.of, index, at.p));
                    store(to + at.offset(), value);
                }
                at.advance();
            }
        }
    }

    template <bool TWIDDLES>
    __device__ __forceinline__ void store_along_columns(const DenseDftArguments &a, const Value *stage, int first, int end,
                                                        int lane) const {
        Stored *const out = static_cast<Stored *>(a.of.out);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const Value *const from = stage + plane * kLines * kDftResultPitch;
            const ValueWalk<true> at = walk<true>(a, plane, first + lane, 0);
            const bool inside = exists(a.of.points, first + lane, end, plane) && at.inside();
            Stored *const to = inside ? out + at.offset() : out;
#pragma unroll(TWIDDLES ? 1 : kLines)
            for (int line = 0; line < kLines; ++line) {
                const int64_t of_line = __shfl_sync(0xffffffffu, offset, line);
                Value value = from[line * kDftResultPitch + lane];
                if constexpr (TWIDDLES) {
                    value = product(value, twiddle(a.of, __shfl_sync(0xffffffffu, index, line), at.p));
                }
                if (inside && line < lines) store(to + of_line, value);
            }
        }
    }

    // Stores all of a warp's sums, of the columns first_column .. end - 1, from fragment FIRST on. A recursion because the
    // sums are registers: every index must be a constant.
    template <int FIRST = 0, int FRAGMENTS>
    __device__ __forceinline__ void store_from(const DenseDftArguments &a, Value *stage, const float (&sums)[2][FRAGMENTS][4],
                                               int first_column, int end, int lane) const {
        if constexpr (FIRST < FRAGMENTS) {
            constexpr int kNow = FRAGMENTS - FIRST < kDftResults / kDftColumns ? FRAGMENTS - FIRST : kDftResults / kDftColumns;
            __syncwarp(); // all lanes have read the stage
#pragma unroll
            for (int j = 0; j < kNow; ++j) {
                put(stage, sums[0][FIRST + j], sums[1][FIRST + j], a.of.scale, kDftColumns * j, lane);
            }
            __syncwarp();
            const int now_end = min(end, first_column + kDftColumns * kNow);
            if (DftKind<KIND>::kComplexOut && a.of.twiddle_points > 0) {
                store_columns<DftKind<KIND>::kComplexOut>(a, stage, first_column, now_end, lane);
            } else {
                store_columns<false>(a, stage, first_column, now_end, lane);
            }
            store_from<FIRST + kNow>(a, stage, sums, first_column + kDftColumns * kNow, end, lane);
        }
    }
};

} // namespace turbofno
