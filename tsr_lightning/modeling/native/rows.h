/* Queries, stored keys and values, and the output: where their numbers are and how they are read and written. */

#ifndef ROWS_H
#define ROWS_H

#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "vectors.h"

#define LINE 64  /* queries side by side */
#define KEYS 64  /* of a tile */
#define LOWEST -1e30f  /* below every score and above masked ones; differences of it stay finite */

typedef struct {
    const void *query;    /* [heads, tokens, width], with strides query_head and query_token */
    void *keys, *values;  /* [key_heads, stored, width], [key_heads, stored, value_width] */
    void *out;            /* [tokens, heads, value_width] */
    const void *new_keys, *new_values;  /* [key_heads, new_tokens, ...], stored before any query attends, or NULL */
    const int64_t *new_slots;           /* [new_tokens] */
    int64_t query_head, query_token, new_key_head, new_key_token, new_value_head, new_value_token;
    int64_t tokens, new_tokens, key_heads, group, stored, width, value_width;  /* heads = key_heads * group */
    int32_t dtype, threads;
    float scale, softcap;  /* softcap: 0 for none */
} inputs;

INLINE float load_number(const void *from, int32_t dtype, int64_t at) {
    return dtype == FLOAT32 ? ((const float *)from)[at] : to_float(((const uint16_t *)from)[at]);
}

INLINE void store_number(const inputs *in, int64_t at, float x) {
    if (in->dtype == FLOAT32) ((float *)in->out)[at] = x;
    else ((uint16_t *)in->out)[at] = to_bfloat16(x);
}

/* LANES adjacent numbers. */
INLINE vec load_lanes(const void *from, int32_t dtype, int64_t at) {
    if (dtype == FLOAT32) return load((const float *)from + at);
    typedef uint16_t narrow __attribute__((vector_size(2 * LANES)));
    narrow in;
    memcpy(&in, (const uint16_t *)from + at, sizeof in);
    return (vec)(__builtin_convertvector(in, ivec) << 16);
}

INLINE void store_lanes(const inputs *in, int64_t at, vec x) {
    if (in->dtype == FLOAT32) store((float *)in->out + at, x);
    else
        for (int i = 0; i < LANES; i++) ((uint16_t *)in->out)[at + i] = to_bfloat16(x[i]);
}

INLINE int64_t bytes_per_number(int32_t dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* Scales scores to exponents of 2, or to parts of the softcap. */
INLINE float score_scale(const inputs *in) { return in->softcap ? in->scale / in->softcap : in->scale * LOG2E; }

static void apply_softcap(float *scores, int64_t count, int64_t line, float softcap) {
    for (int64_t at = 0; at < count * line; at += LANES)
        store(scores + at, tanh_lanes(load(scores + at)) * softcap);
}

/* Writes new rows [new_tokens] of one head to their slots. */
static void store_new(const inputs *in, void *stored, const void *from, int64_t apart, int64_t width) {
    const int64_t size = bytes_per_number(in->dtype);
    for (int64_t t = 0; t < in->new_tokens; t++)
        memcpy((char *)stored + in->new_slots[t] * width * size, (const char *)from + t * apart * size, width * size);
}

/* Prefetches stored rows. */
static void prefetch(const char *stored, const int64_t *slots, int64_t count, int64_t size) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(stored + slots[n] * size + at, 0, 2);
}

/* This thread's part of memory with `each` numbers per thread. */
INLINE float *thread_scratch(float *memory, int64_t each) {
#ifdef _OPENMP
    return memory + omp_get_thread_num() * each;
#else
    return memory;
#endif
}

/* Stores new keys and values, by all threads of a parallel region. */
INLINE void store_all_new(const inputs *in) {
    if (!in->new_slots) return;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < 2 * in->key_heads; i++) {
        const int64_t head = i / 2, size = bytes_per_number(in->dtype);
        if (i % 2)
            store_new(in, (char *)in->values + head * in->stored * in->value_width * size,
                      (const char *)in->new_values + head * in->new_value_head * size, in->new_value_token,
                      in->value_width);
        else
            store_new(in, (char *)in->keys + head * in->stored * in->width * size,
                      (const char *)in->new_keys + head * in->new_key_head * size, in->new_key_token, in->width);
    }
}

#endif
