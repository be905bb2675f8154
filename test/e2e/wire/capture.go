package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// receiveBuffer holds what arrives while the reader is not on the processor, in bytes.
const receiveBuffer = 16 << 20

// packetSocket opens an interface for whole frames. The file's reads can be ended by Close.
func (n NetNS) packetSocket(iface string, protocol uint16) (file *os.File, err error) {
	err = n.Do(func() error {
		link, err := net.InterfaceByName(iface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "packets of "+iface)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
			return errors.Join(err, file.Close())
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: protocol}); err != nil {
			return errors.Join(err, file.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open %s for frames: %w", iface, err)
	}
	return file, nil
}

// Injector sends frames out of an interface, as a program with CAP_NET_RAW in that namespace could.
type Injector struct{ file *os.File }

// Inject opens an interface for sending.
func (n NetNS) Inject(iface string) (*Injector, error) {
	file, err := n.packetSocket(iface, 0)
	if err != nil {
		return nil, err
	}
	return &Injector{file}, nil
}

// Send sends a frame. The error is unix.ENOBUFS if the machine dropped the frame since a queue was full (packet(7)).
func (i *Injector) Send(frame []byte) error {
	_, err := i.file.Write(frame)
	return err
}

// Resend is Send for a frame that is sent again and again: that the machine dropped it once is no error.
func (i *Injector) Resend(frame []byte) error {
	if err := i.Send(frame); !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	return nil
}

// Close closes the socket.
func (i *Injector) Close() error { return i.file.Close() }

// Capture records the frames of an interface that hold a marker, in both directions.
type Capture struct {
	file *os.File
	done chan struct{}
	see  func(frame []byte) // instead of recording; nil: record

	mu     sync.Mutex
	frames [][]byte
	err    error
}

// Capture starts to record. What is sent after it has returned is seen.
func (n NetNS) Capture(iface string, marker []byte) (*Capture, error) {
	file, err := n.packetSocket(iface, bigEndian(unix.ETH_P_ALL))
	if err != nil {
		return nil, err
	}
	c := &Capture{file: file, done: make(chan struct{})}
	go c.read(marker)
	return c, nil
}

// Watch is Capture for more frames than the memory should hold: it calls the function with each, one after the other. The frame is valid until the function returns.
func (n NetNS) Watch(iface string, marker []byte, see func(frame []byte)) (*Capture, error) {
	file, err := n.packetSocket(iface, bigEndian(unix.ETH_P_ALL))
	if err != nil {
		return nil, err
	}
	c := &Capture{file: file, done: make(chan struct{}), see: see}
	go c.read(marker)
	return c, nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 } // all that we run on is little-endian

func (c *Capture) read(marker []byte) {
	defer close(c.done)
	buffer := make([]byte, 1<<17)
	for {
		length, err := c.file.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		c.mu.Lock()
		if err != nil {
			c.err = errors.Join(c.err, err)
			c.mu.Unlock()
			return
		}
		switch {
		case !bytes.Contains(buffer[:length], marker):
		case c.see != nil:
			c.see(buffer[:length])
		default:
			c.frames = append(c.frames, bytes.Clone(buffer[:length]))
		}
		c.mu.Unlock()
	}
}

// Frames are those with the text, in the order in which they came.
func (c *Capture) Frames(text []byte) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.frames), func(f []byte) bool { return !bytes.Contains(f, text) })
}

// Close ends the recording. It fails if frames were lost, since their absence then proves nothing.
func (c *Capture) Close() error {
	var lost uint32
	var statErr error
	raw, err := c.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			var stats *unix.TpacketStats
			if stats, statErr = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); statErr == nil {
				lost = stats.Drops
			}
		})
	}
	err = errors.Join(err, statErr, c.file.Close())
	<-c.done
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("the capture lost %d frames", lost))
	}
	return errors.Join(err, c.err)
}
