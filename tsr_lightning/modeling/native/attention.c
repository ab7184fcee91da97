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

#include "rows.h"

/* -- products ------------------------------------------------------------------------------------------------------ */

#define VEC vec
#define NAME(of) of
#include "tile.h"
#ifdef __AVX512F__
typedef float wide __attribute__((vector_size(8 * LANES), may_alias));
#define VEC wide
#define NAME(of) wide_##of
#include "tile.h"
#endif

/* C[rows][vectors] (+)= A[rows][inner] * B[inner][vectors], where A has strides `row` and `step`. Vectors go in pairs
   where registers hold two, with the same results. */
INLINE void product(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                    int64_t rows, int64_t inner, int64_t vectors, const int add) {
#ifdef __AVX512F__
    const int64_t paired = vectors / 2 * 2 * LANES;
    wide_strips(c, ldc, a, row, step, b, ldb, rows, inner, vectors / 2, add);
    c += paired, b += paired, vectors %= 2;
#endif
    strips(c, ldc, a, row, step, b, ldb, rows, inner, vectors, add);
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

/* -- inputs -------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t token, tokens;         /* the first packed query, and how many: at most 64 */
    int64_t shared, shared_count;  /* keys that all of them see: the first in shared_slots, and how many */
    int64_t own, own_count;        /* further keys: the first in own_slots and in masks, and how many */
} block;

typedef struct {
    inputs in;
    float *log_sums;      /* [heads, tokens], log2 of the sum of 2^score, or NULL */
    const block *blocks;  /* [count] */
    const int64_t *shared_slots, *own_slots;
    const uint64_t *masks;  /* beside own_slots; bit t is set where token t of the block sees the key */
    int64_t count;
} packed;

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

/* Attends to a list of keys; masks may be NULL. */
static void attend_keys(const inputs *in, part *p, const forward_scratch *s, const int64_t *slots, int64_t keys,
                        const uint64_t *masks) {
    const int64_t width = in->width, value_width = in->value_width, size = bytes_per_number(in->dtype);
    const int few = p->vectors == 1;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        if (!p->first) prefetch(p->keys, slots + count, next, width * size);
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

/* Divides [value_width][line] by the sums of weights, and writes it to the output. */
static void write_out(const packed *a, const part *p, const float *out) {
    const inputs *in = &a->in;
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES;
    const int64_t whole = in->value_width / LANES * LANES;
    for (int64_t first = 0; first < p->lanes; first += LANES) {
        const vec top = p->top[first / LANES], total = p->total[first / LANES];
        const int64_t busy = p->lanes - first < LANES ? p->lanes - first : LANES;
        int64_t at[LANES];
        for (int i = 0; i < busy; i++) {
            at[i] = (p->token[first + i] * heads + p->head[first + i]) * in->value_width;
            if (a->log_sums)
                a->log_sums[p->head[first + i] * in->tokens + p->token[first + i]] = top[i] + log2f(total[i]);
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

/* The queries of a block, of all query heads of a key head. */
static void attend_block(const packed *a, const block *b, int64_t key_head, const forward_scratch *s) {
    const inputs *in = &a->in;
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        init_part(in, &p, b, key_head, first);
        load_queries(in, &p, score_scale(in), s->query);
        memset(s->out, 0, in->value_width * p.vectors * LANES * sizeof(float));
        attend_keys(in, &p, s, a->shared_slots + b->shared, b->shared_count, NULL);
        attend_keys(in, &p, s, a->own_slots + b->own, b->own_count, a->masks + b->own);
        write_out(a, &p, s->out);
    }
}

/* Nonzero if there is no memory. */
int attend(const packed *a) {
    const inputs *in = &a->in;
    const int64_t each = (LINE + KEYS) * (in->width + in->value_width) + LINE * KEYS;
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = thread_scratch(memory, each);
        forward_scratch s;
        s.query = own, own += in->width * LINE;
        s.out = own, own += in->value_width * LINE;
        s.weights = own, own += KEYS * LINE;
        s.keys = own, own += KEYS * in->width;
        s.values = own;
        store_all_new(in);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < a->count * in->key_heads; task++)
            attend_block(a, a->blocks + task / in->key_heads, task % in->key_heads, &s);
    }
    free(memory);
    return 0;
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

/* Computed in float32, from inputs of either type. Blocks of different trees see no key in common. A task is a tree and a key head: it alone adds up the
   gradients of its keys, block by block, in one order. */
typedef struct {
    packed of;             /* the forward pass, and its output */
    const void *out;       /* [tokens, heads, value_width] the output's gradient */
    float *query;          /* results, in float32: [tokens, heads, width] */
    float *keys, *values;  /* results: [stored, key_heads, ...], zeros at first */
    const int64_t *trees;  /* [tree_count + 1] the first block of each, and the number of blocks */
    int64_t tree_count;
} gradients;

typedef struct {
    float *query, *query_rows;  /* [width][line] for scores, [LINE][padded width] for the gradients of keys */
    float *out, *out_rows;      /* the output's gradient */
    float *result_rows;         /* the output */
    float *query_gradient;      /* [width][line]: the query's gradient */
    float *weights, *changes, *slopes;  /* [KEYS][line]: weights, gradients of scores, slopes of the softcap */
    float *keys, *values, *key_gradient, *value_gradient;  /* [KEYS][...] */
    float sum[LINE], delta[LINE];
} backward_scratch;

INLINE int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* A row of float32 with zeros up to whole vectors; all zeros if `at` is negative. */
INLINE void load_row(const void *from, int32_t dtype, int64_t at, int64_t width, float scale, float *row) {
    const int64_t whole = at < 0 ? 0 : width / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) store(row + d, load_lanes(from, dtype, at + d) * scale);
    for (int64_t d = whole; d < padded(width); d++)
        row[d] = at < 0 || d >= width ? 0.0f : load_number(from, dtype, at + d) * scale;
}

/* Queries and the output's gradient, in both directions; log-sums; and each lane's product of output and gradient. */
static void load_part(const gradients *g, const part *p, backward_scratch *w) {
    const inputs *in = &g->of.in;
    const int64_t width = padded(in->width), value_width = padded(in->value_width);
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES;
    load_queries(in, p, score_scale(in), w->query);
    memset(w->query_gradient, 0, width * line * sizeof(float));
    for (int64_t lane = 0; lane < line; lane++) {
        const int busy = lane < p->lanes;
        const int64_t from = busy ? p->head[lane] * in->query_head + p->token[lane] * in->query_token : -1;
        const int64_t at = busy ? (p->token[lane] * heads + p->head[lane]) * in->value_width : -1;
        load_row(in->query, in->dtype, from, in->width, in->scale, w->query_rows + lane * width);
        load_row(g->out, in->dtype, at, in->value_width, 1, w->out_rows + lane * value_width);
        load_row(in->out, in->dtype, at, in->value_width, 1, w->result_rows + lane * value_width);
        w->sum[lane] = busy ? g->of.log_sums[p->head[lane] * in->tokens + p->token[lane]] : 0.0f;
    }
    for (int64_t first = 0; first < line; first += LANES) {
        vec delta = broadcast(0);
        for (int64_t d = 0; d < value_width; d += LANES) {
            vec out[LANES], result[LANES];
            for (int i = 0; i < LANES; i++) {
                out[i] = load(w->out_rows + (first + i) * value_width + d);
                result[i] = load(w->result_rows + (first + i) * value_width + d);
            }
            transpose(out), transpose(result);
            for (int i = 0; i < LANES; i++) {
                vec product = out[i] * result[i];
                HOLD(product);  /* rounded before it is added */
                store(w->out + (d + i) * line + first, out[i]);
                delta += product;
            }
        }
        store(w->delta + first, delta);
    }
}

static void store_query_gradients(const gradients *g, const part *p, const backward_scratch *w) {
    const inputs *in = &g->of.in;
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES;
    for (int64_t first = 0; first < p->lanes; first += LANES)
        for (int64_t d = 0; d < in->width; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = load(w->query_gradient + (d + i) * line + first) * in->scale;
            transpose(rows);
            for (int64_t i = first; i < first + LANES && i < p->lanes; i++) {
                float *to = g->query + (p->token[i] * heads + p->head[i]) * in->width + d;
                if (d + LANES <= in->width) store(to, rows[i - first]);
                else memcpy(to, &rows[i - first], (in->width - d) * sizeof(float));
            }
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
    const inputs *in = &g->of.in;
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
    const inputs *in = &g->of.in;
    for (int64_t first = 0; first < b->tokens * in->group; first += LINE) {
        part p;
        init_part(in, &p, b, key_head, first);
        load_part(g, &p, w);
        backward_keys(g, &p, key_head, w, g->of.shared_slots + b->shared, b->shared_count, NULL);
        backward_keys(g, &p, key_head, w, g->of.own_slots + b->own, b->own_count, g->of.masks + b->own);
        store_query_gradients(g, &p, w);
    }
}

/* Nonzero if there is no memory. */
int attend_backward(const gradients *g) {
    const inputs *in = &g->of.in;
    const int64_t width = padded(in->width), value_width = padded(in->value_width);
    const int64_t each = LINE * (3 * width + 3 * value_width) + 3 * KEYS * LINE + 2 * KEYS * (width + value_width);
    float *memory = aligned_alloc(64, in->threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        const unsigned mode = flush_subnormals();
        float *own = thread_scratch(memory, each);
        backward_scratch w;
        w.query = own, own += LINE * width;
        w.query_rows = own, own += LINE * width;
        w.query_gradient = own, own += LINE * width;
        w.out = own, own += LINE * value_width;
        w.out_rows = own, own += LINE * value_width;
        w.result_rows = own, own += LINE * value_width;
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
                backward_block(g, g->of.blocks + b, task % in->key_heads, &w);
        }
        restore_mode(mode);
    }
    free(memory);
    return 0;
}
