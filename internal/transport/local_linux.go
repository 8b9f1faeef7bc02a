package transport

import (
	"net"
	"syscall"
)

const hasLocal = true

// listensAs tells whether the process at the other end was the user's when it
// began to listen; see unix(7), SO_PEERCRED.
func listensAs(conn net.Conn, user int) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	is := false
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		is = err == nil && int(cred.Uid) == user
	})
	return err == nil && is
}
