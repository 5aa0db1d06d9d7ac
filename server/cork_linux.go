package server

import (
	"net"

	"golang.org/x/sys/unix"
)

// arrived tells what became of everything that was written to a connection.
func arrived(c net.Conn) arrival {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return arrivalUnknown
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return arrivalUnknown
	}
	verdict := arrivalUnknown
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		switch {
		case err != nil:
		case info.State == unix.BPF_TCP_CLOSE:
			verdict = arrivalReset
		case info.Unacked > 0 || info.Notsent_bytes > 0:
			verdict = arrivalPending
		default:
			verdict = arrivalAcked
		}
	})
	if err != nil {
		return arrivalUnknown
	}
	return verdict
}
