/* What a Llama-style layer does beside its products and its attention: norms, rotations, gates. Knows no Python and no
   PyTorch. Rows are independent, and no sum is shared between threads, so the numbers are the same for any number of
   them. */

#include <math.h>

#include "numbers.h"

#define COLUMNS 64  /* of a weight's gradient that one thread adds up */

/* out = x / sqrt(mean(x^2) + epsilon) * weight, row by row [rows][width] (arXiv 1910.07467); the factor of each row goes
   to `scales`, if there is one. In bfloat16 the row is rounded before it meets the weight, as transformers does. */
void norm(const void *x, const void *weight, void *out, float *scales, int64_t rows, int64_t width, float epsilon,
          int64_t kind, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        if (kind == FLOAT32) {
            const float *from = (const float *)x + r * width, *w = weight;
            float *to = (float *)out + r * width;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < width; i++) sum += from[i] * from[i];
            const float scale = 1.0f / sqrtf(sum / width + epsilon);
            for (int64_t i = 0; i < width; i++) to[i] = w[i] * (from[i] * scale);
            if (scales) scales[r] = scale;
        } else {
            const uint16_t *from = (const uint16_t *)x + r * width, *w = weight;
            uint16_t *to = (uint16_t *)out + r * width;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < width; i++) sum += widened(from[i]) * widened(from[i]);
            const float scale = 1.0f / sqrtf(sum / width + epsilon);
            for (int64_t i = 0; i < width; i++)
                to[i] = narrowed(widened(w[i]) * widened(narrowed(widened(from[i]) * scale)));
            if (scales) scales[r] = scale;
        }
    }
}

/* The gradients of x, and of the weight if asked for, in float32. */
void norm_back(const float *gradient, const float *x, const float *weight, const float *scales, float *back,
               float *weight_back, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
            const float *g = gradient + r * width, *from = x + r * width;
            float along = 0;
#pragma omp simd reduction(+ : along)
            for (int64_t i = 0; i < width; i++) along += g[i] * weight[i] * from[i];
            const float scale = scales[r], shrunk = along * scale * scale * scale / width;
            for (int64_t i = 0; i < width; i++) back[r * width + i] = g[i] * weight[i] * scale - from[i] * shrunk;
        }
        if (weight_back) {
#pragma omp for schedule(static)
            for (int64_t first = 0; first < width; first += COLUMNS) {
                const int64_t count = width - first < COLUMNS ? width - first : COLUMNS;
                float sum[COLUMNS] = {0};
                for (int64_t r = 0; r < rows; r++) {
                    const float *g = gradient + r * width + first, *from = x + r * width + first, scale = scales[r];
                    for (int64_t i = 0; i < count; i++) sum[i] += g[i] * from[i] * scale;
                }
                memcpy(weight_back + first, sum, count * sizeof(float));
            }
        }
    }
}

/* Turns pairs of numbers of each head by its row's angles (arXiv 2104.09864, in transformers' order: a head's first half
   with its second): x [rows][heads][width] to out, cosines and sines [rows][width]. `back` turns the other way. */
void rotate(const void *x, void *out, const void *cosines, const void *sines, int64_t rows, int64_t heads,
            int64_t width, int64_t back, int64_t kind, int64_t threads) {
    const int64_t half = width / 2;
    const float sign = back ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = (r * heads + h) * width;
            if (kind == FLOAT32) {
                const float *from = (const float *)x + at, *c = (const float *)cosines + r * width;
                const float *s = (const float *)sines + r * width;
                float *to = (float *)out + at;
#pragma omp simd
                for (int64_t i = 0; i < half; i++) {
                    const float one = from[i], other = from[i + half];
                    to[i] = one * c[i] - other * s[i] * sign;
                    to[i + half] = other * c[i] + one * s[i] * sign;
                }
            } else {
                const uint16_t *from = (const uint16_t *)x + at, *c = (const uint16_t *)cosines + r * width;
                const uint16_t *s = (const uint16_t *)sines + r * width;
                uint16_t *to = (uint16_t *)out + at;
#pragma omp simd
                for (int64_t i = 0; i < half; i++) {
                    const float one = widened(from[i]), other = widened(from[i + half]);
                    to[i] = narrowed(one * widened(c[i]) - other * widened(s[i]) * sign);
                    to[i + half] = narrowed(other * widened(c[i]) + one * widened(s[i]) * sign);
                }
            }
        }
}

/* 1 / (1 + e^-x), within a few units of the last place: e^-|x| is 2 to a whole number times a polynomial, as in
   attention.c. */
INLINE float sigmoid(float x) {
    const float magic = 12582912.0f;  /* 1.5 * 2^23 */
    const float y = -fabsf(x) * 1.44269504088896340736f;
    const float least = -125.0f;  /* e^-|x| is nothing below, and its bits would not be those of a number */
    const float kept = y < least ? least : y, whole = kept + magic, f = kept - (whole - magic);
    float p = f * 1.3264727e-3f + 9.671513e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314700e-1f;
    p = p * f + 1.0f;
    int32_t bits, shift;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&shift, &whole, sizeof shift);
    bits += (int32_t)((uint32_t)shift << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    power = y < least ? 0.0f : power;
    return (x < 0 ? power : 1.0f) / (1.0f + power);
}

/* gate * sigmoid(gate) * up (arXiv 2002.05202), of `count` numbers each. */
void gated(const float *gate, const float *up, float *out, int64_t count, int64_t threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void gated_back(const float *gradient, const float *gate, const float *up, float *gate_back, float *up_back,
                int64_t count, int64_t threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const float share = sigmoid(gate[i]), opened = gate[i] * share;
        up_back[i] = gradient[i] * opened;
        gate_back[i] = gradient[i] * up[i] * (share + opened * (1.0f - share));
    }
}
