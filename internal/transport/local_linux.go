package transport

import (
	"net"
	"syscall"
)

const hasLocal = true

// overflow is the user that stands for all that a user namespace does not know;
// see user_namespaces(7). Two of them need not be one.
const overflow = 65534

// listensAs tells whether the process at the other end was the user's when it
// began to listen; see unix(7), SO_PEERCRED.
func listensAs(conn net.Conn, user int) bool {
	if user == overflow {
		return false
	}
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
