/* Products of tiles by one type of vector: who includes this file defines VEC, and NAME, which names the functions. */

/* C[rows][vectors] (+)= A[rows][inner] * B[inner][vectors], where A has strides `row` and `step`. */
INLINE void NAME(tile)(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                       int64_t inner, const int rows, const int vectors, const int add) {
    const int64_t lanes = sizeof(VEC) / sizeof(float);
    VEC sum[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = (VEC){0};
            if (add) memcpy(&sum[r][v], c + r * ldc + v * lanes, sizeof(VEC));
        }
    for (int64_t i = 0; i < inner; i++) {
        VEC line[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            memcpy(&line[v], b + i * ldb + v * lanes, sizeof(VEC));
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
        for (int v = 0; v < vectors; v++) memcpy(c + r * ldc + v * lanes, &sum[r][v], sizeof(VEC));
}

INLINE void NAME(strip)(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                        int64_t rows, int64_t inner, const int vectors, const int add) {
    const int most = vectors == 1 ? 8 : 4;  /* enough independent sums, few enough for 16 or 32 registers */
    int64_t r = 0;
    for (; r + most <= rows; r += most)
        NAME(tile)(c + r * ldc, ldc, a + r * row, row, step, b, ldb, inner, most, vectors, add);
    for (; r < rows; r++) NAME(tile)(c + r * ldc, ldc, a + r * row, row, step, b, ldb, inner, 1, vectors, add);
}

/* The same for any width, in strips of up to four vectors. */
INLINE void NAME(strips)(float *c, int64_t ldc, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                         int64_t rows, int64_t inner, int64_t vectors, const int add) {
    for (int64_t parts = (vectors + 3) / 4; parts > 0; parts--) {
        const int64_t now = (vectors + parts - 1) / parts, lanes = now * sizeof(VEC) / sizeof(float);
        switch (now) {
            case 1: NAME(strip)(c, ldc, a, row, step, b, ldb, rows, inner, 1, add); break;
            case 2: NAME(strip)(c, ldc, a, row, step, b, ldb, rows, inner, 2, add); break;
            case 3: NAME(strip)(c, ldc, a, row, step, b, ldb, rows, inner, 3, add); break;
            default: NAME(strip)(c, ldc, a, row, step, b, ldb, rows, inner, 4, add);
        }
        vectors -= now, c += lanes, b += lanes;
    }
}

#undef NAME
#undef VEC
