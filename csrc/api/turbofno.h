/* C interface of the CUDA kernels for Fourier neural operators on grids of any number of axes.
 *
 * One Fourier layer launches, on one stream:
 *
 *   turbofno_tile_program   field -> spectra          truncated DFT of the last axis (in a chain, while y is on chip)
 *   turbofno_transform_axis spectra -> spectra        truncated DFT of another axis, for each of them
 *   turbofno_multiply_modes spectra -> spectra        one complex channel matrix per mode
 *   turbofno_transform_axis spectra -> spectra        inverse DFTs of the other axes
 *   turbofno_tile_program   spectra, field -> field   inverse DFT of the last axis, skip, activation, channel MLP, ..
 *
 * In 2D turbofno_spectral_product does the three in the middle in one launch, for few batch elements;
 * turbofno_batched_spectral_product does the product and the transforms of the first axis in one, for many.
 * With many channels and modes turbofno_analyze_rows does the first of these, from the stored field. A layer with a norm
 * also launches turbofno_spectral_moments or turbofno_field_moments, then turbofno_norm_affine.
 * turbofno_pack_operand packs weights in the order in which a tile program reads them.
 *
 * A tile program is planned once per shape and device (turbofno_tile_prepare searches for the best block layout) and
 * launched any number of times. All other plans take a few divisions and are made at every launch.
 *
 * A function that takes a stream launches kernels on `stream` of the current device and returns. It allocates nothing,
 * does not synchronize and may be captured in a CUDA graph. Calls are independent: any number of threads and streams may
 * call, each with its own workspace. All pointers are device pointers, aligned to 16 bytes and contiguous in the given
 * order; complex numbers are interleaved (real, imaginary) float32. Outputs must not overlap inputs. Every element of an
 * output is written.
 *
 * A non-finite input value makes every result that depends on it NaN, within its batch element only.
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
    TURBOFNO_UNSUPPORTED = 1, /* the _unsupported function gives the reason */
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
    TURBOFNO_TANH = 5,
    TURBOFNO_LEAKY_RELU = 6, /* parameter: slope */
    TURBOFNO_ELU = 7, /* parameter: alpha */
    TURBOFNO_SELU = 8,
    TURBOFNO_MISH = 9,
    TURBOFNO_SIN = 10,
    TURBOFNO_SOFTPLUS = 11,
    TURBOFNO_HARDTANH = 12,
    TURBOFNO_HARDSWISH = 13,
    TURBOFNO_HARDSIGMOID = 14
} turbofno_activation;

typedef enum {
    TURBOFNO_FP32 = 0, /* products of split operands: the error of float32 arithmetic */
    TURBOFNO_TF32 = 1, /* products of operands rounded to 11 significant bits, sums in float32 */
    TURBOFNO_BF16 = 2, /* fields stored and multiplied in bfloat16, sums in float32 */
    TURBOFNO_FP16 = 3 /* turbofno_fft only: values stored in float16 */
} turbofno_precision;

/* A tile program: the steps between two spectral products, on tiles of 16 neighbouring points of the last axis by all
 * channels. It has one value y, initially zero, that the steps change in order.
 *
 * Fields are [batch][outer][points][channels rounded up to whole 16 bytes], float32 or, with TURBOFNO_BF16, bfloat16.
 * A step may set channel_first: float32 [batch][channels][outer][points]. `outer` is the number of grid rows: the product
 * of all axes but the last. Fields that are read are on the window's grid, those that are written on the program's.
 *
 * With TURBOFNO_FP32 a field between two programs may be split, as products take it: a value is the sum of two float16, high and
 * low, times the scale of its tile. Four channels of a point are 16 bytes: their high parts, then their low parts. Scales are
 * float32 [batch][outer][points / 16, rounded up]. */
typedef enum {
    TURBOFNO_LOAD = 0, /* y = field */
    TURBOFNO_SYNTHESIS = 1, /* y = inverse DFT of `mixed` along the last axis; the first step */
    TURBOFNO_AFFINE = 2, /* y = scale * y + shift */
    TURBOFNO_ADD_MAP = 3, /* y = y + first . field */
    TURBOFNO_ADD_GATE = 4, /* y = y + scale * field */
    TURBOFNO_ACTIVATE = 5, /* y = activation(y) */
    TURBOFNO_MLP = 6, /* y = second . activation(first . y + shift) + second_shift */
    TURBOFNO_STORE = 7, /* field = y */
    TURBOFNO_ANALYZE = 8, /* spectra = truncated DFT of y along the last axis */
    TURBOFNO_PROJECT = 9 /* field, channel first, = the result of MLP; with hidden = 0: second . y + second_shift. If hidden > 0
                            and channels <= TURBOFNO_DOT_OUTPUTS, second is no B operand but float32 [channels][hidden],
                            aligned to 16 bytes */
} turbofno_step_kind;

typedef struct {
    int32_t kind; /* turbofno_step_kind */
    int32_t activation; /* turbofno_activation */
    float parameter; /* of the activation */
    int32_t channels; /* of field */
    int32_t channel_first; /* of field: 1 or 0 */
    int32_t terms; /* input channels of first (of second, with hidden = 0) */
    int32_t hidden; /* channels between first and second */
    int32_t per_sample; /* scale and shift are [batch][width] */
    const void *field;
    const void *first, *second; /* B operands, turbofno_pack_operand; see PROJECT and turbofno_tile_plan.maps_few */
    const float *scale, *shift, *second_shift; /* [width] or null. MLP and PROJECT: shift [hidden], second_shift [width],
                                                  PROJECT's [16]. Zero padded */
} turbofno_step;

#define TURBOFNO_FLOW_MODES 10 /* wavenumbers of a residual's flow */
#define TURBOFNO_FLUX_MODES 16 /* functions that fluxes are projected on */
#define TURBOFNO_ABI 1310537932 /* checksum of this header's declarations; test_abi.py has the new one after a change */
#define TURBOFNO_MAX_STEPS 16
#define TURBOFNO_MAX_SLABS 8
#define TURBOFNO_DOT_OUTPUTS 4
#define TURBOFNO_PLAN_WORDS 128

/* The larger grid that a tile program reads, where it computes a window of it only: the first points of some rows. Without a
 * window these are `outer`, `points`, `outer`, `outer` and 0 of the program. */
typedef struct {
    int64_t outer; /* rows of a batch element */
    int32_t points; /* of a row */
    int32_t rows, pitch; /* row o of the program is row first + o / rows * pitch + o % rows of the grid */
    int32_t first;
} turbofno_window;

typedef struct {
    int64_t batch;
    int64_t outer;
    int32_t points; /* of a row */
    int32_t width; /* the most channels of y at any step, a multiple of 16 */
    int32_t channels; /* of mixed and spectra */
    int32_t modes; /* of mixed; 0 if absent */
    int32_t next_modes; /* of spectra; 0 if absent */
    int32_t precision; /* turbofno_precision */
    int32_t multiprocessors; /* of the device */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    int32_t warpgroups; /* turbofno_device_warpgroups() of the device */
    int32_t weights_settled; /* 1: no kernel still in flight writes operands, vectors or tables */
    int32_t steps;
    int32_t channels_last; /* 1: mixed and spectra are complex [batch][outer][modes][channels], even channels */
    turbofno_window window;
    const float *mixed; /* complex [batch][channels][window.outer][modes] */
    float *spectra; /* complex [batch][channels][outer][next_modes] */
    const void *synthesis; /* _cuda_tables.py, row_synthesis(window.points, modes, turbofno_tile_plan.segment_points) */
    const void *analysis; /* row_analysis(points, next_modes, segment_points) */
    const float *synthesis_phases, *analysis_phases; /* segment_phases(window.points, modes or next_modes, segment_points), or
                                                        null where a segment is a row */
    void *workspace; /* turbofno_tile_plan.workspace_bytes */
    const float *x_scales; /* of the field that maps and gates read; null if that is not split */
    float *scales; /* of the field that STORE writes, if turbofno_tile_plan.stores_split and it is channels last */
    turbofno_step step[TURBOFNO_MAX_STEPS];
} turbofno_tile;

/* Block layout of a tile program on a device. Plain data; may be copied. */
typedef struct {
    int64_t workspace_bytes; /* of turbofno_tile.workspace */
    double cost; /* estimated time, in one unit for all programs of a device */
    int32_t segment_points; /* points of the tables: a row's, or fewer */
    int32_t stores_split; /* 1: STORE writes a split field, unless it is channel first */
    int32_t maps_few; /* 1: first of ADD_MAP is no B operand but float32 [terms][width] */
    int32_t opaque[TURBOFNO_PLAN_WORDS]; /* csrc/plan/tile_plan.h */
} turbofno_tile_plan;

/* The truncated DFT of a stored field, channels last, along the last axis: load and analyze as a kernel of its own. */
typedef struct {
    int64_t batch;
    int64_t outer;
    int32_t points; /* of a row */
    int32_t channels;
    int32_t modes;
    int32_t precision; /* turbofno_precision */
    int32_t multiprocessors; /* of the device */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    int32_t warpgroups; /* turbofno_device_warpgroups() of the device */
    int32_t weights_settled; /* 1: no kernel still in flight writes the table */
    int32_t channels_last; /* 1: spectra are complex [batch][outer][modes][channels], even channels */
    const void *field; /* [batch][outer][points][channels rounded up to whole 16 bytes] */
    float *spectra; /* complex [batch][channels][outer][modes] */
    const void *table; /* _cuda_tables.py, field_analysis(points, modes) */
    void *workspace; /* turbofno_analyze_rows_workspace_bytes() */
} turbofno_row_analysis;

/* A real matrix packed as the B operand of a tile program's step, in the order of csrc/kernels/warp_mma.cuh. */
typedef struct {
    int32_t columns, terms; /* of the matrix: output channels, input channels */
    int32_t padded_columns; /* of the operand, a multiple of 16; terms are padded to a multiple of 32; zero padded */
    int32_t precision;
    const float *matrix; /* [columns][terms] */
    void *operand; /* turbofno_operand_bytes() */
} turbofno_operand;

/* The truncated DFT of one axis, or its inverse. `inner` is the product of the sizes after the axis, `outer` before it. */
typedef struct {
    int64_t outer, inner;
    int64_t pitch; /* complex numbers from one mode to the next, at least outer * inner */
    int32_t points, modes; /* modes in FFT order, 0, 1, .., -1 */
    int32_t inverse; /* 0: input [outer][points][inner] -> out [modes][pitch]; 1: the reverse */
    int32_t precision;
    int32_t multiprocessors;
    const float *input; /* complex */
    float *out; /* complex */
    const void *table; /* _cuda_tables.py, axis_analysis(points, modes) or axis_synthesis(points, modes) */
} turbofno_transform;

/* out[k][b][o][m] = sum over c of input[k][b][c][m] weight[k][m][c][o] for every mode (k, m). A row may have one mode more
 * than the weight, so that it is whole 16 bytes; that mode of the output is zero.
 *
 * Of a field that is cut into slabs over processes, the input is a sum over all slabs' parts, and all of them get the product. */
typedef struct {
    int64_t batch;
    int64_t in_pitch, out_pitch; /* complex numbers from one k to the next */
    int32_t c_in, c_out;
    int32_t others; /* k: kept modes of all axes but the last */
    int32_t modes; /* m: of the last axis */
    int32_t row_modes; /* of a row: modes or modes + 1 */
    int32_t precision;
    int32_t multiprocessors;
    int32_t weights_settled; /* 1: no kernel still in flight writes the weight */
    int32_t channels_last; /* 1: out as below, but of the pitches [batch][row_modes][channels], even channels */
    int32_t input_channels_last; /* 1: the same of input; only with channels_last */
    const float *input; /* complex [others][in_pitch], of these [batch][c_in][row_modes] */
    const float *weight; /* complex [others][modes][c_in][c_out] */
    float *out; /* complex [others][out_pitch], of these [batch][c_out][row_modes] */
    int32_t slabs; /* 0, or a number of slabs, with the channels first; then, instead of input and out: */
    const float *parts[TURBOFNO_MAX_SLABS]; /* as input; it is their sum, each times its factors */
    float *products[TURBOFNO_MAX_SLABS]; /* as out, each times its factors */
    const float *part_factors, *product_factors; /* complex [slabs][others] */
} turbofno_product;

/* The two transforms of the only other axis and the product of modes between them, in 2D: for few batch elements, on cards
 * with thread block clusters. A row is as in turbofno_product. */
typedef struct {
    int64_t batch;
    int32_t c_in, c_out;
    int32_t rows, out_rows; /* points of the other axis: of input, of out */
    int32_t kept; /* modes of the other axis, in FFT order */
    int32_t modes; /* of the last axis */
    int32_t row_modes; /* of a row: modes or modes + 1 */
    int32_t clusters; /* turbofno_device_clusters() of the device */
    int32_t weights_settled; /* 1: no kernel still in flight writes the weight or the tables */
    const float *input; /* complex [batch][c_in][rows][row_modes] */
    const float *weight; /* complex [kept][modes][c_in][c_out] */
    float *out; /* complex [batch][c_out][out_rows][row_modes] */
    const void *in_table, *out_table; /* _cuda_tables.py, folded_axis(rows, kept), folded_axis(out_rows, kept) */
} turbofno_spectral;

/* The transform of the first axis, the product of modes and the inverse transform, for many batch elements, on cards with
 * warpgroups. Channels are last. A row is as in turbofno_product. */
typedef struct {
    int64_t batch;
    int64_t in_pitch, out_pitch; /* complex numbers from one mode of the axes between the first and the last to the next; even */
    int32_t channels; /* of input and out: 32, 64 or 128 */
    int32_t rows, out_rows; /* points of the first axis: of input, of out; at most 512 */
    int32_t kept; /* modes of the first axis, in FFT order */
    int32_t others; /* kept modes of the axes between the first and the last; 1 in 2D */
    int32_t modes; /* of the last axis */
    int32_t row_modes; /* of a row: modes or modes + 1 */
    int32_t precision;
    int32_t multiprocessors; /* of the device */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    int32_t warpgroups; /* turbofno_device_warpgroups() of the device */
    int32_t weights_settled; /* 1: no kernel still in flight writes the tables */
    const float *input; /* complex [others][in_pitch], of these [batch][rows][row_modes][channels] */
    const float *weight; /* complex [kept][others][modes][channels][channels], inputs before outputs */
    float *out; /* complex [others][out_pitch], of these [batch][out_rows][row_modes][channels] */
    const void *in_table, *out_table; /* _cuda_tables.py, batched_analysis(rows, kept),
                                             batched_synthesis(out_rows, kept) */
} turbofno_batched_spectral;

/* Mean and variance over the grid of each batch element and channel. */
typedef struct {
    int64_t batch;
    int64_t outer;
    int32_t points;
    int32_t channels;
    int32_t modes; /* of spectra */
    int32_t precision;
    int32_t channels_last; /* 1: spectra are complex [batch][outer][modes][channels] */
    const float *spectra; /* of turbofno_spectral_moments: complex [batch][channels][outer][modes] */
    const void *field; /* of turbofno_field_moments: [batch][outer][points][channels rounded up to whole 16 bytes] */
    float *moments; /* [batch][channels][2]: mean, variance */
    void *workspace; /* of turbofno_field_moments: turbofno_moments_workspace_bytes() */
} turbofno_moments;

/* The norm of groups of neighbouring channels, as one scale and one shift per batch element and channel. */
typedef struct {
    int64_t batch;
    int32_t channels, groups;
    int32_t width; /* of the results, at least `channels`; zero padded */
    float eps;
    const float *moments; /* [batch][channels][2] */
    const float *offset; /* [channels] added to the means, or null */
    const float *weight, *bias; /* [channels], or null */
    float *scale, *shift; /* [batch][width] */
} turbofno_norm;

typedef enum {
    TURBOFNO_COMPLEX = 0, /* complex -> complex */
    TURBOFNO_REAL_TO_COMPLEX = 1, /* the first points / 2 + 1 values of a real line's transform */
    TURBOFNO_COMPLEX_TO_REAL = 2 /* its inverse: the imaginary parts of value 0 and, of even sizes, value points / 2 are
                                    ignored */
} turbofno_transform_kind;

/* Discrete Fourier transforms of many lines along one axis, full or truncated. Line (o, i) of outer x inner lines; value p
 * of it is at o * outer stride + i * inner stride + p * point stride, in values (real or complex) of its array.
 * float32, or with TURBOFNO_FP16 float16. Arithmetic is in float32.
 *
 * turbofno_half_fft multiplies float16 values. It takes whole complex lines of a power of two in 128 .. 16384 whose points are
 * next to each other, or to 512 points 16 lines, in the result or on both sides. Its arrays begin at multiples of 16 bytes, which
 * turbofno_half_fft_unsupported does not see; all strides but those of neighbours are multiples of four values.
 *
 * Of the input `in_head` values are given, the line's first, and `in_tail`, its last; all between them are zero and are not
 * stored: the first value of the tail is next to the last of the head. Of the result the `out_head` first and the `out_tail`
 * last values are computed and written in the same way. The line is `points` long, or points / 2 + 1 on the complex side of a
 * real transform. Strides may be any; results must not overlap.
 *
 * A non-finite input value spoils its line only. */
typedef struct {
    int64_t outer, inner;
    int64_t in_outer, in_inner, in_point; /* strides */
    int64_t out_outer, out_inner, out_point;
    int64_t twiddle_points; /* 0, or: result k of line (o, i) is multiplied by exp(sign 2 pi i (i k) / twiddle_points) */
    int32_t points;
    int32_t in_head, in_tail, out_head, out_tail;
    int32_t kind; /* turbofno_transform_kind */
    int32_t inverse; /* sign of the exponent. 0: -, 1: + */
    int32_t precision; /* TURBOFNO_FP32 or TURBOFNO_FP16 */
    int32_t multiprocessors; /* of the device */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    float scale; /* factor of the result */
    const void *input;
    void *out;
    const void *table;
} turbofno_fft;

/* One axis of a plane, whose values are given and computed as those of a line of turbofno_fft. */
typedef struct {
    int32_t points;
    int32_t in_head, in_tail, out_head, out_tail;
    const void *table; /* exp(-2 pi i j / points), complex float32 [points] */
} turbofno_plane_axis;

/* Discrete Fourier transforms of many planes along both axes, float32. Each plane that is given or computed is contiguous, and
 * so are all planes. With a half spectrum it is that of `width`. A non-finite input value spoils its plane only. */
typedef struct {
    int64_t planes;
    turbofno_plane_axis height, width; /* neighbours along `width` are neighbours in memory */
    int32_t kind; /* turbofno_transform_kind */
    int32_t inverse; /* sign of the exponent. 0: -, 1: + */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    float scale; /* factor of the result */
    const void *input;
    void *out;
} turbofno_plane_transform;

typedef enum {
    TURBOFNO_BABY_BEAR = 0, /* 15 * 2^27 + 1 */
    TURBOFNO_GOLDILOCKS = 1 /* 2^64 - 2^32 + 1 */
} turbofno_prime;

typedef enum {
    TURBOFNO_SHUFFLE = 0, /* lanes of a warp exchange values by shuffles, warps through shared memory */
    TURBOFNO_SHARED_MEMORY = 1 /* all threads through shared memory */
} turbofno_exchange;

/* Number-theoretic transforms of lines modulo a prime: out[k] = sum over n of input[n] w^(n k), or its inverse. Values are
 * residues below the prime in 64 bits. Others give others: nothing checks them. */
typedef struct {
    int64_t lines;
    int32_t points; /* of a line, a power of two in 64 .. 65536 */
    int32_t prime; /* turbofno_prime */
    int32_t inverse; /* 1: the inverse, with the factor 1 / points */
    int32_t negacyclic; /* 1: value n is multiplied by psi^n before the transform, or by psi^-n after the inverse */
    int32_t radix; /* values of a thread: 2, 4, 8 or 16 */
    int32_t exchange; /* turbofno_exchange */
    int32_t multiprocessors; /* of the device */
    int32_t shared_bytes; /* opt-in shared memory per block of the device */
    const int64_t *input, *factor; /* [lines][points]; the input is multiplied by factor, unless that is null */
    int64_t *out; /* [lines][points] */
    const void *table; /* turbofno_ops/ntt/_tables.py, for inverse and negacyclic */
    void *workspace; /* turbofno_ntt_workspace_bytes() */
} turbofno_ntt;

/* The energies of real fields: the squared magnitudes of their coefficients, all but those with all k_i = 0, and of each octave
 * [2^o, 2^(o + 1)) of the largest |k_i|. The last axis has k = 0 .. points / 2, whose conjugates count, too. */
typedef struct {
    int64_t fields;
    int32_t places; /* coefficients of all axes but the last */
    int32_t kept, points; /* coefficients of the last axis, points / 2 + 1; its points */
    int32_t octaves; /* at most 24 */
    int32_t parts; /* of a field's places, each a block's */
    float scale; /* a factor of the coefficients */
    const void *spectrum; /* complex64 [fields][places][kept] */
    const int32_t *place_octaves; /* [places]; -1 where all other k_i are 0 */
    float *out; /* [fields][parts][1 + octaves], to be summed over the parts; all of them come first */
} turbofno_octaves;

/* Fluxes of div(a grad u) through the faces between neighbouring points, (difference of u) (sum of a) with u = 0 at the ends of
 * both axes, each row of them projected on functions of the last axis. */
typedef struct {
    int64_t fields;
    int64_t a_pitch, u_pitch; /* values from one field to the next */
    int32_t rows, points; /* of a field */
    const float *a, *u; /* [fields][rows][points] */
    const float *across, *along; /* [TURBOFNO_FLUX_MODES][points]: functions for the fluxes to the next row, at inner points, and
                                  * to the next point, at faces; zeros elsewhere */
    float *out; /* [fields][across, along][rows][TURBOFNO_FLUX_MODES]; 0 where a row has no such fluxes */
} turbofno_fluxes;

/* Residuals of the vorticity equation on the unit torus, w_t + v . grad w = viscosity Laplace w + forcing: the L2 norm of what
 * w(time) - w(0) misses to the integral of the cubic Hermite interpolant of w_t, relative to that of w(time). Of all fields the
 * modes up to TURBOFNO_FLOW_MODES on both axes, in the order of rfft2 with norm "forward": complex64, 21 x 11. */
typedef struct {
    int64_t fields;
    float viscosity, time;
    const void *before, *after; /* w(0), w(time): [fields][modes] */
    const void *forcing; /* [modes] */
    float *out; /* [fields] */
} turbofno_flow;

/* Fills in the plan of a tile program. Returns null, or the reason why the shape is not supported. Reads none of the
 * tile's pointers; needs no GPU. */
const char *turbofno_tile_prepare(const turbofno_tile *tile, turbofno_tile_plan *plan);

/* Return null, or the reason why the shape is not supported. Read no pointer; need no GPU. */
const char *turbofno_analyze_rows_unsupported(const turbofno_row_analysis *analysis);
const char *turbofno_transform_unsupported(const turbofno_transform *transform);
const char *turbofno_product_unsupported(const turbofno_product *product);
const char *turbofno_spectral_unsupported(const turbofno_spectral *spectral);
const char *turbofno_batched_spectral_unsupported(const turbofno_batched_spectral *spectral);
const char *turbofno_mixed_radix_fft_unsupported(const turbofno_fft *fft);
const char *turbofno_plane_fft_unsupported(const turbofno_plane_transform *transform);
const char *turbofno_dense_dft_unsupported(const turbofno_fft *fft);
const char *turbofno_half_fft_unsupported(const turbofno_fft *fft);
const char *turbofno_ntt_unsupported(const turbofno_ntt *transform);

/* Return the bytes of a result or workspace for this shape. Read no pointer; need no GPU. */
size_t turbofno_analyze_rows_workspace_bytes(const turbofno_row_analysis *analysis);
size_t turbofno_operand_bytes(const turbofno_operand *operand);
size_t turbofno_moments_workspace_bytes(const turbofno_moments *moments);
size_t turbofno_ntt_workspace_bytes(const turbofno_ntt *transform);

/* `plan` comes from turbofno_tile_prepare, for a tile that differs from this one in its pointers at most. */
turbofno_status turbofno_tile_program(const turbofno_tile *tile, const turbofno_tile_plan *plan, struct CUstream_st *stream);
turbofno_status turbofno_analyze_rows(const turbofno_row_analysis *analysis, struct CUstream_st *stream);
turbofno_status turbofno_pack_operand(const turbofno_operand *operand, struct CUstream_st *stream);
turbofno_status turbofno_transform_axis(const turbofno_transform *transform, struct CUstream_st *stream);
turbofno_status turbofno_multiply_modes(const turbofno_product *product, struct CUstream_st *stream);
turbofno_status turbofno_spectral_product(const turbofno_spectral *spectral, struct CUstream_st *stream);
turbofno_status turbofno_batched_spectral_product(const turbofno_batched_spectral *spectral, struct CUstream_st *stream);
turbofno_status turbofno_spectral_moments(const turbofno_moments *moments, struct CUstream_st *stream);
turbofno_status turbofno_field_moments(const turbofno_moments *moments, struct CUstream_st *stream);
turbofno_status turbofno_norm_affine(const turbofno_norm *norm, struct CUstream_st *stream);
turbofno_status turbofno_mixed_radix_fft(const turbofno_fft *fft, struct CUstream_st *stream);
turbofno_status turbofno_plane_fft(const turbofno_plane_transform *transform, struct CUstream_st *stream);
turbofno_status turbofno_dense_dft(const turbofno_fft *fft, struct CUstream_st *stream);
turbofno_status turbofno_half_fft(const turbofno_fft *fft, struct CUstream_st *stream);
turbofno_status turbofno_octave_energies(const turbofno_octaves *octaves, struct CUstream_st *stream);
turbofno_status turbofno_project_fluxes(const turbofno_fluxes *fluxes, struct CUstream_st *stream);
turbofno_status turbofno_vorticity_residual(const turbofno_flow *flow, struct CUstream_st *stream);
turbofno_status turbofno_number_theoretic_transform(const turbofno_ntt *transform, struct CUstream_st *stream);

/* Returns TURBOFNO_ABI of the header that the library was compiled with. */
int turbofno_abi(void);

/* Returns null, or the reason why the library holds no code for the current device. */
const char *turbofno_device_unsupported(void);

/* Returns 1 if the code that runs on the current device uses wgmma, else 0. */
int turbofno_device_warpgroups(void);

/* Returns how many clusters of 16 thread blocks the current device runs at once; 0 if none. */
int turbofno_device_clusters(void);

/* CUDA's message for the last TURBOFNO_LAUNCH_FAILED of this thread; "no error" if there was none. */
const char *turbofno_last_cuda_error(void);

#ifdef __cplusplus
}
#endif

#endif
