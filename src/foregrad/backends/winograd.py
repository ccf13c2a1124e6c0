"""Winograd: convolutions with kernels of three by three, with 2.25 times fewer multiplications than there are terms.

An image is cut into squares of two by two pixels. What such a square of the result depends on, four by four pixels, is
spread to 16 other numbers, sums of these; so is a kernel; and what the 16 products of these add up to, gathered again,
is the square. In matrices, with B, G and A of a few zeros, ones and halves, and * element by element:

    result = A' [(G kernel G') * (B' image B)] A
    gradient of kernel = G' [(A gradient A') * (B' image B)] G

All 16 numbers of all squares and channels together are 16 matrix products, and these are what takes time. Squares are
worked on in blocks that stay in a cache. What is summed up, and in which order, is the same with any number of threads.
The method is that of A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks" (2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from foregrad.backends.convolutions import Convolutions, is_quicker
from foregrad.backends.kernels import in_one_file
from foregrad.backends.vectors import VECTORS
from foregrad.substrate_inductor import build_module

aten = torch.ops.aten


def has_convolutions(graph: fx.GraphModule) -> bool:
    """Whether there are convolutions in a lowered graph that are worth it."""

    def is_one(node: fx.Node) -> bool:
        args: Any = node.args
        if node.target is aten.convolution.default:
            return is_quicker(args[0].meta["val"], args[1].meta["val"], *args[3:])
        is_backward = node.target is aten.convolution_backward.default
        return is_backward and is_quicker(args[1].meta["val"], args[2].meta["val"], *args[4:-1])

    return any(map(is_one, graph.graph.nodes))


def build_convolutions() -> Callable[[], Convolutions]:
    """Begin to build the function that computes them; what is returned waits for it."""
    module = build_module(in_one_file([WINOGRAD]))
    return lambda: Convolutions(module().kernel_0)


def called_instead(convolutions: Convolutions) -> dict[str, Any]:
    """What is called in place of the functions that Inductor calls."""
    return {
        "extern_kernels.convolution": convolutions.forward,
        "torch.ops.aten.convolution_backward.default": convolutions.backward,
    }


#: Pixels and kernels in other numbers, and back.
_TRANSFORMS = r"""
#define inlined static inline __attribute__((always_inline))

struct Images {  // channels last
    float* data;
    long count, height, width, channels;

    long down() const { return (height + 1) / 2; }
    long across() const { return (width + 1) / 2; }
    long squares() const { return count * down() * across(); }

    // the pixels of a square with so many others around it; what is outside of the image is `outside`
    template <int size> void pixels(long square, float* outside, float** found) const {
        constexpr long around = (size - 2) / 2;
        const long row = square / across(), image = row / down();
        const long y = row % down() * 2 - around, x = square % across() * 2 - around;
        for (long i = y; i < y + size; i++)
            for (long j = x; j < x + size; j++) {
                const bool is_inside = 0 <= i && i < height && 0 <= j && j < width;
                *found++ = is_inside ? data + ((image * height + i) * width + j) * channels : outside;
            }
    }
};

struct Layout {  // of the numbers of squares: how far it is to the next of the 16, and to the next panel of channels
    long number, panel;
    float* at(float* start, long channel) const {
        return start + channel / panel_width * panel + channel % panel_width;
    }
};

template <int step> inlined void spread_pixels(floats* d) {
    const floats a = d[0], b = d[step], c = d[2 * step], e = d[3 * step];
    d[0] = a - c, d[step] = b + c, d[2 * step] = c - b, d[3 * step] = b - e;
}

// B' image B
static void spread_image(const Images& images, long square, float* zeros, float* to, Layout layout) {
    float* pixels[16];
    images.pixels<4>(square, zeros, pixels);
    for (long channel = 0; channel < images.channels; channel += vector_width) {
        floats d[16];
        #pragma GCC unroll 16
        for (int i = 0; i < 16; i++) d[i] = *(floats*)(pixels[i] + channel);
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) spread_pixels<4>(d + i);
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) spread_pixels<1>(d + 4 * i);
        float* start = layout.at(to, channel);
        #pragma GCC unroll 16
        for (int i = 0; i < 16; i++) *(floats*)(start + i * layout.number) = d[i];
    }
}

// A gradient A'
static void spread_gradient(const Images& images, long square, float* zeros, float* to, Layout layout) {
    float* pixels[4];
    images.pixels<2>(square, zeros, pixels);
    for (long channel = 0; channel < images.channels; channel += vector_width) {
        floats d[4];
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) d[i] = *(floats*)(pixels[i] + channel);
        const floats rows[4][2] = {
            {d[0], d[1]}, {d[0] + d[2], d[1] + d[3]}, {d[0] - d[2], d[1] - d[3]}, {-d[2], -d[3]}};
        float* start = layout.at(to, channel);
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const floats a = rows[i][0], b = rows[i][1], all[4] = {a, a + b, a - b, -b};
            #pragma GCC unroll 4
            for (int j = 0; j < 4; j++) *(floats*)(start + (4 * i + j) * layout.number) = all[j];
        }
    }
}

// A' numbers A
static void gather_square(const float* from, long number, const float* bias, float* const* pixels, long channel) {
    for (long c = channel; c < channel + panel_width; c += vector_width, from += vector_width) {
        floats h[2][4];
        const floats added = *(const floats*)(bias + c);
        #pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            floats d[4];
            #pragma GCC unroll 4
            for (int j = 0; j < 4; j++) d[j] = *(const floats*)(from + (4 * j + i) * number);
            h[0][i] = d[0] + d[1] + d[2], h[1][i] = d[1] - d[2] - d[3];
        }
        #pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            *(floats*)(pixels[2 * i] + c) = h[i][0] + h[i][1] + h[i][2] + added;
            *(floats*)(pixels[2 * i + 1] + c) = h[i][1] - h[i][2] - h[i][3] + added;
        }
    }
}

template <typename T> inlined void spread_three(T a, T b, T c, T* to, int step) {
    const T even = 0.5f * (a + c), odd = 0.5f * b;
    to[0] = a, to[step] = even + odd, to[2 * step] = even - odd, to[3 * step] = c;
}

// G kernel G'
template <typename T> inlined void spread_kernel(const float* kernel, long step, T* to) {
    T rows[12];
    #pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        const float* column = kernel + i * step;
        spread_three(*(const T*)column, *(const T*)(column + 3 * step), *(const T*)(column + 6 * step), rows + i, 3);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++) spread_three(rows[3 * i], rows[3 * i + 1], rows[3 * i + 2], to + 4 * i, 1);
}

// the numbers of a panel of a weight [outs][3][3][ins], as matrices [ins][panel of outs]
static void spread_weight(const float* weight, long ins, long panel, float* to) {
    for (long in = 0; in < ins; in += 8)
        for (long out = 0; out < panel_width; out += 8) {
            alignas(64) float all[16][64];
            for (long o = 0; o < 8; o++) {
                eight one[16];
                spread_kernel(weight + (panel * panel_width + out + o) * 9 * ins + in, ins, one);
                #pragma GCC unroll 16
                for (int i = 0; i < 16; i++) *(eight*)(all[i] + o * 8) = one[i];
            }
            for (long i = 0; i < 16; i++) transpose(all[i], 8, to + (i * ins + in) * panel_width + out, panel_width);
        }
}

// the same for the gradient of an image, as matrices [outs][panel of ins]: the kernels are turned by half
static void spread_turned(const float* weight, long ins, long outs, long panel, float* to) {
    for (long out = 0; out < outs; out++)
        for (long in = 0; in < panel_width; in += vector_width) {
            floats all[16];
            spread_kernel(weight + (out * 9 + 8) * ins + panel * panel_width + in, -ins, all);
            #pragma GCC unroll 16
            for (int i = 0; i < 16; i++) *(floats*)(to + (i * outs + out) * panel_width + in) = all[i];
        }
}

// G' numbers G: the gradient of a panel of outs and one of ins
static void gather_weight(const float* from, long ins, float* weight) {
    for (long out = 0; out < panel_width; out++)
        for (long in = 0; in < panel_width; in += vector_width) {
            floats h[3][4];
            #pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                floats d[4];
                #pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    d[j] = *(const floats*)(from + ((4 * j + i) * panel_width + out) * panel_width + in);
                const floats even = 0.5f * (d[1] + d[2]);
                h[0][i] = d[0] + even, h[1][i] = 0.5f * (d[1] - d[2]), h[2][i] = even + d[3];
            }
            #pragma GCC unroll 3
            for (int i = 0; i < 3; i++) {
                float* row = weight + (out * 9 + 3 * i) * ins + in;
                const floats even = 0.5f * (h[i][1] + h[i][2]);
                *(floats*)row = h[i][0] + even;
                *(floats*)(row + ins) = 0.5f * (h[i][1] - h[i][2]);
                *(floats*)(row + 2 * ins) = even + h[i][3];
            }
        }
}
"""

#: The products of these numbers, and what goes around them.
_CONVOLUTIONS = r"""
// c = a b, or c += a b, of so many rows and a panel of columns
template <int rows, bool adds>
inlined void multiply(const float* a, long a_row, long a_column, const float* b, long inner, float* c) {
    floats sums[rows][2];
    #pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) sums[i][j] = adds ? *(floats*)(c + i * panel_width + j * vector_width) : floats{};
    for (long k = 0; k < inner; k++) {
        const floats first = *(const floats*)(b + k * panel_width);
        const floats second = *(const floats*)(b + k * panel_width + vector_width);
        #pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const float one = a[i * a_row + k * a_column];
            sums[i][0] += one * first;
            sums[i][1] += one * second;
        }
    }
    #pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) *(floats*)(c + i * panel_width + j * vector_width) = sums[i][j];
}

static void multiply_rows(const float* a, long rows, const float* b, long inner, float* c) {
    for (; rows >= 6; rows -= 6, a += 6 * inner, c += 6 * panel_width) multiply<6, false>(a, inner, 1, b, inner, c);
    if (rows & 4) multiply<4, false>(a, inner, 1, b, inner, c), a += 4 * inner, c += 4 * panel_width;
    if (rows & 2) multiply<2, false>(a, inner, 1, b, inner, c), a += 2 * inner, c += 2 * panel_width;
    if (rows & 1) multiply<1, false>(a, inner, 1, b, inner, c);
}

template <bool adds> static void multiply_panels(const float* a, const float* b, long inner, float* c) {
    for (long i = 0; i < panel_width; i += 16) {
        multiply<6, adds>(a + i, 1, panel_width, b, inner, c + i * panel_width);
        multiply<5, adds>(a + i + 6, 1, panel_width, b, inner, c + (i + 6) * panel_width);
        multiply<5, adds>(a + i + 11, 1, panel_width, b, inner, c + (i + 11) * panel_width);
    }
}

struct Memory {  // floats
    float *data, *rest;
    Memory(long size) : data(static_cast<float*>(std::aligned_alloc(64, (4 * size + 63) / 64 * 64))), rest(data) {
        if (!data) throw std::bad_alloc();
    }
    ~Memory() { std::free(data); }
    float* take(long size) { return (rest += size) - size; }
    float* zeros(long size) { return static_cast<float*>(std::memset(take(size), 0, 4 * size)); }
};

struct WithoutLock {  // of Python's
    PyThreadState* state = PyEval_SaveThread();
    ~WithoutLock() { PyEval_RestoreThread(state); }
};

static long split(long all, long most) {  // into parts of about the same size
    const long parts = (all + most - 1) / most;
    return (all + parts - 1) / parts;
}

constexpr long line = 16;  // floats between the 16 numbers: else they would all want one place of a cache
constexpr long most_squares = 96;  // whose results stay in the second cache
constexpr long megabyte = 1 << 18;  // of floats

// The convolution, or the gradient of its images if the weight is turned.
static void convolve(const Images& images, const float* weight, bool turned, const float* bias, const Images& results,
                     long threads) {
    const long ins = images.channels, outs = results.channels, squares = images.squares();
    const long block = split(squares, std::max(most_squares, 8 * megabyte / (16 * ins)));
    const long strip = (split(block, most_squares) + 5) / 6 * 6;
    const Layout layout{block * ins + line, panel_width};
    const long weight_size = 16 * ins * panel_width, number = strip * panel_width + line;
    const long each = weight_size + 16 * number;
    Memory memory(16 * layout.number + ins + outs + threads * each);
    float *spread = memory.take(16 * layout.number), *own = memory.take(threads * each);
    float *zeros = memory.zeros(ins), *nowhere = memory.take(outs);
    for (long start = 0; start < squares; start += block) {
        const long end = std::min(start + block, squares), strips = (end - start + strip - 1) / strip;
        const long units = outs / panel_width * strips;
        #pragma omp parallel for num_threads(threads)
        for (long square = start; square < end; square++)
            spread_image(images, square, zeros, spread + (square - start) * ins, layout);
        #pragma omp parallel for num_threads(threads)
        for (long thread = 0; thread < threads; thread++) {
            float *numbers = own + thread * each, *products = numbers + weight_size, *pixels[4];
            long spread_panel = -1;
            for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
                const long panel = unit / strips, first = start + unit % strips * strip;
                const long last = std::min(first + strip, end);
                if (panel != spread_panel) {
                    if (turned) spread_turned(weight, outs, ins, panel, numbers);
                    else spread_weight(weight, ins, panel, numbers);
                    spread_panel = panel;
                }
                for (long i = 0; i < 16; i++)
                    multiply_rows(spread + i * layout.number + (first - start) * ins, last - first,
                                  numbers + i * ins * panel_width, ins, products + i * number);
                for (long square = first; square < last; square++) {
                    results.pixels<2>(square, nowhere, pixels);
                    gather_square(products + (square - first) * panel_width, number, bias, pixels, panel * panel_width);
                }
            }
        }
    }
}

// The gradient of the weight. Sums over more squares than a block has are kept for all pairs of panels.
static void sum_up(const Images& gradients, const Images& images, float* weight, long threads) {
    const long ins = images.channels, outs = gradients.channels, squares = images.squares();
    const long each = 16 * panel_width * panel_width, pairs = ins / panel_width * (outs / panel_width);
    const bool is_whole = 16 * squares * (ins + outs) <= pairs * each + 2 * megabyte;
    const long block = is_whole ? squares : split(squares, std::max(64L, 2 * megabyte / (16 * (ins + outs))));
    const Layout of_images{block * ins + line, block * panel_width};
    const Layout of_gradients{block * outs + line, block * panel_width};
    const long num_sums = is_whole ? threads : pairs;
    Memory memory(16 * (of_images.number + of_gradients.number) + num_sums * each + std::max(ins, outs));
    float *b = memory.take(16 * of_images.number), *a = memory.take(16 * of_gradients.number);
    float *sums = memory.take(num_sums * each), *zeros = memory.zeros(std::max(ins, outs));
    for (long start = 0; start < squares; start += block) {
        const long end = std::min(start + block, squares);
        #pragma omp parallel for num_threads(threads)
        for (long square = start; square < end; square++) {
            spread_image(images, square, zeros, b + (square - start) * panel_width, of_images);
            spread_gradient(gradients, square, zeros, a + (square - start) * panel_width, of_gradients);
        }
        #pragma omp parallel for num_threads(threads)
        for (long thread = 0; thread < threads; thread++)
            for (long pair = pairs * thread / threads; pair < pairs * (thread + 1) / threads; pair++) {
                const long in = pair / (outs / panel_width), out = pair % (outs / panel_width);
                float* sum = sums + (is_whole ? thread : pair) * each;
                for (long i = 0; i < 16; i++) {
                    const float* first = a + i * of_gradients.number + out * of_gradients.panel;
                    const float* second = b + i * of_images.number + in * of_images.panel;
                    auto multiply = start ? multiply_panels<true> : multiply_panels<false>;
                    multiply(first, second, end - start, sum + i * panel_width * panel_width);
                }
                if (end == squares) gather_weight(sum, ins, weight + (out * 9 * ins + in) * panel_width);
            }
    }
}

enum { forward, gradient_of_images, gradient_of_weight };

void kernel(float* images, float* results, float* weight, const float* bias, long what, long count, long height,
            long width, long ins, long outs, long threads) {
    const WithoutLock released;
    const Images in{images, count, height, width, ins}, out{results, count, height, width, outs};
    if (what == forward) convolve(in, weight, false, bias, out, threads);
    else if (what == gradient_of_images) convolve(out, weight, true, bias, in, threads);
    else sum_up(out, in, weight, threads);
}
"""

_INCLUDES = """
#include <Python.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
"""

#: `kernel(images, results, weight, bias, what, sizes, threads)`: of images, results and weight, that is written which
#: `what` says; the others are given.
WINOGRAD = _INCLUDES + VECTORS + _TRANSFORMS + _CONVOLUTIONS
