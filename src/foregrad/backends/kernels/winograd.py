"""Winograd: convolutions with kernels of three by three, with 2.25 or 4 times fewer multiplications than terms.

An image is cut into squares of two by two pixels. What such a square of the result depends on, four by four pixels, is
spread to 16 other numbers, sums of these; so is a kernel; and what the 16 products of these add up to, gathered again,
is the square. In matrices, with B, G and A of a few simple numbers, and * element by element:

    result = A' [(G kernel G') * (B' image B)] A
    gradient of kernel = G' [(A gradient A') * (B' image B)] G

All 16 numbers of all squares and channels together are 16 matrix products, and these are what takes time. Squares of
four by four pixels have 36 numbers, for 144 terms. Squares are worked on in blocks that stay in a cache. What is summed
up, and in which order, is the same with any number of threads.
The method is that of A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks" (2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from foregrad.backends.kernels.build import in_one_file
from foregrad.backends.kernels.convolutions import Convolutions
from foregrad.backends.kernels.vectors import VECTORS
from foregrad.backends.kernels.winograd_transforms import TRANSFORMS
from foregrad.passes.convolution_sizes import is_quicker
from foregrad.torch_private.inductor import build_module
from foregrad.torch_private.inductor_text import Kernel

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
constexpr int most_rows = vector_width == 16 ? 12 : 6;  // whose sums stay in registers

// c = a b, or c += a b, of so many rows and a panel of columns
template <int rows, bool adds>
inlined void multiply(const float* a, long a_row, long a_column, const float* b, long inner, float* c) {
    floats sums[rows][2] = {};
    for (long k = 0; k < inner; k++) {
        const floats first = *(const floats*)(b + k * panel_width);
        const floats second = *(const floats*)(b + k * panel_width + vector_width);
        #pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const float one = a[i * a_row + k * a_column];
            sums[i][0] += one * first;
            sums[i][1] += one * second;
        }
    }
    #pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            floats* to = (floats*)(c + i * panel_width + j * vector_width);
            *to = adds ? *to + sums[i][j] : sums[i][j];
        }
}

// all rows of a, which are so far from each other
template <bool adds, int at_once = most_rows>
static void multiply_rows(const float* a, long a_row, long rows, const float* b, long inner, float* c) {
    for (; rows >= at_once; rows -= at_once, a += at_once * a_row, c += at_once * panel_width)
        multiply<at_once, adds>(a, a_row, 1, b, inner, c);
    if constexpr (at_once > 1)
        if (rows) multiply_rows<adds, at_once == 12 ? 8 : at_once == 6 ? 4 : at_once / 2>(a, a_row, rows, b, inner, c);
}

// the transpose of a panel times a panel, and what comes after them brought near
template <bool adds> static void multiply_panels(const float* a, const float* b, long inner, float* c) {
    for (long i = 0; i < inner * panel_width; i += 16) {
        __builtin_prefetch(a + inner * panel_width + i);
        __builtin_prefetch(b + inner * panel_width + i);
    }
    constexpr int third = panel_width / 3, rest = panel_width - 2 * third;
    multiply<third, adds>(a, 1, panel_width, b, inner, c);
    multiply<third, adds>(a + third, 1, panel_width, b, inner, c + third * panel_width);
    multiply<rest, adds>(a + 2 * third, 1, panel_width, b, inner, c + 2 * third * panel_width);
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
            const long bytes = (4 * size + page - 1) / page * page;
            kept.data = static_cast<float*>(std::aligned_alloc(page, bytes));
            if (!kept.data) throw std::bad_alloc();
            #ifdef MADV_HUGEPAGE
            madvise(kept.data, bytes, MADV_HUGEPAGE);
            #endif
            kept.size = size;
        }
        rest = kept.data;
    }
    static constexpr long page = 1 << 21;  // a large one: the numbers of a square are far from each other
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

static long round_up(long number, long to) { return (number + to - 1) / to * to; }

static Range share(long all, long place, long parts) { return {all * place / parts, all * (place + 1) / parts}; }

constexpr long line = 16;  // floats between numbers and between rows: else they would all want one place of a cache
constexpr long most_floats = 1 << 18;  // that a block is spread to for the gradient of a weight: they stay in a cache
constexpr long deep = 128;  // channels that are multiplied at a time: so many rows of a panel stay in the first cache
template <int size> constexpr long numbers = (size + 2) * (size + 2);
template <int size> constexpr long most_squares = 2160 / numbers<size>;  // in a block, whose products stay in a cache

// Kernels spread to numbers, in parts of a panel and so many channels.
template <int size> struct Kernels {
    const float* weight;
    bool turned;
    long ins, outs;  // of the convolution that is computed, which has them the other way round if the weight is turned

    long parts() const { return (ins + deep - 1) / deep; }
    Range channels(long part) const { return {part * deep, std::min(part * deep + deep, ins)}; }
    static long number(Range channels) { return channels.size() * panel_width + line; }
    long most() const { return numbers<size> * number(channels(0)); }
    void spread(long panel, long part, float* to) const {
        const Range some = channels(part);
        if (turned) spread_turned<size>(weight, outs, panel, some, to, number(some));
        else spread_weight<size>(weight, ins, panel, some, to, number(some));
    }
};

// The convolution, or the gradient of its images if the weight is turned. A unit of work is a block of squares, and if
// there are too few of them a group of panels. Says whether all is finite.
template <int size>
static bool convolve(const Images<size>& images, const float* weight, bool turned, const float* bias,
                     const Images<size>& results, long threads) {
    constexpr long count = numbers<size>;
    const long ins = images.channels, outs = results.channels, squares = images.squares(), panels = outs / panel_width;
    const Kernels<size> kernels{weight, turned, ins, outs};
    const long block = round_up(split(squares, most_squares<size>), most_rows), row = std::min(ins, deep);
    const long blocks = (squares + block - 1) / block, groups = std::min(panels, (threads + blocks - 1) / blocks);
    const Layout layout{{0, ins}, row, block * row + line, count * (block * row + line)};
    const long parts = kernels.parts(), spread_size = parts * layout.part, number = block * panel_width + line;
    const long each = spread_size + count * number + outs + kernels.most();
    const bool is_shared = blocks > 1;  // what a kernel is spread to, since all blocks need it
    Memory memory(threads * each + ins + is_shared * panels * parts * kernels.most());
    float *own = memory.take(threads * each), *zeros = memory.zeros(ins), *shared = memory.rest;
    bool is_finite = true;
    #pragma omp parallel num_threads(threads) reduction(&& : is_finite)
    {
        #pragma omp for
        for (long part = 0; part < is_shared * panels * parts; part++)
            kernels.spread(part / parts, part % parts, shared + part * kernels.most());
        #pragma omp for
        for (long thread = 0; thread < threads; thread++) {
            float *spread = own + thread * each, *products = spread + spread_size;
            float *nowhere = products + count * number, *one = nowhere + outs, *places[2][size * size];
            floats strange = {};
            const Range units = share(blocks * groups, thread, threads);
            for (long unit = units.first; unit < units.last; unit++) {
                const long start = unit / groups * block, end = std::min(start + block, squares);
                const Range group = share(panels, unit % groups, groups);
                for (long square = start; square < end; square++)
                    spread_image(images, square, zeros, spread + (square - start) * row, layout);
                for (long panel = group.first; panel < group.last; panel++) {
                    for (long part = 0; part < parts; part++) {
                        const Range some = kernels.channels(part);
                        const float* b = is_shared ? shared + (panel * parts + part) * kernels.most() : one;
                        if (!is_shared) kernels.spread(panel, part, one);
                        auto multiply = part ? multiply_rows<true> : multiply_rows<false>;
                        for (long i = 0; i < count; i++)
                            multiply(spread + part * layout.part + i * layout.number, row, end - start,
                                     b + i * kernels.number(some), some.size(), products + i * number);
                    }
                    results.template pixels<0>(start, nowhere, places[start % 2]);
                    for (long square = start; square < end; square++) {
                        float *const *pixels = places[square % 2], **next = places[(square + 1) % 2];
                        if (square + 1 < end) results.template pixels<0>(square + 1, nowhere, next);
                        for (long i = 0; i < size * size && square + 1 < end; i++)
                            for (long c = 0; c < panel_width; c += line)
                                __builtin_prefetch(next[i] + panel * panel_width + c, 1);
                        const float* from = products + (square - start) * panel_width;
                        gather_square<size>(from, number, bias, pixels, panel * panel_width, strange);
                    }
                }
            }
            for (int i = 0; i < vector_width; i++) is_finite = is_finite && strange[i] == 0;
        }
    }
    return is_finite;
}

// The gradient of some channels of the weight. If squares need several blocks, sums are kept for each pair of panels;
// blocks are added one after another, so that the sums are the same however squares and channels are cut.
template <int size> struct Sums {
    Range outs, ins;
    long squares;

    static constexpr long count = numbers<size>, each = count * panel_width * panel_width;
    long down() const { return outs.size() / panel_width; }
    long pairs() const { return ins.size() / panel_width * down(); }
    long width() const { return count * (ins.size() + outs.size()); }
    long run() const { return std::clamp(squares / 2, 16L, 32L); }  // is summed up by itself: long sums are less exact
    bool is_whole() const { return squares * width() <= pairs() * each + most_floats; }
    long block() const {  // of whole runs
        return is_whole() ? squares : round_up(split(squares, std::max(1L, most_floats / width())), run());
    }
    Layout layout(Range channels) const {
        const long number = block() * panel_width + line;
        return {channels, panel_width, number, count * number};
    }
    long floats_needed() const {
        return layout(ins).all() + layout(outs).all() + (is_whole() ? 1 : pairs()) * each;
    }

    void add_up(const Images<size>& gradients, const Images<size>& images, float* zeros, float* memory,
                float* weight) const {
        const Layout of_a = layout(outs), of_b = layout(ins);
        float *a = memory, *b = a + of_a.all(), *sums = b + of_b.all();
        for (long start = 0; start < squares; start += block()) {
            const long end = std::min(start + block(), squares);
            for (long square = start; square < end; square++) {
                spread_gradient(gradients, square, zeros, a + (square - start) * panel_width, of_a);
                spread_image(images, square, zeros, b + (square - start) * panel_width, of_b);
            }
            // a number of all pairs after another if sums are kept, so that what is multiplied stays in cache
            const long groups = is_whole() ? pairs() : 1;
            for (long group = 0; group < groups; group++) {
                const Range some = share(pairs(), group, groups);
                for (long i = 0; i < count; i++)
                    for (long pair = some.first; pair < some.last; pair++)
                        multiply_number(a + of_a.part * (pair % down()) + i * of_a.number,
                                        b + of_b.part * (pair / down()) + i * of_b.number, {start, end},
                                        sums + (pair - some.first) * each + i * panel_width * panel_width);
                for (long pair = some.first; pair < some.last && end == squares; pair++) {
                    const long row = outs.first + pair % down() * panel_width;
                    const long column = ins.first + pair / down() * panel_width;
                    const float* sum = sums + (pair - some.first) * each;
                    gather_weight<size>(sum, images.channels, weight + row * 9 * images.channels + column);
                }
            }
        }
    }

    void multiply_number(const float* a, const float* b, Range some, float* sum) const {
        for (long k = some.first; k < some.last; k += run(), a += run() * panel_width, b += run() * panel_width) {
            auto multiply = k ? multiply_panels<true> : multiply_panels<false>;
            multiply(a, b, std::min(run(), some.last - k), sum);
        }
    }
};

template <int size>
static void add_up(const Images<size>& gradients, const Images<size>& images, float* weight, long threads) {
    const long out_panels = gradients.channels / panel_width, in_panels = images.channels / panel_width;
    long down = 1, across = 1;  // groups of panels, at least as many as there are threads
    while (down * across < threads && (down < out_panels || across < in_panels))
        (down <= across && down < out_panels) || across == in_panels ? down++ : across++;
    auto sums = [&](long unit) {
        const Range out = share(out_panels, unit / across, down), in = share(in_panels, unit % across, across);
        return Sums<size>{{out.first * panel_width, out.last * panel_width},
                          {in.first * panel_width, in.last * panel_width},
                          images.squares()};
    };
    long most = 0;
    for (long unit = 0; unit < down * across; unit++) most = std::max(most, sums(unit).floats_needed());
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

struct Call {
    float *images, *results, *weight;
    const float* bias;
    long what, count, height, width, ins, outs, threads;

    template <int size> bool run() const {
        const Images<size> in{images, count, height, width, ins}, out{results, count, height, width, outs};
        if (what == forward) return convolve(in, weight, false, bias, out, threads);
        if (what == gradient_of_images) return convolve(out, weight, true, bias, in, threads);
        add_up(out, in, weight, threads);
        return true;
    }
};

// In squares of four by four, what is not finite would go further than it should.
void kernel(float* images, float* results, float* weight, const float* bias, long size, long what, long count,
            long height, long width, long ins, long outs, long threads) {
    const WithoutLock released;
    const Call call{images, results, weight, bias, what, count, height, width, ins, outs, threads};
    if (size != 4 || !call.run<4>()) call.run<2>();
}
"""

_HEADERS = ("Python.h", "algorithm", "cstdlib", "cstring", "new", "sys/mman.h")

#: `kernel(images, results, weight, bias, what, sizes, threads)`: of images, results and weight, that is written which
#: `what` says; the others are given.
WINOGRAD = Kernel(tuple(f"#include <{name}>" for name in _HEADERS), VECTORS + TRANSFORMS + _CONVOLUTIONS)
