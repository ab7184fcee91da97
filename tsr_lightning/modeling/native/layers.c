/* Norms, rotary embeddings and gates of Llama-style layers. Knows no Python and no PyTorch. Rows are independent and no
   sum is shared between threads, so the results do not depend on their number. */

#include <math.h>

#include "numbers.h"

#define COLUMNS 64  /* of a weight's gradient, per task */
#define PART 4096  /* numbers of a gate, per task */

INLINE void norm_row(const void *x, const void *weight, void *out, float *scale, int64_t from, int64_t width,
                     float epsilon, const int64_t dtype) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += get(x, dtype, from + i) * get(x, dtype, from + i);
    *scale = 1.0f / sqrtf(sum / width + epsilon);
    const float by = *scale;
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
        set(out, dtype, from + i, get(weight, dtype, i) * rounded(get(x, dtype, from + i) * by, dtype));
}

/* RMSNorm (arXiv 1910.07467): out = x / sqrt(mean(x^2) + epsilon) * weight, for rows [rows][width]. The factor of each
   row goes to `scales`, unless NULL. In bfloat16 a row is rounded before it is weighted, as in transformers. */
void norm(const void *x, const void *weight, void *out, float *scales, int64_t rows, int64_t width, float epsilon,
          int64_t dtype, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float unused;
        BY_TYPE(norm_row, dtype, x, weight, out, scales ? scales + r : &unused, r * width, width, epsilon);
    }
}

INLINE void norm_row_backward(const void *gradient, const void *x, const void *weight, float scale, void *x_gradient,
                              int64_t from, int64_t width, const int64_t dtype) {
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < width; i++)
        along += get(gradient, dtype, from + i) * get(weight, dtype, i) * get(x, dtype, from + i);
    const float shrunk = along * scale * scale * scale / width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
        set(x_gradient, dtype, from + i,
            get(gradient, dtype, from + i) * get(weight, dtype, i) * scale - get(x, dtype, from + i) * shrunk);
}

INLINE void norm_columns_backward(const void *gradient, const void *x, const float *scales, void *weight_gradient,
                                  int64_t rows, int64_t width, int64_t first, const int64_t dtype) {
    const int64_t count = width - first < COLUMNS ? width - first : COLUMNS;
    float sum[COLUMNS] = {0};
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = r * width + first;
        for (int64_t i = 0; i < count; i++)
            sum[i] += get(gradient, dtype, from + i) * get(x, dtype, from + i) * scales[r];
    }
    for (int64_t i = 0; i < count; i++) set(weight_gradient, dtype, first + i, sum[i]);
}

/* The gradients of x, and of the weight unless NULL. */
void norm_backward(const void *gradient, const void *x, const void *weight, const float *scales, void *x_gradient,
                   void *weight_gradient, int64_t rows, int64_t width, int64_t dtype, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++)
            BY_TYPE(norm_row_backward, dtype, gradient, x, weight, scales[r], x_gradient, r * width, width);
        if (weight_gradient) {
#pragma omp for schedule(static)
            for (int64_t first = 0; first < width; first += COLUMNS)
                BY_TYPE(norm_columns_backward, dtype, gradient, x, scales, weight_gradient, rows, width, first);
        }
    }
}

INLINE void rotate_head(const void *x, void *out, const void *cosines, const void *sines, int64_t at, int64_t angle,
                        int64_t half, float sign, const int64_t dtype) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float one = get(x, dtype, at + i), other = get(x, dtype, at + i + half);
        const float c = get(cosines, dtype, angle + i), s = get(sines, dtype, angle + i);
        set(out, dtype, at + i, one * c - other * s * sign);
        set(out, dtype, at + i + half, other * c + one * s * sign);
    }
}

/* Rotary embedding (arXiv 2104.09864; as in transformers, a head's first half is paired with its second): x
   [rows][heads][width] to out, by cosines and sines [rows][width]. `inverse` rotates the other way. */
void rotate(const void *x, void *out, const void *cosines, const void *sines, int64_t rows, int64_t heads,
            int64_t width, int64_t inverse, int64_t dtype, int64_t threads) {
    const float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            BY_TYPE(rotate_head, dtype, x, out, cosines, sines, (r * heads + h) * width, r * width, width / 2, sign);
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

INLINE void gated_part(const void *gate, const void *up, void *out, int64_t from, int64_t count, const int64_t dtype) {
#pragma omp simd
    for (int64_t i = from; i < from + count; i++) {
        const float x = get(gate, dtype, i);
        set(out, dtype, i, rounded(x * sigmoid(x), dtype) * get(up, dtype, i));
    }
}

/* gate * sigmoid(gate) * up (arXiv 2002.05202), of `count` numbers each. */
void gated(const void *gate, const void *up, void *out, int64_t count, int64_t dtype, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i += PART)
        BY_TYPE(gated_part, dtype, gate, up, out, i, count - i < PART ? count - i : PART);
}

INLINE void gated_part_backward(const void *gradient, const void *gate, const void *up, void *gate_gradient,
                                void *up_gradient, int64_t from, int64_t count, const int64_t dtype) {
#pragma omp simd
    for (int64_t i = from; i < from + count; i++) {
        const float x = get(gate, dtype, i), g = get(gradient, dtype, i), sigma = sigmoid(x), silu = x * sigma;
        set(up_gradient, dtype, i, g * silu);
        set(gate_gradient, dtype, i, g * get(up, dtype, i) * (sigma + silu * (1.0f - sigma)));
    }
}

void gated_backward(const void *gradient, const void *gate, const void *up, void *gate_gradient, void *up_gradient,
                    int64_t count, int64_t dtype, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i += PART)
        BY_TYPE(gated_part_backward, dtype, gradient, gate, up, gate_gradient, up_gradient, i,
                count - i < PART ? count - i : PART);
}
