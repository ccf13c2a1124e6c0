"""Products: small matrix products as C++ of our own, for shapes and strides that are known when it is built.

A call into a library of linear algebra costs about a microsecond before it multiplies anything, and as much again for
the order that it wants its factors in. On the products of a small layer that is a fifth of their time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foregrad.backends.kernels.avx512 import SIXTEEN
from foregrad.backends.kernels.vectors import VECTORS

#: Multiplications up to which one core is done before a library, with its threads, would be.
_MOST_MULTIPLICATIONS = 1 << (24 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 22)
#: And where there is one thread and the first factor has few rows: a library puts the second one in order for these.
_MOST_FOR_FEW_ROWS, _FEW_ROWS = 1 << 26, 64
#: Elements of a matrix up to which a row times it is as fast as a library's.
_MOST_ELEMENTS = 1 << 14


@dataclass(frozen=True)
class Matrix:
    """A matrix of 32-bit floats in memory."""

    shape: tuple[int, int]
    stride: tuple[int, int]


def product_call(a: Matrix, b: Matrix, out: Matrix, bias: Matrix | None = None) -> str | None:
    """The C++ function for a product, to which a bias may be added; None if a library does it as well."""
    (rows, inner), columns = a.shape, b.shape[1]
    has_few_rows = rows <= _FEW_ROWS and a.stride[1] == 1 and torch.get_num_threads() == 1
    most = _MOST_FOR_FEW_ROWS if has_few_rows else _MOST_MULTIPLICATIONS
    if not 0 < rows * inner * columns * torch.get_num_threads() <= most:
        return None
    if rows == 1 and b.stride[0] != 1 and inner * columns > _MOST_ELEMENTS:
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


#: `product(a, b, bias, c)`: c = a b, or a b + bias. Sums stay in registers: in tiles of up to 6 rows and 2 vectors of
#: columns (14 rows with the registers of AVX-512), each over a block of the second factor's rows that fits into the
#: first cache. All tiles are about as high, since a low one waits for its own sums. Columns that do not fill two
#: vectors, and a second factor that is transposed or whose rows would fall on one another in the cache, go through a
#: panel on the stack. Where this costs more than it gives, which is for few rows, columns are multiplied as they lie:
#: `dots` are tiles of up to 3 rows and 4 columns.
#: Weights lie far away after a step over many others: while a panel is multiplied, the next one is on its way. With
#: AVX-512 it is sent for line by line between multiplications, since many requests at once hold up the panel that is
#: needed now; and so are the next rows of a panel that is read from where it lies.
PRODUCTS = (
    VECTORS
    + SIXTEEN
    + r"""
#include <type_traits>
constexpr long tile_rows = has_sixteen ? 14 : 6, most_depth = 256;

// A vector that is read once and used several times: compilers would rather read it for each use.
static inline __attribute__((always_inline)) eight read_once(const float* from) {
    eight value = *(const eight*)from;
#ifdef __AVX__
    asm("" : "+x"(value));
#endif
    return value;
}

template <int rows, long inner, long a_row, long a_column, long b_row, long c_row, long start_row, typename Fetch>
static inline __attribute__((always_inline)) void tile(
    const float* a, const float* b, const float* start, float* c, Fetch fetch) {
    floats sums[rows][2];
    #pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            sums[i][j] = start_row < 0 ? floats{} : *(const floats*)(start + i * start_row + j * vector_width);
    for (long k = 0; k < inner; k++) {
        floats second[2];
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            second[j] = *(const floats*)(b + k * b_row + j * vector_width);
            if (has_sixteen && b_row != panel_width) __builtin_prefetch(b + (k + 8) * b_row + j * vector_width);
        }
        if (has_sixteen && a_row == 1) __builtin_prefetch(a + (k + 8) * a_column);
        fetch(k);
        #pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const float one = a[i * a_row + k * a_column];
            #pragma GCC unroll 2
            for (int j = 0; j < 2; j++) sums[i][j] += one * second[j];
        }
    }
    #pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) *(floats*)(c + i * c_row + j * vector_width) = sums[i][j];
}

#if __has_builtin(__builtin_shufflevector)
template <int first> static inline eight sum_of_pairs(eight x, eight y) {
    return pairs<first, 0>(x, y) + pairs<first, 1>(x, y);
}

static inline four totals(const eight* x) {
    eight both = sum_of_pairs<2>(sum_of_pairs<1>(x[0], x[1]), sum_of_pairs<1>(x[2], x[3]));
    return __builtin_shufflevector(both, both, 0, 1, 2, 3) + __builtin_shufflevector(both, both, 4, 5, 6, 7);
}
#else
static inline four totals(const eight* x) {
    four all = {};
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 8; i++) all[j] += x[j][i];
    return all;
}
#endif

template <int rows, int columns, long inner, long a_row, long b_column, long c_row, long bias_row>
static inline __attribute__((always_inline)) void dots(const float* a, const float* b, const float* bias, float* c) {
    eight sums[rows][4] = {};
    for (long k = 0; k < inner; k += 8) {
        eight first[rows];
        #pragma GCC unroll 4
        for (int i = 0; i < rows; i++) first[i] = read_once(a + i * a_row + k);
        #pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            eight second = read_once(b + j * b_column + k);
            #pragma GCC unroll 4
            for (int i = 0; i < rows; i++) sums[i][j] += first[i] * second;
        }
    }
    #pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        four total = totals(sums[i]);
        if constexpr (columns == 4) {
            *(four*)(c + i * c_row) = bias_row < 0 ? total : total + *(const four*)(bias + i * bias_row);
        } else {
            for (int j = 0; j < columns; j++)
                c[i * c_row + j] = bias_row < 0 ? total[j] : total[j] + bias[i * bias_row + j];
        }
    }
}

template <long inner, long b_row, long b_column>
static void fill_panel(const float* b, long width, float* panel) {
    const bool is_full = width == panel_width;
    if (is_full && b_row == 1 && has_sixteen && inner % 16 == 0) {
        for (long j = 0; j < panel_width; j += 16)
            for (long k = 0; k < inner; k += 16)
                transpose_sixteen(b + k + j * b_column, b_column, panel + k * panel_width + j, panel_width);
    } else if (is_full && b_row == 1 && inner % 8 == 0) {
        for (long j = 0; j < panel_width; j += 8)
            for (long k = 0; k < inner; k += 8)
                transpose(b + k + j * b_column, b_column, panel + k * panel_width + j, panel_width);
    } else if (is_full && b_column == 1) {
        for (long k = 0; k < inner; k++)
            for (long j = 0; j < panel_width; j += vector_width)
                *(floats*)(panel + k * panel_width + j) = *(const floats*)(b + k * b_row + j);
    } else {
        for (long k = 0; k < inner; k++)
            for (long j = 0; j < panel_width; j++)
                panel[k * panel_width + j] = j < width ? b[k * b_row + j * b_column] : 0;
    }
}

template <int rows, long inner, long a_row, long a_column, long b_row, long c_row, long start_row, typename Fetch>
static inline void multiply(
    const float* a, const float* b, const float* panel, const float* start, long width, float* c, Fetch fetch) {
    if (b) {
        tile<rows, inner, a_row, a_column, b_row, c_row, start_row>(a, b, start, c, fetch);
    } else if (width == panel_width) {
        tile<rows, inner, a_row, a_column, panel_width, c_row, start_row>(a, panel, start, c, fetch);
    } else {
        float results[rows * panel_width], starts[rows * panel_width] = {};
        if (start_row >= 0)
            for (long i = 0; i < rows; i++)
                for (long j = 0; j < width; j++) starts[i * panel_width + j] = start[i * start_row + j];
        tile<rows, inner, a_row, a_column, panel_width, panel_width, panel_width>(a, panel, starts, results, fetch);
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < width; j++) c[i * c_row + j] = results[i * panel_width + j];
    }
}

// Calls a function with a number of rows, at most so many, and the first of them, until all have had their turn.
template <long rows, long most, typename Function>
static inline __attribute__((always_inline)) void each_tile(Function function) {
    constexpr long tiles = (rows + most - 1) / most, least = rows / tiles, num_longer = rows % tiles;
    long m = 0;
    if constexpr (num_longer > 0)
        for (; m < num_longer * (least + 1); m += least + 1) function(std::integral_constant<int, least + 1>{}, m);
    for (; m < rows; m += least) function(std::integral_constant<int, least>{}, m);
}

// Sends for some of so many parts of a panel.
template <long inner, long b_row, long b_column>
static inline void fetch_panel(const float* b, long part = 0, long num = 1, long parts = 1) {
    constexpr bool has_rows = b_column == 1;
    constexpr long depth = inner < most_depth ? inner : most_depth;
    constexpr long lines = has_rows ? depth : panel_width, length = has_rows ? panel_width : depth;
    for (long i = lines * part / parts; i < lines * (part + num) / parts; i++)
        for (long j = 0; j < length; j += 16) __builtin_prefetch(b + i * (has_rows ? b_row : b_column) + j);
}

template <long rows, long columns, long inner, long a_row, long a_column, long b_row, long b_column, long c_row,
          long start_row>
static void block(const float* a, const float* b, const float* start, float* c) {
    constexpr bool has_rows = b_column == 1;
    constexpr bool is_direct = has_rows && (rows <= (has_sixteen ? 64 : 16) || b_row % 512);
    constexpr long second_half = has_rows ? 16 : inner / 2;
    alignas(64) float panel[inner * panel_width];
    for (long n = 0; n < columns; n += panel_width) {
        const long width = columns - n < panel_width ? columns - n : panel_width;
        const float* direct = is_direct && width == panel_width ? b + n : nullptr;
        if (!direct) fill_panel<inner, b_row, b_column>(b + n * b_column, width, panel);
        each_tile<rows, tile_rows>([&](auto height, long m) {
            const float* next = n + width < columns ? b + (n + width) * b_column : nullptr;
            if (!has_sixteen && next) fetch_panel<inner, b_row, b_column>(next, m, height, rows);
            const float* part = next ? next + (m ? second_half : 0) : b;
            multiply<height.value, inner, a_row, a_column, b_row, c_row, start_row>(
                a + m * a_row, direct, panel, start + m * start_row + n, width, c + m * c_row + n, [=](long k) {
                    const long line = has_rows ? k * b_row : k % 32 * b_column + k / 32 * 16;
                    if (has_sixteen) __builtin_prefetch(part + line, 0, 2);
                });
        });
    }
}

template <long rows, long columns, long inner, long a_row, long a_column, long b_row, long b_column, long c_row,
          long bias_row>
static void product(const float* a, const float* b, const float* bias, float* c) {
    constexpr bool is_wide = inner < 8 * rows + !has_sixteen || inner * rows > 1 << 16;
    constexpr bool has_dots = b_row == 1 && a_column == 1 && !(is_wide && columns >= panel_width);
    if constexpr (has_dots && has_sixteen && inner % 16 == 0) {
        each_tile<columns, 4>([&](auto width, long n) {
            each_tile<rows, 4>([&](auto height, long m) {
                const float* next = b + (n + 4 + m / 4 % 4) * b_column;
                dots_of_sixteen<height.value, width.value, inner, a_row, b_column, c_row, bias_row>(
                    a + m * a_row, b + n * b_column, next, bias + m * bias_row + n, c + m * c_row + n);
            });
        });
    } else if constexpr (has_dots && inner % 8 == 0) {
        each_tile<columns, 4>([&](auto width, long n) {
            each_tile<rows, 3>([&](auto height, long m) {
                dots<height.value, width.value, inner, a_row, b_column, c_row, bias_row>(
                    a + m * a_row, b + n * b_column, bias + m * bias_row + n, c + m * c_row + n);
            });
        });
    } else {
        constexpr long blocks = (inner + most_depth - 1) / most_depth, even = (inner + blocks - 1) / blocks;
        constexpr long depth = (even + 7) / 8 * 8, first = inner - (blocks - 1) * depth;
        block<rows, columns, first, a_row, a_column, b_row, b_column, c_row, bias_row>(a, b, bias, c);
        for (long k = first; k < inner; k += depth)
            block<rows, columns, depth, a_row, a_column, b_row, b_column, c_row, c_row>(
                a + k * a_column, b + k * b_row, c, c);
    }
}
"""
)
