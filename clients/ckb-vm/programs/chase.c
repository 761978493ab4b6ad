/* One cycle through 2 MiB in random order, followed word by word; now and then a word beside it is written. */
#include "guest.h"
#define N (1ul << 17)
static struct { u64 next, seen; } cell[N] __attribute__((aligned(4096)));

u64 run(u64 which)
{
	u64 random = 0x2545f4914f6cdd1dul, at = which, h = 0;
	for (u64 i = 0; i < N; i++)
		cell[i].next = i;
	for (u64 i = N - 1; i > 0; i--) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		u64 j = random % i, t = cell[i].next;
		cell[i].next = cell[j].next;
		cell[j].next = t;
	}
	for (u64 step = 0; step < 300000; step++) {
		at = cell[at].next;
		h = mix(h, at);
		if ((h & 63) == 0)
			cell[at].seen += step;
	}
	return done(h);
}
