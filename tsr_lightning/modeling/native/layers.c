/* Norms, rotary embeddings and gates of Llama-style layers. Knows no Python and no PyTorch. Rows are independent and no
   sum is shared between threads, so the results do not depend on their number. */

#include <math.h>

#include "numbers.h"

#define COLUMNS 64  /* of a weight's gradient, per task */

/* RMSNorm (arXiv 1910.07467): out = x / sqrt(mean(x^2) + epsilon) * weight, for rows [rows][width]. The factor of each
   row goes to `scales`, unless NULL. In bfloat16 a row is rounded before it is weighted, as in transformers. */
void norm(const void *x, const void *weight, void *out, float *scales, int64_t rows, int64_t width, float epsilon,
          int64_t dtype, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        if (dtype == FLOAT32) {
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
            for (int64_t i = 0; i < width; i++) sum += to_float(from[i]) * to_float(from[i]);
            const float scale = 1.0f / sqrtf(sum / width + epsilon);
            for (int64_t i = 0; i < width; i++)
                to[i] = to_bfloat16(to_float(w[i]) * to_float(to_bfloat16(to_float(from[i]) * scale)));
            if (scales) scales[r] = scale;
        }
    }
}

/* The gradients of x, and of the weight unless NULL, in float32. */
void norm_backward(const float *gradient, const float *x, const float *weight, const float *scales,
                   float *x_gradient, float *weight_gradient, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
            const float *g = gradient + r * width, *from = x + r * width;
            float along = 0;
#pragma omp simd reduction(+ : along)
            for (int64_t i = 0; i < width; i++) along += g[i] * weight[i] * from[i];
            const float scale = scales[r], shrunk = along * scale * scale * scale / width;
            for (int64_t i = 0; i < width; i++)
                x_gradient[r * width + i] = g[i] * weight[i] * scale - from[i] * shrunk;
        }
        if (weight_gradient) {
#pragma omp for schedule(static)
            for (int64_t first = 0; first < width; first += COLUMNS) {
                const int64_t count = width - first < COLUMNS ? width - first : COLUMNS;
                float sum[COLUMNS] = {0};
                for (int64_t r = 0; r < rows; r++) {
                    const float *g = gradient + r * width + first, *from = x + r * width + first, scale = scales[r];
                    for (int64_t i = 0; i < count; i++) sum[i] += g[i] * from[i] * scale;
                }
                memcpy(weight_gradient + first, sum, count * sizeof(float));
            }
        }
    }
}

/* Rotary embedding (arXiv 2104.09864; as in transformers, a head's first half is paired with its second): x
   [rows][heads][width] to out, by cosines and sines [rows][width]. `inverse` rotates the other way. */
void rotate(const void *x, void *out, const void *cosines, const void *sines, int64_t rows, int64_t heads,
            int64_t width, int64_t inverse, int64_t dtype, int64_t threads) {
    const int64_t half = width / 2;
    const float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = (r * heads + h) * width;
            if (dtype == FLOAT32) {
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
                    const float one = to_float(from[i]), other = to_float(from[i + half]);
                    to[i] = to_bfloat16(one * to_float(c[i]) - other * to_float(s[i]) * sign);
                    to[i + half] = to_bfloat16(other * to_float(c[i]) + one * to_float(s[i]) * sign);
                }
            }
        }
}

/* 1 / (1 + e^-x), within a few units in the last place: e^-|x| is a power of two times a polynomial, as in
   attention.c. */
INLINE float sigmoid(float x) {
    const float magic = 12582912.0f;  /* 1.5 * 2^23 */
    const float y = -fabsf(x) * 1.44269504088896340736f;
    const float least = -125.0f;  /* e^-|x| is negligible below, and its exponent would overflow */
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

void gated_backward(const float *gradient, const float *gate, const float *up, float *gate_gradient,
                    float *up_gradient, int64_t count, int64_t threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const float sigma = sigmoid(gate[i]), silu = gate[i] * sigma;
        up_gradient[i] = gradient[i] * silu;
        gate_gradient[i] = gradient[i] * up[i] * (sigma + silu * (1.0f - sigma));
    }
}
