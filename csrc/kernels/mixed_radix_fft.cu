// Discrete Fourier transforms of many lines, each a product of small radices.
//
// A thread holds one butterfly: the R values of a digit of radix R (csrc/plan/fft_plan.h), all other digits fixed. Stage i
// multiplies them by twiddles and transforms them in registers. Between stages they are exchanged through shared memory,
// each butterfly at its own places, so one barrier an exchange is enough and no second buffer is needed. Only in the last
// stage digits become frequencies in their order: digit i of the result is k[i], and result k[0] + k[1] radix[0] + .. goes
// where it belongs.
//
// First and last stage read and write global memory directly where a warp then covers whole sectors: neighbouring threads
// have neighbouring points, or neighbouring lines where these are nearer in memory. The two sides may differ. All else
// passes through shared memory once more, in the order of the array (`take_in`, `put_out`): short lines, and real
// transforms, whose values k and -k are combined there. An even size is a complex transform of pairs of values; of an odd
// size two lines are one complex line.
//
// Twiddles are powers of one root. Powers 1, 2, 4, 8 and 16 are read from the table, others are products of at most three.
// The inverse is the conjugate of the transform of the conjugate.
//
// `Fixed` kernels know their radices, so that indices and distances are constants. `Any` has every radix.
#include <cuda_fp16.h>

#include "../plan/fft_plan.h"
#include "async_copy.cuh"
#include "pdl.cuh"
#include "radix.cuh"

namespace turbofno {
namespace {

struct FftArguments {
    FftPlan plan;
    const void *in;
    void *out;
    const float2 *table;
    int table_step; // table values from one root of the complex transform to the next
    float in_sign, out_sign; // -1: conjugate complex values that come in, that go out
    float scale;
};

template <int... R> struct Fixed {
    static constexpr bool kFixed = true;
    static constexpr int kStages = sizeof...(R);
    static constexpr int kThreads = kMaxFftThreads, kBlocks = 1;

    __device__ explicit Fixed(const FftPlan &) {}
    static __device__ constexpr int radix(int stage) {
        const int list[] = {R...};
        return list[stage];
    }
    static __device__ constexpr int pitch(int stage) {
        const int list[] = {R...};
        return fft_pitch(list, kStages, stage);
    }
    static __device__ constexpr int size() { return (R * ...); }
    static __device__ constexpr int stages() { return kStages; }
    static __device__ constexpr int after(int stage) {
        const int list[] = {R...};
        int count = 1;
        for (int i = stage + 1; i < kStages; ++i) count *= list[i];
        return count;
    }
    static __device__ int over_after(int stage, int n) { return n / after(stage); }
    static __device__ int over_radix(int stage, int n) { return n / radix(stage); }
    static __device__ int over_butterflies(int stage, int n) { return n / (size() / radix(stage)); }
    static __device__ int over_size(int n) { return n / size(); }
    static __device__ int over_half(int n) { return n / ((size() + 1) / 2); }
};

template <int MAX_RADIX, int THREADS, int BLOCKS> struct Any { // any radices; BLOCKS on a multiprocessor
    static constexpr bool kFixed = false;
    static constexpr int kMaxRadix = MAX_RADIX, kThreads = THREADS, kBlocks = BLOCKS;
    const FftPlan &p;

    __device__ explicit Any(const FftPlan &plan) : p(plan) {}
    __device__ int radix(int stage) const { return p.radix[stage]; }
    __device__ int pitch(int stage) const { return p.pitch[stage]; }
    __device__ int size() const { return p.size; }
    __device__ int stages() const { return p.stages; }
    __device__ int after(int stage) const { return int(p.by_after[stage].by); }
    __device__ int over_after(int stage, int n) const { return int(p.by_after[stage](unsigned(n))); }
    __device__ int over_radix(int stage, int n) const { return int(p.by_radix[stage](n)); }
    __device__ int over_butterflies(int stage, int n) const { return int(p.by_butterflies[stage](n)); }
    __device__ int over_size(int n) const { return int(p.by_size(n)); }
    __device__ int over_half(int n) const { return int(p.by_half(n)); }
};

// Place in shared memory of value d of a line.
template <typename Shape> __device__ __forceinline__ int place_of_point(const Shape &shape, int d) {
    const int padding = shape.pitch(0) - shape.after(0); // 0 or 1
    return padding == 0 ? d : d + shape.over_butterflies(0, d);
}

// Place of result q whose digits are those before `end`, the first digit fastest.
template <typename Shape> __device__ __forceinline__ int place_of_results(const Shape &shape, int end, int q) {
    int place = 0;
#pragma unroll
    for (int i = 0; i < end - 1; ++i) {
        const int rest = shape.over_radix(i, q);
        place += (q - rest * shape.radix(i)) * shape.pitch(i);
        q = rest;
    }
    return end == 0 ? 0 : place + q * shape.pitch(end - 1);
}

// Reorders results of the stages before a middle one, 16 first digits at a time. 16 threads read `after` neighbouring values
// for each of 16 / after results: of these the first digits are `after` apart, because the first pitch is odd and then no two
// of the threads read the same bank.
__device__ __forceinline__ int apart(int result, int after) {
    if (after >= 16) return result;
    const int first = result % 16, together = 16 / after;
    return result - first + first / together + first % together * after;
}

// Values as they are in memory: float32, or float16 in the lower bits. Converted after all loads of a thread are on their
// way, because the conversion waits for its load.
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

constexpr int64_t kNoLine = INT64_MIN; // offset of a line that does not exist

// exp(2 pi i r / n), by an exact quotient of the nearest quarter turn
__device__ float2 phase(int64_t r, int64_t n) {
    const int quarters = int(rintf(4.0f * (float(r) / float(n))));
    const int64_t rest = 4 * r - quarters * n;
    float2 z;
    sincospif(0.5f * (float(rest) / float(n)), &z.y, &z.x);
    switch (quarters % 4) {
    case 1: return {-z.y, z.x};
    case 2: return {-z.x, -z.y};
    case 3: return {z.y, -z.x};
    default: return z;
    }
}

template <typename Shape> struct Transform {
    const FftArguments &a;
    const FftPlan &p;
    const Shape shape;
    int64_t *const in_offsets, *const out_offsets; // shared memory: of lines of the arrays, for take_in and put_out
    float2 *const values; // shared memory
    const int64_t line0;
    const int lines; // of this block

    __device__ Transform(const FftArguments &arguments, int64_t *offsets)
        : a(arguments), p(a.plan), shape(a.plan), in_offsets(offsets), out_offsets(offsets + p.array_lines),
          values(reinterpret_cast<float2 *>(offsets + 2 * p.array_lines)), line0(int64_t(blockIdx.x) * p.lines),
          lines(int(min(int64_t(p.lines), p.total - line0))) {}

    // Offset of a line of the array.
    __device__ __forceinline__ int64_t offset(const FftSide &side, int64_t line) const {
        if (p.joined) return line * side.inner;
        const unsigned o = p.by_inner(unsigned(line));
        return o * side.outer + (unsigned(line) - o * p.by_inner.by) * side.inner;
    }

    __device__ __forceinline__ static bool in_gap(const FftSide &side, int point) {
        return unsigned(point - side.head) < unsigned(side.gap);
    }
    __device__ __forceinline__ static int64_t position(const FftSide &side, int point) {
        return (point < side.head ? point : point - side.gap) * side.point;
    }

    // Splits a block-wide index into line and index within the line of `count` items.
    template <typename Over>
    __device__ __forceinline__ void split(bool lines_first, int item, int count, const Over &over, int &line,
                                          int &index) const {
        if (lines_first) {
            index = int(p.by_lines(unsigned(item)));
            line = item - index * int(p.by_lines.by);
        } else {
            line = over(item);
            index = item - line * count;
        }
    }

    // Calls f(item) for this thread's share of `count` items of each line. PER is how many these are in a fixed kernel.
    template <int PER, typename F> __device__ __forceinline__ void each(int count, const F &f) const {
        if constexpr (Shape::kFixed) {
#pragma unroll
            for (int i = 0; i < PER; ++i) f(int(threadIdx.x) + i * p.threads);
        } else {
            const int total = p.lines * count;
#pragma unroll 1
            for (int item = threadIdx.x; item < total; item += p.threads) f(item);
        }
    }

    template <int R> __device__ __forceinline__ void twiddle(float2 (&x)[R], int index) const {
        const float2 *table = a.table;
        const float2 w1 = __ldg(table + index);
        float2 near[4] = {{}, w1, {}, {}};
        x[1] = product(x[1], w1);
        if constexpr (R > 2) {
            near[2] = __ldg(table + 2 * index);
            x[2] = product(x[2], near[2]);
        }
        if constexpr (R > 3) {
            near[3] = product(w1, near[2]);
            x[3] = product(x[3], near[3]);
        }
        float2 far[2] = {}; // powers 4 and 8
        unrolled<1, (R + 3) / 4>([&](auto y) {
            float2 w;
            if constexpr (y == 3) {
                w = product(far[0], far[1]);
            } else {
                w = __ldg(table + 4 * y * index);
                if (y < 3) far[y - 1] = w;
            }
            x[4 * y] = product(x[4 * y], w);
            unrolled<1, 4>([&](auto n) {
                if constexpr (4 * y + n < R) x[4 * y + n] = product(x[4 * y + n], product(w, near[n]));
            });
        });
    }

    __device__ __forceinline__ float2 result(float2 v) const { return {v.x * a.scale, v.y * (a.scale * a.out_sign)}; }

    // The factor of result q of a line between the two steps of a long axis.
    __device__ __forceinline__ float2 factor(int64_t line, int q) const {
        const int64_t i = line - int64_t(p.by_inner(unsigned(line))) * p.by_inner.by;
        const int64_t r = i * q;
        const float2 w = phase(r < p.twiddle_points ? r : r % p.twiddle_points, p.twiddle_points);
        return {w.x, -a.out_sign * w.y};
    }

    // Multiplies results index + r step of a line by their factors. Few of these need a sine and a cosine.
    template <int R> __device__ __forceinline__ void twiddle_results(float2 (&v)[R], int64_t line, int index, int step) const {
        const float2 first = factor(line, index), by1 = factor(line, step), by2 = factor(line, 2 * step);
        const float2 near[4] = {first, product(first, by1), product(first, by2), product(first, product(by1, by2))};
        unrolled<0, (R + 3) / 4>([&](auto y) {
            const float2 w = y == 0 ? float2{} : factor(line, 4 * y * step);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (4 * y + n < R) v[4 * y + n] = product(v[4 * y + n], y == 0 ? near[n] : product(w, near[n]));
            }
        });
    }

    // One butterfly of a stage. STAGE is an int or, in a fixed kernel, a constant.
    template <int R, typename Stage>
    __device__ __forceinline__ void butterfly(Stage stage, bool direct_in, bool direct_out, int item) const {
        const bool last = stage == shape.stages() - 1;
        const int count = shape.size() / R;
        int line, index;
        split(direct_in ? p.in.lines_first : last && p.out.lines_first, item, count,
              [&](int n) { return shape.over_butterflies(stage, n); }, line, index);
        const int after = shape.after(stage);
        int place, before = 0; // digits before this one, as a result's index
        if (stage == 0) {
            place = index;
        } else if (last) {
            before = index;
            place = place_of_results(shape, stage, index);
        } else {
            before = shape.over_after(stage, index);
            place = index - before * after;
            if constexpr (Shape::kFixed) {
                static_assert(Shape::kStages == 2 || Shape::radix(0) == 16);
                before = apart(before, after);
            }
            place += place_of_results(shape, stage, before);
        }
        float2 *const here = values + line * p.line_pitch + place;
        const int pitch = shape.pitch(stage);
        float2 x[R];
        if (direct_in) {
            load<R>(x, line, index, count);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) x[r] = here[r * pitch];
            if (stage == 0 && p.in.access == kFftComplex) {
#pragma unroll
                for (int r = 0; r < R; ++r) x[r].y *= a.in_sign;
            }
        }
        if constexpr (R > 1) {
            if (stage > 0) twiddle(x, before * after * a.table_step);
        }
        if constexpr (Shape::kFixed) {
            float2 y[R];
            dft(x, [&](auto k, float2 v) { y[k] = v; });
            if (direct_out) {
                if (line < lines) store<R>(y, line0 + line, index, count);
            } else {
#pragma unroll
                for (int r = 0; r < R; ++r) here[r * pitch] = y[r];
            }
        } else {
            const int64_t to = direct_out && line < lines ? offset(p.out, line0 + line) : 0;
            dft(x, [&](auto k, float2 v) {
                if (!direct_out) {
                    here[k * pitch] = v;
                } else if (line < lines) {
                    put_point(to, line0 + line, index + k * count, v);
                }
            });
        }
    }

    template <int R> __device__ __forceinline__ void load(float2 (&x)[R], int line, int index, int step) const {
        const bool inside = line < lines;
        const int64_t from = inside ? offset(p.in, line0 + line) : 0;
        uint2 read[R];
        if (inside && p.in.gap == 0) {
            const int64_t first = from + index * p.in.point, stride = step * p.in.point;
            if (p.half) {
#pragma unroll
                for (int r = 0; r < R; ++r) read[r] = read_pair(a.in, first + r * stride, true);
            } else {
#pragma unroll
                for (int r = 0; r < R; ++r) read[r] = read_pair(a.in, first + r * stride, false);
            }
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int point = index + r * step;
                read[r] = uint2{};
                if (inside && !in_gap(p.in, point)) read[r] = read_pair(a.in, from + position(p.in, point), p.half);
            }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            x[r] = to_float(read[r], p.half);
            x[r].y *= a.in_sign;
        }
    }

    template <int R> __device__ __forceinline__ void store(float2 (&y)[R], int64_t line, int index, int step) const {
        const int64_t to = offset(p.out, line);
        constexpr bool few = R <= 8; // more have no registers for factors
        if (p.out.gap == 0 && (few || p.twiddle_points == 0)) {
#pragma unroll
            for (int r = 0; r < R; ++r) y[r] = result(y[r]);
            if constexpr (few) {
                if (p.twiddle_points != 0) twiddle_results(y, line, index, step);
            }
            const int64_t first = to + index * p.out.point, stride = step * p.out.point;
            if (p.half) {
#pragma unroll
                for (int r = 0; r < R; ++r) write(a.out, first + r * stride, y[r], true);
            } else {
#pragma unroll
                for (int r = 0; r < R; ++r) write(a.out, first + r * stride, y[r], false);
            }
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) put_point(to, line, index + r * step, y[r]);
        }
    }

    // `to`: offset of the line.
    __device__ __forceinline__ void put_point(int64_t to, int64_t line, int point, float2 v) const {
        v = result(v);
        if (p.out.gap == 0 && p.twiddle_points == 0) {
            write(a.out, to + point * p.out.point, v, p.half);
            return;
        }
        if (in_gap(p.out, point)) return;
        if (p.twiddle_points != 0) v = product(v, factor(line, point));
        write(a.out, to + position(p.out, point), v, p.half);
    }

    // All butterflies of a stage.
    template <typename Stage> __device__ __forceinline__ void run(Stage stage) const {
        const bool direct_in = stage == 0 && p.in.access == kFftDirect;
        const bool direct_out = stage == shape.stages() - 1 && p.out.access == kFftDirect;
        if constexpr (Shape::kFixed) {
            constexpr int R = Shape::radix(Stage::value), per = Shape::radix(0) / R;
            each<per>(0, [&](int item) { butterfly<R>(stage, direct_in, direct_out, item); });
        } else {
            const int radix = shape.radix(stage);
            unrolled<1, Shape::kMaxRadix + 1>([&](auto r) {
                if constexpr (r != 14) {
                    if (radix != r) return;
                    each<0>(shape.size() / r, [&](int item) { butterfly<r>(stage, direct_in, direct_out, item); });
                }
            });
        }
    }

    __device__ __forceinline__ void stages() const {
        if constexpr (Shape::kFixed) {
            unrolled<0, Shape::kStages>([&](auto stage) {
                if (stage > 0) __syncthreads();
                run(stage);
            });
        } else {
            for (int stage = 0; stage < p.stages; ++stage) {
                if (stage > 0) __syncthreads();
                run(stage);
            }
        }
    }

    // The next two take values between the array and shared memory in the order of the array. `pass` is 0 for both lines of
    // a pair, 1 for the first alone, 2 for the second alone.

    // Array lines of a block start here in both arrays. A line that does not exist has no offset.
    __device__ __forceinline__ void note_offsets() const {
        const int64_t first = p.paired ? 2 * line0 : line0;
        for (int i = threadIdx.x; i < p.array_lines; i += p.threads) {
            const bool exists = first + i < p.given;
            in_offsets[i] = exists ? offset(p.in, first + i) : kNoLine;
            out_offsets[i] = exists ? offset(p.out, first + i) : kNoLine;
        }
    }

    // Like `each`, with loads ahead: fetch(item) for several items before use(item, what it returned).
    template <int PER, typename Held, typename Fetch, typename Use>
    __device__ __forceinline__ void each_held(int count, const Fetch &fetch, const Use &use) const {
        const int total = p.lines * count, step = p.threads;
#pragma unroll 1
        for (int base = threadIdx.x; base < total; base += PER * step) {
            Held held[PER];
#pragma unroll
            for (int i = 0; i < PER; ++i) {
                if (base + i * step < total) held[i] = fetch(base + i * step);
            }
#pragma unroll
            for (int i = 0; i < PER; ++i) {
                if (base + i * step < total) use(base + i * step, held[i]);
            }
        }
    }

    template <bool PLAIN> __device__ __forceinline__ uint2 fetch_pair(int array_line, int point) const {
        const int64_t from = in_offsets[array_line];
        if (from == kNoLine || (!PLAIN && in_gap(p.in, point))) return {};
        return read_pair(a.in, from + (PLAIN ? point : position(p.in, point)), p.half);
    }
    template <bool PLAIN> __device__ __forceinline__ unsigned fetch_real(int array_line, int point) const {
        const int64_t from = in_offsets[array_line];
        if (from == kNoLine || (!PLAIN && in_gap(p.in, point))) return 0;
        return read_real(a.in, from + (PLAIN ? point : position(p.in, point)), p.half);
    }
    template <bool PLAIN, typename V> __device__ __forceinline__ void put_value(int array_line, int point, V v) const {
        const int64_t to = out_offsets[array_line];
        if (to == kNoLine || (!PLAIN && in_gap(p.out, point))) return;
        write(a.out, to + (PLAIN ? point : position(p.out, point)), v, p.half);
    }
    __device__ __forceinline__ float2 taken(uint2 pair) const {
        const float2 v = to_float(pair, p.half);
        return {v.x, v.y * a.in_sign};
    }
    __device__ __forceinline__ float2 taken_as(uint2 pair) const {
        const float2 v = to_float(pair, false);
        return {v.x, v.y * a.in_sign};
    }
    __device__ __forceinline__ float2 taken_as(unsigned pair) const {
        const float2 v = to_float(uint2{pair, 0}, true);
        return {v.x, v.y * a.in_sign};
    }

    // Returns true if this thread read a value that is not finite.
    template <bool PLAIN> __device__ __forceinline__ bool take_in(int pass) const {
        constexpr int held_at_once = PLAIN ? 4 : 2; // loads of a thread on their way
        const int size = shape.size();
        bool finite = true;
        const auto check = [&](float2 v) { finite = finite && v.x - v.x == 0.0f && v.y - v.y == 0.0f; };
        const auto place = [&](int line, int point) { return line * p.line_pitch + place_of_point(shape, point); };
        if (p.in.access == kFftHalf || p.in.access == kFftTwoHalves) {
            struct Held {
                uint2 low, high;
            };
            const int count = (size + 1) / 2;
            const bool even = p.in.access == kFftHalf;
            const auto where = [&](int item, int &line, int &k) {
                split(p.in.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
            };
            const auto fetch = [&](int item) {
                int line, k;
                where(item, line, k);
                if (Shape::kFixed || even) return Held{fetch_pair<PLAIN>(line, k), fetch_pair<PLAIN>(line, size - k)};
                return Held{fetch_pair<PLAIN>(2 * line + (pass == 2), k),
                            pass == 0 ? fetch_pair<PLAIN>(2 * line + 1, k) : uint2{}};
            };
            const auto use = [&](int item, const Held &held) {
                int line, k;
                where(item, line, k);
                float2 v = taken(held.low), u = taken(held.high), low, high;
                if (k == 0) v.y = u.y = 0.0f;
                if (Shape::kFixed || even) {
                    const float2 sum = v + conjugate(u), turned = product(v - conjugate(u), __ldg(a.table + k));
                    low = {sum.x - turned.y, sum.y + turned.x};
                    high = {sum.x + turned.y, turned.x - sum.y};
                } else {
                    check(v);
                    check(u);
                    low = {v.x - u.y, v.y + u.x};
                    high = {v.x + u.y, u.x - v.y};
                }
                values[place(line, k)] = low;
                if (k != 0) values[place(line, size - k)] = high;
            };
            // value size / 2 of even sizes is its own partner
            const bool alone = even && size % 2 == 0 && int(threadIdx.x) < p.lines;
            const uint2 ahead = alone ? fetch_pair<PLAIN>(threadIdx.x, size / 2) : uint2{};
            each_held<held_at_once / 2, Held>(count, fetch, use);
            if (alone) {
                for (int line = threadIdx.x; line < p.lines; line += p.threads) {
                    const float2 v = taken(line == int(threadIdx.x) ? ahead : fetch_pair<PLAIN>(line, size / 2));
                    values[place(line, size / 2)] = v + v;
                }
            }
            return !finite;
        }
        const auto where = [&](int item, int &line, int &point) {
            split(p.in.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
        };
        if (PLAIN && p.in.access == kFftComplex && !p.half) {
            const int total = p.lines * size;
#pragma unroll 2
            for (int item = threadIdx.x; item < total; item += p.threads) {
                int line, point;
                where(item, line, point);
                const int64_t from = in_offsets[line];
                const bool exists = from != kNoLine;
                const float2 *const value = static_cast<const float2 *>(a.in) + (exists ? from + point : 0);
                copy_async<8>(&values[place(line, point)], value, exists);
            }
            commit_copies();
            wait_copies<0>();
            return false;
        }
        each_held<held_at_once, uint2>(
            size,
            [&](int item) {
                int line, point;
                where(item, line, point);
                if (p.in.access == kFftComplex) return fetch_pair<PLAIN>(line, point);
                if (p.in.access == kFftNeighbours) {
                    return uint2{fetch_real<PLAIN>(line, 2 * point), fetch_real<PLAIN>(line, 2 * point + 1)};
                }
                return uint2{fetch_real<PLAIN>(2 * line + (pass == 2), point),
                             pass == 0 ? fetch_real<PLAIN>(2 * line + 1, point) : 0};
            },
            [&](int item, uint2 held) {
                int line, point;
                where(item, line, point);
                float2 v;
                if (p.in.access == kFftComplex) {
                    v = to_float(held, p.half); // the first stage conjugates
                } else {
                    v = {to_float(held.x, p.half), to_float(held.y, p.half)};
                    check(v);
                }
                values[place(line, point)] = v;
            });
        return !finite;
    }

    template <bool PLAIN> __device__ __forceinline__ void put_out(int pass) const {
        const int size = shape.size();
        const auto value = [&](int line, int q) {
            return values[line * p.line_pitch + place_of_results(shape, shape.stages(), q)];
        };
        if (p.out.access == kFftHalf || p.out.access == kFftTwoHalves) {
            const auto combine = [&](int line, int k) {
                const float2 v = value(line, k), u = conjugate(value(line, k == 0 ? 0 : size - k));
                const float2 sum = v + u, difference = v - u;
                const float2 even{0.5f * sum.x, 0.5f * sum.y}, odd{0.5f * difference.y, -0.5f * difference.x};
                if (Shape::kFixed || p.out.access == kFftHalf) {
                    const float2 turned = product(odd, __ldg(a.table + k));
                    put_value<PLAIN>(line, k, result(even + turned));
                    if (2 * k != size) put_value<PLAIN>(line, size - k, result(conjugate(even - turned)));
                } else {
                    put_value<PLAIN>(2 * line + (pass == 2), k, result(even));
                    if (pass == 0) put_value<PLAIN>(2 * line + 1, k, result(odd));
                }
            };
            const int count = (size + 1) / 2, total = p.lines * count;
#pragma unroll(PLAIN ? 2 : 1)
            for (int item = threadIdx.x; item < total; item += p.threads) {
                int line, k;
                split(p.out.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
                combine(line, k);
            }
            if (size % 2 == 0) {
#pragma unroll 1
                for (int line = threadIdx.x; line < lines; line += p.threads) combine(line, size / 2);
            }
            return;
        }
        const int total = p.lines * size;
#pragma unroll(PLAIN ? 2 : 1)
        for (int item = threadIdx.x; item < total; item += p.threads) {
            int line, point;
            split(p.out.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
            const float2 v = value(line, point);
            if (p.out.access == kFftComplex) {
                const float2 r = result(v);
                put_value<PLAIN>(line, point, p.twiddle_points == 0 ? r : product(r, factor(line0 + line, point)));
            } else if (p.out.access == kFftNeighbours) {
                put_value<PLAIN>(line, 2 * point, v.x * a.scale);
                put_value<PLAIN>(line, 2 * point + 1, v.y * a.scale);
            } else {
                put_value<PLAIN>(2 * line + (pass == 2), point, v.x * a.scale);
                if (pass == 0) put_value<PLAIN>(2 * line + 1, point, v.y * a.scale);
            }
        }
    }

    // Both again for real transforms of even size, where lines and threads are those that the kernel knows.

    // Line and k of pair i of this thread.
    __device__ __forceinline__ static void regular_pair(int i, int &line, int &k) {
        constexpr int count = Shape::size() / 2;
        if constexpr (count <= kFftThreads) {
            line = int(threadIdx.x) / count + i * (kFftThreads / count);
            k = int(threadIdx.x) % count;
        } else {
            line = i / (count / kFftThreads);
            k = int(threadIdx.x) + i % (count / kFftThreads) * kFftThreads;
        }
    }
    __device__ __forceinline__ static constexpr int regular_line_pitch() {
        return fft_line_pitch(Shape::radix(0) * Shape::pitch(0), Shape::after(0));
    }

    template <typename Pair> __device__ __forceinline__ void take_halves() const {
        constexpr int size = Shape::size(), pairs = Shape::radix(0) / 2, line_pitch = regular_line_pitch();
        const Pair *const from = static_cast<const Pair *>(a.in) + line0 * p.in.inner;
        const int step = int(p.in.inner);
        Pair middle{};
        if (int(threadIdx.x) < lines) middle = __ldcs(from + (int(threadIdx.x) * step + size / 2));
#pragma unroll 1
        for (int part = 0; part < pairs; part += 4) { // eight loads of a thread on their way
            Pair low[4], high[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int line, k;
                regular_pair(part + i, line, k);
                const int at = (line < lines ? line : 0) * step;
                low[i] = __ldcs(from + (at + k));
                high[i] = __ldcs(from + (at + size - k));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int line, k;
                regular_pair(part + i, line, k);
                float2 v = taken_as(low[i]), u = taken_as(high[i]);
                if (k == 0) v.y = u.y = 0.0f;
                const float2 sum = v + conjugate(u), turned = product(v - conjugate(u), __ldg(a.table + k));
                float2 *const to = values + line * line_pitch;
                to[place_of_point(shape, k)] = {sum.x - turned.y, sum.y + turned.x};
                if (k != 0) to[place_of_point(shape, size - k)] = {sum.x + turned.y, turned.x - sum.y};
            }
        }
        if (int(threadIdx.x) < lines) {
            const float2 v = taken_as(middle);
            values[threadIdx.x * line_pitch + place_of_point(shape, size / 2)] = v + v;
        }
    }

    template <typename Pair> __device__ __forceinline__ void put_halves() const {
        constexpr int size = Shape::size(), pairs = Shape::radix(0) / 2, line_pitch = regular_line_pitch();
        const float half_scale = 0.5f * a.scale;
        Pair *const to = static_cast<Pair *>(a.out) + line0 * p.out.inner;
        const int step = int(p.out.inner);
#pragma unroll 4
        for (int i = 0; i < pairs; ++i) {
            int line, k;
            regular_pair(i, line, k);
            if (line >= lines) break;
            const float2 *const from = values + line * line_pitch;
            const float2 w = __ldg(a.table + k), turn{half_scale * w.y, -half_scale * w.x}; // -i w scale / 2
            const float2 v = from[place_of_results(shape, Shape::kStages, k)];
            const float2 u = from[place_of_results(shape, Shape::kStages, k == 0 ? 0 : size - k)];
            const float2 sum{v.x + u.x, v.y - u.y}, turned = product({v.x - u.x, v.y + u.y}, turn);
            write(to + (line * step + k), {fmaf(sum.x, half_scale, turned.x), a.out_sign * fmaf(sum.y, half_scale, turned.y)});
            write(to + (line * step + size - k),
                  {fmaf(sum.x, half_scale, -turned.x), a.out_sign * fmaf(-sum.y, half_scale, turned.y)});
        }
        if (int(threadIdx.x) < lines) {
            const float2 v = values[threadIdx.x * line_pitch + place_of_results(shape, Shape::kStages, size / 2)];
            write(to + (int(threadIdx.x) * step + size / 2), result(conjugate(v)));
        }
    }

    __device__ __forceinline__ bool enter(int pass) const {
        if constexpr (Shape::kFixed) {
            if (p.regular && p.in.access == kFftHalf && p.in.plain) {
                if (p.half) {
                    take_halves<unsigned>();
                } else {
                    take_halves<uint2>();
                }
                return false;
            }
        } else if (p.in.plain) {
            return take_in<true>(pass);
        }
        return take_in<false>(pass);
    }
    __device__ __forceinline__ void leave(int pass) const {
        if constexpr (Shape::kFixed) {
            if (p.regular && p.out.access == kFftHalf && p.out.plain) {
                if (p.half) {
                    put_halves<__half2>();
                } else {
                    put_halves<float2>();
                }
                return;
            }
        } else if (p.out.plain) {
            put_out<true>(pass);
            return;
        }
        put_out<false>(pass);
    }
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) transform_lines(const __grid_constant__ FftArguments a) {
    extern __shared__ uint4 shared[];
    const FftPlan &p = a.plan;
    const Transform<Shape> transform(a, reinterpret_cast<int64_t *>(shared + 1));
    int *const spoilt = reinterpret_cast<int *>(shared);
    if (p.in.access != kFftDirect || p.out.access != kFftDirect) {
        transform.note_offsets();
        if (threadIdx.x == 0) *spoilt = 0;
        __syncthreads();
    }
    pdl_wait();
    // If a line of a pair has a value that is not finite, a block transforms both lines alone.
    for (int pass = 0;;) {
        if (p.in.access != kFftDirect) {
            const bool bad = transform.enter(pass);
            if (!Shape::kFixed && p.paired && bad) *spoilt = 1;
            __syncthreads();
        }
        if (!Shape::kFixed && p.paired && pass == 0 && *spoilt != 0) {
            pass = 1;
            __syncthreads();
            continue;
        }
        transform.stages();
        if (p.out.access != kFftDirect) {
            __syncthreads();
            transform.leave(pass);
        }
        if (Shape::kFixed || pass != 1) break;
        pass = 2;
        __syncthreads();
    }
    pdl_trigger();
}

using Kernel = void (*)(FftArguments);

Kernel kernel_for(const FftPlan &p) {
    switch (p.fixed ? p.size : 0) {
    case 32: return transform_lines<Fixed<8, 4>>;
    case 64: return transform_lines<Fixed<8, 8>>;
    case 128: return transform_lines<Fixed<16, 8>>;
    case 256: return transform_lines<Fixed<16, 16>>;
    case 512: return transform_lines<Fixed<16, 8, 4>>;
    case 1024: return transform_lines<Fixed<16, 8, 8>>;
    case 2048: return transform_lines<Fixed<16, 16, 8>>;
    case 4096: return transform_lines<Fixed<16, 16, 16>>;
    case 8192: return transform_lines<Fixed<16, 8, 8, 8>>;
    default: return transform_lines<Any<kMaxRadix, kAnyFftThreads, 5>>;
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_mixed_radix_fft(const turbofno_fft *fft, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_mixed_radix_fft_unsupported(fft) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (fft->input == nullptr || fft->out == nullptr || fft->table == nullptr) return TURBOFNO_NULL_POINTER;
    FftArguments a{};
    a.plan = plan(*fft);
    a.in = fft->input;
    a.out = fft->out;
    a.table = static_cast<const float2 *>(fft->table);
    a.table_step = fft->points / a.plan.size;
    a.in_sign = fft->inverse && fft->kind != TURBOFNO_REAL_TO_COMPLEX ? -1.0f : 1.0f;
    a.out_sign = fft->inverse && fft->kind != TURBOFNO_COMPLEX_TO_REAL ? -1.0f : 1.0f;
    a.scale = fft->scale;
    const Kernel kernel = kernel_for(a.plan);
    // always the maximum: a smaller value could break a concurrent launch of this kernel by another thread
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fft->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks)), a.plan.threads, size_t(a.plan.shared_bytes), stream, a);
}
