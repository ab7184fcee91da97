/* Attention over stored keys that packed queries share. Knows no Python and no PyTorch.

   Queries lie on the lanes of vectors and keys are rows. Every product is then a number of a row times a vector of
   lanes; maxima and sums of the softmax run down the rows, lane by lane; and keys may lie anywhere, since a row is
   copied to where its tile is, or read where it stands.

   A block is up to 64 packed tokens, and the keys that any of them sees; the heads that share keys are further queries.
   A task is a block and a head of keys. No task depends on another or on who does it, so the numbers are the same
   whatever the number of threads. */

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

/* As many floats as two multipliers of one core take at once; not more where AVX-512 is, since few queries are common
   and a vector's idle lanes are lost (on Zen 4 wider vectors are no faster either). */
#ifdef __AVX__
#define LANES 8
#else
#define LANES 4
#endif
#define LINE 64  /* queries side by side */
#define KEYS 64  /* of a tile */
#define LOG2E 1.44269504088896340736f
#define LOWEST -1e30f  /* below every score and above what is hidden; differences of it stay finite */

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));

INLINE vec load(const float *from) {
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

INLINE void store(float *to, vec in) { memcpy(to, &in, sizeof in); }

INLINE vec all(float x) { return x - (vec){0}; }

INLINE vec pick(ivec mask, vec one, vec other) { return (vec)((mask & (ivec)one) | (~mask & (ivec)other)); }

/* The second where either is no number. */
INLINE vec larger(vec one, vec other) {
#ifdef __AVX__
    return (vec)_mm256_max_ps((__m256)one, (__m256)other);
#else
    return pick(one > other, one, other);
#endif
}

/* 2 to the x for x <= 0, within 1.5 units of the last place; 2^-100 for all that is lower, which is nothing beside a sum
   of 1 or more, and far from numbers so small that processors are slow with them. The fraction's polynomial is the best
   of its degree on [-1/2, 1/2] by relative error (7e-8). */
INLINE vec power_of_two(vec x) {
    const vec magic = all(12582912.0f);  /* 1.5 * 2^23: adding it rounds to a whole number, in the low bits */
    x = larger(all(-100.0f), x);
    vec whole = x + magic;
    vec f = x - (whole - magic);
    vec p = f * 1.3264727e-3f + 9.671513e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314700e-1f;
    p = p * f + 1.0f;
    return (vec)((ivec)p + ((ivec)whole << 23));
}

/* Within a few units of the last place: the rational function of Eigen's ptanh. */
INLINE vec hyperbolic_tangent(vec x) {
    x = larger(all(-7.90531110763549805f), -larger(all(-7.90531110763549805f), -x));
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
#define JOINED(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define JOINED(one, other, ...) __builtin_shuffle(one, other, (ivec){__VA_ARGS__})
#endif

/* LANES rows of LANES numbers become columns. */
INLINE void transpose(vec *a) {
#if LANES == 8
    vec t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = JOINED(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = JOINED(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = JOINED(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            u[i + 2 * j + 1] = JOINED(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = JOINED(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = JOINED(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    const vec t[4] = {JOINED(a[0], a[1], 0, 4, 1, 5), JOINED(a[0], a[1], 2, 6, 3, 7), JOINED(a[2], a[3], 0, 4, 1, 5),
                      JOINED(a[2], a[3], 2, 6, 3, 7)};
    a[0] = JOINED(t[0], t[2], 0, 1, 4, 5), a[1] = JOINED(t[0], t[2], 2, 3, 6, 7);
    a[2] = JOINED(t[1], t[3], 0, 1, 4, 5), a[3] = JOINED(t[1], t[3], 2, 3, 6, 7);
#endif
}

/* -- products ------------------------------------------------------------------------------------------------------ */

/* Keeps a vector in its register: GCC would else load it anew for every product. */
#if defined(__AVX512VL__)
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined(__AVX__)
#define HOLD(x) __asm__("" : "+x"(x))
#else
#define HOLD(x) (void)(x)
#endif

/* C[rows][vectors] (+)= A[rows][inner] * B[inner][vectors], where A's numbers lie `row` and `step` apart. */
INLINE void tile(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                 int64_t inner, const int rows, const int vectors, const int add) {
    vec sum[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? load(c + r * ldc + v * LANES) : all(0);
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
    const int most = vectors == 1 ? 8 : 4;  /* enough sums under way at once, few enough for 16 registers or 32 */
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
static void scored(float *scores, const float *keys, const float *query, int64_t count, int64_t width, int vectors) {
    product(scores, vectors * LANES, keys, width, 1, query, vectors * LANES, count, width, vectors, 0);
}

/* Values [count][width], transposed, times weights [count][vectors]. */
static void gather(float *out, const float *values, const float *weights, int64_t count, int64_t width, int vectors) {
    product(out, vectors * LANES, values, 1, width, weights, vectors * LANES, width, count, vectors, 1);
}

/* -- products of pairs --------------------------------------------------------------------------------------------- */

/* Where the processor multiplies pairs of bfloat16 (exactly, into float32), keys are scored as they are stored. */
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#define PAIRS 1

/* C[rows][vectors] = A[rows][inner] * B[inner][vectors] * scale, of pairs; A's rows lie `row` pairs apart. */
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
static void scored_in_pairs(float *scores, const uint32_t *keys, const uint32_t *query, int64_t count, int64_t inner,
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

/* -- what is read -------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t token, tokens;   /* the packed queries, at most 64 */
    int64_t shared, shares;  /* keys that all of them see: so many, from there in the list of shared slots */
    int64_t own, owns;       /* and further ones, in the lists of own slots and of masks */
} block;

typedef struct {
    const void *query;    /* [heads, tokens, width], heads and tokens as far apart as told below */
    void *keys, *values;  /* [key_heads, stored, width], [key_heads, stored, value_width] */
    void *out;            /* [tokens, heads, value_width] */
    float *sums;          /* [heads, tokens], log2 of the sum of 2^score, or none */
    const block *blocks;  /* [count] */
    const int64_t *shared_slots, *own_slots;
    const uint64_t *masks;  /* beside own_slots; bit t is set where token t of the block sees the key */
    const void *new_keys, *new_values;  /* [key_heads, new_tokens, ...], which go to the store before, or none */
    const int64_t *new_slots;           /* [new_tokens] */
    int64_t query_head, query_token, new_key_head, new_key_token, new_value_head, new_value_token;
    int64_t tokens, new_tokens, key_heads, group, stored, width, value_width, count;  /* heads = key_heads * group */
    int32_t kind, threads;
    float scale, softcap;  /* softcap: 0 for none */
} inputs;

INLINE float number(const void *from, int32_t kind, int64_t at) {
    return kind == FLOAT32 ? ((const float *)from)[at] : widened(((const uint16_t *)from)[at]);
}

INLINE void set(const inputs *in, int64_t at, float x) {
    if (in->kind == FLOAT32) ((float *)in->out)[at] = x;
    else ((uint16_t *)in->out)[at] = narrowed(x);
}

/* LANES numbers side by side. */
INLINE vec numbers(const void *from, int32_t kind, int64_t at) {
    if (kind == FLOAT32) return load((const float *)from + at);
    typedef uint16_t narrow __attribute__((vector_size(2 * LANES)));
    narrow in;
    memcpy(&in, (const uint16_t *)from + at, sizeof in);
    return (vec)(__builtin_convertvector(in, ivec) << 16);
}

INLINE void set_numbers(const inputs *in, int64_t at, vec x) {
    if (in->kind == FLOAT32) store((float *)in->out + at, x);
    else
        for (int i = 0; i < LANES; i++) ((uint16_t *)in->out)[at + i] = narrowed(x[i]);
}

INLINE int64_t bytes(int32_t kind) { return kind == FLOAT32 ? 4 : 2; }

/* Stored rows as a tile of float32: where they stand if they stand side by side, else copied. For few queries a copy
   is faster: it reads in order and at once. */
static const float *rows_of(const char *stored, int32_t kind, const int64_t *slots, int64_t count, int64_t width,
                            int copied, float *copy) {
    for (int64_t n = 0, end; n < count; n = end) {
        for (end = n + 1; end < count && slots[end] == slots[end - 1] + 1; end++) {}
        const int64_t size = (end - n) * width;
        if (kind == FLOAT32) {
            const float *from = (const float *)stored + slots[n] * width;
            if (size == count * width && !copied) return from;
            memcpy(copy + n * width, from, size * sizeof(float));
        } else {
            const uint16_t *from = (const uint16_t *)stored + slots[n] * width;
            for (int64_t i = 0; i < size; i++) copy[n * width + i] = widened(from[i]);
        }
    }
    return copy;
}

#if PAIRS
/* Stored rows of bfloat16 as they are, side by side. */
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

/* New rows [new_tokens] of one head go to their slots. */
static void keep(const inputs *in, void *stored, const void *from, int64_t apart, int64_t width) {
    const int64_t size = bytes(in->kind);
    for (int64_t t = 0; t < in->new_tokens; t++)
        memcpy((char *)stored + in->new_slots[t] * width * size, (const char *)from + t * apart * size, width * size);
}

/* Asks for stored rows ahead of their use. */
static void fetch(const char *stored, const int64_t *slots, int64_t count, int64_t size) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(stored + slots[n] * size + at, 0, 2);
}

/* Where this thread's numbers begin, of memory that has so many for each. */
INLINE float *part_of_thread(float *memory, int64_t each) {
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
} scratch;

/* Some queries of a block: lane i is head i % group, of those that share a head of keys, of token i / group. */
typedef struct {
    const block *of;
    int64_t first, lanes;
    int vectors;
    const char *keys, *values;   /* of their head */
    int64_t token[LINE];         /* of each lane, packed */
    int64_t head[LINE];
    int64_t from[LINE / LANES];  /* the token of each vector's first lane, in the block */
    ivec bit[LINE / LANES];      /* and of each lane, counted from there, its bit */
    vec top[LINE / LANES], total[LINE / LANES];  /* the highest score so far, and the sum of weights relative to it */
} part;

/* The part from the block's query `first` on. */
static void begin(const inputs *in, part *p, const block *b, int64_t key_head, int64_t first) {
    const int64_t size = bytes(in->kind), lanes = b->tokens * in->group - first;
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
        p->top[v] = all(LOWEST), p->total[v] = all(0);
    }
}

/* [width][line], scaled; idle lanes are zero. */
static void take_queries(const inputs *in, const part *p, float scale, float *query) {
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
                rows[i] = all(0);
                if (at[i] >= 0) rows[i] = numbers(in->query, in->kind, at[i] + d) * scale;
            }
            transpose(rows);
            for (int i = 0; i < LANES; i++) store(query + (d + i) * line + first, rows[i]);
        }
        for (int64_t d = whole; d < in->width; d++)
            for (int i = 0; i < LANES; i++)
                query[d * line + first + i] = at[i] < 0 ? 0.0f : number(in->query, in->kind, at[i] + d) * scale;
    }
}

#if PAIRS
/* [width / 2][line] pairs of bfloat16 as they are; idle lanes are zero. Shuffles care for bits alone. */
static void take_pairs(const inputs *in, const part *p, uint32_t *query) {
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
                turned[i] = all(0);
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

static void cap(float *scores, int64_t count, int64_t line, float softcap) {
    for (int64_t at = 0; at < count * line; at += LANES)
        store(scores + at, hyperbolic_tangent(load(scores + at)) * softcap);
}

static void hide(const part *p, float *scores, int64_t count, const uint64_t *masks) {
    for (int64_t n = 0; n < count; n++)
        for (int v = 0; v < p->vectors; v++, scores += LANES) {
            const ivec seen = (p->bit[v] & (int32_t)(masks[n] >> p->from[v])) != 0;
            store(scores, pick(seen, load(scores), all(-INFINITY)));
        }
}

/* Scores to weights, relative to the highest score so far; what was summed before is made relative to it too. */
static void weigh(part *p, const scratch *s, int64_t count, int64_t value_width) {
    const int64_t line = p->vectors * LANES;
    for (int v = 0; v < p->vectors; v++) {
        float *weights = s->weights + v * LANES, *out = s->out + v * LANES;
        vec top = p->top[v], sum = all(0);
        for (int64_t n = 0; n < count; n++) top = larger(top, load(weights + n * line));
        for (int64_t n = 0; n < count; n++) {
            const vec weight = power_of_two(load(weights + n * line) - top);
            store(weights + n * line, weight);
            sum += weight;
        }
        const vec shrunk = power_of_two(p->top[v] - top);
        for (int64_t d = 0; d < value_width; d++) store(out + d * line, load(out + d * line) * shrunk);
        p->total[v] = p->total[v] * shrunk + sum;
        p->top[v] = top;
    }
}

/* What scores are multiplied with: they are powers of two then, or parts of the cap. */
INLINE float factor(const inputs *in) { return in->softcap ? in->scale / in->softcap : in->scale * LOG2E; }

/* Whether rows are pairs of bfloat16, each where a pair may lie. */
INLINE int in_pairs(const inputs *in) {
    return PAIRS && in->kind == BFLOAT16 && in->width % 2 == 0 && in->query_head % 2 == 0 && in->query_token % 2 == 0;
}

/* Attends to a list of keys; masks may be none. */
static void read_keys(const inputs *in, part *p, const scratch *s, const int64_t *slots, int64_t keys,
                      const uint64_t *masks) {
    const int64_t width = in->width, value_width = in->value_width, size = bytes(in->kind);
    const int few = p->vectors == 1;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        if (!p->first) fetch(p->keys, slots + count, next, width * size);
#if PAIRS
        if (in_pairs(in))
            scored_in_pairs(s->weights, pairs_of(p->keys, slots, count, width, s->keys), (const uint32_t *)s->query,
                            count, width / 2, p->vectors, factor(in));
        else
#endif
            scored(s->weights, rows_of(p->keys, in->kind, slots, count, width, few, s->keys), s->query, count, width,
                   p->vectors);
        if (in->softcap) cap(s->weights, count, p->vectors * LANES, in->softcap * LOG2E);
        if (masks) hide(p, s->weights, count, masks + start);
        weigh(p, s, count, value_width);
        if (!p->first) fetch(p->values, slots + count, next, value_width * size);
        gather(s->out, rows_of(p->values, in->kind, slots, count, value_width, few, s->values), s->weights, count,
               value_width, p->vectors);
    }
}

static void give_sum(const inputs *in, const part *p, int64_t lane, float top, float total) {
    if (in->sums) in->sums[p->head[lane] * in->tokens + p->token[lane]] = top + log2f(total);
}

/* -- forward, of few queries --------------------------------------------------------------------------------------- */

/* Half a vector of queries or fewer: they are rows of their own here, and on the lanes lie a head's width and keys.
   Without this a step whose branches share nothing would take half as long again, and longer than PyTorch's. */
#define FEW (LANES / 2)

/* The sum of each of LANES vectors. */
INLINE vec sums(const vec *a) {
#if LANES == 8
    vec pairs[4], fours[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        pairs[i] = JOINED(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                   JOINED(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        fours[i] = JOINED(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                   JOINED(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return JOINED(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           JOINED(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    vec pairs[2];
    for (int i = 0; i < 2; i++)
        pairs[i] = JOINED(a[2 * i], a[2 * i + 1], 0, 4, 2, 6) + JOINED(a[2 * i], a[2 * i + 1], 1, 5, 3, 7);
    return JOINED(pairs[0], pairs[1], 0, 1, 4, 5) + JOINED(pairs[0], pairs[1], 2, 3, 6, 7);
#endif
}

/* Scores [KEYS] of one query; keys [count rounded up to LANES][width]. */
static void scored_alone(float *scores, const float *keys, const float *query, int64_t count, int64_t width) {
    for (int64_t n = 0; n < count; n += LANES) {
        vec sum[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) sum[i] = all(0);
        for (int64_t d = 0; d < width; d += LANES) {
            const vec q = load(query + d);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) sum[i] += load(keys + (n + i) * width + d) * q;
        }
        store(scores + n, sums(sum));
    }
}

/* As `weigh`, for one query: scores [count rounded up to LANES], those beyond count being hidden. */
static void weigh_alone(float *scores, float *out, float *top, float *total, int64_t count, int64_t value_width) {
    vec higher = all(*top), sum = all(0);
    float highest = *top, added = 0;
    for (int64_t n = 0; n < count; n += LANES) higher = larger(higher, load(scores + n));
    for (int i = 0; i < LANES; i++) highest = higher[i] > highest ? higher[i] : highest;
    for (int64_t n = 0; n < count; n += LANES) {
        const vec weight = power_of_two(load(scores + n) - highest);
        store(scores + n, weight);
        sum += weight;
    }
    for (int i = 0; i < LANES; i++) added += sum[i];
    const vec shrunk = power_of_two(all(*top - highest));
    for (int64_t d = 0; d < value_width; d += LANES) store(out + d, load(out + d) * shrunk);
    *total = *total * shrunk[0] + added;
    *top = highest;
}

static void read_keys_few(const inputs *in, const part *p, const scratch *s, const int64_t *slots, int64_t keys,
                          const uint64_t *masks, float *top, float *total) {
    const int64_t width = in->width, value_width = in->value_width, size = bytes(in->kind);
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        const int64_t whole = (count + LANES - 1) / LANES * LANES;
        const float *rows = rows_of(p->keys, in->kind, slots, count, width, whole > count, s->keys);
        for (int64_t lane = 0; lane < p->lanes; lane++) {
            float *scores = s->weights + lane * KEYS;
            const int64_t from = next * lane / p->lanes, many = next * (lane + 1) / p->lanes - from;
            fetch(p->keys, slots + count + from, many, width * size);  /* a part at a time, while others are used */
            scored_alone(scores, rows, s->query + lane * width, count, width);
            if (in->softcap) cap(scores, 1, whole, in->softcap * LOG2E);
            for (int64_t n = count; n < whole; n++) scores[n] = -INFINITY;
            for (int64_t n = 0; masks && n < count; n++)
                if (!(masks[start + n] >> (p->token[lane] - p->of->token) & 1)) scores[n] = -INFINITY;
            fetch(p->values, slots + count + from, many, value_width * size);
            weigh_alone(scores, s->out + lane * value_width, top + lane, total + lane, count, value_width);
        }
        rows = rows_of(p->values, in->kind, slots, count, value_width, 0, s->values);
        product(s->out, value_width, s->weights, KEYS, 1, rows, value_width, p->lanes, count, value_width / LANES, 1);
    }
}

/* [value_width][line] to its places, over the sums of weights. */
static void give_out(const inputs *in, const part *p, const float *out) {
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES;
    const int64_t whole = in->value_width / LANES * LANES;
    for (int64_t first = 0; first < p->lanes; first += LANES) {
        const vec top = p->top[first / LANES], total = p->total[first / LANES];
        const int64_t busy = p->lanes - first < LANES ? p->lanes - first : LANES;
        int64_t at[LANES];
        for (int i = 0; i < busy; i++) {
            at[i] = (p->token[first + i] * heads + p->head[first + i]) * in->value_width;
            give_sum(in, p, first + i, top[i], total[i]);
        }
        for (int64_t d = 0; d < whole; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = load(out + (d + i) * line + first) / total;
            transpose(rows);
            for (int i = 0; i < busy; i++) set_numbers(in, at[i] + d, rows[i]);
        }
        for (int64_t d = whole; d < in->value_width; d++)
            for (int i = 0; i < busy; i++) set(in, at[i] + d, out[d * line + first + i] / total[i]);
    }
}

static void attend_few(const inputs *in, const block *b, int64_t key_head, const scratch *s) {
    const int64_t width = in->width, value_width = in->value_width, heads = in->key_heads * in->group;
    const float scale = factor(in);
    float top[FEW], total[FEW] = {0};
    part p;
    begin(in, &p, b, key_head, 0);
    for (int64_t lane = 0; lane < p.lanes; lane++) {
        const int64_t at = p.head[lane] * in->query_head + p.token[lane] * in->query_token;
        for (int64_t d = 0; d < width; d++) s->query[lane * width + d] = number(in->query, in->kind, at + d) * scale;
        top[lane] = LOWEST;
    }
    memset(s->out, 0, p.lanes * value_width * sizeof(float));
    read_keys_few(in, &p, s, in->shared_slots + b->shared, b->shares, NULL, top, total);
    read_keys_few(in, &p, s, in->own_slots + b->own, b->owns, in->masks + b->own, top, total);
    for (int64_t lane = 0; lane < p.lanes; lane++) {
        give_sum(in, &p, lane, top[lane], total[lane]);
        const int64_t at = (p.token[lane] * heads + p.head[lane]) * value_width;
        for (int64_t d = 0; d < value_width; d++) set(in, at + d, s->out[lane * value_width + d] / total[lane]);
    }
}

/* The queries of a block, of all heads that share one head of keys. */
static void attend_block(const inputs *in, const block *b, int64_t key_head, const scratch *s) {
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        begin(in, &p, b, key_head, first);
#if PAIRS
        if (in_pairs(in)) take_pairs(in, &p, (uint32_t *)s->query);
        else
#endif
            take_queries(in, &p, factor(in), s->query);
        memset(s->out, 0, in->value_width * p.vectors * LANES * sizeof(float));
        read_keys(in, &p, s, in->shared_slots + b->shared, b->shares, NULL);
        read_keys(in, &p, s, in->own_slots + b->own, b->owns, in->masks + b->own);
        give_out(in, &p, s->out);
    }
}

/* Nonzero: no memory. */
int attend(const inputs *in) {
    const int64_t each = (LINE + KEYS) * (in->width + in->value_width) + LINE * KEYS;
    const int whole = in->width % LANES == 0 && in->value_width % LANES == 0;  /* a row is whole vectors */
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = part_of_thread(memory, each);
        if (in->new_slots) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < 2 * in->key_heads; i++) {
                const int64_t head = i / 2, size = bytes(in->kind);
                if (i % 2)
                    keep(in, (char *)in->values + head * in->stored * in->value_width * size,
                         (const char *)in->new_values + head * in->new_value_head * size, in->new_value_token,
                         in->value_width);
                else
                    keep(in, (char *)in->keys + head * in->stored * in->width * size,
                         (const char *)in->new_keys + head * in->new_key_head * size, in->new_key_token, in->width);
            }
        }
        scratch s;
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

/* In float32. Blocks of different trees see no key in common, so a task is a tree and a head of keys: it adds up the
   gradients of its keys alone, block by block. */
typedef struct {
    inputs in;              /* of the forward pass, and what came out */
    const float *out;       /* the gradient of what came out [tokens, heads, value_width] */
    float *query;           /* and what is asked for: [tokens, heads, width] */
    float *keys, *values;   /* [stored, key_heads, ...], zeros at first */
    const int64_t *trees;  /* [forest + 1] the first block of each, and the number of blocks */
    int64_t forest;
} gradients;

typedef struct {
    float *query, *query_rows;  /* [width][line] for scores, [LINE][padded width] for the gradients of keys */
    float *out, *out_rows;      /* the gradient of what came out */
    float *back;                /* [width][line]: the query's */
    float *weights, *changes, *slopes;  /* [KEYS][line]: weights, the gradients of scores, and of the cap */
    float *keys, *values, *key_back, *value_back;  /* [KEYS][...] */
    float sum[LINE], delta[LINE];
} workings;

INLINE int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* Lanes and rows of the queries and of the gradients of what they gave; idle ones are zero. */
static void take_part(const gradients *g, const part *p, workings *w) {
    const inputs *in = &g->in;
    const int64_t width = in->width, value_width = in->value_width, heads = in->key_heads * in->group;
    const int64_t line = p->vectors * LANES;
    take_queries(in, p, factor(in), w->query);
    memset(w->back, 0, width * line * sizeof(float));
    for (int64_t lane = 0; lane < line; lane++) {
        const int64_t from = p->head[lane] * in->query_head + p->token[lane] * in->query_token;
        const int64_t at = (p->token[lane] * heads + p->head[lane]) * value_width;
        float *query = w->query_rows + lane * padded(width), *out = w->out_rows + lane * padded(value_width);
        const int busy = lane < p->lanes;
        float delta = 0;
        memset(query, 0, padded(width) * sizeof(float));
        memset(out, 0, padded(value_width) * sizeof(float));
        if (busy) {
            const float *asked = (const float *)in->query + from, *given = g->out + at, *gave = (const float *)in->out + at;
            for (int64_t d = 0; d < width; d++) query[d] = asked[d] * in->scale;
            for (int64_t d = 0; d < value_width; d++) out[d] = given[d], delta += given[d] * gave[d];
        }
        for (int64_t d = 0; d < value_width; d++) w->out[d * line + lane] = out[d];
        w->sum[lane] = busy ? in->sums[p->head[lane] * in->tokens + p->token[lane]] : 0.0f;
        w->delta[lane] = delta;
    }
}

/* Scores to weights, and the gradients of weights to those of scores. */
static void turn(const inputs *in, const part *p, const workings *w, int64_t count) {
    const int64_t line = p->vectors * LANES;
    for (int64_t n = 0; n < count; n++)
        for (int v = 0; v < p->vectors; v++) {
            const int64_t at = n * line + v * LANES;
            const vec score = load(w->weights + at) - load(w->sum + v * LANES);
            const vec weight = power_of_two(score);
            vec change = weight * (load(w->changes + at) - load(w->delta + v * LANES));
            if (in->softcap) change *= load(w->slopes + at);
            store(w->weights + at, weight);
            store(w->changes + at, change);
        }
}

/* The slope of the cap, of scores that were capped. */
static void slope(const float *capped, float *slopes, int64_t count, float softcap) {
    for (int64_t at = 0; at < count; at += LANES) {
        const vec x = load(capped + at) / softcap;
        store(slopes + at, 1.0f - x * x);
    }
}

static void add_rows(float *to, const int64_t *slots, int64_t apart, const float *rows, int64_t count, int64_t width) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t d = 0; d < width; d++) to[slots[n] * apart + d] += rows[n * padded(width) + d];
}

static void go_back(const gradients *g, const part *p, int64_t key_head, workings *w, const int64_t *slots,
                    int64_t keys, const uint64_t *masks) {
    const inputs *in = &g->in;
    const int64_t width = in->width, value_width = in->value_width, line = p->vectors * LANES;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const float *key = rows_of(p->keys, in->kind, slots, count, width, 0, w->keys);
        const float *value = rows_of(p->values, in->kind, slots, count, value_width, 0, w->values);
        scored(w->weights, key, w->query, count, width, p->vectors);
        if (in->softcap) {
            cap(w->weights, count, line, in->softcap * LOG2E);
            slope(w->weights, w->slopes, count * line, in->softcap * LOG2E);
        }
        if (masks) hide(p, w->weights, count, masks + start);
        scored(w->changes, value, w->out, count, value_width, p->vectors);
        turn(in, p, w, count);
        gather(w->back, key, w->changes, count, width, p->vectors);
        product(w->key_back, padded(width), w->changes, line, 1, w->query_rows, padded(width), count, p->lanes,
                padded(width) / LANES, 0);
        product(w->value_back, padded(value_width), w->weights, line, 1, w->out_rows, padded(value_width), count,
                p->lanes, padded(value_width) / LANES, 0);
        add_rows(g->keys + key_head * width, slots, in->key_heads * width, w->key_back, count, width);
        add_rows(g->values + key_head * value_width, slots, in->key_heads * value_width, w->value_back, count,
                 value_width);
    }
}

static void return_block(const gradients *g, const block *b, int64_t key_head, workings *w) {
    const inputs *in = &g->in;
    const int64_t width = in->width, heads = in->key_heads * in->group;
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        begin(in, &p, b, key_head, first);
        take_part(g, &p, w);
        go_back(g, &p, key_head, w, in->shared_slots + b->shared, b->shares, NULL);
        go_back(g, &p, key_head, w, in->own_slots + b->own, b->owns, in->masks + b->own);
        for (int64_t lane = 0; lane < p.lanes; lane++)
            for (int64_t d = 0; d < width; d++)
                g->query[(p.token[lane] * heads + p.head[lane]) * width + d] =
                    w->back[d * p.vectors * LANES + lane] * in->scale;
    }
}

/* Nonzero: no memory. */
int attend_back(const gradients *g) {
    const inputs *in = &g->in;
    const int64_t width = padded(in->width), value_width = padded(in->value_width);
    const int64_t each = LINE * (3 * width + 2 * value_width) + 3 * KEYS * LINE + 2 * KEYS * (width + value_width);
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = part_of_thread(memory, each);
        workings w;
        w.query = own, own += LINE * width;
        w.query_rows = own, own += LINE * width;
        w.back = own, own += LINE * width;
        w.out = own, own += LINE * value_width;
        w.out_rows = own, own += LINE * value_width;
        w.weights = own, own += KEYS * LINE;
        w.changes = own, own += KEYS * LINE;
        w.slopes = own, own += KEYS * LINE;
        w.keys = own, own += KEYS * width;
        w.key_back = own, own += KEYS * width;
        w.values = own, own += KEYS * value_width;
        w.value_back = own;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < g->forest * in->key_heads; task++) {
            const int64_t tree = task / in->key_heads;
            for (int64_t b = g->trees[tree]; b < g->trees[tree + 1]; b++)
                return_block(g, in->blocks + b, task % in->key_heads, &w);
        }
    }
    free(memory);
    return 0;
}
