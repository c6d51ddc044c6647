/* C interface of the CUDA kernels for one Fourier layer or spectral convolution, 1D and 2D, float32.
 *
 *   y = activation(spectral_conv(x, weight) + skip . x + bias)
 *
 * A layer is three calls in this order on one stream: turbofno_analyze_rows, turbofno_spectral_mix,
 * turbofno_fourier_rows. 1D is 2D with h_in = h_out = modes_h = 1.
 *
 * Every call only launches kernels on `stream` of the current device and returns: it allocates nothing,
 * waits for nothing and may be captured in a CUDA graph. Calls are independent of each other: any number of
 * threads and streams, each with its own workspace. All pointers are device pointers, aligned to 16 bytes
 * and contiguous in the order given; complex numbers are interleaved (real, imaginary). Reads go in 16-byte words, so
 * up to 12 bytes behind the end of an array may be read and not used; every CUDA allocation has them.
 *
 * A value that is not finite makes NaN of what depends on it, within its batch element.
 */
#ifndef TURBOFNO_H
#define TURBOFNO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t without CUDA's headers */

typedef enum {
    TURBOFNO_OK = 0,
    TURBOFNO_UNSUPPORTED = 1, /* turbofno_unsupported says why */
    TURBOFNO_NULL_POINTER = 2, /* a required pointer is null */
    TURBOFNO_LAUNCH_FAILED = 3 /* CUDA refused a launch, or an earlier asynchronous error surfaced; see
                                  turbofno_last_cuda_error */
} turbofno_status;

typedef enum {
    TURBOFNO_NONE = 0,
    TURBOFNO_RELU = 1,
    TURBOFNO_GELU = 2, /* exact, with erf */
    TURBOFNO_GELU_TANH = 3,
    TURBOFNO_SILU = 4,
    TURBOFNO_TANH = 5
} turbofno_activation;

typedef struct {
    int64_t batch;
    int32_t c_in, c_out;
    int32_t h_in, w_in, h_out, w_out; /* with skip: h_in = h_out, w_in = w_out */
    int32_t modes_h, modes_w; /* modes_h in FFT order, 0, 1, .., -1; modes_w from 0 up */
    int32_t activation; /* turbofno_activation */
    int32_t multiprocessors; /* of the device, for the choice of tiles */

    const float *x; /* [batch][c_in][h_in][w_in] */
    const float *weight; /* complex [modes_h][modes_w][c_in][c_out] */
    const float *skip; /* [c_out][c_in], or null */
    const float *bias; /* [c_out], or null */

    /* The transforms' tables; their signs, scales and zero sine rows define the transform. */
    const float *row_analysis; /* [w_in][modes_w][2]: cos, -sin, over w_in */
    const float *row_synthesis; /* [modes_w][2][w_out]: cos, -sin, times the column's weight */
    const float *column_analysis; /* [modes_h/2 + 1][h_in][2]: cos, sin of |k|, over h_in; null if modes_h = h_in = 1 */
    const float *column_synthesis; /* [modes_h/2 + 1][h_out][2]: cos, sin of |k|; null if modes_h = h_out = 1 */

    float *y; /* [batch][c_out][h_out][w_out], every element written; must not overlap x */
    void *workspace; /* turbofno_workspace_bytes(), uninitialised; holds the spectra between the calls */
} turbofno_layer;

/* Why this layer's shape is not served, in words, or null if it is. Reads no pointer; needs no GPU. */
const char *turbofno_unsupported(const turbofno_layer *layer);

/* Bytes of workspace for this shape; 0 if it is not served. Reads no pointer; needs no GPU. */
size_t turbofno_workspace_bytes(const turbofno_layer *layer);

/* x -> row spectra in the workspace: the truncated DFT along the last axis. */
turbofno_status turbofno_analyze_rows(const turbofno_layer *layer, struct CUstream_st *stream);

/* Row spectra -> mixed row spectra, in the workspace: the DFT along h to the kept modes, one complex
 * c_in x c_out product a mode, and the inverse DFT along h. Reads weight. */
turbofno_status turbofno_spectral_mix(const turbofno_layer *layer, struct CUstream_st *stream);

/* Mixed row spectra, x, skip and bias -> y: the inverse DFT along the last axis, the skip's product, bias
 * and activation in one pass. Without skip, x is not read. */
turbofno_status turbofno_fourier_rows(const turbofno_layer *layer, struct CUstream_st *stream);

/* CUDA's words for the last TURBOFNO_LAUNCH_FAILED of this thread; "no error" if there was none. */
const char *turbofno_last_cuda_error(void);

#ifdef __cplusplus
}
#endif

#endif
