package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"starfish/internal/clock"
)

const (
	// A server that refuses a certificate says so and closes the connection; what
	// it says is lost if the client was writing, and then it is asked again.
	probeTries = 20
	probePause = 20 * time.Millisecond
)

// hello begins every HTTP/2 connection: the preface and empty settings. A server
// answers with its settings.
const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Probe tries to connect to the endpoints, and says why that failed: etcd's client
// would try until its caller's patience ends, and not say it. It is nil once
// one of them could be connected to, and ErrTLS if none could, and one not because
// of certificates.
func Probe(ctx context.Context, c Config) error {
	if c.DialTimeout == 0 {
		c.DialTimeout = defaultDialTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, c.DialTimeout)
	defer cancel()
	results := make(chan error, len(c.Endpoints))
	for _, endpoint := range c.Endpoints {
		go func() { results <- probe(ctx, c.TLS, endpoint) }()
	}
	var reason error
	for range c.Endpoints {
		err := <-results
		if err == nil {
			return nil
		}
		if reason == nil || errors.Is(err, ErrTLS) {
			reason = err
		}
	}
	return reason
}

func probe(ctx context.Context, secure *tls.Config, endpoint string) error {
	address := strings.TrimPrefix(strings.TrimPrefix(endpoint, "https://"), "http://")
	address = strings.TrimSuffix(address, "/")
	for try := 1; ; try++ {
		connected, err := greet(ctx, secure, address)
		if err == nil || errors.Is(err, ErrTLS) || !connected || try == probeTries {
			return err
		}
		if clock.Sleep(ctx, clock.System, probePause) != nil {
			return err
		}
	}
}

// greet connects and waits for the server's first word. It tells whether the
// connection was there.
func greet(ctx context.Context, secure *tls.Config, address string) (connected bool, err error) {
	conn, err := connect(ctx, secure, address)
	if err != nil {
		return false, verdict(err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, hello); err != nil {
		return true, verdict(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return true, verdict(err)
	}
	return true, nil
}

func connect(ctx context.Context, secure *tls.Config, address string) (net.Conn, error) {
	plain := new(net.Dialer) //nolint:forbidigo // to the same places as etcd's client
	if secure == nil {
		return plain.DialContext(ctx, "tcp", address)
	}
	secure = secure.Clone()
	secure.NextProtos = []string{"h2"}
	return (&tls.Dialer{NetDialer: plain, Config: secure}).DialContext(ctx, "tcp", address)
}

// verdict tells what certificates are to blame for.
func verdict(err error) error {
	var (
		untrusted *tls.CertificateVerificationError
		other     tls.RecordHeaderError
		network   *net.OpError
	)
	switch {
	case errors.As(err, &untrusted), errors.As(err, &other), errors.As(err, &network) && network.Op == "remote error":
		return fmt.Errorf("%w: %w", ErrTLS, err)
	case errors.Is(err, io.EOF):
		return errors.New("the connection was ended at once (does one side speak https, and the other not?)")
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
		return errors.New("connected, but there is no answer")
	case network != nil && network.Op == "dial":
		return network.Err // its address is known
	}
	return err
}
