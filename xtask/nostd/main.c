// Runs the no_std engine from C: what CI links the static library into.
#include <stdio.h>

unsigned long long slat_nostd(void);

int main(void) {
    unsigned long long frames = slat_nostd();
    printf("no_std: mapped frames sum up to %#llx\n", frames);
    return frames == 0x80000 ? 0 : 1;
}
