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

template <int MAX_RADIX, int THREADS, int BLOCKS> struct Any {
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

// Place in shared memory of values d whose digits are `first` and later ones, the last digit fastest.
template <typename Shape> __device__ __forceinline__ int place_of_points(const Shape &shape, int first, int d) {
    int place = 0;
#pragma unroll
    for (int i = shape.stages() - 1; i > first; --i) {
        const int rest = shape.over_radix(i, d);
        place += (d - rest * shape.radix(i)) * shape.pitch(i);
        d = rest;
    }
    return place + d * shape.pitch(first);
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

template <typename Stored> struct Pair;
template <> struct Pair<float> {
    using type = float2;
};
template <> struct Pair<__half> {
    using type = __half2;
};

__device__ __forceinline__ float2 to_float(float2 v) { return v; }
__device__ __forceinline__ float2 to_float(__half2 v) { return __half22float2(v); }
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ void put(float2 *to, float2 v) { *to = v; }
__device__ __forceinline__ void put(__half2 *to, float2 v) { *to = __floats2half2_rn(v.x, v.y); }
__device__ __forceinline__ void put(float *to, float v) { *to = v; }
__device__ __forceinline__ void put(__half *to, float v) { *to = __float2half_rn(v); }

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

template <typename Shape, typename Stored> struct Transform {
    using Complex = typename Pair<Stored>::type;
    const FftArguments &a;
    const FftPlan &p;
    const Shape shape;
    float2 *const values; // shared memory
    const int64_t line0;
    const int lines; // of this block

    __device__ Transform(const FftArguments &arguments, float2 *shared)
        : a(arguments), p(a.plan), shape(a.plan), values(shared), line0(int64_t(blockIdx.x) * p.lines),
          lines(int(min(int64_t(p.lines), p.total - line0))) {}

    // Offset of a line of the array.
    __device__ __forceinline__ int64_t offset(const FftSide &side, int64_t line) const {
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
    __device__ __forceinline__ void split(bool lines_first, int item, int count, const Over &over, int &line, int &index) const {
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

    __device__ __forceinline__ float2 twiddled(float2 v, int64_t line, int q) const {
        const int64_t i = line - int64_t(p.by_inner(unsigned(line))) * p.by_inner.by;
        const int64_t r = i * q;
        const float2 w = phase(r < p.twiddle_points ? r : r % p.twiddle_points, p.twiddle_points);
        return product(v, {w.x, -a.out_sign * w.y});
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
            place = last ? 0 : place_of_points(shape, 1, index);
        } else if (last) {
            before = index;
            place = place_of_results(shape, stage, index);
        } else {
            before = shape.over_after(stage, index);
            place = place_of_results(shape, stage, before) + place_of_points(shape, stage + 1, index - before * after);
        }
        float2 *const here = values + line * p.line_pitch + place;
        const int pitch = shape.pitch(stage);
        float2 x[R];
        if (direct_in) {
            load<R>(x, line, index, count);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) x[r] = here[r * pitch];
        }
        if constexpr (R > 1) {
            if (stage > 0) twiddle(x, before * after * a.table_step);
        }
        if (direct_out) {
            if (line >= lines) return;
            store<R>(x, line0 + line, index, count);
        } else {
            dft(x, [&](auto k, float2 v) { here[k * pitch] = v; });
        }
    }

    template <int R> __device__ __forceinline__ void load(float2 (&x)[R], int line, int index, int step) const {
        const bool inside = line < lines;
        const Complex *from = static_cast<const Complex *>(a.in) + (inside ? offset(p.in, line0 + line) : 0);
        if (inside && p.in.gap == 0) {
            from += index * p.in.point;
            const int64_t stride = step * p.in.point;
#pragma unroll
            for (int r = 0; r < R; ++r) x[r] = to_float(__ldcs(from + r * stride));
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int point = index + r * step;
                x[r] = float2{};
                if (inside && !in_gap(p.in, point)) x[r] = to_float(__ldcs(from + position(p.in, point)));
            }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) x[r].y *= a.in_sign;
    }

    template <int R> __device__ __forceinline__ void store(float2 (&x)[R], int64_t line, int index, int step) const {
        Complex *to = static_cast<Complex *>(a.out) + offset(p.out, line);
        if (p.out.gap == 0 && p.twiddle_points == 0) {
            to += index * p.out.point;
            const int64_t stride = step * p.out.point;
            dft(x, [&](auto k, float2 v) { put(to + k * stride, result(v)); });
        } else {
            dft(x, [&](auto k, float2 v) {
                const int point = index + k * step;
                if (in_gap(p.out, point)) return;
                v = result(v);
                if (p.twiddle_points != 0) v = twiddled(v, line, point);
                put(to + position(p.out, point), v);
            });
        }
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

    // The next two: values between the array and shared memory, in the order of the array. `pass` is 0 for both lines of a
    // pair, 1 for the first alone, 2 for the second alone.

    struct Held {
        float2 first, second;
    };

    // Like `each`, with loads ahead: fetch(item) for several items before use(item, what it returned).
    template <int PER, typename Fetch, typename Use>
    __device__ __forceinline__ void each_held(int count, const Fetch &fetch, const Use &use) const {
        constexpr int at_once = Shape::kFixed ? PER : 4;
        const int total = p.lines * count, step = p.threads;
        for (int base = threadIdx.x; base < total; base += at_once * step) {
            Held held[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                if (Shape::kFixed || base + i * step < total) held[i] = fetch(base + i * step);
            }
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                if (Shape::kFixed || base + i * step < total) use(base + i * step, held[i]);
            }
        }
    }

    // Array lines of complex line `line`, which may be beyond the last: first, then second.
    __device__ __forceinline__ int64_t paired_line(int line, int pass) const { return 2 * (line0 + line) + (pass == 2 ? 1 : 0); }

    template <typename Value> __device__ __forceinline__ auto value_of(int64_t line, int point) const {
        const Value *from = static_cast<const Value *>(a.in) + offset(p.in, line);
        return to_float(__ldcs(from + position(p.in, point)));
    }
    __device__ __forceinline__ float2 complex_value(bool exists, int64_t line, int point) const {
        if (!exists || in_gap(p.in, point)) return {};
        const float2 v = value_of<Complex>(line, point);
        return {v.x, v.y * a.in_sign};
    }
    __device__ __forceinline__ float real_value(bool exists, int64_t line, int point) const {
        return !exists || in_gap(p.in, point) ? 0.0f : value_of<Stored>(line, point);
    }
    template <typename Value, typename V> __device__ __forceinline__ void put_value(int64_t line, int point, V v) const {
        if (in_gap(p.out, point)) return;
        put(static_cast<Value *>(a.out) + offset(p.out, line) + position(p.out, point), v);
    }

    __device__ static constexpr int per_size() {
        if constexpr (Shape::kFixed) return Shape::radix(0);
        return 0;
    }

    // Returns true if this thread read a value that is not finite.
    __device__ __forceinline__ bool take_in(int pass) const {
        const int size = shape.size();
        bool finite = true;
        const auto check = [&](float2 v) { finite = finite && v.x - v.x == 0.0f && v.y - v.y == 0.0f; };
        const auto place = [&](int line, int point) { return line * p.line_pitch + place_of_points(shape, 0, point); };
        if (p.in.access == kFftHalf || p.in.access == kFftTwoHalves) {
            const int count = (size + 1) / 2;
            const bool even = p.in.access == kFftHalf;
            const auto where = [&](int item, int &line, int &k) {
                split(p.in.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
            };
            const auto fetch = [&](int item) {
                int line, k;
                where(item, line, k);
                Held held;
                if (even) {
                    held = {complex_value(line < lines, line0 + line, k), complex_value(line < lines, line0 + line, size - k)};
                } else {
                    const int64_t first = paired_line(line, pass);
                    held = {complex_value(first < p.given, first, k),
                            complex_value(pass == 0 && first + 1 < p.given, first + 1, k)};
                }
                if (k == 0) held.first.y = held.second.y = 0.0f;
                return held;
            };
            const auto use = [&](int item, const Held &held) {
                int line, k;
                where(item, line, k);
                const float2 v = held.first, u = held.second;
                float2 low, high;
                if (even) {
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
            if (even && size % 2 == 0) { // value size / 2 is its own partner
                const auto middle = [&](int line) { return complex_value(line < lines, line0 + line, size / 2); };
                const float2 ahead = int(threadIdx.x) < p.lines ? middle(int(threadIdx.x)) : float2{};
                each_held<per_size() / 2>(count, fetch, use);
                for (int line = threadIdx.x; line < p.lines; line += p.threads) {
                    const float2 v = line == int(threadIdx.x) ? ahead : middle(line);
                    values[place(line, size / 2)] = v + v;
                }
            } else {
                each_held<per_size() / 2>(count, fetch, use);
            }
            return !finite;
        }
        const auto where = [&](int item, int &line, int &point) {
            split(p.in.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
        };
        each_held<per_size()>(
            size,
            [&](int item) {
                int line, point;
                where(item, line, point);
                const int64_t given = line0 + line;
                if (p.in.access == kFftComplex) return Held{complex_value(line < lines, given, point), {}};
                if (p.in.access == kFftNeighbours) {
                    return Held{{real_value(line < lines, given, 2 * point), real_value(line < lines, given, 2 * point + 1)}, {}};
                }
                const int64_t first = paired_line(line, pass);
                return Held{{real_value(first < p.given, first, point),
                             real_value(pass == 0 && first + 1 < p.given, first + 1, point)},
                            {}};
            },
            [&](int item, const Held &held) {
                int line, point;
                where(item, line, point);
                if (p.in.access == kFftTwoLines) check(held.first);
                values[place(line, point)] = held.first;
            });
        return !finite;
    }

    __device__ __forceinline__ void put_out(int pass) const {
        const int size = shape.size();
        const auto value = [&](int line, int q) { return values[line * p.line_pitch + place_of_results(shape, shape.stages(), q)]; };
        const auto combine = [&](int line, int k) {
            const float2 v = value(line, k), u = conjugate(value(line, k == 0 ? 0 : size - k));
            const float2 sum = v + u, difference = v - u;
            const float2 even{0.5f * sum.x, 0.5f * sum.y}, odd{0.5f * difference.y, -0.5f * difference.x};
            if (p.out.access == kFftTwoHalves) {
                const int64_t first = paired_line(line, pass);
                if (first < p.given) put_value<Complex>(first, k, result(even));
                if (pass == 0 && first + 1 < p.given) put_value<Complex>(first + 1, k, result(odd));
            } else {
                const float2 turned = product(odd, __ldg(a.table + k));
                put_value<Complex>(line0 + line, k, result(even + turned));
                if (2 * k != size) put_value<Complex>(line0 + line, size - k, result(conjugate(even - turned)));
            }
        };
        if (p.out.access == kFftHalf || p.out.access == kFftTwoHalves) {
            const int count = (size + 1) / 2;
            each<per_size() / 2>(count, [&](int item) {
                int line, k;
                split(p.out.lines_first, item, count, [&](int n) { return shape.over_half(n); }, line, k);
                if (line < lines) combine(line, k);
            });
            if (size % 2 == 0) {
                for (int line = threadIdx.x; line < lines; line += p.threads) combine(line, size / 2);
            }
            return;
        }
        each<per_size()>(size, [&](int item) {
            int line, point;
            split(p.out.lines_first, item, size, [&](int n) { return shape.over_size(n); }, line, point);
            if (line >= lines) return;
            const float2 v = value(line, point);
            if (p.out.access == kFftComplex) {
                const float2 r = result(v);
                put_value<Complex>(line0 + line, point, p.twiddle_points == 0 ? r : twiddled(r, line0 + line, point));
            } else if (p.out.access == kFftNeighbours) {
                put_value<Stored>(line0 + line, 2 * point, v.x * a.scale);
                put_value<Stored>(line0 + line, 2 * point + 1, v.y * a.scale);
            } else {
                const int64_t first = paired_line(line, pass);
                if (first < p.given) put_value<Stored>(first, point, v.x * a.scale);
                if (pass == 0 && first + 1 < p.given) put_value<Stored>(first + 1, point, v.y * a.scale);
            }
        });
    }
};

template <typename Shape, typename Stored>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) transform_lines(const __grid_constant__ FftArguments a) {
    extern __shared__ uint4 shared[];
    const FftPlan &p = a.plan;
    const Transform<Shape, Stored> transform(a, reinterpret_cast<float2 *>(shared) + 2);
    int *const spoilt = reinterpret_cast<int *>(shared);
    if (!Shape::kFixed && p.paired) {
        if (threadIdx.x == 0) *spoilt = 0;
        __syncthreads();
    }
    pdl_wait();
    // If a line of a pair has a value that is not finite, a block transforms both lines alone.
    for (int pass = 0;;) {
        if (p.in.access != kFftDirect) {
            const bool bad = transform.take_in(pass);
            if (!Shape::kFixed && pass == 0 && p.paired && bad) *spoilt = 1;
            __syncthreads();
        }
        if (!Shape::kFixed && pass == 0 && p.paired && *spoilt != 0) {
            pass = 1;
            __syncthreads();
            continue;
        }
        transform.stages();
        if (p.out.access != kFftDirect) {
            __syncthreads();
            transform.put_out(pass);
        }
        if (Shape::kFixed || pass != 1) break;
        pass = 2;
        __syncthreads();
    }
    pdl_trigger();
}

using Kernel = void (*)(FftArguments);

template <typename Stored> Kernel kernel_for(const FftPlan &p) {
    switch (p.fixed ? p.size : 0) {
    case 32: return transform_lines<Fixed<8, 4>, Stored>;
    case 64: return transform_lines<Fixed<8, 8>, Stored>;
    case 128: return transform_lines<Fixed<16, 8>, Stored>;
    case 256: return transform_lines<Fixed<16, 16>, Stored>;
    case 512: return transform_lines<Fixed<8, 8, 8>, Stored>;
    case 1024: return transform_lines<Fixed<16, 8, 8>, Stored>;
    case 2048: return transform_lines<Fixed<16, 16, 8>, Stored>;
    case 4096: return transform_lines<Fixed<16, 16, 16>, Stored>;
    default: return p.radix[0] <= 10 ? transform_lines<Any<10, 256, 4>, Stored> : transform_lines<Any<17, 256, 3>, Stored>;
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
    const Kernel kernel = fft->precision == TURBOFNO_FP16 ? kernel_for<__half>(a.plan) : kernel_for<float>(a.plan);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.plan.shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.blocks)), a.plan.threads, size_t(a.plan.shared_bytes), stream, a);
}
