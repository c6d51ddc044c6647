// Discrete Fourier transforms of few complex numbers in the registers of a thread, sign -1.
//
// Composite sizes are two steps of smaller ones: coprime factors without twiddles (Good and Thomas), others with constant
// ones (Cooley and Tukey). A prime size adds and subtracts x[m] and x[R - m]: real cosine sums of the former and sine sums
// of the latter give X[k] and X[R - k] together.
#pragma once

#include "../plan/ceil_div.h"
#include "complex.cuh"

namespace turbofno {

// An int whose value is known at compile time.
template <int N> struct Constant {
    static constexpr int value = N;
    TURBOFNO_HOST_DEVICE constexpr operator int() const { return N; }
};

// Calls f(Constant) for FROM .. TO - 1.
template <int FROM, int TO, typename F> __device__ __forceinline__ void unrolled(F &&f) {
    if constexpr (FROM < TO) {
        f(Constant<FROM>{});
        unrolled<FROM + 1, TO>(f);
    }
}

struct Root {
    double cosine, sine;
};

// Cosine and sine of 2 pi k / n, by their series in double precision.
TURBOFNO_HOST_DEVICE constexpr Root root_of_unity(int k, int n) {
    k %= n;
    const double angle = 2 * 3.14159265358979323846 * (2 * k > n ? k - n : k) / n;
    double cosine = 0, sine = 0, term = 1;
    for (int i = 0; i < 40; ++i) {
        (i % 2 == 0 ? cosine : sine) += i % 4 < 2 ? term : -term;
        term *= angle / (i + 1);
    }
    return {cosine, sine};
}

// z exp(-2 pi i K / N)
template <int K, int N> __device__ __forceinline__ float2 rotated(float2 z) {
    constexpr int eighths = 8 * (K % N);
    if constexpr (eighths == 0) {
        return z;
    } else if constexpr (eighths == 2 * N) {
        return {z.y, -z.x};
    } else if constexpr (eighths == 4 * N) {
        return {-z.x, -z.y};
    } else if constexpr (eighths == 6 * N) {
        return {-z.y, z.x};
    } else if constexpr (eighths == N) {
        constexpr float h = 0.70710678118654752f;
        return {h * (z.x + z.y), h * (z.y - z.x)};
    } else if constexpr (eighths == 3 * N) {
        constexpr float h = 0.70710678118654752f;
        return {h * (z.y - z.x), -h * (z.x + z.y)};
    } else {
        constexpr float c = float(root_of_unity(K, N).cosine), s = float(root_of_unity(K, N).sine);
        return {fmaf(z.y, s, z.x * c), fmaf(z.x, -s, z.y * c)};
    }
}

// Two factors of a composite radix: the first prefers 4.
TURBOFNO_HOST_DEVICE constexpr int first_factor(int radix) {
    if (radix == 8) return 2;
    for (const int f : {4, 3, 2}) {
        if (radix % f == 0 && radix != f) return f;
    }
    return radix;
}

TURBOFNO_HOST_DEVICE constexpr bool is_prime(int radix) { return radix == 4 ? false : first_factor(radix) == radix; }

TURBOFNO_HOST_DEVICE constexpr bool coprime(int a, int b) {
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a == 1;
}

TURBOFNO_HOST_DEVICE constexpr int inverse_modulo(int a, int n) {
    for (int i = 1; i < n; ++i) {
        if (a * i % n == 1) return i;
    }
    return 0;
}

// Calls emit(k, X[k]) for every k; k is a Constant. May overwrite x.
template <int R, typename Emit> __device__ __forceinline__ void dft(float2 (&x)[R], Emit &&emit);

template <int R> __device__ __forceinline__ void dft_in_place(float2 (&x)[R]) {
    float2 result[R];
    dft(x, [&](auto k, float2 value) { result[k] = value; });
#pragma unroll
    for (int k = 0; k < R; ++k) x[k] = result[k];
}

template <int R, typename Emit> __device__ __forceinline__ void dft_of_prime(float2 (&x)[R], Emit &&emit) {
    constexpr int half = R / 2;
    float2 total = x[0];
#pragma unroll
    for (int m = 1; m <= half; ++m) {
        const float2 sum = x[m] + x[R - m], difference = x[m] - x[R - m];
        x[m] = sum;
        x[R - m] = difference;
        total = total + sum;
    }
    unrolled<1, half + 1>([&](auto k) {
        float2 even = x[0], odd{};
        unrolled<1, half + 1>([&](auto m) {
            constexpr Root root = root_of_unity(k * m, R);
            constexpr float c = float(root.cosine), s = float(root.sine);
            even = {fmaf(x[m].x, c, even.x), fmaf(x[m].y, c, even.y)};
            const float2 d = x[R - m];
            odd = m == 1 ? float2{d.x * s, d.y * s} : float2{fmaf(d.x, s, odd.x), fmaf(d.y, s, odd.y)};
        });
        emit(k, float2{even.x + odd.y, even.y - odd.x});
        emit(Constant<R - k>{}, float2{even.x - odd.y, even.y + odd.x});
    });
    emit(Constant<0>{}, total);
}

template <int R, typename Emit> __device__ __forceinline__ void dft_of_composite(float2 (&x)[R], Emit &&emit) {
    constexpr int A = first_factor(R), B = R / A;
    constexpr bool twiddle_free = coprime(A, B);
    constexpr int step_a = B, step_b = twiddle_free ? A : 1; // x at a step_a + b step_b
    unrolled<0, B>([&](auto b) {
        float2 part[A];
#pragma unroll
        for (int a = 0; a < A; ++a) part[a] = x[(a * step_a + b * step_b) % R];
        dft_in_place(part);
        unrolled<0, A>([&](auto k) {
            x[(k * step_a + b * step_b) % R] = rotated<twiddle_free ? 0 : b * k, R>(part[k]);
        });
    });
    unrolled<0, A>([&](auto ka) {
        float2 part[B];
#pragma unroll
        for (int b = 0; b < B; ++b) part[b] = x[(ka * step_a + b * step_b) % R];
        dft(part, [&](auto kb, float2 value) {
            // without twiddles k is the one that equals ka modulo A and kb modulo B
            constexpr int k = twiddle_free ? (B * inverse_modulo(B % A, A) * ka + A * inverse_modulo(A % B, B) * kb) % R
                                           : ka + A * kb;
            emit(Constant<k>{}, value);
        });
    });
}

template <int R, typename Emit> __device__ __forceinline__ void dft(float2 (&x)[R], Emit &&emit) {
    if constexpr (R == 1) {
        emit(Constant<0>{}, x[0]);
    } else if constexpr (R == 2) {
        const float2 difference = x[0] - x[1];
        emit(Constant<0>{}, x[0] + x[1]);
        emit(Constant<1>{}, difference);
    } else if constexpr (R == 4) {
        const float2 a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = rotated<1, 4>(x[1] - x[3]);
        emit(Constant<0>{}, a + c);
        emit(Constant<1>{}, b + d);
        emit(Constant<2>{}, a - c);
        emit(Constant<3>{}, b - d);
    } else if constexpr (is_prime(R)) {
        dft_of_prime(x, emit);
    } else {
        dft_of_composite(x, emit);
    }
}

} // namespace turbofno
