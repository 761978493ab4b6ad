#!/bin/busybox sh
# What runs in the guest: it says that it is there, how many processors it has, and what its clock is, writes 1.3 MB and reads
# it back, and is done. Its lines are its own: the kernel is told to be quiet, and has the last word only when they are out.
# Where there is no ACPI nothing can be powered off, and a reset ends the machine.
PATH=/bin
busybox mkdir -p /proc /sys /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox dmesg -n 1
echo "slat: shell of Linux $(busybox uname -r)"
echo "slat: cpus $(busybox grep -c ^processor /proc/cpuinfo)"
echo "slat: clock $(busybox cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
# Its own KVM, memory to swap to, and a guest.
if busybox [ -e /kvm.ko ]; then
    busybox mount -t devtmpfs dev /dev
    for module in irqbypass kvm kvm-amd "brd rd_nr=1 rd_size=49152"; do busybox insmod /${module%% *}.ko ${module#* }; done
    busybox mkswap /dev/ram0 >/dev/null && busybox swapon /dev/ram0
    echo "slat: kvm $(busybox grep -c /dev/ram0 /proc/swaps) device to swap to"
    /kvm-l2
    echo "slat: swapped $(busybox grep -E '^pswp' /proc/vmstat | busybox tr '\n' ' ')"
fi
busybox seq 1 200000 > /numbers
echo "slat: sum $(busybox md5sum < /numbers)"
busybox sleep 0.2
busybox grep -q acpi=off /proc/cmdline && busybox reboot -f
busybox poweroff -f
