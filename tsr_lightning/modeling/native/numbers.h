/* Number formats: float32, and bfloat16, which is its upper half. */

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { FLOAT32, BFLOAT16 };

INLINE float to_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  /* to the nearest, ties to even */
}

/* Number `i` of an array of either type. */
INLINE float get(const void *from, int64_t dtype, int64_t i) {
    return dtype == FLOAT32 ? ((const float *)from)[i] : to_float(((const uint16_t *)from)[i]);
}

INLINE void set(void *to, int64_t dtype, int64_t i, float x) {
    if (dtype == FLOAT32) ((float *)to)[i] = x;
    else ((uint16_t *)to)[i] = to_bfloat16(x);
}

/* As it would be read again. */
INLINE float rounded(float x, int64_t dtype) { return dtype == FLOAT32 ? x : to_float(to_bfloat16(x)); }

/* Calls a function whose last argument is the type, with a constant in its place: one loop of machine code for each. */
#define BY_TYPE(function, dtype, ...) \
    do { \
        if ((dtype) == FLOAT32) function(__VA_ARGS__, FLOAT32); \
        else function(__VA_ARGS__, BFLOAT16); \
    } while (0)
