#!/bin/busybox sh
# The guest's first program. It prints that it runs, the number of processors, and the clock, writes 1.3 MB and reads it
# back, and ends. Only this script prints: the kernel is quiet, and prints only after the script's last line.
PATH=/bin
busybox mkdir -p /proc /sys /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox dmesg -n 1
echo "slat: shell of Linux $(busybox uname -r)"
echo "slat: cpus $(busybox grep -c ^processor /proc/cpuinfo)"
echo "slat: clock $(busybox cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
# Loads KVM, makes swap space in memory, and runs a guest. With little memory Linux makes no large pages unless told to.
if busybox [ -e /kvm.ko ]; then
    busybox mount -t devtmpfs dev /dev
    for module in irqbypass kvm kvm-amd "brd rd_nr=1 rd_size=49152"; do busybox insmod /${module%% *}.ko ${module#* }; done
    busybox mkswap /dev/ram0 >/dev/null && busybox swapon /dev/ram0
    echo always >/sys/kernel/mm/transparent_hugepage/enabled
    echo "slat: kvm $(busybox grep -c /dev/ram0 /proc/swaps) device to swap to"
    /kvm-l2
    echo "slat: swapped $(busybox grep -E '^pswp' /proc/vmstat | busybox tr '\n' ' ')"
fi
busybox seq 1 200000 > /numbers
echo "slat: sum $(busybox md5sum < /numbers)"
busybox sleep 0.2
busybox grep -q acpi=off /proc/cmdline && busybox reboot -f
busybox poweroff -f
