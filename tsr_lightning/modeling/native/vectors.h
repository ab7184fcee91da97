/* Vectors of eight numbers (four without AVX) and what they are made of: exponentials, transposes, sums. */

#ifndef VECTORS_H
#define VECTORS_H

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "numbers.h"

/* Eight floats also with AVX-512: few queries are common, and idle lanes are wasted (on Zen 4 wider vectors are no
   faster either). */
#ifdef __AVX__
#define LANES 8
#else
#define LANES 4
#endif
#define LOG2E 1.44269504088896340736f
typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));

INLINE vec load(const float *from) {
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

INLINE void store(float *to, vec in) { memcpy(to, &in, sizeof in); }

INLINE vec broadcast(float x) { return x - (vec){0}; }

INLINE vec select_lanes(ivec mask, vec one, vec other) { return (vec)((mask & (ivec)one) | (~mask & (ivec)other)); }

/* The second if either is NaN. */
INLINE vec max_lanes(vec one, vec other) {
#ifdef __AVX__
    return (vec)_mm256_max_ps((__m256)one, (__m256)other);
#else
    return select_lanes(one > other, one, other);
#endif
}

/* 2^x for x <= 0, within 1.5 units in the last place; 2^-100 below that, which is negligible in a sum of at least 1 and
   far from slow subnormal numbers. The polynomial has the least relative error (7e-8) of its degree on [-1/2, 1/2]. */
INLINE vec exp2_lanes(vec x) {
    const vec magic = broadcast(12582912.0f);  /* 1.5 * 2^23: adding it rounds to an integer, in the low bits */
    x = max_lanes(broadcast(-100.0f), x);
    vec whole = x + magic;
    vec f = x - (whole - magic);
    vec p = f * 1.3264727e-3f + 9.671513e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314700e-1f;
    p = p * f + 1.0f;
    return (vec)((ivec)p + ((ivec)whole << 23));
}

/* Within a few units in the last place: the rational function of Eigen's ptanh. */
INLINE vec tanh_lanes(vec x) {
    x = max_lanes(broadcast(-7.90531110763549805f), -max_lanes(broadcast(-7.90531110763549805f), -x));
    vec y = x * x;
    vec p = y * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * y + -8.60467152213735e-11f;
    p = p * y + 5.12229709037114e-08f;
    p = p * y + 1.48572235717979e-05f;
    p = p * y + 6.37261928875436e-04f;
    p = p * y + 4.89352455891786e-03f;
    vec q = y * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * y + 2.26843463243900e-03f;
    q = q * y + 4.89352518554385e-03f;
    return x * p / q;
}

/* -- rows and lanes ------------------------------------------------------------------------------------------------ */

#ifdef __clang__
#define SHUFFLE(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define SHUFFLE(one, other, ...) __builtin_shuffle(one, other, (ivec){__VA_ARGS__})
#endif

/* LANES rows of LANES numbers become columns. */
INLINE void transpose(vec *a) {
#if LANES == 8
    vec t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = SHUFFLE(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = SHUFFLE(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = SHUFFLE(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            u[i + 2 * j + 1] = SHUFFLE(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = SHUFFLE(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = SHUFFLE(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    const vec t[4] = {SHUFFLE(a[0], a[1], 0, 4, 1, 5), SHUFFLE(a[0], a[1], 2, 6, 3, 7), SHUFFLE(a[2], a[3], 0, 4, 1, 5),
                      SHUFFLE(a[2], a[3], 2, 6, 3, 7)};
    a[0] = SHUFFLE(t[0], t[2], 0, 1, 4, 5), a[1] = SHUFFLE(t[0], t[2], 2, 3, 6, 7);
    a[2] = SHUFFLE(t[1], t[3], 0, 1, 4, 5), a[3] = SHUFFLE(t[1], t[3], 2, 3, 6, 7);
#endif
}

/* The sum of each of LANES vectors. */
INLINE vec lane_sums(const vec *a) {
#if LANES == 8
    vec pairs[4], fours[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        pairs[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                   SHUFFLE(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        fours[i] = SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                   SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    vec pairs[2];
    for (int i = 0; i < 2; i++)
        pairs[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 4, 2, 6) + SHUFFLE(a[2 * i], a[2 * i + 1], 1, 5, 3, 7);
    return SHUFFLE(pairs[0], pairs[1], 0, 1, 4, 5) + SHUFFLE(pairs[0], pairs[1], 2, 3, 6, 7);
#endif
}

/* Flushes this thread's subnormal numbers to zero, and returns its mode of before. Each costs an Intel processor some
   hundred cycles, and the softmax's least weights times small gradients are subnormal. */
INLINE unsigned flush_subnormals(void) {
#ifdef __AVX__
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return before;
#else
    return 0;
#endif
}

INLINE void restore_mode(unsigned before) {
#ifdef __AVX__
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* Keeps a vector in a register; GCC would reload it for every product. */
#if defined(__AVX512VL__)
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined(__AVX__)
#define HOLD(x) __asm__("" : "+x"(x))
#else
#define HOLD(x) (void)(x)
#endif

/* Keeps an address in a register; GCC would compute that of each number. */
#define HOLD_ADDRESS(x) __asm__("" : "+r"(x))

#endif
