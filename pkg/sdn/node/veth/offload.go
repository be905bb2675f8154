package veth

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disableTXChecksums does the same as `ethtool -K NAME tx off`, in the network namespace of the calling thread. It calls ioctl itself
// because github.com/safchain/ethtool first reads the names of all features, a megabyte in each call.
func disableTXChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)

	// struct ethtool_value and struct ifreq with ifr_data, which fills a union of 24 bytes.
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM, data: 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)

	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("disable TX checksum offload of %s: %w", name, os.NewSyscallError("ioctl SIOCETHTOOL", errno))
	}
	return nil
}
