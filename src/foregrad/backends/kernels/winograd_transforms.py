"""Transforms: squares of pixels and kernels spread to the numbers that are multiplied, and gathered again, in C++: see
`winograd.py`.

Each works on a vector of channels at a time, so images and weights are channels last. A square has two by two pixels or
four by four; the points at which polynomials are taken, and so the matrices B, G and A, are all that differs.
"""

from __future__ import annotations

#: Each function is one matrix times a row of numbers. Points of opposite sign share their even and their odd parts.
_POINTS = r"""
#define inlined static inline __attribute__((always_inline))

template <int size> struct Points;

template <> struct Points<2> {  // 0, 1, -1 and infinity
    inlined void spread_pixels(const floats* d, floats* to) {  // B'
        to[0] = d[0] - d[2], to[1] = d[1] + d[2], to[2] = d[2] - d[1], to[3] = d[3] - d[1];
    }
    inlined void spread_gradient(const floats* d, floats* to) {  // A
        to[0] = d[0], to[1] = d[0] + d[1], to[2] = d[0] - d[1], to[3] = d[1];
    }
    inlined void gather_square(const floats* d, floats* to) {  // A'
        to[0] = d[0] + d[1] + d[2], to[1] = d[1] - d[2] + d[3];
    }
    inlined void spread_kernel(const floats* d, floats* to) {  // G
        const floats even = 0.5f * (d[0] + d[2]), odd = 0.5f * d[1];
        to[0] = d[0], to[1] = even + odd, to[2] = even - odd, to[3] = d[2];
    }
    inlined void gather_kernel(const floats* d, floats* to) {  // G'
        const floats even = 0.5f * (d[1] + d[2]);
        to[0] = d[0] + even, to[1] = 0.5f * (d[1] - d[2]), to[2] = even + d[3];
    }
};

// 0, a, -a, b, -b and infinity. With 1 and 2, which others take, results are twice as far from the exact ones.
template <> struct Points<4> {
    static constexpr float a = 0.625f, b = 1.5f, aa = a * a, bb = b * b, aaa = a * aa, bbb = b * bb;
    static constexpr float of_0 = 1 / (aa * bb), of_a = 1 / (2 * aa * (aa - bb)), of_b = 1 / (2 * bb * (bb - aa));

    inlined void spread_pixels(const floats* d, floats* to) {
        const floats even_a = d[4] - bb * d[2], odd_a = d[3] - bb * d[1];
        const floats even_b = d[4] - aa * d[2], odd_b = d[3] - aa * d[1];
        to[0] = aa * bb * d[0] - (aa + bb) * d[2] + d[4];
        to[1] = even_a + a * odd_a, to[2] = even_a - a * odd_a;
        to[3] = even_b + b * odd_b, to[4] = even_b - b * odd_b;
        to[5] = aa * bb * d[1] - (aa + bb) * d[3] + d[5];
    }
    inlined void spread_gradient(const floats* d, floats* to) {
        const floats even_a = d[0] + aa * d[2], odd_a = d[1] + aa * d[3];
        const floats even_b = d[0] + bb * d[2], odd_b = d[1] + bb * d[3];
        to[0] = d[0];
        to[1] = even_a + a * odd_a, to[2] = even_a - a * odd_a;
        to[3] = even_b + b * odd_b, to[4] = even_b - b * odd_b;
        to[5] = d[3];
    }
    inlined void gather_square(const floats* d, floats* to) {
        const floats even_a = d[1] + d[2], odd_a = d[1] - d[2], even_b = d[3] + d[4], odd_b = d[3] - d[4];
        to[0] = d[0] + even_a + even_b, to[1] = a * odd_a + b * odd_b;
        to[2] = aa * even_a + bb * even_b, to[3] = aaa * odd_a + bbb * odd_b + d[5];
    }
    inlined void spread_kernel(const floats* d, floats* to) {
        const floats even_a = of_a * d[0] + of_a * aa * d[2], even_b = of_b * d[0] + of_b * bb * d[2];
        to[0] = of_0 * d[0];
        to[1] = even_a + of_a * a * d[1], to[2] = even_a - of_a * a * d[1];
        to[3] = even_b + of_b * b * d[1], to[4] = even_b - of_b * b * d[1];
        to[5] = d[2];
    }
    inlined void gather_kernel(const floats* d, floats* to) {
        const floats even_a = d[1] + d[2], odd_a = d[1] - d[2], even_b = d[3] + d[4], odd_b = d[3] - d[4];
        to[0] = of_0 * d[0] + of_a * even_a + of_b * even_b, to[1] = of_a * a * odd_a + of_b * b * odd_b;
        to[2] = of_a * aa * even_a + of_b * bb * even_b + d[5];
    }
};

// what a matrix makes of a square of numbers, applied to its columns and then to its rows
template <int from, int to, auto matrix, typename Load, typename Store> inlined void on_both(Load load, Store store) {
    floats rows[to][from];
    #pragma GCC unroll 6
    for (int i = 0; i < from; i++) {
        floats column[from], found[to];
        #pragma GCC unroll 6
        for (int j = 0; j < from; j++) column[j] = load(j, i);
        matrix(column, found);
        #pragma GCC unroll 6
        for (int j = 0; j < to; j++) rows[j][i] = found[j];
    }
    #pragma GCC unroll 6
    for (int i = 0; i < to; i++) {
        floats found[to];
        matrix(rows[i], found);
        #pragma GCC unroll 6
        for (int j = 0; j < to; j++) store(i, j, found[j]);
    }
}
"""

_SQUARES = r"""
template <int size> struct Images {  // channels last, cut into squares
    float* data;
    long count, height, width, channels;

    long down() const { return (height + size - 1) / size; }
    long across() const { return (width + size - 1) / size; }
    long squares() const { return count * down() * across(); }

    // the pixels of a square and so many around it; what is outside of the image is `outside`
    template <int around> void pixels(long square, float* outside, float** found) const {
        const long row = square / across(), image = row / down();
        const long y = row % down() * size - around, x = square % across() * size - around;
        for (long i = y; i < y + size + 2 * around; i++)
            for (long j = x; j < x + size + 2 * around; j++) {
                const bool is_inside = 0 <= i && i < height && 0 <= j && j < width;
                *found++ = is_inside ? data + ((image * height + i) * width + j) * channels : outside;
            }
    }
};

struct Range {
    long first, last;
    long size() const { return last - first; }
};

struct Layout {  // of the numbers of squares: channels of a part, and how far it is to the next number and part
    Range channels;
    long wide, number, part;
    long all() const { return (channels.size() + wide - 1) / wide * part; }
    float* at(float* start, long channel) const {
        const long place = channel - channels.first;
        return start + place / wide * part + place % wide;
    }
};

#define always __attribute__((always_inline))

// B' image B
template <int size>
static void spread_image(const Images<size>& images, long square, float* zeros, float* to, Layout layout) {
    constexpr int side = size + 2;
    float* pixels[side * side];
    images.template pixels<1>(square, zeros, pixels);
    for (long channel = layout.channels.first; channel < layout.channels.last; channel += vector_width) {
        float* start = layout.at(to, channel);
        on_both<side, side, Points<size>::spread_pixels>(
            [&](int i, int j) always { return *(const floats*)(pixels[i * side + j] + channel); },
            [&](int i, int j, floats one) always { *(floats*)(start + (i * side + j) * layout.number) = one; });
    }
}

// A gradient A'
template <int size>
static void spread_gradient(const Images<size>& images, long square, float* zeros, float* to, Layout layout) {
    constexpr int side = size + 2;
    float* pixels[size * size];
    images.template pixels<0>(square, zeros, pixels);
    for (long channel = layout.channels.first; channel < layout.channels.last; channel += vector_width) {
        float* start = layout.at(to, channel);
        on_both<size, side, Points<size>::spread_gradient>(
            [&](int i, int j) always { return *(const floats*)(pixels[i * size + j] + channel); },
            [&](int i, int j, floats one) always { *(floats*)(start + (i * side + j) * layout.number) = one; });
    }
}

// A' numbers A. The corners depend on all numbers: what is not finite makes a NaN of `strange`.
template <int size>
static void gather_square(const float* from, long number, const float* bias, float* const* pixels, long channel,
                          floats& strange) {
    for (long c = channel; c < channel + panel_width; c += vector_width, from += vector_width) {
        const floats added = *(const floats*)(bias + c);
        floats corners = {};
        on_both<size + 2, size, Points<size>::gather_square>(
            [&](int i, int j) always { return *(const floats*)(from + (i * (size + 2) + j) * number); },
            [&](int i, int j, floats one) always {
                *(floats*)(pixels[i * size + j] + c) = one + added;
                if (i % (size - 1) == 0 && j % (size - 1) == 0) corners += one;
            });
        strange += 0 * corners;
    }
}

// G kernel G', of a vector of kernels
template <int size> inlined void spread_kernel(const float* kernel, long step, float* to, long number) {
    on_both<3, size + 2, Points<size>::spread_kernel>(
        [&](int i, int j) always { return *(const floats*)(kernel + (3 * i + j) * step); },
        [&](int i, int j, floats one) always { *(floats*)(to + (i * (size + 2) + j) * number) = one; });
}

// the numbers of some ins and a panel of outs of a weight [outs][3][3][ins], as matrices [ins][outs]
template <int size>
static void spread_weight(const float* weight, long ins, long panel, Range channels, float* to, long number) {
    constexpr long wide = 16;  // a line of a cache
    alignas(64) float kernels[9][wide][panel_width];
    for (long in = channels.first; in < channels.last; in += wide) {
        for (long out = 0; out < panel_width; out += 8)
            for (long place = 0; place < 9; place++)
                for (long i = 0; i < wide; i += 8) {
                    const float* from = weight + ((panel * panel_width + out) * 9 + place) * ins + in + i;
                    transpose(from, 9 * ins, kernels[place][i] + out, panel_width);
                    if (!i) for (long o = 0; o < 8; o++) __builtin_prefetch(from + o * 9 * ins + wide);
                }
        for (long i = 0; i < wide; i++)
            for (long out = 0; out < panel_width; out += vector_width)
                spread_kernel<size>(kernels[0][i] + out, wide * panel_width,
                                    to + (in + i - channels.first) * panel_width + out, number);
    }
}

// the same for the gradient of an image, some outs and a panel of ins as [outs][ins]: the kernels are turned by half
template <int size>
static void spread_turned(const float* weight, long ins, long panel, Range channels, float* to, long number) {
    for (long out = channels.first; out < channels.last; out++)
        for (long in = 0; in < panel_width; in += vector_width) {
            const float* last = weight + (out * 9 + 8) * ins + panel * panel_width + in;
            for (long place = 1; place < 10; place++) __builtin_prefetch(last + place * ins);
            spread_kernel<size>(last, -ins, to + (out - channels.first) * panel_width + in, number);
        }
}

// G' numbers G: the gradient of a panel of outs and one of ins
template <int size> static void gather_weight(const float* from, long ins, float* weight) {
    for (long out = 0; out < panel_width; out++)
        for (long in = 0; in < panel_width; in += vector_width) {
            float* to = weight + out * 9 * ins + in;
            for (long place = 9; place < 18; place++) __builtin_prefetch(to + place * ins, 1);
            on_both<size + 2, 3, Points<size>::gather_kernel>(
                [&](int i, int j) always {
                    return *(const floats*)(from + ((i * (size + 2) + j) * panel_width + out) * panel_width + in);
                },
                [&](int i, int j, floats one) always {
                    *(floats*)(to + (3 * i + j) * ins) = one;
                });
        }
}
"""

#: The functions, in the words of `vectors.py`.
TRANSFORMS = _POINTS + _SQUARES
