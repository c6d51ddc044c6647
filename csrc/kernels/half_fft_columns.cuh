// Columns of half_fft: lines next to each other, in the input and the result or only in the result.
//
// A block has 16 lines: 64 bytes of each point, which pass through shared memory. A warp has four of them, 16 bytes of each
// point. It reads them all before it writes its results to the same places, so only the copies to and from global memory need barriers.
#pragma once

#include "half_fft_rows.cuh"

namespace turbofno {

// Place in shared memory of 16 bytes of point n: lanes that read or write together have different banks.
__device__ __forceinline__ int place_of_columns(int n, int four) {
    return (4 * n + four) ^ ((n >> 3) & 3) ^ ((n >> 5) & 3) ^ ((((n >> 1) ^ (n >> 2)) & 1) << 2);
}

// exp(-2 pi i turns). Its error is 5e-7 at most, that of float16 5e-4.
__device__ __forceinline__ float2 root_of_turns(float turns) {
    const float angle = -6.2831853f * (turns - rintf(turns));
    return {__cosf(angle), __sinf(angle)};
}

// Multiplies the results of one line by their twiddles: those p = 4 lane + i, 128 apart.
template <int TILES, int HALVES, typename Results>
__device__ __forceinline__ void twiddle_line(Results &&result, float turns, const float2 *roots) {
    const float2 first = root_of_turns(turns * float(4 * (threadIdx.x % 32)));
    const float2 near[4] = {first, product(first, roots[0]), product(first, roots[1]), product(first, roots[2])};
#pragma unroll
    for (int n = 0; n < TILES * HALVES; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float2 &z = result(n / HALVES, n % HALVES, i);
            z = product(z, n == 0 ? near[i] : product(near[i], roots[2 + n]));
        }
    }
}

// The values of the four columns of a warp. Fragment f of two lines of 128 points is one of them.
template <int POINTS, int LOADS, int TILES>
__device__ __forceinline__ void read_columns(uint32_t (&v)[LOADS][TILES][2][4], const uint4 *shared, int warp) {
    const Lane lane;
    constexpr int together = lines_at_once(POINTS);
#pragma unroll
    for (int n = 0; n < 8 * TILES / together; ++n) {
        const int i = n % 4, f = n / 4 / TILES, j = n / 4 % TILES, a = 4 * i + lane.t;
        const int point = together == 2 ? 8 * a + lane.g : TILES * (16 * a + 2 * lane.g + f) + j;
        const uint4 x = shared[place_of_columns(point, warp)];
        const uint32_t line[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int l = 0; l < 4; ++l) v[l / together][j][together == 2 ? l % 2 : f][i] = line[l];
    }
}

constexpr int column_blocks(int points) { return points == 512 ? 2 : points == 256 ? 4 : 5; } // on a multiprocessor

template <int POINTS, bool FROM_ROWS, bool TWIDDLED>
__global__ void __launch_bounds__(kColumnThreads, column_blocks(POINTS)) transform_columns(const __grid_constant__ HalfFftArguments a) {
    constexpr int tiles = tiles_of_line(POINTS), together = lines_at_once(POINTS), halves = 2 / together;
    constexpr int words = kHalfColumns / 4 * POINTS;
    extern __shared__ uint4 shared[];
    const int warp = threadIdx.x / 32;
    const unsigned o = a.by_inner(blockIdx.x), i0 = (blockIdx.x - o * a.by_inner.by) * kHalfColumns;
    const uint32_t *const in = a.in + o * a.in_outer + i0 * a.in_inner;
    uint32_t *const out = a.out + o * a.out_outer + i0 * a.out_inner;
    const HalfTile<POINTS> tile(a.table, a.shares[0], a.inverse);
    pdl_wait();
    if constexpr (!FROM_ROWS) {
#pragma unroll
        for (int n = threadIdx.x; n < words; n += kColumnThreads) {
            copy_async<16>(shared + place_of_columns(n / 4, n % 4), in + (n / 4) * a.in_point + n % 4 * 4, true);
        }
        commit_copies();
    }
    float2(*const roots)[kColumnRoots] = reinterpret_cast<float2(*)[kColumnRoots]>(shared + words);
    if constexpr (TWIDDLED) {
        const int column = threadIdx.x / 8, n = threadIdx.x % 8;
        const int result = n < 3 ? n + 1 : 128 * (n - 2);
        if (n < kColumnRoots) roots[column][n] = root_of_turns(a.turns * float((i0 + column) * result));
    }
    uint32_t v[4 / together][tiles][2][4];
    if constexpr (!FROM_ROWS) {
        wait_copies<0>();
        __syncthreads();
        read_columns<POINTS>(v, shared, warp);
        __syncwarp();
    }
    uint32_t results[tiles][halves][4][4]; // [..][i][line]
#pragma unroll
    for (int l = 0; l < 4; l += together) {
        uint32_t(&of_line)[tiles][2][4] = v[l / together];
        if constexpr (FROM_ROWS) {
            const uint32_t *const row = in + (4 * warp + l) * a.in_inner;
            load_row<POINTS>(of_line, row, row + a.in_inner);
        }
        float2 z[tiles][2][4];
        transform_tiles(tile, z, of_line, a.table);
        if constexpr (TWIDDLED) {
#pragma unroll
            for (int n = 0; n < together; ++n) {
                const int column = 4 * warp + l + n;
                twiddle_line<tiles, halves>([&](int j, int h, int i) -> float2 & { return z[j][together == 2 ? n : h][i]; },
                                            a.turns * float(i0 + column), roots[column]);
            }
        }
#pragma unroll
        for (int n = 0; n < 8 * tiles; ++n) {
            const int j = n / 8, h = n / 4 % 2, i = n % 4;
            results[j][together == 2 ? 0 : h][i][together == 2 ? l + h : l] = tile.stored(z[j][h][i], a.shares[1] * a.shares[2]);
        }
    }
#pragma unroll
    for (int n = 0; n < 4 * halves * tiles; ++n) {
        const int j = n / (4 * halves), h = n / 4 % halves, i = n % 4;
        const uint32_t(&x)[4] = results[j][h][i];
        shared[place_of_columns(256 * j + 128 * h + 4 * int(threadIdx.x % 32) + i, warp)] = {x[0], x[1], x[2], x[3]};
    }
    __syncthreads();
#pragma unroll
    for (int n = threadIdx.x; n < words; n += kColumnThreads) {
        __stcs(reinterpret_cast<uint4 *>(out + (n / 4) * a.out_point + n % 4 * 4), shared[place_of_columns(n / 4, n % 4)]);
    }
    pdl_trigger();
}

} // namespace turbofno
