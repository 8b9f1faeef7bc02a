// Package loopback gives tests addresses that they can let go and take again. A
// port of 127.0.0.1 that was let go may be another's in a moment: a server's that
// takes any free port, or that of a connection that somebody makes.
package loopback

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

var hosts atomic.Uint32

// Host is an address of this machine on which nobody else listens and from which
// nobody connects, another one with each call (254 of them in a process). Where
// there is only one such address, it is 127.0.0.1.
func Host() string {
	if runtime.GOOS != "linux" { // where all of 127.0.0.0/8 is there
		return "127.0.0.1"
	}
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+(hosts.Add(1)-1)%254, pid>>8&0xff, pid&0xff)
}
