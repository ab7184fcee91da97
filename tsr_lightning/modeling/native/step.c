/* Attention of a decode step: one query of each of many branches, over keys that are a tree. Knows no Python and no
   PyTorch.

   Branches lie in an order in which those that share keys are side by side, on the places of blocks. A run is keys in
   a row and the places that see all of them: a prompt's beginning that many prompts have in common, its rest, the
   tokens of one branch. Each is read once per block, and no score is computed that nobody needs.

   Many queries of a run are the lanes of vectors, and a key's numbers are broadcast. For few, lanes are a head's width,
   since idle ones would be wasted. A query has a sum of either kind, and in the end both are one softmax (as the parts
   of FlashDecoding are, arXiv 2205.14135, section 3.1). A task is a block and a key head; the results do not depend on
   the number of threads. */

#include <math.h>
#include <string.h>

#include "rows.h"

#define FEW 3  /* queries of a run, at most, that are computed one by one; measured */

/* Vectors of a product side by side: as many as leave registers for what they are multiplied with. */
#ifdef __AVX512VL__
#define ABREAST 4
#else
#define ABREAST 3
#endif

typedef struct {
    int64_t place, places;  /* the first in `places`, and how many: at most 64 */
    int64_t run, runs;      /* the first in `runs`, and how many */
} block;

typedef struct {
    int64_t from, to;     /* the block's places that see the keys */
    int64_t slot, count;  /* the first in `slots`, and how many */
} run;

typedef struct {
    inputs in;
    const block *blocks;        /* [count] */
    const int64_t *places;      /* the packed token on each, or -1 */
    const run *runs;
    const int64_t *slots;
    const int64_t *own_firsts;  /* [places + 1] where the slots begin that one place alone sees, in own_slots */
    const int64_t *own_slots;
    int64_t count;
} step;

typedef struct {
    float *query, *query_rows;  /* [width][line], [lane][width] */
    float *out, *out_rows;      /* [value_width][line], [lane][value_width] */
    float *weights;             /* [KEYS][vectors] */
    float *keys, *values;       /* [KEYS][width], [KEYS][value_width] of float32 */
} scratch;

/* Some queries of a block: lane i is query head i % group of place i / group. */
typedef struct {
    int64_t first, lanes;
    int vectors;
    const char *keys, *values;                   /* of the key head */
    int64_t token[LINE], head[LINE];             /* of each lane; the token is -1 on an idle one */
    vec top[LINE / LANES], total[LINE / LANES];  /* the highest score so far, and the sum of weights relative to it */
    float top_few[LINE], total_few[LINE];        /* those of keys that few queries see */
} part;

/* -- many queries -------------------------------------------------------------------------------------------------- */

/* Scores [rows][vectors] of keys that begin at `at` times queries [width][line]. */
INLINE void score_tile(float *scores, const float *keys, const int64_t *at, const float *query, int64_t line,
                       int64_t width, const int rows, const int vectors) {
    vec sum[8][4];
    const float *key[8];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        key[r] = keys + at[r];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = broadcast(0);
    }
    for (int64_t d = 0; d < width; d++) {
        vec lanes[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            lanes[v] = load(query + d * line + v * LANES);
            HOLD(lanes[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] += key[r][d] * lanes[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(scores + (r * vectors + v) * LANES, sum[r][v]);
}

/* Output [rows][line] += values, of which `rows` numbers of each begin at `at`, times weights [count][vectors]. */
INLINE void value_tile(float *out, int64_t line, const float *values, const int64_t *at, const float *weights,
                       int64_t count, const int rows, const int vectors) {
    vec sum[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = load(out + r * line + v * LANES);
    for (int64_t n = 0; n < count; n++) {
        const float *value = values + at[n];
        HOLD_ADDRESS(value);
        vec lanes[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            lanes[v] = load(weights + (n * vectors + v) * LANES);
            HOLD(lanes[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] += value[r] * lanes[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(out + r * line + v * LANES, sum[r][v]);
}

/* Scores to softmax weights relative to the highest score so far; earlier sums are rescaled to it. */
INLINE void update_softmax(vec *top_so_far, vec *total, float *scores, float *out, int64_t line, int64_t count,
                           int64_t value_width, const int vectors) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        float *weights = scores + v * LANES;
        vec top = top_so_far[v], sum = broadcast(0);
        for (int64_t n = 0; n < count; n++) top = max_lanes(top, load(weights + n * vectors * LANES));
        for (int64_t n = 0; n < count; n++) {
            const vec weight = exp2_lanes(load(weights + n * vectors * LANES) - top);
            store(weights + n * vectors * LANES, weight);
            sum += weight;
        }
        const vec shrunk = exp2_lanes(top_so_far[v] - top);
        for (int64_t d = 0; d < value_width; d++)
            store(out + d * line + v * LANES, load(out + d * line + v * LANES) * shrunk);
        total[v] = total[v] * shrunk + sum;
        top_so_far[v] = top;
    }
}

/* Rows that come next. */
typedef struct {
    const char *keys, *values;
    const int64_t *slots;
    int64_t count, key_size, value_size;
} rows_ahead;

INLINE void prefetch_few(const rows_ahead *ahead, int64_t from, int64_t count) {
    const int64_t left = ahead->count - from;
    if (left <= 0) return;
    if (count > left) count = left;
    prefetch(ahead->keys, ahead->slots + from, count, ahead->key_size);
    prefetch(ahead->values, ahead->slots + from, count, ahead->value_size);
}

/* A tile of keys for vectors side by side, from vector `first` on; keys and values begin at key_at and value_at, the
   former repeated to whole eights. Lanes outside of [from, to) do not see them. */
INLINE void attend_tile(const inputs *in, part *p, const scratch *s, int64_t first, int64_t from, int64_t to,
                        const float *keys, const int64_t *key_at, const float *values, const int64_t *value_at,
                        int64_t count, const rows_ahead *ahead, const int vectors) {
    const int rows = vectors == 1 ? 8 : 4;  /* enough independent sums, few enough for 16 or 32 registers */
    const int64_t line = p->vectors * LANES, width = in->width, value_width = in->value_width;
    const float *query = s->query + first * LANES;
    float *out = s->out + first * LANES;
    for (int64_t n = 0; n < count; n += rows) {
        prefetch_few(ahead, n, rows);
        score_tile(s->weights + n * vectors * LANES, keys, key_at + n, query, line, width, rows, vectors);
    }
    if (in->softcap) apply_softcap(s->weights, count, vectors * LANES, in->softcap * LOG2E);
    for (int v = 0; v < vectors; v++) {
        const int64_t lane = (first + v) * LANES;
        if (from <= lane && lane + LANES <= to) continue;
        ivec seen;
        for (int i = 0; i < LANES; i++) seen[i] = from <= lane + i && lane + i < to ? -1 : 0;
        for (int64_t n = 0; n < count; n++) {
            float *scores = s->weights + (n * vectors + v) * LANES;
            store(scores, select_lanes(seen, load(scores), broadcast(-INFINITY)));
        }
    }
    update_softmax(p->top + first, p->total + first, s->weights, out, line, count, value_width, vectors);
    int64_t d = 0;
    for (; d + rows <= value_width; d += rows)
        value_tile(out + d * line, line, values + d, value_at, s->weights, count, rows, vectors);
    for (; d < value_width; d++) value_tile(out + d * line, line, values + d, value_at, s->weights, count, 1, vectors);
}

/* The numbers of stored rows as float32, and where each row begins: in place, or copied from bfloat16. */
static const float *float_rows(const char *stored, int32_t dtype, const int64_t *slots, int64_t count, int64_t width,
                               float *copy, int64_t *at) {
    for (int64_t n = 0; n < count; n++) at[n] = (dtype == FLOAT32 ? slots[n] : n) * width;
    if (dtype == FLOAT32) return (const float *)stored;
    for (int64_t n = 0; n < count; n++) {
        const uint16_t *from = (const uint16_t *)stored + slots[n] * width;
        for (int64_t d = 0; d < width; d++) copy[n * width + d] = to_float(from[d]);
    }
    return copy;
}

/* Lanes [from, to) attend to keys. */
static void attend_many(const inputs *in, part *p, const scratch *s, int64_t from, int64_t to, const int64_t *slots,
                        int64_t keys) {
    const int64_t size = bytes_per_number(in->dtype), begin = from / LANES, end = (to + LANES - 1) / LANES;
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        int64_t key_at[KEYS], value_at[KEYS];
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        const float *key = float_rows(p->keys, in->dtype, slots, count, in->width, s->keys, key_at);
        const float *value = float_rows(p->values, in->dtype, slots, count, in->value_width, s->values, value_at);
        for (int64_t n = count; n % 8; n++) key_at[n] = key_at[count - 1];
        rows_ahead ahead = {p->keys, p->values, slots + count, next, in->width * size, in->value_width * size};
        for (int64_t first = begin, parts = (end - begin + ABREAST - 1) / ABREAST; parts > 0; parts--) {
            const int64_t now = (end - first + parts - 1) / parts;
            switch (now) {
                case 1: attend_tile(in, p, s, first, from, to, key, key_at, value, value_at, count, &ahead, 1); break;
                case 2: attend_tile(in, p, s, first, from, to, key, key_at, value, value_at, count, &ahead, 2); break;
#if ABREAST == 4
                case 4: attend_tile(in, p, s, first, from, to, key, key_at, value, value_at, count, &ahead, 4); break;
#endif
                default: attend_tile(in, p, s, first, from, to, key, key_at, value, value_at, count, &ahead, 3);
            }
            first += now, ahead.count = 0;
        }
    }
}

/* -- few queries --------------------------------------------------------------------------------------------------- */

/* Scores [count rounded up to LANES] of one query. */
INLINE void score_row(float *scores, const char *keys, const int32_t dtype, const int64_t *slots, int64_t count,
                      const float *query, int64_t width) {
    for (int64_t n = 0; n < count; n += LANES) {
        vec sum[LANES];
        int64_t at[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            sum[i] = broadcast(0);
            at[i] = slots[n + i < count ? n + i : count - 1] * width;
        }
        for (int64_t d = 0; d < width; d += LANES) {
            const vec q = load(query + d);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) sum[i] += load_lanes(keys, dtype, at[i] + d) * q;
        }
        store(scores + n, lane_sums(sum));
    }
}

/* Output [vectors] += values times weights [count]. */
INLINE void add_row(float *out, const char *values, const int32_t dtype, const int64_t *slots, int64_t apart,
                    const float *weights, int64_t count, const int vectors) {
    vec sum[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) sum[0][v] = load(out + v * LANES), sum[1][v] = broadcast(0);
    int64_t n = 0;
    for (; n + 2 <= count; n += 2)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[i][v] += weights[n + i] * load_lanes(values, dtype, slots[n + i] * apart + v * LANES);
    for (; n < count; n++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[0][v] += weights[n] * load_lanes(values, dtype, slots[n] * apart + v * LANES);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) store(out + v * LANES, sum[0][v] + sum[1][v]);
}

/* As `update_softmax`, for one query: scores [count rounded up to LANES], masked beyond count. */
static void update_softmax_row(float *scores, float *out, float *top, float *total, int64_t count,
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

INLINE void attend_row(const inputs *in, part *p, const scratch *s, int64_t lane, const int64_t *slots, int64_t count,
                       const int32_t dtype) {
    const int64_t value_width = in->value_width;
    float *scores = s->weights, *out = s->out_rows + lane * value_width;
    score_row(scores, p->keys, dtype, slots, count, s->query_rows + lane * in->width, in->width);
    if (in->softcap) apply_softcap(scores, 1, (count + LANES - 1) / LANES * LANES, in->softcap * LOG2E);
    for (int64_t n = count; n % LANES; n++) scores[n] = -INFINITY;
    update_softmax_row(scores, out, p->top_few + lane, p->total_few + lane, count, value_width);
    int64_t d = 0;
    for (; d + 4 * LANES <= value_width; d += 4 * LANES)
        add_row(out + d, p->values + d * bytes_per_number(dtype), dtype, slots, value_width, scores, count, 4);
    for (; d < value_width; d += LANES)
        add_row(out + d, p->values + d * bytes_per_number(dtype), dtype, slots, value_width, scores, count, 1);
}

/* Lanes [from, to) attend to keys, one by one. */
static void attend_few(const inputs *in, part *p, const scratch *s, int64_t from, int64_t to, const int64_t *slots,
                       int64_t keys) {
    const int64_t size = bytes_per_number(in->dtype);
    for (int64_t start = 0, count; start < keys; start += count, slots += count) {
        count = keys - start < KEYS ? keys - start : KEYS;
        const int64_t left = keys - start - count, next = left < KEYS ? left : KEYS;
        prefetch(p->keys, slots + count, next, in->width * size);
        prefetch(p->values, slots + count, next, in->value_width * size);
        for (int64_t lane = from; lane < to; lane++)
            if (in->dtype == FLOAT32) attend_row(in, p, s, lane, slots, count, FLOAT32);
            else attend_row(in, p, s, lane, slots, count, BFLOAT16);
    }
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

/* Scaled queries, as lanes and as rows; those of idle lanes are zeros. */
static void load_queries(const inputs *in, const part *p, const scratch *s) {
    const int64_t line = p->vectors * LANES, width = in->width, whole = width / LANES * LANES;
    const float scale = score_scale(in);
    for (int64_t first = 0; first < line; first += LANES) {
        int64_t at[LANES];
        for (int i = 0; i < LANES; i++)
            at[i] = p->token[first + i] < 0
                        ? -1
                        : p->head[first + i] * in->query_head + p->token[first + i] * in->query_token;
        for (int64_t d = 0; d < whole; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) {
                rows[i] = broadcast(0);
                if (at[i] >= 0) rows[i] = load_lanes(in->query, in->dtype, at[i] + d) * scale;
                store(s->query_rows + (first + i) * width + d, rows[i]);
            }
            transpose(rows);
            for (int i = 0; i < LANES; i++) store(s->query + (d + i) * line + first, rows[i]);
        }
        for (int64_t d = whole; d < width; d++)
            for (int i = 0; i < LANES; i++) {
                const float x = at[i] < 0 ? 0.0f : load_number(in->query, in->dtype, at[i] + d) * scale;
                s->query[d * line + first + i] = s->query_rows[(first + i) * width + d] = x;
            }
    }
}

/* The part that begins with the block's query `first`. */
static void load_part(const step *of, part *p, const block *b, int64_t key_head, int64_t first, const scratch *s) {
    const inputs *in = &of->in;
    const int64_t size = bytes_per_number(in->dtype), lanes = b->places * in->group - first;
    p->first = first, p->lanes = lanes < LINE ? lanes : LINE;
    p->vectors = (p->lanes + LANES - 1) / LANES;
    p->keys = (const char *)in->keys + key_head * in->stored * in->width * size;
    p->values = (const char *)in->values + key_head * in->stored * in->value_width * size;
    const int64_t line = p->vectors * LANES;
    for (int v = 0; v < p->vectors; v++) p->top[v] = broadcast(LOWEST), p->total[v] = broadcast(0);
    for (int64_t lane = 0; lane < line; lane++) {
        p->token[lane] = lane < p->lanes ? of->places[b->place + (first + lane) / in->group] : -1;
        p->head[lane] = key_head * in->group + (first + lane) % in->group;
        p->top_few[lane] = LOWEST, p->total_few[lane] = 0;
    }
    load_queries(in, p, s);
    memset(s->out, 0, line * in->value_width * sizeof(float));
    memset(s->out_rows, 0, line * in->value_width * sizeof(float));
}

/* Both sums of each query as one softmax. */
static void write_part(const inputs *in, const part *p, const scratch *s) {
    const int64_t heads = in->key_heads * in->group, line = p->vectors * LANES, value_width = in->value_width;
    const int64_t whole = value_width / LANES * LANES;
    for (int64_t first = 0; first < line; first += LANES) {
        const vec many = p->top[first / LANES], few = load(p->top_few + first), top = max_lanes(many, few);
        vec of_many = exp2_lanes(many - top), of_few = exp2_lanes(few - top);
        const vec total = of_many * p->total[first / LANES] + of_few * load(p->total_few + first);
        of_many /= total, of_few /= total;
        int64_t at[LANES];
        for (int i = 0; i < LANES; i++)
            at[i] = p->token[first + i] < 0 ? -1 : (p->token[first + i] * heads + p->head[first + i]) * value_width;
        for (int64_t d = 0; d < whole; d += LANES) {
            vec rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = load(s->out + (d + i) * line + first) * of_many;
            transpose(rows);
            for (int i = 0; i < LANES; i++)
                if (at[i] >= 0)
                    store_lanes(in, at[i] + d, rows[i] + of_few[i] * load(s->out_rows + (first + i) * value_width + d));
        }
        for (int64_t d = whole; d < value_width; d++)
            for (int i = 0; i < LANES; i++)
                if (at[i] >= 0)
                    store_number(in, at[i] + d,
                                 of_many[i] * s->out[d * line + first + i] +
                                     of_few[i] * s->out_rows[(first + i) * value_width + d]);
    }
}

/* Places [from, to) attend to keys. */
static void attend_run(const inputs *in, part *p, const scratch *s, int64_t from, int64_t to, const int64_t *slots,
                       int64_t keys) {
    const int whole = in->width % LANES == 0 && in->value_width % LANES == 0;  /* rows are whole vectors */
    int64_t begin = from * in->group - p->first, end = to * in->group - p->first;
    if (begin < 0) begin = 0;
    if (end > p->lanes) end = p->lanes;
    if (begin < end) (whole && end - begin <= FEW ? attend_few : attend_many)(in, p, s, begin, end, slots, keys);
}

static void attend_block(const step *of, const block *b, int64_t key_head, const scratch *s) {
    const inputs *in = &of->in;
    for (int64_t first = 0; first < b->places * in->group; first += LINE) {
        part p;
        load_part(of, &p, b, key_head, first, s);
        for (const run *r = of->runs + b->run; r < of->runs + b->run + b->runs; r++)
            attend_run(in, &p, s, r->from, r->to, of->slots + r->slot, r->count);
        for (int64_t i = 0; i < b->places; i++) {
            const int64_t own = of->own_firsts[b->place + i];
            attend_run(in, &p, s, i, i + 1, of->own_slots + own, of->own_firsts[b->place + i + 1] - own);
        }
        write_part(in, &p, s);
    }
}

/* Nonzero if there is no memory. */
int attend_step(const step *of) {
    const inputs *in = &of->in;
    const int64_t each = (2 * LINE + KEYS) * (in->width + in->value_width) + LINE * KEYS;
    float *memory = aligned_alloc(64, (in->threads * each * sizeof(float) + 63) / 64 * 64);
    if (!memory) return 1;
#pragma omp parallel num_threads(in->threads)
    {
        float *own = thread_scratch(memory, each);
        scratch s;
        s.query = own, own += LINE * in->width;
        s.query_rows = own, own += LINE * in->width;
        s.out = own, own += LINE * in->value_width;
        s.out_rows = own, own += LINE * in->value_width;
        s.weights = own, own += KEYS * LINE;
        s.keys = own, own += KEYS * in->width;
        s.values = own;
        store_all_new(in);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < of->count * in->key_heads; task++)
            attend_block(of, of->blocks + task / in->key_heads, task % in->key_heads, &s);
    }
    free(memory);
    return 0;
}
