#!/bin/sh
# The first program of the guest: makes a root file system of the host's, which it sees over 9p and can't write, and a
# memory file system that takes what is written; then goes on with guest.sh in it.
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done # in the order of their names
p9=trans=virtio,version=9p2000.L,msize=512000,access=any
mount -t 9p -o $p9,ro,cache=loose host /host
mount -t tmpfs -o size=80% written /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work root /root
cd /root && mkdir -p proc sys dev run tmp
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mount -t tmpfs run run
mkdir -p dev/pts dev/shm run/vm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts dev/pts
mount -t tmpfs shm dev/shm
mount -t cgroup2 cgroup sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
mount -t 9p -o $p9,rw,cache=none control run/vm
exec chroot . /bin/sh /run/vm/guest.sh
