"""Products: small matrix products as C++ of our own, for shapes and strides that are known when it is built.

A call into a library of linear algebra costs about a microsecond before it multiplies anything, and as much again for
the order that it wants its factors in. On the products of a small layer that is a fifth of their time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foregrad.backends.vectors import VECTORS

#: Multiplications up to which one core is done before a library, with its threads, would be.
_MOST_MULTIPLICATIONS = 1 << 22
#: Rows of the first factor up to which that holds only if the second is small: each of its elements is used as often.
_FEW_ROWS, _MOST_ELEMENTS = 16, 1 << 14
#: Rows of the second factor that a panel on the stack can have.
_MOST_ROWS = 1024


@dataclass(frozen=True)
class Matrix:
    """A matrix of 32-bit floats in memory."""

    shape: tuple[int, int]
    stride: tuple[int, int]


def product_call(a: Matrix, b: Matrix, out: Matrix, bias: Matrix | None = None) -> str | None:
    """The C++ function for a product, to which a bias may be added; None if a library does it as well."""
    (rows, inner), columns = a.shape, b.shape[1]
    if rows * inner * columns * torch.get_num_threads() > _MOST_MULTIPLICATIONS or not 0 < inner <= _MOST_ROWS:
        return None
    if rows < _FEW_ROWS and inner * columns > _MOST_ELEMENTS:
        return None
    if 1 not in b.stride or (out.stride[1] != 1 and columns > 1):
        return None
    if bias is not None and ((bias.stride[1] != 1 and columns > 1) or bias.shape != out.shape):
        return None
    numbers = (rows, columns, inner, *a.stride, *b.stride, out.stride[0], -1 if bias is None else bias.stride[0])
    return f"product<{', '.join(map(str, numbers))}>"


def fetch_call(b: Matrix) -> str:
    """The C++ function that sends for the part of a second factor that its product needs first."""
    return f"fetch_panel<{', '.join(map(str, (b.shape[0], *b.stride)))}>"


#: `product(a, b, bias, c)`: c = a b, or a b + bias. Tiles of up to 6 rows and 2 vectors stay in
#: registers; all are about as high, since a low one waits for its own sums.
#: Columns that do not fill two vectors, and a second factor that is transposed, go through a panel on the stack.
#: Weights lie far away after a step over many others: while a panel is multiplied, the next one is on its way.
PRODUCTS = (
    VECTORS
    + r"""
constexpr long tile_rows = 6;

template <int rows, long inner, long a_row, long a_column, long b_row, long c_row, long bias_row>
static inline __attribute__((always_inline)) void tile(const float* a, const float* b, const float* bias, float* c) {
    floats sums[rows][2];
    #pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            sums[i][j] = bias_row < 0 ? floats{} : *(const floats*)(bias + i * bias_row + j * vector_width);
    for (long k = 0; k < inner; k++) {
        floats first = *(const floats*)(b + k * b_row), second = *(const floats*)(b + k * b_row + vector_width);
        #pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float one = a[i * a_row + k * a_column];
            sums[i][0] += one * first;
            sums[i][1] += one * second;
        }
    }
    #pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) *(floats*)(c + i * c_row + j * vector_width) = sums[i][j];
}

template <long inner, long b_row, long b_column>
static void fill_panel(const float* b, long width, float* panel) {
    if (b_row == 1 && width == panel_width && inner % 8 == 0) {
        for (long j = 0; j < panel_width; j += 8)
            for (long k = 0; k < inner; k += 8)
                transpose(b + k + j * b_column, b_column, panel + k * panel_width + j, panel_width);
        return;
    }
    for (long k = 0; k < inner; k++)
        for (long j = 0; j < panel_width; j++)
            panel[k * panel_width + j] = j < width ? b[k * b_row + j * b_column] : 0;
}

template <int rows, long inner, long a_row, long a_column, long b_row, long c_row, long bias_row>
static inline void multiply(
    const float* a, const float* b, const float* panel, const float* bias, long width, float* c) {
    if (b) {
        tile<rows, inner, a_row, a_column, b_row, c_row, bias_row>(a, b, bias, c);
    } else if (width == panel_width) {
        tile<rows, inner, a_row, a_column, panel_width, c_row, bias_row>(a, panel, bias, c);
    } else {
        float results[rows * panel_width], biases[rows * panel_width] = {};
        if (bias_row >= 0)
            for (long i = 0; i < rows; i++)
                for (long j = 0; j < width; j++) biases[i * panel_width + j] = bias[i * bias_row + j];
        tile<rows, inner, a_row, a_column, panel_width, panel_width, panel_width>(a, panel, biases, results);
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < width; j++) c[i * c_row + j] = results[i * panel_width + j];
    }
}

template <long inner, long b_row, long b_column>
static inline void fetch_panel(const float* b, long part = 0, long parts = 1) {
    constexpr bool has_rows = b_column == 1;
    constexpr long lines = has_rows ? inner : panel_width, length = has_rows ? panel_width : inner;
    for (long i = lines * part / parts; i < lines * (part + 1) / parts; i++)
        for (long j = 0; j < length; j += 16) __builtin_prefetch(b + i * (has_rows ? b_row : b_column) + j);
}

template <long rows, long columns, long inner, long a_row, long a_column, long b_row, long b_column, long c_row,
          long bias_row>
static void product(const float* a, const float* b, const float* bias, float* c) {
    constexpr long tiles = (rows + tile_rows - 1) / tile_rows, least = rows / tiles, num_longer = rows % tiles;
    constexpr long longer = num_longer ? least + 1 : least;
    alignas(64) float panel[inner * panel_width];
    for (long n = 0; n < columns; n += panel_width) {
        const long width = columns - n < panel_width ? columns - n : panel_width;
        const float* direct = b_column == 1 && width == panel_width ? b + n : nullptr;
        if (!direct) fill_panel<inner, b_row, b_column>(b + n * b_column, width, panel);
        for (long t = 0, m = 0; t < tiles; t++) {
            if (n + width < columns) fetch_panel<inner, b_row, b_column>(b + (n + width) * b_column, t, tiles);
            const float *from = a + m * a_row, *added = bias + m * bias_row + n;
            float* to = c + m * c_row + n;
            if (t < num_longer)
                multiply<longer, inner, a_row, a_column, b_row, c_row, bias_row>(from, direct, panel, added, width, to);
            else
                multiply<least, inner, a_row, a_column, b_row, c_row, bias_row>(from, direct, panel, added, width, to);
            m += t < num_longer ? longer : least;
        }
    }
}
"""
)
