/* Atomic instructions whose register is their operand, and stores across pages: operations that must not take effect by half. */
#include "guest.h"
#define PAGES 256
static u8 memory[PAGES * PAGE] __attribute__((aligned(4096)));

u64 run(u64 which)
{
	u64 h = which;
	for (u64 turn = 1; turn <= 40; turn++) {
		for (u64 at = 0; at < sizeof memory; at += PAGE) {
			u64 value = turn * at + 1, old, failed;
			u8 *p = memory + at + 64;
			__asm__ volatile("amoadd.d %0, %0, (%1)" : "+r"(value) : "r"(p) : "memory");
			h = mix(h, value);
			u8 *q = p;
			__asm__ volatile("amoswap.w %0, %1, (%0)" : "+r"(q) : "r"(h) : "memory");
			h = mix(h, (u64)q);
			__asm__ volatile("lr.d %0, (%2)\n\taddi %0, %0, 3\n\tsc.d %1, %0, (%2)"
					 : "=&r"(old), "=&r"(failed) : "r"(p + 8) : "memory");
			h = mix(h, old + failed);
			if (at) /* four bytes in each of two pages */
				__asm__ volatile("sd %0, -4(%1)" : : "r"(h), "r"(memory + at) : "memory");
		}
	}
	for (u64 at = 0; at < sizeof memory; at += 8)
		h = mix(h, *(u64 *)(memory + at));
	return done(h);
}
