package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"starfish/internal/store"
	"starfish/internal/store/etcd"
	"starfish/job"
)

// DefaultEtcdTimeout is how long a process tries to reach etcd at its start.
const DefaultEtcdTimeout = 30 * time.Second

// Etcd is how a process finds etcd.
type Etcd struct {
	Endpoints []string
	Timeout   time.Duration
}

// Register adds the flags.
func (e *Etcd) Register(fs *pflag.FlagSet) {
	fs.StringSliceVar(&e.Endpoints, "etcd-endpoints", nil, "addresses of etcd, separated by commas")
	fs.DurationVar(&e.Timeout, "etcd-timeout", DefaultEtcdTimeout, "how long to try to reach etcd at the start; exit code 3 after it")
}

// Connect reaches etcd or fails with exit code 3 after the timeout. The
// returned function closes the connection.
func (e *Etcd) Connect(ctx context.Context, log logrus.FieldLogger) (store.Store, func(), error) {
	if len(e.Endpoints) == 0 {
		return nil, nil, Usage("--etcd-endpoints is missing: name at least one address of etcd")
	}
	for _, endpoint := range e.Endpoints {
		if err := checkEndpoint(endpoint); err != nil {
			return nil, nil, Usage("--etcd-endpoints: %w", err)
		}
	}
	s, err := etcd.Dial(etcd.Config{Endpoints: e.Endpoints, DialTimeout: e.Timeout, Log: log})
	if err != nil {
		return nil, nil, Usage("--etcd-endpoints: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	if err := s.Check(within); err != nil {
		_ = s.Close()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return nil, nil, job.Exitf(job.ExitNoEtcd, "etcd at %s was not reached within %v: %w",
			strings.Join(e.Endpoints, ","), e.Timeout, err)
	}
	return s, func() { _ = s.Close() }, nil
}

// checkEndpoint tells what is wrong with an address of etcd: nobody would answer
// at it.
func checkEndpoint(endpoint string) error {
	if strings.HasPrefix(endpoint, "https://") {
		return fmt.Errorf("%s: connections with TLS are not implemented in this version", endpoint)
	}
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(endpoint, "http://"), "/"))
	if err != nil {
		return fmt.Errorf("%q is not of the form host:port; etcd's port is 2379 unless it was changed", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%s: the port is not a number from 1 to 65535", endpoint)
	}
	return nil
}

// Logging is how a process logs.
type Logging struct {
	Level  string
	Format string
}

// Register adds the flags.
func (l *Logging) Register(fs *pflag.FlagSet) {
	fs.StringVar(&l.Level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	fs.StringVar(&l.Format, "log-format", "text", "form of the log: text or json")
}

// Logger makes the logger, which writes to w.
func (l *Logging) Logger(w io.Writer) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(w)
	level, err := logrus.ParseLevel(l.Level)
	if err != nil || level < logrus.ErrorLevel {
		return nil, Usage("--log-level %q is none of debug, info, warn, error", l.Level)
	}
	log.SetLevel(level)
	switch l.Format {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	default:
		return nil, Usage("--log-format %q is neither text nor json", l.Format)
	}
	return log, nil
}
