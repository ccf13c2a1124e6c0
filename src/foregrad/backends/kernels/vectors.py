"""Vectors: what C++ of our own is written with, for any width that a processor has."""

from __future__ import annotations

#: Inductor has products and sums rounded each by itself; here a product may be fused into a sum, which makes matrix
#: products up to twice as fast. `transpose` turns eight rows of eight floats into columns.
VECTORS = r"""
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#ifdef __AVX512F__
constexpr long vector_width = 16;
#else
constexpr long vector_width = 8;
#endif
constexpr long panel_width = 2 * vector_width;

typedef float floats __attribute__((vector_size(4 * vector_width), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

#if __has_builtin(__builtin_shufflevector)
template <int first, int second> static inline eight pairs(eight x, eight y) {
    if constexpr (first == 1)
        return second ? __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15)
                      : __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
    else if constexpr (first == 2)
        return second ? __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
                      : __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
    else
        return second ? __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)
                      : __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
}

static inline void transpose(const float* from, long from_row, float* to, long to_row) {
    eight x[8], y[8];
    #pragma GCC unroll 8
    for (int i = 0; i < 8; i++) x[i] = *(const eight*)(from + i * from_row);
    #pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) y[i] = pairs<1, 0>(x[i], x[i + 1]), y[i + 1] = pairs<1, 1>(x[i], x[i + 1]);
    #pragma GCC unroll 8
    for (int i = 0; i < 8; i++) x[i] = i & 2 ? pairs<2, 1>(y[i - 2], y[i]) : pairs<2, 0>(y[i], y[i + 2]);
    #pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        *(eight*)(to + i * to_row) = i & 4 ? pairs<4, 1>(x[i - 4], x[i]) : pairs<4, 0>(x[i], x[i + 4]);
}

#else
static inline void transpose(const float* from, long from_row, float* to, long to_row) {
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) to[j * to_row + i] = from[i * from_row + j];
}
#endif
"""
