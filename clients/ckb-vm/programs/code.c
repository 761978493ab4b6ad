/* Code that writes code: a page becomes executable and writable in turns, and holds another function each time. */
#include "guest.h"
static u32 page[PAGE / 4] __attribute__((aligned(4096)));

u64 run(u64 which)
{
	u64 h = which;
	for (u64 turn = 0; turn < 50; turn++) {
		call(RIGHTS, (u64)page, 0, 0);
		for (u64 at = 0; at < PAGE / 4 - 1; at++)
			page[at] = 0x00050513 | (u32)((turn * 7 + at) & 0x7ff) << 20; /* addi a0, a0, … */
		page[PAGE / 4 - 1] = 0x00008067; /* ret */
		call(RIGHTS, (u64)page, 1, 0);
		h = mix(h, ((u64 (*)(u64))page)(turn));
	}
	return done(h);
}
