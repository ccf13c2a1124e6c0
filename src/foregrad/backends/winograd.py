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
from foregrad.backends.transforms import TRANSFORMS
from foregrad.backends.vectors import VECTORS
from foregrad.substrate_inductor import build_module

aten = torch.ops.aten


def has_convolutions(graph: fx.GraphModule) -> bool:
    """Whether there are convolutions in a lowered graph that are worth it, on a processor of the kind that was
    measured."""

    def is_one(node: fx.Node) -> bool:
        args: Any = node.args
        if node.target is aten.convolution.default:
            return is_quicker(args[0].meta["val"], args[1].meta["val"], *args[3:])
        is_backward = node.target is aten.convolution_backward.default
        return is_backward and is_quicker(args[1].meta["val"], args[2].meta["val"], *args[4:-1])

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and any(map(is_one, graph.graph.nodes))


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

// Floats. Each thread keeps its largest piece for the next call: new memory costs more than what is done with it.
struct Memory {
    struct Kept {
        float* data = nullptr;
        long size = 0;
        ~Kept() { std::free(data); }
    };
    float* rest;
    Memory(long size) {
        static thread_local Kept kept;
        if (kept.size < size) {
            std::free(kept.data);
            kept.size = 0;
            kept.data = static_cast<float*>(std::aligned_alloc(64, (4 * size + 63) / 64 * 64));
            if (!kept.data) throw std::bad_alloc();
            kept.size = size;
        }
        rest = kept.data;
    }
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

static Range share(long all, long place, long parts) { return {all * place / parts, all * (place + 1) / parts}; }

constexpr long line = 16;  // floats between the 16 numbers: else they would all want one place of a cache
constexpr long most_squares = 96;  // whose results stay in the second cache
constexpr long most_floats = 1 << 19;  // that a block is spread to: such a block is read again and again

// The convolution, or the gradient of its images if the weight is turned. A unit of work is a block of squares, and if
// there are too few of them a group of panels.
static void convolve(const Images& images, const float* weight, bool turned, const float* bias, const Images& results,
                     long threads) {
    const long ins = images.channels, outs = results.channels, squares = images.squares(), panels = outs / panel_width;
    const long block = split(squares, std::max(most_squares, most_floats / (16 * ins)));
    const long strip = (split(block, most_squares) + 5) / 6 * 6, number = strip * panel_width + line;
    const long blocks = (squares + block - 1) / block, groups = std::min(panels, (threads + blocks - 1) / blocks);
    const Layout layout{{0, ins}, block * ins + line, panel_width};
    const long spread_size = 16 * layout.number, weight_size = 16 * ins * panel_width;
    const long each = spread_size + weight_size + 16 * number + outs;
    Memory memory(threads * each + ins);
    float *own = memory.take(threads * each), *zeros = memory.zeros(ins);
    #pragma omp parallel for num_threads(threads)
    for (long thread = 0; thread < threads; thread++) {
        float *spread = own + thread * each, *numbers = spread + spread_size, *products = numbers + weight_size;
        float *nowhere = products + 16 * number, *pixels[4];
        const Range units = share(blocks * groups, thread, threads);
        for (long unit = units.first; unit < units.last; unit++) {
            const long start = unit / groups * block, end = std::min(start + block, squares);
            const Range group = share(panels, unit % groups, groups);
            for (long square = start; square < end; square++)
                spread_image(images, square, zeros, spread + (square - start) * ins, layout);
            for (long panel = group.first; panel < group.last; panel++) {
                if (turned) spread_turned(weight, outs, ins, panel, numbers);
                else spread_weight(weight, ins, panel, numbers);
                for (long first = start; first < end; first += strip) {
                    const long last = std::min(first + strip, end);
                    for (long i = 0; i < 16; i++)
                        multiply_rows(spread + i * layout.number + (first - start) * ins, last - first,
                                      numbers + i * ins * panel_width, ins, products + i * number);
                    for (long square = first; square < last; square++) {
                        results.pixels<2>(square, nowhere, pixels);
                        const float* from = products + (square - first) * panel_width;
                        gather_square(from, number, bias, pixels, panel * panel_width);
                    }
                }
            }
        }
    }
}

// The gradient of some channels of the weight. If squares need several blocks, sums are kept for each pair of panels;
// blocks are added one after another, so that the sums are the same however squares and channels are cut.
struct Sums {
    Range outs, ins;
    long squares;

    static constexpr long each = 16 * panel_width * panel_width;
    long pairs() const { return ins.size() / panel_width * (outs.size() / panel_width); }
    long width() const { return 16 * (ins.size() + outs.size()); }
    bool is_whole() const { return squares * width() <= pairs() * each + most_floats; }
    long block() const { return is_whole() ? squares : split(squares, std::max(64L, most_floats / width())); }
    Layout layout(Range channels) const { return {channels, block() * channels.size() + line, block() * panel_width}; }
    long size() const { return width() * block() + 32 * line + (is_whole() ? 1 : pairs()) * each; }

    void add_up(const Images& gradients, const Images& images, float* zeros, float* memory, float* weight) const {
        const Layout of_a = layout(outs), of_b = layout(ins);
        float *a = memory, *b = a + 16 * of_a.number, *sums = b + 16 * of_b.number;
        for (long start = 0; start < squares; start += block()) {
            const long end = std::min(start + block(), squares);
            for (long square = start; square < end; square++) {
                spread_gradient(gradients, square, zeros, a + (square - start) * panel_width, of_a);
                spread_image(images, square, zeros, b + (square - start) * panel_width, of_b);
            }
            for (long pair = 0; pair < pairs(); pair++) {
                const long out = pair % (outs.size() / panel_width), in = pair / (outs.size() / panel_width);
                float* sum = sums + (is_whole() ? 0 : pair) * each;
                for (long i = 0; i < 16; i++) {
                    const float* first = a + i * of_a.number + out * of_a.panel;
                    const float* second = b + i * of_b.number + in * of_b.panel;
                    auto multiply = start ? multiply_panels<true> : multiply_panels<false>;
                    multiply(first, second, end - start, sum + i * panel_width * panel_width);
                }
                const long row = outs.first + out * panel_width, column = ins.first + in * panel_width;
                if (end == squares) gather_weight(sum, images.channels, weight + row * 9 * images.channels + column);
            }
        }
    }
};

static void add_up(const Images& gradients, const Images& images, float* weight, long threads) {
    const long out_panels = gradients.channels / panel_width, in_panels = images.channels / panel_width;
    long down = 1, across = 1;  // groups of panels, at least as many as there are threads
    while (down * across < threads && (down < out_panels || across < in_panels))
        (down <= across && down < out_panels) || across == in_panels ? down++ : across++;
    auto sums = [&](long unit) {
        const Range out = share(out_panels, unit / across, down), in = share(in_panels, unit % across, across);
        return Sums{{out.first * panel_width, out.last * panel_width}, {in.first * panel_width, in.last * panel_width},
                    images.squares()};
    };
    long most = 0;
    for (long unit = 0; unit < down * across; unit++) most = std::max(most, sums(unit).size());
    const long channels = std::max(gradients.channels, images.channels);
    Memory memory(threads * most + channels);
    float *own = memory.take(threads * most), *zeros = memory.zeros(channels);
    #pragma omp parallel for num_threads(threads)
    for (long thread = 0; thread < threads; thread++) {
        const Range units = share(down * across, thread, threads);
        for (long unit = units.first; unit < units.last; unit++)
            sums(unit).add_up(gradients, images, zeros, own + thread * most, weight);
    }
}

enum { forward, gradient_of_images, gradient_of_weight };

void kernel(float* images, float* results, float* weight, const float* bias, long what, long count, long height,
            long width, long ins, long outs, long threads) {
    const WithoutLock released;
    const Images in{images, count, height, width, ins}, out{results, count, height, width, outs};
    if (what == forward) convolve(in, weight, false, bias, out, threads);
    else if (what == gradient_of_images) convolve(out, weight, true, bias, in, threads);
    else add_up(out, in, weight, threads);
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
WINOGRAD = _INCLUDES + VECTORS + TRANSFORMS + _CONVOLUTIONS
