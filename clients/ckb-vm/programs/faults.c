/* A fault of each kind, chosen by a0. */
#include "guest.h"
static u64 data[512] __attribute__((aligned(4096)));
#define TOP 0x400000ul /* the end of memory */

u64 run(u64 which)
{
	data[0] = 0x00008067; /* ret */
	switch (which) {
	case 0: *(volatile u32 *)&run = 1; break;                        /* a store to code */
	case 1: ((void (*)(void))data)(); break;                         /* a jump to data */
	case 2: return *(volatile u64 *)(TOP + 0x1000);                  /* a load beyond memory */
	case 3: __asm__ volatile("sd %0, -4(%1)" : : "r"(which), "r"(TOP)); break; /* a store half beyond memory */
	case 4: __asm__ volatile("amoswap.w %0, %0, (%1)" : "+r"(which) : "r"(&run)); break; /* an atomic store to code */
	case 5: __asm__ volatile("sd %0, -4(%1)" : : "r"(which), "r"((u64)&run & -PAGE)); break; /* half data, half code */
	case 6: __asm__ volatile(".word 0xffffffff"); break;             /* an invalid instruction */
	case 7: return call(4711, 0, 0, 0);                              /* an unknown call */
	case 8: ((void (*)(void))(TOP - 2))(); break;                    /* a jump to the last two bytes of memory */
	case 9: return *(volatile u64 *)-4l;                             /* a load that wraps */
	}
	return 200; /* not reached */
}
