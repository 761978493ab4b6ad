/* Matrices of 80 by 80 words: c = a × b, then a = c × b. */
#include "guest.h"
#define N 80
static u64 a[N][N] __attribute__((aligned(4096))), b[N][N], c[N][N];

static void multiply(u64 (*to)[N], u64 (*x)[N], u64 (*y)[N])
{
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			u64 sum = 0;
			for (int k = 0; k < N; k++)
				sum += x[i][k] * y[k][j];
			to[i][j] = sum;
		}
}

u64 run(u64 which)
{
	u64 h = which;
	call(FILL, (u64)a, sizeof a, 5);
	call(FILL, (u64)b, sizeof b, 6);
	multiply(c, a, b);
	multiply(a, c, b);
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++)
			h = mix(h, a[i][j]);
	return done(h);
}
