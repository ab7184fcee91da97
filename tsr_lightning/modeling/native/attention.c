/* Attention of packed queries over stored keys that they share. Knows no Python and no PyTorch.

   Queries are the lanes of vectors and keys are rows. A product is then a number of a row times a vector of lanes; the
   softmax's maxima and sums run down the rows, lane by lane; and keys may be anywhere in memory, since a row is read in
   place or copied to a tile.

   A block is up to 64 packed tokens and the keys that any of them sees; query heads that share a key head are further
   queries. A task is a block and a key head. Tasks are independent, so the results do not depend on the number of
   threads. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
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
#define LINE 64  /* queries side by side */
#define KEYS 64  /* of a tile */
#define LOG2E 1.44269504088896340736f
#define LOWEST -1e30f  /* below every score and above masked ones; differences of it stay finite */

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

/* -- products ------------------------------------------------------------------------------------------------------ */

/* Keeps a vector in a register; GCC would reload it for every product. */
#if defined(__AVX512VL__)
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined(__AVX__)
#define HOLD(x) __asm__("" : "+x"(x))
#else
#define HOLD(x) (void)(x)
#endif

/* C[rows][vectors] (+)= A[rows][inner] * B[inner][vectors], where A has strides `row` and `step`. */
INLINE void tile(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                 int64_t inner, const int rows, const int vectors, const int add) {
    vec sum[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? load(c + r * ldc + v * LANES) : broadcast(0);
    for (int64_t i = 0; i < inner; i++) {
        vec line[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            line[v] = load(b + i * ldb + v * LANES);
            HOLD(line[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float x = a[r * row + i * step];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] += x * line[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * LANES, sum[r][v]);
}

INLINE void strip(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                  int64_t rows, int64_t inner, const int vectors, const int add) {
    const int most = vectors == 1 ? 8 : 4;  /* enough independent sums, few enough for 16 or 32 registers */
    int64_t r = 0;
    for (; r + most <= rows; r += most)
        tile(c + r * ldc, ldc, a + r * row, row, step, b, ldb, inner, most, vectors, add);
    for (; r < rows; r++) tile(c + r * ldc, ldc, a + r * row, row, step, b, ldb, inner, 1, vectors, add);
}

/* The same for any width, in strips of up to four vectors. */
INLINE void product(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                    int64_t rows, int64_t inner, int64_t vectors, const int add) {
    for (int64_t parts = (vectors + 3) / 4; parts > 0; parts--) {
        const int64_t now = (vectors + parts - 1) / parts;
        switch (now) {
            case 1: strip(c, ldc, a, row, step, b, ldb, rows, inner, 1, add); break;
            case 2: strip(c, ldc, a, row, step, b, ldb, rows, inner, 2, add); break;
            case 3: strip(c, ldc, a, row, step, b, ldb, rows, inner, 3, add); break;
            default: strip(c, ldc, a, row, step, b, ldb, rows, inner, 4, add);
        }
        vectors -= now, c += now * LANES, b += now * LANES;
    }
}

/* Keys [count][width] times queries [width][vectors]. */
static void score_keys(float *scores, const float *keys, const float *query, int64_t count, int64_t width,
                       int vectors) {
    product(scores, vectors * LANES, keys, width, 1, query, vectors * LANES, count, width, vectors, 0);
}

/* Values [count][width], transposed, times weights [count][vectors]. */
static void add_values(float *out, const float *values, const float *weights, int64_t count, int64_t width,
                       int vectors) {
    product(out, vectors * LANES, values, 1, width, weights, vectors * LANES, width, count, vectors, 1);
}

/* -- products of pairs --------------------------------------------------------------------------------------------- */

/* Where the processor multiplies pairs of bfloat16 (exactly, into float32), stored keys are not converted. */
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#define PAIRS 1

/* C[rows][vectors] = A[rows][inner] * B[inner][vectors] * scale, of pairs; A's rows are `row` pairs apart. */
INLINE void tile_of_pairs(float *c, int64_t ldc, const uint32_t *a, int64_t row, const uint32_t *b, int64_t ldb,
                          int64_t inner, const int rows, const int vectors, float scale) {
    __m256 sum[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = _mm256_setzero_ps();
    for (int64_t i = 0; i < inner; i++) {
        __m256i line[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            line[v] = _mm256_loadu_si256((const __m256i *)(b + i * ldb + v * LANES));
            HOLD(line[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256i x = _mm256_set1_epi32(a[r * row + i]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] = _mm256_dpbf16_ps(sum[r][v], (__m256bh)x, (__m256bh)line[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * LANES, (vec)sum[r][v] * scale);
}

INLINE void strip_of_pairs(float *c, int64_t ldc, const uint32_t *a, int64_t row, const uint32_t *b, int64_t ldb,
                           int64_t rows, int64_t inner, const int vectors, float scale) {
    const int most = vectors == 1 ? 8 : 4;
    int64_t r = 0;
    for (; r + most <= rows; r += most)
        tile_of_pairs(c + r * ldc, ldc, a + r * row, row, b, ldb, inner, most, vectors, scale);
    for (; r < rows; r++) tile_of_pairs(c + r * ldc, ldc, a + r * row, row, b, ldb, inner, 1, vectors, scale);
}

/* Keys [count][inner] times queries [inner][vectors], of pairs. */
static void score_pairs(float *scores, const uint32_t *keys, const uint32_t *query, int64_t count, int64_t inner,
                        int64_t vectors, float scale) {
    const int64_t line = vectors * LANES;
    for (int64_t parts = (vectors + 3) / 4; parts > 0; parts--) {
        const int64_t now = (vectors + parts - 1) / parts;
        switch (now) {
            case 1: strip_of_pairs(scores, line, keys, inner, query, line, count, inner, 1, scale); break;
            case 2: strip_of_pairs(scores, line, keys, inner, query, line, count, inner, 2, scale); break;
            case 3: strip_of_pairs(scores, line, keys, inner, query, line, count, inner, 3, scale); break;
            default: strip_of_pairs(scores, line, keys, inner, query, line, count, inner, 4, scale);
        }
        vectors -= now, scores += now * LANES, query += now * LANES;
    }
}
#else
#define PAIRS 0
#endif

/* -- inputs -------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t token, tokens;         /* the first packed query, and how many: at most 64 */
    int64_t shared, shared_count;  /* keys that all of them see: the first in shared_slots, and how many */
    int64_t own, own_count;        /* further keys: the first in own_slots and in masks, and how many */
} block;

typedef struct {
    const void *query;    /* [heads, tokens, width], with strides query_head and query_token */
    void *keys, *values;  /* [key_heads, stored, width], [key_heads, stored, value_width] */
    void *out;            /* [tokens, heads, value_width] */
    float *log_sums;          /* [heads, tokens], log2 of the sum of 2^score, or NULL */
    const block *blocks;  /* [count] */
    const int64_t *shared_slots, *own_slots;
    const uint64_t *masks;  /* beside own_slots; bit t is set where token t of the block sees the key */
    const void *new_keys, *new_values;  /* [key_heads, new_tokens, ...], stored before any query attends, or NULL */
    const int64_t *new_slots;           /* [new_tokens] */
    int64_t query_head, query_token, new_key_head, new_key_token, new_value_head, new_value_token;
    int64_t tokens, new_tokens, key_heads, group, stored, width, value_width, count;  /* heads = key_heads * group */
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

/* Stored rows as a tile of float32: in place if they are adjacent, else a copy. For few queries a copy is faster, since
   it reads in order. */
static const float *rows_of(const char *stored, int32_t dtype, const int64_t *slots, int64_t count, int64_t width,
                            int copied, float *copy) {
    for (int64_t n = 0, end; n < count; n = end) {
        for (end = n + 1; end < count && slots[end] == slots[end - 1] + 1; end++) {}
        const int64_t size = (end - n) * width;
        if (dtype == FLOAT32) {
            const float *from = (const float *)stored + slots[n] * width;
            if (size == count * width && !copied) return from;
            memcpy(copy + n * width, from, size * sizeof(float));
        } else {
            const uint16_t *from = (const uint16_t *)stored + slots[n] * width;
            for (int64_t i = 0; i < size; i++) copy[n * width + i] = to_float(from[i]);
        }
    }
    return copy;
}

#if PAIRS
/* Stored rows of bfloat16 as they are, adjacent. */
static const uint32_t *pairs_of(const char *stored, const int64_t *slots, int64_t count, int64_t width, float *copy) {
    for (int64_t n = 0, end; n < count; n = end) {
        for (end = n + 1; end < count && slots[end] == slots[end - 1] + 1; end++) {}
        const char *from = stored + slots[n] * width * 2;
        if (end - n == count) return (const uint32_t *)from;
        memcpy((char *)copy + n * width * 2, from, (end - n) * width * 2);
    }
    return (const uint32_t *)copy;
}
#endif

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

/* -- forward ------------------------------------------------------------------------------------------------------- */

typedef struct {
    float *query;          /* [width][line] */
    float *out;            /* [value_width][line] */
    float *weights;        /* [KEYS][line] */
    float *keys, *values;  /* [KEYS][width], [KEYS][value_width] */
} forward_scratch;

/* Some queries of a block: lane i is query head i % group of token i / group. */
typedef struct {
    const block *of;
    int64_t first, lanes;
    int vectors;
    const char *keys, *values;   /* of the key head */
    int64_t token[LINE];         /* of each lane, among the packed tokens */
    int64_t head[LINE];
    int64_t from[LINE / LANES];  /* the block's token at each vector's first lane */
    ivec bit[LINE / LANES];      /* the bit of each lane's token, counted from there */
    vec top[LINE / LANES], total[LINE / LANES];  /* the highest score so far, and the sum of weights relative to it */
} part;

/* The part that begins with the block's query `first`. */
static void init_part(const inputs *in, part *p, const block *b, int64_t key_head, int64_t first) {
    const int64_t size = bytes_per_number(in->dtype), lanes = b->tokens * in->group - first;
    p->of = b, p->first = first, p->lanes = lanes < LINE ? lanes : LINE;
    p->vectors = (p->lanes + LANES - 1) / LANES;
    p->keys = (const char *)in->keys + key_head * in->stored * in->width * size;
    p->values = (const char *)in->values + key_head * in->stored * in->value_width * size;
    for (int v = 0; v < p->vectors; v++) {
        p->from[v] = (first + v * LANES) / in->group;
        for (int i = 0; i < LANES; i++) {
            const int64_t lane = v * LANES + i, token = (first + lane) / in->group;
            p->bit[v][i] = 1 << (token - p->from[v]);
            p->token[lane] = b->token + token;
            p->head[lane] = key_head * in->group + (first + lane) % in->group;
        }
        p->top[v] = broadcast(LOWEST), p->total[v] = broadcast(0);
    }
}

/* [width][line], scaled; idle lanes are zero. */
static void load_queries(const inputs *in, const part *p, float scale, float *query) {
    const int64_t line = p->vectors * LANES, whole = in->width / LANES * LANES;
    for (int64_t first = 0; first < line; first += LANES) {
        int64_t at[LANES];
        for (int i = 0; i < LANES; i++)
            at[i] = first + i < p->lanes
                        ? p->head[first + i] * in->query_head + p->token[first + i] * in->query_token
                        : -1;
        for (int64_t d = 0; d < whole; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) {
                rows[i] = broadcast(0);
                if (at[i] >= 0) rows[i] = load_lanes(in->query, in->dtype, at[i] + d) * scale;
            }
            transpose(rows);
            for (int i = 0; i < LANES; i++) store(query + (d + i) * line + first, rows[i]);
        }
        for (int64_t d = whole; d < in->width; d++)
            for (int i = 0; i < LANES; i++)
                query[d * line + first + i] = at[i] < 0 ? 0.0f : load_number(in->query, in->dtype, at[i] + d) * scale;
    }
}

#if PAIRS
/* [width / 2][line] pairs of bfloat16 as they are; idle lanes are zero. Shuffles keep the bits. */
static void load_pairs(const inputs *in, const part *p, uint32_t *query) {
    const int64_t line = p->vectors * LANES, inner = in->width / 2, whole = inner / LANES * LANES;
    for (int64_t first = 0; first < line; first += LANES) {
        const uint32_t *rows[LANES];
        for (int i = 0; i < LANES; i++)
            rows[i] = first + i < p->lanes
                          ? (const uint32_t *)((const uint16_t *)in->query + p->head[first + i] * in->query_head +
                                               p->token[first + i] * in->query_token)
                          : NULL;
        for (int64_t d = 0; d < whole; d += LANES) {
            vec turned[LANES];
            for (int i = 0; i < LANES; i++) {
                turned[i] = broadcast(0);
                if (rows[i]) turned[i] = load((const float *)(rows[i] + d));
            }
            transpose(turned);
            for (int i = 0; i < LANES; i++) store((float *)(query + (d + i) * line + first), turned[i]);
        }
        for (int64_t d = whole; d < inner; d++)
            for (int i = 0; i < LANES; i++) {
                uint32_t pair = 0;
                if (rows[i]) memcpy(&pair, rows[i] + d, sizeof pair);
                query[d * line + first + i] = pair;
            }
    }
}
#endif

static void apply_softcap(float *scores, int64_t count, int64_t line, float softcap) {
    for (int64_t at = 0; at < count * line; at += LANES)
        store(scores + at, tanh_lanes(load(scores + at)) * softcap);
}

static void apply_mask(const part *p, float *scores, int64_t count, const uint64_t *masks) {
    for (int64_t n = 0; n < count; n++)
        for (int v = 0; v < p->vectors; v++, scores += LANES) {
            const ivec seen = (p->bit[v] & (int32_t)(masks[n] >> p->from[v])) != 0;
            store(scores, select_lanes(seen, load(scores), broadcast(-INFINITY)));
        }
}

/* Scores to softmax weights relative to the highest score so far; earlier sums are rescaled to it. */
static void update_softmax(part *p, const forward_scratch *s, int64_t count, int64_t value_width) {
    const int64_t line = p->vectors * LANES;
    for (int v = 0; v < p->vectors; v++) {
        float *weights = s->weights + v * LANES, *out = s->out + v * LANES;
        vec top = p->top[v], sum = broadcast(0);
        for (int64_t n = 0; n < count; n++) top = max_lanes(top, load(weights + n * line));
        for (int64_t n = 0; n < count; n++) {
            const vec weight = exp2_lanes(load(weights + n * line) - top);
            store(weights + n * line, weight);
            sum += weight;
        }
        const vec shrunk = exp2_lanes(p->top[v] - top);
        for (int64_t d = 0; d < value_width; d++) store(out + d * line, load(out + d * line) * shrunk);
        p->total[v] = p->total[v] * shrunk + sum;
        p->top[v] = top;
    }
}

/* Scales scores to exponents of 2, or to parts of the softcap. */
INLINE float score_scale(const inputs *in) { return in->softcap ? in->scale / in->softcap : in->scale * LOG2E; }

/* Whether rows are aligned pairs of bfloat16. */
INLINE int in_pairs(const inputs *in) {
    return PAIRS && in->dtype == BFLOAT16 && in->width % 2 == 0 && in->query_head % 2 == 0 && in->query_token % 2 == 0;
}

/* Attends to a list of keys; masks may be NULL. */
static void attend_keys(const inputs *in, part *p, const forward_scratch *s, const int64_t *slots, int64_t keys,
                        const uint64_t *masks) {
    const int64_t width = in->width, value_width = in->value_width, size = bytes_per_number(in->dtype);
    const int few = p->vectors == 1;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        if (!p->first) prefetch(p->keys, slots + count, next, width * size);
#if PAIRS
        if (in_pairs(in))
            score_pairs(s->weights, pairs_of(p->keys, slots, count, width, s->keys), (const uint32_t *)s->query,
                        count, width / 2, p->vectors, score_scale(in));
        else
#endif
            score_keys(s->weights, rows_of(p->keys, in->dtype, slots, count, width, few, s->keys), s->query, count,
                       width, p->vectors);
        if (in->softcap) apply_softcap(s->weights, count, p->vectors * LANES, in->softcap * LOG2E);
        if (masks) apply_mask(p, s->weights, count, masks + start);
        update_softmax(p, s, count, value_width);
        if (!p->first) prefetch(p->values, slots + count, next, value_width * size);
        add_values(s->out, rows_of(p->values, in->dtype, slots, count, value_width, few, s->values), s->weights, count,
               value_width, p->vectors);
    }
}

static void write_log_sum(const inputs *in, const part *p, int64_t lane, float top, float total) {
    if (in->log_sums) in->log_sums[p->head[lane] * in->tokens + p->token[lane]] = top + log2f(total);
}

/* -- forward, few queries ------------------------------------------------------------------------------------------ */

/* For half a vector of queries or fewer, a query is a row, and the lanes are a head's width or keys. Without this, a
   decode step whose branches share nothing would take half as long again, and longer than PyTorch's. */
#define FEW (LANES / 2)

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

/* Scores [KEYS] of one query; keys [count rounded up to LANES][width]. */
static void score_keys_one(float *scores, const float *keys, const float *query, int64_t count, int64_t width) {
    for (int64_t n = 0; n < count; n += LANES) {
        vec sum[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) sum[i] = broadcast(0);
        for (int64_t d = 0; d < width; d += LANES) {
            const vec q = load(query + d);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) sum[i] += load(keys + (n + i) * width + d) * q;
        }
        store(scores + n, lane_sums(sum));
    }
}

/* As `update_softmax`, for one query: scores [count rounded up to LANES], masked beyond count. */
static void update_softmax_one(float *scores, float *out, float *top, float *total, int64_t count,
                               int64_t value_width) {
    vec higher = broadcast(*top), sum = broadcast(0);
    float highest = *top, added = 0;
    for (int64_t n = 0; n < count; n += LANES) higher = max_lanes(higher, load(scores + n));
    for (int i = 0; i < LANES; i++) highest = higher[i] > highest ? higher[i] : highest;
    for (int64_t n = 0; n < count; n += LANES) {
        const vec weight = exp2_lanes(load(scores + n) - highest);
        store(scores + n, weight);
        sum += weight;
    }
    for (int i = 0; i < LANES; i++) added += sum[i];
    const vec shrunk = exp2_lanes(broadcast(*top - highest));
    for (int64_t d = 0; d < value_width; d += LANES) store(out + d, load(out + d) * shrunk);
    *total = *total * shrunk[0] + added;
    *top = highest;
}

static void attend_keys_few(const inputs *in, const part *p, const forward_scratch *s, const int64_t *slots,
                            int64_t keys, const uint64_t *masks, float *top, float *total) {
    const int64_t width = in->width, value_width = in->value_width, size = bytes_per_number(in->dtype);
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        const int64_t whole = (count + LANES - 1) / LANES * LANES;
        const float *rows = rows_of(p->keys, in->dtype, slots, count, width, whole > count, s->keys);
        for (int64_t lane = 0; lane < p->lanes; lane++) {
            float *scores = s->weights + lane * KEYS;
            const int64_t from = next * lane / p->lanes, many = next * (lane + 1) / p->lanes - from;
            prefetch(p->keys, slots + count + from, many, width * size);  /* a part per lane */
            score_keys_one(scores, rows, s->query + lane * width, count, width);
            if (in->softcap) apply_softcap(scores, 1, whole, in->softcap * LOG2E);
            for (int64_t n = count; n < whole; n++) scores[n] = -INFINITY;
            for (int64_t n = 0; masks && n < count; n++)
                if (!(masks[start + n] >> (p->token[lane] - p->of->token) & 1)) scores[n] = -INFINITY;
            prefetch(p->values, slots + count + from, many, value_width * size);
            update_softmax_one(scores, s->out + lane * value_width, top + lane, total + lane, count, value_width);
        }
        rows = rows_of(p->values, in->dtype, slots, count, value_width, 0, s->values);
        product(s->out, value_width, s->weights, KEYS, 1, rows, value_width, p->lanes, count, value_width / LANES, 1);
    }
}

/* Divides [value_width][line] by the sums of weights, and writes it to the output. */
static void write_out(const inputs *in, const part *p, const float *out) {
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES;
    const int64_t whole = in->value_width / LANES * LANES;
    for (int64_t first = 0; first < p->lanes; first += LANES) {
        const vec top = p->top[first / LANES], total = p->total[first / LANES];
        const int64_t busy = p->lanes - first < LANES ? p->lanes - first : LANES;
        int64_t at[LANES];
        for (int i = 0; i < busy; i++) {
            at[i] = (p->token[first + i] * heads + p->head[first + i]) * in->value_width;
            write_log_sum(in, p, first + i, top[i], total[i]);
        }
        for (int64_t d = 0; d < whole; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = load(out + (d + i) * line + first) / total;
            transpose(rows);
            for (int i = 0; i < busy; i++) store_lanes(in, at[i] + d, rows[i]);
        }
        for (int64_t d = whole; d < in->value_width; d++)
            for (int i = 0; i < busy; i++) store_number(in, at[i] + d, out[d * line + first + i] / total[i]);
    }
}

static void attend_few(const inputs *in, const block *b, int64_t key_head, const forward_scratch *s) {
    const int64_t width = in->width, value_width = in->value_width, heads = in->key_heads * in->group;
    const float scale = score_scale(in);
    float top[FEW], total[FEW] = {0};
    part p;
    init_part(in, &p, b, key_head, 0);
    for (int64_t lane = 0; lane < p.lanes; lane++) {
        const int64_t at = p.head[lane] * in->query_head + p.token[lane] * in->query_token;
        for (int64_t d = 0; d < width; d++)
            s->query[lane * width + d] = load_number(in->query, in->dtype, at + d) * scale;
        top[lane] = LOWEST;
    }
    memset(s->out, 0, p.lanes * value_width * sizeof(float));
    attend_keys_few(in, &p, s, in->shared_slots + b->shared, b->shared_count, NULL, top, total);
    attend_keys_few(in, &p, s, in->own_slots + b->own, b->own_count, in->masks + b->own, top, total);
    for (int64_t lane = 0; lane < p.lanes; lane++) {
        write_log_sum(in, &p, lane, top[lane], total[lane]);
        const int64_t at = (p.token[lane] * heads + p.head[lane]) * value_width;
        for (int64_t d = 0; d < value_width; d++)
            store_number(in, at + d, s->out[lane * value_width + d] / total[lane]);
    }
}

/* The queries of a block, of all query heads of a key head. */
static void attend_block(const inputs *in, const block *b, int64_t key_head, const forward_scratch *s) {
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        init_part(in, &p, b, key_head, first);
#if PAIRS
        if (in_pairs(in)) load_pairs(in, &p, (uint32_t *)s->query);
        else
#endif
            load_queries(in, &p, score_scale(in), s->query);
        memset(s->out, 0, in->value_width * p.vectors * LANES * sizeof(float));
        attend_keys(in, &p, s, in->shared_slots + b->shared, b->shared_count, NULL);
        attend_keys(in, &p, s, in->own_slots + b->own, b->own_count, in->masks + b->own);
        write_out(in, &p, s->out);
    }
}

/* Nonzero if there is no memory. */
int attend(const inputs *in) {
    const int64_t each = (LINE + KEYS) * (in->width + in->value_width) + LINE * KEYS;
    const int whole = in->width % LANES == 0 && in->value_width % LANES == 0;  /* rows are whole vectors */
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = thread_scratch(memory, each);
        if (in->new_slots) {
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
        forward_scratch s;
        s.query = own, own += in->width * LINE;
        s.out = own, own += in->value_width * LINE;
        s.weights = own, own += KEYS * LINE;
        s.keys = own, own += KEYS * in->width;
        s.values = own;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < in->count * in->key_heads; task++) {
            const block *b = in->blocks + task / in->key_heads;
            const int few = whole && b->tokens * in->group <= FEW;
            (few ? attend_few : attend_block)(in, b, task % in->key_heads, &s);
        }
    }
    free(memory);
    return 0;
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

/* In float32. Blocks of different trees see no key in common. A task is a tree and a key head: it alone adds up the
   gradients of its keys, block by block, in one order. */
typedef struct {
    inputs in;             /* of the forward pass, and its output */
    const float *out;      /* [tokens, heads, value_width] the output's gradient */
    float *query;          /* results: [tokens, heads, width] */
    float *keys, *values;  /* results: [stored, key_heads, ...], zeros at first */
    const int64_t *trees;  /* [tree_count + 1] the first block of each, and the number of blocks */
    int64_t tree_count;
} gradients;

typedef struct {
    float *query, *query_rows;  /* [width][line] for scores, [LINE][padded width] for the gradients of keys */
    float *out, *out_rows;      /* the output's gradient */
    float *query_gradient;      /* [width][line]: the query's gradient */
    float *weights, *changes, *slopes;  /* [KEYS][line]: weights, gradients of scores, slopes of the softcap */
    float *keys, *values, *key_gradient, *value_gradient;  /* [KEYS][...] */
    float sum[LINE], delta[LINE];
} backward_scratch;

INLINE int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* Lanes and rows of the queries and of their outputs' gradients; idle ones are zero. */
static void load_part(const gradients *g, const part *p, backward_scratch *w) {
    const inputs *in = &g->in;
    const int64_t width = in->width, value_width = in->value_width, heads = in->key_heads * in->group;
    const int64_t line = p->vectors * LANES;
    load_queries(in, p, score_scale(in), w->query);
    memset(w->query_gradient, 0, width * line * sizeof(float));
    for (int64_t lane = 0; lane < line; lane++) {
        const int64_t from = p->head[lane] * in->query_head + p->token[lane] * in->query_token;
        const int64_t at = (p->token[lane] * heads + p->head[lane]) * value_width;
        float *query = w->query_rows + lane * padded(width), *out = w->out_rows + lane * padded(value_width);
        const int busy = lane < p->lanes;
        float delta = 0;
        memset(query, 0, padded(width) * sizeof(float));
        memset(out, 0, padded(value_width) * sizeof(float));
        if (busy) {
            const float *input = (const float *)in->query + from, *output = (const float *)in->out + at;
            const float *gradient = g->out + at;
            for (int64_t d = 0; d < width; d++) query[d] = input[d] * in->scale;
            for (int64_t d = 0; d < value_width; d++) out[d] = gradient[d], delta += gradient[d] * output[d];
        }
        for (int64_t d = 0; d < value_width; d++) w->out[d * line + lane] = out[d];
        w->sum[lane] = busy ? in->log_sums[p->head[lane] * in->tokens + p->token[lane]] : 0.0f;
        w->delta[lane] = delta;
    }
}

/* Scores to softmax weights, and gradients of weights to gradients of scores. */
static void score_gradients(const inputs *in, const part *p, const backward_scratch *w, int64_t count) {
    const int64_t line = p->vectors * LANES;
    for (int64_t n = 0; n < count; n++)
        for (int v = 0; v < p->vectors; v++) {
            const int64_t at = n * line + v * LANES;
            const vec score = load(w->weights + at) - load(w->sum + v * LANES);
            const vec weight = exp2_lanes(score);
            vec change = weight * (load(w->changes + at) - load(w->delta + v * LANES));
            if (in->softcap) change *= load(w->slopes + at);
            store(w->weights + at, weight);
            store(w->changes + at, change);
        }
}

/* The slope of the softcap, from capped scores. */
static void softcap_slope(const float *capped, float *slopes, int64_t count, float softcap) {
    for (int64_t at = 0; at < count; at += LANES) {
        const vec x = load(capped + at) / softcap;
        store(slopes + at, 1.0f - x * x);
    }
}

static void scatter_add(float *to, const int64_t *slots, int64_t apart, const float *rows, int64_t count,
                        int64_t width) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t d = 0; d < width; d++) to[slots[n] * apart + d] += rows[n * padded(width) + d];
}

static void backward_keys(const gradients *g, const part *p, int64_t key_head, backward_scratch *w,
                          const int64_t *slots, int64_t keys, const uint64_t *masks) {
    const inputs *in = &g->in;
    const int64_t width = in->width, value_width = in->value_width, line = p->vectors * LANES;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const float *key = rows_of(p->keys, in->dtype, slots, count, width, 0, w->keys);
        const float *value = rows_of(p->values, in->dtype, slots, count, value_width, 0, w->values);
        score_keys(w->weights, key, w->query, count, width, p->vectors);
        if (in->softcap) {
            apply_softcap(w->weights, count, line, in->softcap * LOG2E);
            softcap_slope(w->weights, w->slopes, count * line, in->softcap * LOG2E);
        }
        if (masks) apply_mask(p, w->weights, count, masks + start);
        score_keys(w->changes, value, w->out, count, value_width, p->vectors);
        score_gradients(in, p, w, count);
        add_values(w->query_gradient, key, w->changes, count, width, p->vectors);
        product(w->key_gradient, padded(width), w->changes, line, 1, w->query_rows, padded(width), count, p->lanes,
                padded(width) / LANES, 0);
        product(w->value_gradient, padded(value_width), w->weights, line, 1, w->out_rows, padded(value_width), count,
                p->lanes, padded(value_width) / LANES, 0);
        scatter_add(g->keys + key_head * width, slots, in->key_heads * width, w->key_gradient, count, width);
        scatter_add(g->values + key_head * value_width, slots, in->key_heads * value_width, w->value_gradient, count,
                 value_width);
    }
}

static void backward_block(const gradients *g, const block *b, int64_t key_head, backward_scratch *w) {
    const inputs *in = &g->in;
    const int64_t width = in->width, heads = in->key_heads * in->group;
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        init_part(in, &p, b, key_head, first);
        load_part(g, &p, w);
        backward_keys(g, &p, key_head, w, in->shared_slots + b->shared, b->shared_count, NULL);
        backward_keys(g, &p, key_head, w, in->own_slots + b->own, b->own_count, in->masks + b->own);
        for (int64_t lane = 0; lane < p.lanes; lane++)
            for (int64_t d = 0; d < width; d++)
                g->query[(p.token[lane] * heads + p.head[lane]) * width + d] =
                    w->query_gradient[d * p.vectors * LANES + lane] * in->scale;
    }
}

/* Nonzero if there is no memory. */
int attend_backward(const gradients *g) {
    const inputs *in = &g->in;
    const int64_t width = padded(in->width), value_width = padded(in->value_width);
    const int64_t each = LINE * (3 * width + 2 * value_width) + 3 * KEYS * LINE + 2 * KEYS * (width + value_width);
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = thread_scratch(memory, each);
        backward_scratch w;
        w.query = own, own += LINE * width;
        w.query_rows = own, own += LINE * width;
        w.query_gradient = own, own += LINE * width;
        w.out = own, own += LINE * value_width;
        w.out_rows = own, own += LINE * value_width;
        w.weights = own, own += KEYS * LINE;
        w.changes = own, own += KEYS * LINE;
        w.slopes = own, own += KEYS * LINE;
        w.keys = own, own += KEYS * width;
        w.key_gradient = own, own += KEYS * width;
        w.values = own, own += KEYS * value_width;
        w.value_gradient = own;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < g->tree_count * in->key_heads; task++) {
            const int64_t tree = task / in->key_heads;
            for (int64_t b = g->trees[tree]; b < g->trees[tree + 1]; b++)
                backward_block(g, in->blocks + b, task % in->key_heads, &w);
        }
    }
    free(memory);
    return 0;
}
