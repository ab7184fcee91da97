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
