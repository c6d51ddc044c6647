/* C interface of the CUDA kernels of a Fourier neural operator, 1D and 2D.
 *
 * A Fourier layer, y = activation(spectral_conv(x, weight) + skip . x + bias), is three stages on one stream:
 *
 *   turbofno_analyze_rows   x -> spectra         the kept modes of the last axis
 *   turbofno_spectral_mix   spectra -> spectra   DFT along h, a complex product of the channels a mode, inverse DFT
 *   turbofno_fourier_rows   spectra, x -> y      inverse DFT of the last axis, skip, bias, activation; and, while y is
 *                                                on chip, the next layer's analysis or the projection to few channels
 *
 * In a chain of layers turbofno_fourier_rows makes the next layer's spectra, so only the first layer is analyzed on
 * its own. 1D is 2D with h = 1 and modes_h = 1.
 *
 * A stage only launches kernels on `stream` of the current device and returns: it allocates nothing, waits for
 * nothing and may be captured in a CUDA graph. Calls are independent: any number of threads and streams, each with its
 * own workspace. All pointers are device pointers, aligned to 16 bytes and contiguous in the order given; complex
 * numbers are interleaved (real, imaginary) float32. Reads go in 16-byte words, so up to 12 bytes behind the end of an
 * array may be read and not used; every CUDA allocation has them. Outputs must not overlap inputs; every element of an
 * output is written.
 *
 * Fields (x, y) are float32, with TURBOFNO_BF16 bfloat16; everything else is float32 under every precision.
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
    TURBOFNO_UNSUPPORTED = 1, /* the stage's _unsupported function says why */
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

typedef enum {
    TURBOFNO_FP32 = 0, /* products of split operands: the error of float32 arithmetic */
    TURBOFNO_TF32 = 1, /* products of operands rounded to 11 significant bits, sums in float32 */
    TURBOFNO_BF16 = 2 /* fields stored and multiplied in bfloat16, sums in float32 */
} turbofno_precision;

typedef struct {
    int64_t rows; /* batch * channels * h */
    int32_t points; /* of a row */
    int32_t modes; /* kept of a row: 0 .. modes - 1 */
    int32_t precision; /* turbofno_precision */
    int32_t multiprocessors; /* of the device, for the choice of tiles */
    const void *x; /* [rows][points] */
    const void *table; /* turbofno_ops/_cuda_tables.py, row_analysis(points, modes) */
    float *spectra; /* complex [rows][modes] */
    void *workspace; /* turbofno_analysis_workspace_bytes(), uninitialised */
} turbofno_analysis;

typedef struct {
    int64_t batch;
    int32_t c_in, c_out;
    int32_t h_in, h_out;
    int32_t modes_h, modes_w; /* modes_h in FFT order, 0, 1, .., -1; modes_w from 0 up */
    int32_t precision; /* turbofno_precision */
    int32_t multiprocessors;
    const float *spectra; /* complex [batch][c_in][h_in][modes_w] */
    const float *weight; /* complex [modes_h][modes_w][c_in][c_out] */
    const void *column_analysis; /* _cuda_tables.py, column_analysis(h_in, modes_h); null if h_in = h_out = modes_h = 1 */
    const void *column_synthesis; /* likewise column_synthesis(h_out, modes_h) */
    float *mixed; /* complex [batch][c_out][h_out][modes_w] */
    void *workspace; /* turbofno_mix_workspace_bytes(), uninitialised */
} turbofno_mix;

typedef struct {
    int64_t batch;
    int32_t c_in; /* of x; 0 without a skip */
    int32_t c_out;
    int32_t h, w;
    int32_t modes; /* of spectra */
    int32_t next_modes; /* of next_spectra; 0 without a next layer */
    int32_t projected; /* channels of `projection`; 0 to write y */
    int32_t activation; /* turbofno_activation */
    int32_t precision; /* turbofno_precision */
    int32_t multiprocessors;
    const float *spectra; /* complex [batch][c_out][h][modes] */
    const void *table; /* _cuda_tables.py, row_synthesis(w, modes) */
    const void *x; /* [batch][c_in][h][w]; null without a skip */
    const float *skip; /* [c_out][c_in]; null without a skip */
    const float *bias; /* [c_out], or null */
    void *y; /* [batch][c_out][h][w]; null with a projection */
    const void *next_table; /* _cuda_tables.py, row_analysis(w, next_modes); null without a next layer */
    float *next_spectra; /* complex [batch][c_out][h][next_modes]; null without a next layer */
    const float *projection; /* [projected][c_out]; null without a projection */
    const float *projection_bias; /* [projected], or null */
    float *out; /* float32 [batch][projected][h][w] = projection . activation(..) + bias; null without a projection */
    void *workspace; /* turbofno_rows_workspace_bytes(), uninitialised */
} turbofno_rows;

/* Why a stage does not serve this shape, in words, or null if it does. Reads no pointer; needs no GPU. */
const char *turbofno_analysis_unsupported(const turbofno_analysis *analysis);
const char *turbofno_mix_unsupported(const turbofno_mix *mix);
const char *turbofno_rows_unsupported(const turbofno_rows *rows);

/* Bytes of workspace for this shape; 0 if none is needed or it is not served. Reads no pointer; needs no GPU. */
size_t turbofno_analysis_workspace_bytes(const turbofno_analysis *analysis);
size_t turbofno_mix_workspace_bytes(const turbofno_mix *mix);
size_t turbofno_rows_workspace_bytes(const turbofno_rows *rows);

turbofno_status turbofno_analyze_rows(const turbofno_analysis *analysis, struct CUstream_st *stream);
turbofno_status turbofno_spectral_mix(const turbofno_mix *mix, struct CUstream_st *stream);
turbofno_status turbofno_fourier_rows(const turbofno_rows *rows, struct CUstream_st *stream);

/* Why no kernel can run on the current device, in words, or null: the library has no code for it. */
const char *turbofno_device_unsupported(void);

/* CUDA's words for the last TURBOFNO_LAUNCH_FAILED of this thread; "no error" if there was none. */
const char *turbofno_last_cuda_error(void);

#ifdef __cplusplus
}
#endif

#endif
