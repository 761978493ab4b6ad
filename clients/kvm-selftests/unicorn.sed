# Unicorn 2.1.5, qemu/include/exec/exec-all.h. A guest's atomic operations become the host's: several vCPUs, each an emulator of its
# own, and the test itself share memory.
/^static inline uint32_t curr_cflags(void)/,/^}/ s/return 0;/return CF_PARALLEL;/
