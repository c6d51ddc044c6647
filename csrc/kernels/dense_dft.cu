// Discrete Fourier transforms of many lines as matrix products, for sizes that have a large prime factor.
//
// n and N - n share their products, as do k and N - k:
//     C[k] = sum over n of cos(n k) e[n],   e[n] = x[n] + x[N - n]       n, k = 0 .. N / 2
//     S[k] = sum over n of sin(n k) o[n],   o[n] = x[n] - x[N - n]       x[N - n] is zero where it is x[n]
// This is a quarter of the products of the full sum. From real to complex X[k] = C + iS. From complex to real e and o are
// the real and imaginary parts, n and k change places, and x[n], x[N - n] are C + S, C - S. A complex line is two real ones,
// its real and imaginary part, which a lane holds as two rows of the same fragment; X[k] and X[N - k] come from both. Sign
// and weights are in the table.
//
// Rows of the tensor cores are lines, terms n, columns k. A warpgroup has 64 rows and up to 112 columns; each of its warps
// loads, splits and stores its own 16 rows. Lines arrive in chunks of 32 terms: x[n] and x[N - n] as two planes, in a ring
// of stages in shared memory that runs on from one unit of 64 rows to the next. A lane takes four neighbouring terms of a
// row in 16-byte words, adds and subtracts, and splits the results, which are the A operand as they are. Every row and chunk
// has its own scale, so no line is read twice, and one that is not finite does not touch another. Sums are restarted for
// each chunk, because tensor cores truncate. At the end the sums go through the stage that their last chunk has left, so
// that stores are coalesced.
//
// The table, turbofno_ops/_dft_table.py, is the B operand of wgmma (wgmma.cuh) and of mma.sync alike:
//     [chunk][8 columns][cos, sin][16 terms][high, low][8 terms]     8 x 8 matrices, a row is 8 terms of a column
// All of it stays in shared memory if it fits: then warps never wait for each other. Else its chunks come through the ring,
// and the warps of a block go from chunk to chunk together. More than 112 columns are other blocks' work. Term 4 (i / 2) +
// 2h + i % 2 of 16 is term i of half h, so a lane's terms are neighbours; column 2t + e of a fragment is 4e + t, so four
// lanes' results are.
#include "../plan/dense_dft_plan.h"
#include "async_copy.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace turbofno {
namespace {

struct DenseArguments {
    turbofno_fft of;
    DenseDftPlan plan;
    unsigned lines, inner;
    bool in_along_lines, out_along_lines; // neighbouring lanes take neighbouring lines, else neighbouring values
    bool in_cut, out_cut; // not all values of a line are given, kept
};

constexpr int kWarpgroupThreads = kWarpgroupWarps * kLanes;
constexpr int kSteps = kDftTerms / 16;
constexpr int kPitch = 36; // of a row of 32 results in a stage; no bank conflicts
constexpr int kResults = 32; // columns that a warp stores at once, four fragments
constexpr float kTableInvScale = 0x1p-13f; // of dense_table

template <typename P> constexpr int kFragmentWords = kDftPlaneBytes *P::kPlanes / 16; // 16 bytes each

// Sides of a transform.
template <int KIND> struct Side {
    static constexpr bool kComplexIn = KIND != TURBOFNO_REAL_TO_COMPLEX, kComplexOut = KIND != TURBOFNO_COMPLEX_TO_REAL;
    static constexpr int kLines = KIND == TURBOFNO_COMPLEX ? 8 : 16; // of a warp
    static constexpr bool kFoldsIn = KIND != TURBOFNO_COMPLEX_TO_REAL, kFoldsOut = KIND != TURBOFNO_REAL_TO_COMPLEX;
};

// Offset of a line in an array, in values.
__device__ __forceinline__ int64_t line_offset(const DenseArguments &a, unsigned line, int64_t outer, int64_t inner) {
    const unsigned o = line / a.inner;
    return o * outer + (line - o * a.inner) * inner;
}

// The values p of a line at first, first + step, ..: how far each is from the line's begin. An addition each, no product.
// CUT: only the first `head` and the last `tail` of the line's values are stored.
template <bool CUT> struct Walk {
    int p, step;
    int64_t at, at_step, gap; // gap: between head and tail, which lie next to each other
    int head, tail; // the first value of the tail

    __device__ __forceinline__ Walk(int first, int step, int values, int head, int tail, int64_t stride)
        : p(first), step(step), at(first * stride), at_step(step * stride), gap((values - head - tail) * stride), head(head),
          tail(values - tail) {}

    __device__ __forceinline__ bool inside() const { return !CUT || p < head || p >= tail; }
    __device__ __forceinline__ int64_t offset() const { return !CUT || p < head ? at : at - gap; }
    __device__ __forceinline__ void advance() {
        p += step;
        at += at_step;
    }
};

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
    static constexpr int kLines = Side<KIND>::kLines, kPlanes = Side<KIND>::kFoldsIn ? 2 : 1;
    static constexpr int kBytes = (HALVES ? 2 : 4) * (Side<KIND>::kComplexIn ? 2 : 1);
    static constexpr bool kAsync = kBytes >= 4;
    using Rows = StagedRows<kBytes>;
    static constexpr int kPlaneBytes = kLines * Rows::kRowBytes;

    int64_t offset; // of the line lane % kLines in bytes
    uint16_t halves[kPlanes][kLines]; // loaded values that are too small for asynchronous copies

    __device__ __forceinline__ void enter(const DenseArguments &a, unsigned first_line, int lane) {
        // beyond the last line read the last one again; its results are not stored
        const unsigned line = min(first_line + lane % kLines, a.lines - 1);
        offset = kBytes * line_offset(a, line, a.of.in_outer, a.of.in_inner);
    }

    static __device__ __forceinline__ int values_of(const DenseArguments &a) {
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
    __device__ __forceinline__ void copy(const DenseArguments &a, char *stage, int chunk, int lane) {
        if (!a.in_along_lines) {
            copy_along_terms(a, stage, chunk, lane);
        } else if (a.in_cut) {
            copy_along_lines<true>(a, stage, chunk, lane);
        } else {
            copy_along_lines<false>(a, stage, chunk, lane);
        }
    }

    template <bool CUT>
    __device__ __forceinline__ void copy_along_lines(const DenseArguments &a, char *stage, int chunk, int lane) {
        constexpr int kTermsAtOnce = kLanes / kLines;
        const char *const line = static_cast<const char *>(a.of.input) + offset;
        const int points = a.of.points, first = chunk * kDftTerms + lane / kLines;
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            Walk<CUT> walk(plane == 0 ? first : points - first, plane == 0 ? kTermsAtOnce : -kTermsAtOnce, values_of(a),
                           a.of.in_head, a.of.in_tail, kBytes * a.of.in_point);
#pragma unroll(kAsync && CUT ? 4 : kLines) // halves are registers: every index must be a constant
            for (int i = 0; i < kLines; ++i) {
                const bool inside = exists(points, first + i * kTermsAtOnce, plane) && walk.inside();
                take(plane, i, stage + plane * kPlaneBytes + staged_at(true, i, lane), line + walk.offset(), inside);
                walk.advance();
            }
        }
    }

    __device__ __forceinline__ void copy_along_terms(const DenseArguments &a, char *stage, int chunk, int lane) {
        const char *const input = static_cast<const char *>(a.of.input);
        const int points = a.of.points, term = chunk * kDftTerms + lane;
        const char *from[kPlanes];
        bool inside[kPlanes];
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const Walk<true> walk(plane == 0 ? term : points - term, 0, values_of(a), a.of.in_head, a.of.in_tail,
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

    __device__ __forceinline__ void finish(const DenseArguments &a, char *stage, int lane) const {
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

// Four neighbouring values of a staged row.
template <int BYTES, bool COMPLEX> struct FourValues {
    float re[4], im[4]; // im only of complex values

    __device__ __forceinline__ FourValues(const char *plane, int row, int term) {
        using Rows = StagedRows<BYTES>;
        if constexpr (BYTES == 8) {
            const float4 a = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term));
            const float4 b = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term + 2));
            re[0] = a.x, im[0] = a.y, re[1] = a.z, im[1] = a.w;
            re[2] = b.x, im[2] = b.y, re[3] = b.z, im[3] = b.w;
        } else if constexpr (!COMPLEX && BYTES == 4) {
            const float4 a = *reinterpret_cast<const float4 *>(plane + Rows::at(row, term));
            re[0] = a.x, re[1] = a.y, re[2] = a.z, re[3] = a.w;
        } else {
            __half2 pairs[BYTES];
            if constexpr (BYTES == 4) {
                *reinterpret_cast<uint4 *>(pairs) = *reinterpret_cast<const uint4 *>(plane + Rows::at(row, term));
            } else {
                *reinterpret_cast<uint2 *>(pairs) = *reinterpret_cast<const uint2 *>(plane + Rows::at(row, term));
            }
#pragma unroll
            for (int i = 0; i < BYTES; ++i) {
                const float2 pair = __half22float2(pairs[i]);
                if constexpr (COMPLEX) {
                    re[i] = pair.x, im[i] = pair.y;
                } else {
                    re[2 * i] = pair.x, re[2 * i + 1] = pair.y;
                }
            }
        }
    }
};

// The A operands of a chunk: of e (even) and o (odd). STEPS: of its terms; a short last chunk has one.
template <typename P, int STEPS> struct ChunkOperands {
    uint32_t high[2][STEPS][4], low[2][STEPS][4];
    float inv_scale[2]; // of the rows g and g + 8, times that of the table

    template <int KIND, bool HALVES>
    __device__ __forceinline__ void load(const char *stage, int chunk, int points, int lane) {
        using Source = LineSource<KIND, HALVES>;
        using Four = FourValues<Source::kBytes, Side<KIND>::kComplexIn>;
        const int g = lane / 4, t = lane % 4;
        float values[2][2][STEPS][4]; // [even, odd][row][step][term]
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int term = 16 * step + 4 * t;
            if constexpr (KIND == TURBOFNO_COMPLEX) {
                const Four here(stage, g, term), there(stage + Source::kPlaneBytes, g, term);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    values[0][0][step][i] = here.re[i] + there.re[i];
                    values[1][0][step][i] = here.re[i] - there.re[i];
                    values[0][1][step][i] = here.im[i] + there.im[i];
                    values[1][1][step][i] = here.im[i] - there.im[i];
                }
            } else {
#pragma unroll
                for (int row = 0; row < 2; ++row) {
                    const Four here(stage, g + 8 * row, term);
                    if constexpr (KIND == TURBOFNO_REAL_TO_COMPLEX) {
                        const Four there(stage + Source::kPlaneBytes, g + 8 * row, term);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            values[0][row][step][i] = here.re[i] + there.re[i];
                            values[1][row][step][i] = here.re[i] - there.re[i];
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const int k = chunk * kDftTerms + term + i;
                            values[0][row][step][i] = here.re[i];
                            values[1][row][step][i] = k == 0 || 2 * k == points ? 0.0f : here.im[i];
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float most = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * STEPS * 4; ++i) {
                most = max_magnitude(most, values[i / (STEPS * 4)][row][i / 4 % STEPS][i % 4]);
            }
            const Scale scale = scale_of(max_over_lanes<1, 4>(most));
            inv_scale[row] = scale.inverse * kTableInvScale;
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                    for (int pair = 0; pair < 2; ++pair) {
                        const float *both = &values[part][row][step][2 * pair];
                        const int r = 2 * pair + row;
                        split<P>(both[0], both[1], scale.factor, high[part][step][r], low[part][step][r]);
                    }
                }
            }
        }
    }

    // Starts part = e . cosines (PART 0) or o . sines (PART 1) of FRAGMENTS fragments: small products first.
    template <int PART, int FRAGMENTS>
    __device__ __forceinline__ void multiply(float (&part)[FRAGMENTS][4], const uint4 *table, int lane) const {
#ifdef TURBOFNO_WGMMA_ENABLED
        constexpr unsigned kPlane = 2 * kMatrixWords, kStep = P::kPlanes * kPlane;
        const unsigned b = descriptor_low(shared_address(table), kMatrixBytes) + PART * kSteps * kStep;
        const auto add = [&](const uint32_t(&rows)[4], unsigned columns, bool sum) {
            wgmma<P>(part, rows, columns, sum, kFragmentWords<P>);
        };
        wgmma_fence();
        if constexpr (P::kSplit) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) add(low[PART][i], b + i * kStep, i > 0);
#pragma unroll
            for (int i = 0; i < STEPS; ++i) add(high[PART][i], b + i * kStep + kPlane, true);
        }
#pragma unroll
        for (int i = 0; i < STEPS; ++i) add(high[PART][i], b + i * kStep, P::kSplit || i > 0);
        wgmma_commit();
#else
        const auto *words = reinterpret_cast<const uint32_t *>(table) + lane; // a lane's word of each matrix
        const auto matrix = [&](int fragment, int step, int plane, int half) {
            return words[(((fragment * 2 + PART) * kSteps + step) * P::kPlanes * 2 + plane * 2 + half) * kLanes];
        };
#pragma unroll
        for (int j = 0; j < FRAGMENTS; ++j) {
            uint32_t b[STEPS][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) part[j][i] = 0.0f;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                b[i][0] = matrix(j, i, 0, 0);
                b[i][1] = matrix(j, i, 0, 1);
                if constexpr (P::kSplit) {
                    mma<P>(part[j], low[PART][i], b[i][0], b[i][1]);
                    mma<P>(part[j], high[PART][i], matrix(j, i, P::kPlanes - 1, 0), matrix(j, i, P::kPlanes - 1, 1));
                }
            }
#pragma unroll
            for (int i = 0; i < STEPS; ++i) mma<P>(part[j], high[PART][i], b[i][0], b[i][1]);
        }
#endif
    }

    // Holds the operands in their registers: until the products have ended, the tensor cores read them.
    __device__ __forceinline__ void keep() {
#ifdef TURBOFNO_WGMMA_ENABLED
#pragma unroll
        for (int i = 0; i < 2 * STEPS * 4; ++i) {
            asm volatile("" : "+r"(high[i / (STEPS * 4)][i / 4 % STEPS][i % 4])::"memory");
            if constexpr (P::kSplit) asm volatile("" : "+r"(low[i / (STEPS * 4)][i / 4 % STEPS][i % 4])::"memory");
        }
#endif
    }
};

// A warpgroup's sums C and S of 16 rows a warp.
template <typename P, int FRAGMENTS, int TILES> struct Sums {
    float of[2][TILES * FRAGMENTS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto &part : of) {
#pragma unroll
            for (auto &fragment : part) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
        }
    }

    template <int PART>
    __device__ __forceinline__ void add_tile(int tile, const float (&product)[FRAGMENTS][4], const float (&inv_scale)[2]) {
#pragma unroll
        for (int j = 0; j < FRAGMENTS; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float &sum = of[PART][tile * FRAGMENTS + j][e];
                sum = fmaf(product[j][e], inv_scale[e / 2], sum);
            }
        }
    }

    // Adds a chunk's products. While the tensor cores compute one, the one before is added.
    template <int STEPS>
    __device__ __forceinline__ void add(ChunkOperands<P, STEPS> &a, const uint4 *table, int lane) {
        float even[FRAGMENTS][4], odd[FRAGMENTS][4];
        constexpr int kTileWords = FRAGMENTS * kFragmentWords<P>;
        a.keep();
        a.template multiply<0>(even, table, lane);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            a.template multiply<1>(odd, table + tile * kTileWords, lane);
            wgmma_wait_but<1>(even);
            add_tile<0>(tile, even, a.inv_scale);
            if (tile + 1 < TILES) {
                a.template multiply<0>(even, table + (tile + 1) * kTileWords, lane);
                wgmma_wait_but<1>(odd);
            } else {
                wgmma_wait(odd);
            }
            add_tile<1>(tile, odd, a.inv_scale);
        }
        a.keep();
    }
};

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

__device__ __forceinline__ float2 times(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

// Stores a warp's results, 32 columns at a time.
template <int KIND, bool HALVES> struct LineTarget {
    static constexpr int kLines = Side<KIND>::kLines, kPlanes = Side<KIND>::kFoldsOut ? 2 : 1;
    using Value = std::conditional_t<Side<KIND>::kComplexOut, float2, float>;
    using Stored = std::conditional_t<HALVES, std::conditional_t<Side<KIND>::kComplexOut, __half2, __half>, Value>;
    static_assert(kPlanes * kLines * kPitch * sizeof(Value) <= kDftLineBytes, "the results of 32 columns fit in a stage");

    int64_t offset; // of the line lane % kLines
    unsigned index; // i of that line (o, i)
    int lines; // that exist

    __device__ __forceinline__ LineTarget(const DenseArguments &a, unsigned first_line, int lane) {
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
            Value *to = stage + g * kPitch + first_column + 4 * e + lane % 4;
            const float c0 = c[e] * scale, c1 = c[2 + e] * scale, s0 = s[e] * scale, s1 = s[2 + e] * scale;
            constexpr int kSecond = kLines * kPitch; // plane
            if constexpr (KIND == TURBOFNO_COMPLEX) {
                to[0] = {c0 - s1, c1 + s0};
                to[kSecond] = {c0 + s1, c1 - s0};
            } else if constexpr (KIND == TURBOFNO_REAL_TO_COMPLEX) {
                to[0] = {c0, s0};
                to[8 * kPitch] = {c1, s1};
            } else {
                to[0] = c0 + s0;
                to[kSecond] = c0 - s0;
                to[8 * kPitch] = c1 + s1;
                to[kSecond + 8 * kPitch] = c1 - s1;
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
        } else if constexpr (Side<KIND>::kComplexOut) {
            *to = __floats2half2_rn(value.x, value.y);
        } else {
            *to = __float2half_rn(value);
        }
    }

    // Stores the columns first .. of a stage, as far as they are below `end`.
    template <bool TWIDDLES>
    __device__ __forceinline__ void store_columns(const DenseArguments &a, const Value *stage, int first, int end,
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
    static __device__ __forceinline__ Walk<CUT> walk(const DenseArguments &a, int plane, int k, int step) {
        const int points = a.of.points, values = KIND == TURBOFNO_REAL_TO_COMPLEX ? points / 2 + 1 : points;
        return {plane == 0 ? k : points - k, plane == 0 ? step : -step, values, a.of.out_head, a.of.out_tail, a.of.out_point};
    }

    template <bool TWIDDLES, bool CUT>
    __device__ __forceinline__ void store_along_lines(const DenseArguments &a, const Value *stage, int first, int end,
                                                      int lane) const {
        constexpr int kColumnsAtOnce = kLanes / kLines;
        const int line = lane % kLines, first_column = lane / kLines;
        if (line >= lines) return;
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const Value *const from = stage + (plane * kLines + line) * kPitch;
            Stored *const to = static_cast<Stored *>(a.of.out) + offset;
            Walk<CUT> at = walk<CUT>(a, plane, first + first_column, kColumnsAtOnce);
#pragma unroll(CUT ? 4 : kLines)
            for (int i = 0; i < kLines; ++i) {
                const int column = i * kColumnsAtOnce + first_column;
                if (exists(a.of.points, first + column, end, plane) && at.inside()) {
                    Value value = from[column];
                    if constexpr (TWIDDLES) value = times(value, twiddle(a.of, index, at.p));
                    store(to + at.offset(), value);
                }
                at.advance();
            }
        }
    }

    template <bool TWIDDLES>
    __device__ __forceinline__ void store_along_columns(const DenseArguments &a, const Value *stage, int first, int end,
                                                        int lane) const {
        Stored *const out = static_cast<Stored *>(a.of.out);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            const Value *const from = stage + plane * kLines * kPitch;
            const Walk<true> at = walk<true>(a, plane, first + lane, 0);
            const bool inside = exists(a.of.points, first + lane, end, plane) && at.inside();
            Stored *const to = inside ? out + at.offset() : out;
#pragma unroll(TWIDDLES ? 1 : kLines)
            for (int line = 0; line < kLines; ++line) {
                const int64_t of_line = __shfl_sync(0xffffffffu, offset, line);
                Value value = from[line * kPitch + lane];
                if constexpr (TWIDDLES) {
                    value = times(value, twiddle(a.of, __shfl_sync(0xffffffffu, index, line), at.p));
                }
                if (inside && line < lines) store(to + of_line, value);
            }
        }
    }

    // Stores all of a warp's sums, of the columns first_column .. end - 1, from fragment FIRST on. A recursion because the
    // sums are registers: every index must be a constant.
    template <int FIRST = 0, int FRAGMENTS>
    __device__ __forceinline__ void store_from(const DenseArguments &a, Value *stage, const float (&sums)[2][FRAGMENTS][4],
                                               int first_column, int end, int lane) const {
        if constexpr (FIRST < FRAGMENTS) {
            constexpr int kNow = FRAGMENTS - FIRST < kResults / kDftColumns ? FRAGMENTS - FIRST : kResults / kDftColumns;
            __syncwarp(); // all lanes have read the stage
#pragma unroll
            for (int j = 0; j < kNow; ++j) {
                put(stage, sums[0][FIRST + j], sums[1][FIRST + j], a.of.scale, kDftColumns * j, lane);
            }
            __syncwarp();
            const int now_end = min(end, first_column + kDftColumns * kNow);
            if (Side<KIND>::kComplexOut && a.of.twiddle_points > 0) {
                store_columns<Side<KIND>::kComplexOut>(a, stage, first_column, now_end, lane);
            } else {
                store_columns<false>(a, stage, first_column, now_end, lane);
            }
            store_from<FIRST + kNow>(a, stage, sums, first_column + kDftColumns * kNow, end, lane);
        }
    }
};

// Waits for the copies of the current stage: all but the last stages - 2 that were committed.
__device__ __forceinline__ void wait_for_stage(int stages) {
    if (stages == 2) {
        wait_copies<0>();
    } else if (stages == 3) {
        wait_copies<1>();
    } else {
        wait_copies<2>();
    }
}

template <typename P, int KIND, int FRAGMENTS, int TILES>
__global__ void __launch_bounds__(kWarpgroupThreads *dense_dft_warpgroups(FRAGMENTS), 1)
    dense_dft(const __grid_constant__ DenseArguments a) {
    constexpr bool kHalves = !P::kSplit;
    using Target = LineTarget<KIND, kHalves>;
    extern __shared__ uint4 shared[];
    const DenseDftPlan &plan = a.plan;
    // the shuffle tells the compiler that the warp index is uniform
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0), lane = threadIdx.x % kLanes;
    char *const lines = reinterpret_cast<char *>(shared) + plan.lines_at + warp * (plan.stages * kDftLineBytes);
    const int first_fragment = blockIdx.y * plan.group_fragments, chunk_words = plan.group_fragments * kFragmentWords<P>;

    const auto copy_table = [&](int chunk, int stage) {
        const uint4 *from = static_cast<const uint4 *>(a.of.table) +
                            (int64_t(chunk) * plan.table_fragments + first_fragment) * kFragmentWords<P>;
        const int words = min(plan.group_fragments, plan.table_fragments - first_fragment) * kFragmentWords<P>;
        for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(shared + stage * chunk_words + i, from + i, true);
    };
    const auto first_line_of = [&](int unit) {
        return unsigned(unit * kWarpgroupWarps + warp % kWarpgroupWarps) * Side<KIND>::kLines;
    };
    const int first_unit = blockIdx.x * plan.warpgroups, unit_stride = gridDim.x * plan.warpgroups;
    // all warpgroups make as many turns; some units of the last one do not exist and have no lines
    const int turns = ceil_div(plan.units - first_unit, unit_stride) * plan.chunks;

    pdl_wait();
    if (plan.resident) {
        for (int chunk = 0; chunk < plan.chunks; ++chunk) copy_table(chunk, chunk);
    }
    LineSource<KIND, kHalves> source;
    Sums<P, FRAGMENTS, TILES> sums;
    sums.clear();
    int unit = first_unit + warp / kWarpgroupWarps, chunk = 0, stage = 0;
    int next_unit = unit, next_chunk = 0, next_stage = 0; // of the next copy
#pragma unroll 1
    for (int turn = 1 - plan.stages; turn < turns; ++turn) { // the first ones only copy
        if (turn >= 0) wait_for_stage(plan.stages);
        if (turn == 0 || !plan.resident) {
            fence_proxy_async(); // wgmma reads the table
            __syncthreads();
        } else {
            __syncwarp();
        }
        const bool copies = turn + plan.stages - 1 < turns;
        char *const next = lines + next_stage * kDftLineBytes; // the stage that all have left
        if (copies) {
            if (next_chunk == 0) source.enter(a, first_line_of(next_unit), lane);
            if (!plan.resident) copy_table(next_chunk, next_stage);
            source.copy(a, next, next_chunk, lane);
            if (++next_stage == plan.stages) next_stage = 0;
            if (++next_chunk == plan.chunks) {
                next_chunk = 0;
                next_unit += unit_stride;
            }
        }
        commit_copies();
        if (turn < 0) {
            if (copies) source.finish(a, next, lane);
            continue;
        }

        char *const staged = lines + stage * kDftLineBytes;
        const auto add = [&](auto steps) {
            ChunkOperands<P, decltype(steps)::value> operands;
            operands.template load<KIND, kHalves>(staged, chunk, a.of.points, lane);
            sums.add(operands, shared + (plan.resident ? chunk : stage) * chunk_words, lane);
        };
        if (plan.last_is_short && chunk == plan.chunks - 1) {
            add(std::integral_constant<int, 1>{});
        } else {
            add(std::integral_constant<int, kSteps>{});
        }
        if (copies) source.finish(a, next, lane);
        if (++stage == plan.stages) stage = 0;
        if (++chunk < plan.chunks) continue;
        chunk = 0;

        const Target target(a, first_line_of(unit), lane);
        auto *const results = reinterpret_cast<typename Target::Value *>(staged);
        const int end = kDftColumns * (first_fragment + plan.group_fragments);
        target.store_from(a, results, sums.of, kDftColumns * first_fragment, end, lane);
        sums.clear();
        unit += unit_stride;
    }
    pdl_trigger();
}

using DenseKernel = void (*)(DenseArguments);

template <typename P, int KIND> DenseKernel kernel_of(int fragments) {
    switch (fragments) {
    case 4: return dense_dft<P, KIND, 4, 1>;
    case 6: return dense_dft<P, KIND, 6, 1>;
    case 5: return dense_dft<P, KIND, 5, 2>;
    default: return dense_dft<P, KIND, 7, 2>;
    }
}

template <typename P> DenseKernel kernel_of(int kind, int fragments) {
    switch (kind) {
    case TURBOFNO_COMPLEX: return kernel_of<P, TURBOFNO_COMPLEX>(fragments);
    case TURBOFNO_REAL_TO_COMPLEX: return kernel_of<P, TURBOFNO_REAL_TO_COMPLEX>(fragments);
    default: return kernel_of<P, TURBOFNO_COMPLEX_TO_REAL>(fragments);
    }
}

// True if neighbouring lines are nearer to each other than neighbouring values of a line.
bool along_lines(const turbofno_fft &of, int64_t outer, int64_t inner, int64_t point) {
    const int64_t line = of.inner > 1 ? inner : outer;
    return of.inner * of.outer > 1 && (line < 0 ? -line : line) < (point < 0 ? -point : point);
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_dense_dft(const turbofno_fft *fft, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_dense_dft_unsupported(fft) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (fft->input == nullptr || fft->out == nullptr || fft->table == nullptr) return TURBOFNO_NULL_POINTER;
    DenseArguments a{};
    a.of = *fft;
    a.plan = plan_dense_dft(*fft);
    a.lines = unsigned(fft->outer * fft->inner);
    a.inner = unsigned(fft->inner);
    a.in_along_lines = along_lines(*fft, fft->in_outer, fft->in_inner, fft->in_point);
    a.out_along_lines = along_lines(*fft, fft->out_outer, fft->out_inner, fft->out_point);
    const DenseKernel kernel = fft->precision == TURBOFNO_FP32 ? kernel_of<PrecisionFp32>(fft->kind, a.plan.fragments)
                                                               : kernel_of<PrecisionTf32>(fft->kind, a.plan.fragments);
    a.in_cut = fft->in_head + fft->in_tail < dft_values(*fft, fft->kind != TURBOFNO_REAL_TO_COMPLEX);
    a.out_cut = fft->out_head + fft->out_tail < dft_values(*fft, fft->kind != TURBOFNO_COMPLEX_TO_REAL);
    // always the maximum: a smaller value could break a concurrent launch of this kernel by another thread
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fft->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks), unsigned(a.plan.groups)), kWarpgroupThreads * a.plan.warpgroups,
                      size_t(a.plan.shared_bytes), stream, a);
}
