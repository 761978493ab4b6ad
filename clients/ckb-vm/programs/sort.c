/* Quicksort, and a merge that goes through all of memory once. */
#include "guest.h"
#define N 30000
static u32 a[N] __attribute__((aligned(4096))), b[N] __attribute__((aligned(4096)));

static void sort(long lo, long hi)
{
	while (lo < hi) {
		u32 pivot = a[lo + (hi - lo) / 2];
		long i = lo - 1, j = hi + 1;
		for (;;) {
			while (a[++i] < pivot)
				;
			while (a[--j] > pivot)
				;
			if (i >= j)
				break;
			u32 t = a[i];
			a[i] = a[j];
			a[j] = t;
		}
		sort(lo, j);
		lo = j + 1;
	}
}

u64 run(u64 which)
{
	u64 h = which;
	call(FILL, (u64)a, sizeof a, 1);
	sort(0, N / 2 - 1);
	call(FILL, (u64)(a + N / 2), sizeof a / 2, 2); /* while the first half is sorted */
	sort(N / 2, N - 1);
	for (long i = 0, j = N / 2, k = 0; k < N; k++)
		b[k] = j == N || (i < N / 2 && a[i] <= a[j]) ? a[i++] : a[j++];
	for (long k = 0; k < N; k++) {
		if (k && b[k - 1] > b[k])
			return 255;
		h = mix(h, b[k]);
	}
	return done(h);
}
