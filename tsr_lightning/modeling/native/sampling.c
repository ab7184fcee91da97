/* What sampling needs of a vocabulary's logits. Knows no Python and no PyTorch. Rows are independent, so the results do
   not depend on the number of threads. */

#include <math.h>

#include "rows.h"

/* e^((x - top) * scale) as a power of two, and 0 where that is less than 2^-100; NaN stays NaN. */
INLINE vec weights(vec x, float top, float by) {
    const vec power = (x - top) * by;
    return select_lanes(~(ivec)(power <= broadcast(-100.0f)), exp2_lanes(power), broadcast(0));
}

INLINE void row_sums(const void *logits, float *highest, float *sums, int64_t from, int64_t width, int64_t size,
                     float by, const int32_t dtype) {
    const int64_t whole = width / LANES * LANES;
    vec tops = broadcast(-INFINITY);
    float top = -INFINITY;
    for (int64_t i = 0; i < whole; i += LANES) tops = max_lanes(load_lanes(logits, dtype, from + i), tops);
    for (int i = 0; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    for (int64_t i = whole; i < width; i++) {
        const float x = load_number(logits, dtype, from + i);
        top = x > top ? x : top;
    }
    *highest = top;
    for (int64_t begin = 0; begin < width; begin += size, sums++) {
        const int64_t end = begin + size < width ? begin + size : width;
        vec sum = broadcast(0);
        float total = 0;
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) sum += weights(load_lanes(logits, dtype, from + i), top, by);
        for (; i < end; i++) total += weights(broadcast(load_number(logits, dtype, from + i)), top, by)[0];
        for (int lane = 0; lane < LANES; lane++) total += sum[lane];
        *sums = total;
    }
}

/* The highest of each row of logits [rows][width], and of each of its blocks of `size` numbers, the last one shorter,
   the sum of e^((x - highest) / temperature). */
void block_sums(const void *logits, float *highest, float *sums, int64_t rows, int64_t width, int64_t size,
                float temperature, int64_t dtype, int64_t threads) {
    const int64_t blocks = (width + size - 1) / size;
    const float by = LOG2E / temperature;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        if (dtype == FLOAT32)
            row_sums(logits, highest + r, sums + r * blocks, r * width, width, size, by, FLOAT32);
        else
            row_sums(logits, highest + r, sums + r * blocks, r * width, width, size, by, BFLOAT16);
}
