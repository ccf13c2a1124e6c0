"""Transforms: squares of pixels and kernels spread to 16 numbers each, and gathered again, in C++: see `winograd.py`.

Each works on a vector of channels at a time, so images and weights are channels last.
"""

from __future__ import annotations

#: The functions, in the words of `vectors.py`.
TRANSFORMS = r"""
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

struct Range {
    long first, last;
    long size() const { return last - first; }
};

struct Layout {  // of the numbers of squares: how far it is to the next of the 16, and to the next panel of channels
    Range channels;
    long number, panel;
    float* at(float* start, long channel) const {
        const long place = channel - channels.first;
        return start + place / panel_width * panel + place % panel_width;
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
    for (long channel = layout.channels.first; channel < layout.channels.last; channel += vector_width) {
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
    for (long channel = layout.channels.first; channel < layout.channels.last; channel += vector_width) {
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
