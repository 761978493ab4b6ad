/* KVM_SET_USER_MEMORY_REGION2, which all tests of Linux 6.8 and later use: slots without private memory. Runs on the library and on
 * the real KVM; both must pass it. Exits with 4 if the KVM is older. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define PAGES 64ULL
#define PAGE 4096ULL
#define HAS_REGION2 231
#define PRIVATE_MEMORY (1 << 2)

/* The argument, which older headers do not have. */
struct region2 {
	uint32_t slot, flags;
	uint64_t gpa, bytes, hva, memfd_offset;
	uint32_t memfd, pad1;
	uint64_t pad2[14];
};
#define SET_REGION2 _IOW(KVMIO, 0x49, struct region2)

static void must(int is_so, const char *what)
{
	if (!is_so) {
		fprintf(stderr, "Assertion: %s (errno %d)\n", what, errno);
		exit(1);
	}
}

static int set(int vm, struct region2 region)
{
	errno = 0;
	return ioctl(vm, SET_REGION2, &region) ? errno : 0;
}

int main(void)
{
	int kvm = open("/dev/kvm", O_RDWR);
	if (kvm < 0 || ioctl(kvm, KVM_CHECK_EXTENSION, HAS_REGION2) <= 0)
		return 4;
	int vm = ioctl(kvm, KVM_CREATE_VM, 0);
	must(vm >= 0, "a VM");
	void *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED, "memory");

	/* A descriptor that is none: without the flag it has no meaning. */
	struct region2 region = { .slot = 3, .flags = KVM_MEM_LOG_DIRTY_PAGES, .bytes = PAGES * PAGE,
				  .hva = (uint64_t)memory, .memfd = -1, .memfd_offset = 5 };
	must(set(vm, region) == 0, "a slot without private memory");
	uint64_t bits[PAGES / 64] = { 0 };
	struct kvm_dirty_log log = { .slot = 3, .dirty_bitmap = bits };
	must(ioctl(vm, KVM_GET_DIRTY_LOG, &log) == 0, "its dirty log");

	struct region2 other = region;
	other.slot = 4;
	must(set(vm, other) == EEXIST, "another slot in the same place is refused");
	other.gpa = PAGES * PAGE;
	other.flags = PRIVATE_MEMORY;
	must(set(vm, other) == EINVAL, "private memory is refused in a VM without it");
	other.flags = 0;
	must(set(vm, other) == 0, "the same without private memory");
	region.gpa = 4 * PAGES * PAGE;
	must(set(vm, region) == 0, "the slot moves");
	region.bytes = 0;
	must(set(vm, region) == 0, "the slot goes");
	must(ioctl(vm, KVM_GET_DIRTY_LOG, &log) != 0 && errno == ENOENT, "no dirty log without a slot");
	puts("PASS: slots by KVM_SET_USER_MEMORY_REGION2");
	return 0;
}
