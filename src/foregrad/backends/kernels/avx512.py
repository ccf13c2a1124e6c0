"""AVX-512: matrix products with vectors of sixteen floats."""

from __future__ import annotations

#: `transpose_sixteen` turns sixteen rows of sixteen floats into columns: floats of four rows meet as they are read,
#: each in a quarter of a vector, which leaves half of the shuffles that eight rows of eight would take.
#: `dots_of_sixteen` is a tile of up to 4 rows and 4 columns, whose sixteen sums end in one vector; meanwhile it sends
#: for the column at `next`.
SIXTEEN = r"""
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef __AVX512F__
#include <immintrin.h>
constexpr bool has_sixteen = true;

static inline __m512 four_quarters(const float* from, long row) {
    __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(from));
    all = _mm512_insertf32x4(all, _mm_loadu_ps(from + row), 1);
    all = _mm512_insertf32x4(all, _mm_loadu_ps(from + 2 * row), 2);
    return _mm512_insertf32x4(all, _mm_loadu_ps(from + 3 * row), 3);
}

static inline void transpose_sixteen(const float* from, long from_row, float* to, long to_row) {
    for (int k = 0; k < 16; k += 4) {
        __m512 x[4], y[4];
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = four_quarters(from + i * from_row + k, 4 * from_row);
        #pragma GCC unroll 2
        for (int i = 0; i < 4; i += 2)
            y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]), y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
        #pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            _mm512_storeu_ps(to + (k + 2 * i) * to_row, _mm512_shuffle_ps(y[i], y[i + 2], 0x44));
            _mm512_storeu_ps(to + (k + 2 * i + 1) * to_row, _mm512_shuffle_ps(y[i], y[i + 2], 0xee));
        }
    }
}

static inline __m512 sums_in_quarters(const __m512* x) {
    __m512 first = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    __m512 second = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    return _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x44), _mm512_shuffle_ps(first, second, 0xee));
}

static inline __m512 sum_of_halves(__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}

static inline floats totals_of_sixteen(const __m512 (*x)[4]) {
    __m512 low = sum_of_halves(sums_in_quarters(x[0]), sums_in_quarters(x[1]));
    __m512 high = sum_of_halves(sums_in_quarters(x[2]), sums_in_quarters(x[3]));
    return (floats)_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

template <int rows, int columns, long inner, long a_row, long b_column, long c_row, long bias_row>
static inline __attribute__((always_inline)) void dots_of_sixteen(
    const float* a, const float* b, const float* next, const float* bias, float* c) {
    __m512 sums[4][4] = {};
    for (long k = 0; k < inner; k += 16) {
        __m512 second[columns];
        __builtin_prefetch(next + k);
        #pragma GCC unroll 4
        for (int j = 0; j < columns; j++) second[j] = _mm512_loadu_ps(b + j * b_column + k);
        #pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            __m512 first = _mm512_loadu_ps(a + i * a_row + k);
            #pragma GCC unroll 4
            for (int j = 0; j < columns; j++) sums[i][j] = _mm512_fmadd_ps(first, second[j], sums[i][j]);
        }
    }
    const floats total = totals_of_sixteen(sums);
    #pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            c[i * c_row + j] = bias_row < 0 ? total[4 * i + j] : total[4 * i + j] + bias[i * bias_row + j];
}

#else
constexpr bool has_sixteen = false;
static inline void transpose_sixteen(const float*, long, float*, long) {}
template <int rows, int columns, long inner, long a_row, long b_column, long c_row, long bias_row>
static inline void dots_of_sixteen(const float*, const float*, const float*, const float*, float*) {}
#endif
"""
