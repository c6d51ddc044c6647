// Rows of half_fft: lines whose points are next to each other.
//
// `transform_rows_of_warps`: a warp has a line of up to 8 tiles, from global memory to global memory.
// `transform_rows_of_groups`: a group of warps has a longer line in shared memory. It copies the next line while it transforms one.
// Warps exchange the results of their tiles there; then each thread has those of all tiles at one frequency.
#pragma once

#include "async_copy.cuh"
#include "half_fft_block.cuh"

namespace turbofno {

template <typename T> __device__ __forceinline__ T streamed(const uint32_t *from) {
    return __ldcs(reinterpret_cast<const T *>(from));
}

// The values of a warp's tiles. `second`: the other line of a tile of two.
template <int POINTS, int TILES>
__device__ __forceinline__ void load_row(uint32_t (&v)[TILES][2][4], const uint32_t *first, const uint32_t *second) {
    const Lane lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int a = 4 * i + lane.t;
        if constexpr (POINTS == 128) {
            v[0][0][i] = __ldcs(first + 8 * a + lane.g);
            v[0][1][i] = __ldcs(second + 8 * a + lane.g);
        } else if constexpr (POINTS == 256) {
            const uint2 x = streamed<uint2>(first + 16 * a + 2 * lane.g);
            v[0][0][i] = x.x, v[0][1][i] = x.y;
        } else if constexpr (POINTS == 512) {
            const uint4 x = streamed<uint4>(first + 2 * (16 * a + 2 * lane.g));
            v[0][0][i] = x.x, v[1][0][i] = x.y, v[0][1][i] = x.z, v[1][1][i] = x.w;
        } else {
#pragma unroll
            for (int f = 0; f < 2; ++f) {
#pragma unroll
                for (int j = 0; j < TILES; j += 4) { // each half of a sector stays in L1 for the other
                    const uint32_t *from = first + TILES * (16 * a + 8 * f + lane.g) + j;
                    const uint4 x = *reinterpret_cast<const uint4 *>(from);
                    v[j][f][i] = x.x, v[j + 1][f][i] = x.y, v[j + 2][f][i] = x.z, v[j + 3][f][i] = x.w;
                }
            }
        }
    }
}

constexpr int row_blocks(int points) { // on a multiprocessor
    return points == 128 ? 7 : points == 256 ? 6 : points == 512 ? 5 : points == 1024 ? 3 : 2;
}

template <int POINTS>
__global__ void __launch_bounds__(kRowThreads, row_blocks(POINTS)) transform_rows_of_warps(const __grid_constant__ HalfFftArguments a) {
    constexpr int tiles = tiles_of_line(POINTS), together = lines_at_once(POINTS);
    const int64_t line = (int64_t(blockIdx.x) * (kRowThreads / 32) + threadIdx.x / 32) * together;
    const HalfTile<POINTS> tile(a.table, a.shares[0], a.inverse);
    pdl_wait();
    if (line < a.lines) {
        const bool pair = together == 2 && line + 1 < a.lines;
        const uint32_t *in[2];
        uint32_t *out[2];
#pragma unroll
        for (int l = 0; l < 2; ++l) { // a line without a partner is its own
            in[l] = a.in + line_offset(a, line + (l == 1 && pair), a.in_outer, a.in_inner);
            out[l] = a.out + line_offset(a, line + (l == 1 && pair), a.out_outer, a.out_inner);
        }
        uint32_t v[tiles][2][4];
        float2 z[tiles][2][4];
        load_row<POINTS>(v, in[0], in[1]);
        transform_tiles(tile, z, v, a.table);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (together == 2 && h == 1 && !pair) break;
                uint32_t *const to = together == 2 ? out[h] : out[0] + 256 * j + 128 * h;
                __stcs(reinterpret_cast<uint4 *>(to) + threadIdx.x % 32, tile.stored(z[j][h], a.shares[1] * a.shares[2]));
            }
        }
    }
    pdl_trigger();
}

// Place in shared memory of 16 bytes: of point m of four tiles. Lanes that read together have different banks, or every second one.
template <int TILES> __device__ __forceinline__ int place_of_tiles(int m, int four) {
    static_assert(TILES >= 16);
    const int turn = TILES >= 32 ? ((m >> 4) & 3) | (m & 1) << 2 : (m >> 4) & 3;
    return (TILES / 4 * m + four) ^ turn;
}

template <int POINTS, int GROUPS> struct RowGroup {
    static constexpr int kThreads = group_threads(POINTS), kBuffers = group_buffers(POINTS);
    static constexpr int kTiles = tiles_of_line(POINTS), kWarpTiles = kTiles * 32 / kThreads;
    static constexpr int kWords = POINTS / 4; // of 16 bytes, of a line

    const HalfFftArguments &a;
    const int group, thread, warp;
    uint4 *const matrices, *const buffers;

    __device__ RowGroup(const HalfFftArguments &arguments, uint4 *shared)
        : a(arguments), group(int(threadIdx.x) / kThreads), thread(int(threadIdx.x) % kThreads), warp(thread / 32), matrices(shared),
          buffers(shared + kTiles * kTileWords + group * kBuffers * kWords) {}

    __device__ __forceinline__ void sync() const {
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(kThreads) : "memory");
    }

    // Copies the matrices, the second of each tile times its product's share of the factor.
    __device__ void copy_matrices() const {
        const __half2 share = __float2half2_rn(a.shares[1]);
        for (int n = threadIdx.x; n < kTiles * kTileWords; n += kThreads * GROUPS) {
            uint4 words = a.table[kTileWords + n];
            if (n / 64 % 2 == 1) words = {scaled(words.x, share), scaled(words.y, share), scaled(words.z, share), scaled(words.w, share)};
            matrices[n] = words;
        }
    }

    // Begins to copy a line.
    __device__ __forceinline__ void fetch(int64_t line, uint4 *to) const {
        const uint32_t *from = a.in + line_offset(a, line, a.in_outer, a.in_inner);
#pragma unroll
        for (int n = thread; n < kWords; n += kThreads) {
            copy_async<16>(to + place_of_tiles<kTiles>(n / (kTiles / 4), n % (kTiles / 4)), from + 4 * n, true);
        }
        commit_copies();
    }

    // The values of this warp's tiles.
    __device__ __forceinline__ void load(uint32_t (&v)[kWarpTiles][2][4], const uint4 *line) const {
        const Lane lane;
#pragma unroll
        for (int f = 0; f < 2; ++f) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int m = 16 * (4 * i + lane.t) + 8 * f + lane.g;
                const uint4 *four = line + place_of_tiles<kTiles>(m, warp * kWarpTiles / 4);
                if constexpr (kWarpTiles == 4) {
                    const uint4 x = *four;
                    v[0][f][i] = x.x, v[1][f][i] = x.y, v[2][f][i] = x.z, v[3][f][i] = x.w;
                } else {
                    const uint2 x = reinterpret_cast<const uint2 *>(four)[warp % 2];
                    v[0][f][i] = x.x, v[1][f][i] = x.y;
                }
            }
        }
    }

    // Result k of a tile is at k + 256 j.
    __device__ __forceinline__ void transform_tiles(const HalfTile<POINTS> &tile, const uint32_t (&v)[kWarpTiles][2][4], uint4 *line) const {
#pragma unroll
        for (int n = 0; n < kWarpTiles; ++n) {
            const int j = warp * kWarpTiles + n;
            RootMatrix roots[2];
            float2 z[2][4];
            load_matrices(roots, matrices, j);
            tile.transform(z, v[n], roots);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                line[64 * j + 32 * h + threadIdx.x % 32] = {half_pair(z[h][0]), half_pair(z[h][1]), half_pair(z[h][2]),
                                                            half_pair(z[h][3])};
            }
        }
    }

    // This thread's butterfly. Two threads share one of 64 values: they have its even and its odd results.
    __device__ __forceinline__ void store(const HalfTile<POINTS> &tile, const uint4 *results, int64_t line) const {
        constexpr int shared_by = kThreads / 256, radix = kTiles / shared_by;
        const int k = thread % 256, odd = thread / 256;
        const uint32_t *const mine = reinterpret_cast<const uint32_t *>(results) + k;
        uint32_t *const to = a.out + line_offset(a, line, a.out_outer, a.out_inner) + k + 256 * odd;
        const auto value = [&](int j) {
            const uint32_t pair = mine[256 * j];
            return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
        };
        float2 x[radix];
        unrolled<0, radix>([&](auto j) {
            if constexpr (shared_by == 1) {
                x[j] = value(j);
            } else {
                const float2 p = value(j), q = value(j + radix);
                x[j] = odd ? rotated<j, kTiles>(p - q) : p + q;
            }
        });
        dft(x, [&](auto n, float2 z) { __stcs(to + 256 * shared_by * n, tile.stored(z, a.shares[2])); });
    }
};

template <int POINTS, int GROUPS>
__global__ void __launch_bounds__(group_threads(POINTS) * GROUPS, 1) transform_rows_of_groups(const __grid_constant__ HalfFftArguments a) {
    extern __shared__ uint4 shared[];
    const RowGroup<POINTS, GROUPS> group(a, shared);
    constexpr int buffers = group.kBuffers, words = group.kWords;
    const HalfTile<POINTS> tile(a.table, a.shares[0], a.inverse);
    group.copy_matrices();
    __syncthreads();
    pdl_wait();
    const int64_t apart = int64_t(gridDim.x) * GROUPS;
    int64_t line = int64_t(blockIdx.x) * GROUPS + group.group;
    if (line < a.lines) group.fetch(line, group.buffers);
    for (int turn = 0; line < a.lines; line += apart, ++turn) {
        uint4 *const here = group.buffers + turn % buffers * words;
        const bool more = line + apart < a.lines;
        wait_copies<0>();
        group.sync();
        if (buffers == 2 && more) group.fetch(line + apart, group.buffers + (turn + 1) % buffers * words);
        uint32_t v[group.kWarpTiles][2][4];
        group.load(v, here);
        group.sync();
        group.transform_tiles(tile, v, here);
        group.sync();
        group.store(tile, here, line);
        if (buffers == 1 && more) {
            group.sync();
            group.fetch(line + apart, here);
        }
    }
    pdl_trigger();
}

} // namespace turbofno
