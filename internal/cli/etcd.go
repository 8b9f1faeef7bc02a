package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
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

// probeTimeout is how long it is asked why etcd was not reached.
const probeTimeout = 2 * time.Second

// Etcd is how a process finds etcd, and shows who it is.
type Etcd struct {
	Endpoints []string
	Timeout   time.Duration
	// User and the file with its password: both or none.
	User         string
	PasswordFile string
	// CACert is the file with the authorities that etcd's certificate is checked
	// against; empty: the system's. Cert and Key are this client's: both or none.
	CACert string
	Cert   string
	Key    string
}

// Register adds the flags.
func (e *Etcd) Register(fs *pflag.FlagSet) {
	fs.StringSliceVar(&e.Endpoints, "etcd-endpoints", nil, "addresses of etcd, separated by commas; https:// or a certificate makes the connections secure")
	fs.DurationVar(&e.Timeout, "etcd-timeout", DefaultEtcdTimeout, "how long to try to reach etcd at the start; exit code 3 after it")
	for _, f := range e.credentials() {
		fs.StringVar(f.value, f.name, "", f.usage)
	}
}

// credential is one flag by which a process shows who it is.
type credential struct {
	name  string
	value *string
	file  bool // the value is the name of a file
	usage string
}

func (e *Etcd) credentials() []credential {
	return []credential{
		{"etcd-user", &e.User, false, "user of etcd, if its authentication is on"},
		{"etcd-password-file", &e.PasswordFile, true, "file with the user's password"},
		{"etcd-cacert", &e.CACert, true, "file with the certificates (PEM) of the authorities that etcd's own is checked against (default: the system's)"},
		{"etcd-cert", &e.Cert, true, "file with the certificate (PEM) of this client, if etcd asks for one"},
		{"etcd-key", &e.Key, true, "file with the key (PEM) of that certificate"},
	}
}

// Environment hands the credentials on to a process that is started: pairs
// NAME=value that stand for its flags.
func (e *Etcd) Environment() ([]string, error) {
	var pairs []string
	for _, f := range e.credentials() {
		value := *f.value
		if value == "" {
			continue
		}
		if f.file {
			var err error
			if value, err = filepath.Abs(value); err != nil {
				return nil, Usage("--%s: %w", f.name, err)
			}
		}
		pairs = append(pairs, Variable(f.name)+"="+value)
	}
	return pairs, nil
}

// RefuseCredentials is an error if there are credentials: there is no etcd to
// show them to.
func (e *Etcd) RefuseCredentials() error {
	for _, f := range e.credentials() {
		if *f.value != "" {
			return Usage("--%s needs --etcd-endpoints", f.name)
		}
	}
	return nil
}

// Connect reaches etcd or fails: with exit code 2 if etcd does not let this
// process in, with 3 if it was not reached within the timeout. The returned
// function closes the connection.
func (e *Etcd) Connect(ctx context.Context, log logrus.FieldLogger) (store.Store, func(), error) {
	config, err := e.config()
	if err != nil {
		return nil, nil, Usage("%w", err)
	}
	config.Log = log
	within, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	s, err := etcd.Dial(within, config)
	if err != nil {
		return nil, nil, e.explain(ctx, config, err)
	}
	if err := s.Check(within); err != nil {
		_ = s.Close()
		return nil, nil, e.explain(ctx, config, err)
	}
	return s, func() { _ = s.Close() }, nil
}

// explain is an error of the first connection with its exit code and a hint.
func (e *Etcd) explain(ctx context.Context, config etcd.Config, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, etcd.ErrTLS):
		return Usage("%w; --etcd-cacert, --etcd-cert and --etcd-key name the certificates", err)
	case errors.Is(err, etcd.ErrLogin):
		return Usage("%w: --etcd-user %s with the password in %s", err, e.User, e.PasswordFile)
	case errors.Is(err, etcd.ErrNoUser):
		return Usage("%w: --etcd-user and --etcd-password-file", err)
	case errors.Is(err, etcd.ErrForbidden):
		return Usage("%w: it must be allowed to read and write what begins with /starfish/", err)
	}
	config.DialTimeout = probeTimeout
	if reason := etcd.Probe(ctx, config); reason != nil {
		err = reason // says more than the end of patience
	}
	return job.Exitf(job.ExitNoEtcd, "etcd at %s was not reached within %v: %w", strings.Join(e.Endpoints, ","), e.Timeout, err)
}

// config reads the files that the flags name.
func (e *Etcd) config() (etcd.Config, error) {
	c := etcd.Config{Endpoints: e.Endpoints, DialTimeout: e.Timeout, Username: e.User}
	secure, err := e.checkEndpoints()
	if err != nil {
		return c, err
	}
	if c.Password, err = e.password(); err != nil {
		return c, err
	}
	if secure {
		c.TLS, err = e.tls()
	}
	return c, err
}

// checkEndpoints tells whether the connections are secure.
func (e *Etcd) checkEndpoints() (secure bool, err error) {
	if len(e.Endpoints) == 0 {
		return false, errors.New("--etcd-endpoints is missing: name at least one address of etcd")
	}
	plain := "" // one that is plain in so many words
	for _, endpoint := range e.Endpoints {
		if err := checkEndpoint(endpoint); err != nil {
			return false, fmt.Errorf("--etcd-endpoints: %w", err)
		}
		secure = secure || strings.HasPrefix(endpoint, "https://")
		if strings.HasPrefix(endpoint, "http://") {
			plain = endpoint
		}
	}
	switch {
	case secure && plain != "":
		return false, fmt.Errorf("--etcd-endpoints: %s beside https://: all connections are secure, or none", plain)
	case e.CACert+e.Cert+e.Key != "" && plain != "":
		return false, fmt.Errorf("--etcd-endpoints: %s has no use for a certificate: write https://", plain)
	}
	return secure || e.CACert+e.Cert+e.Key != "", nil
}

// checkEndpoint tells what is wrong with an address of etcd: nobody would answer
// at it.
func checkEndpoint(endpoint string) error {
	address := strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
	_, port, err := net.SplitHostPort(strings.TrimSuffix(address, "/"))
	if err != nil {
		return fmt.Errorf("%q is not of the form host:port; etcd's port is 2379 unless it was changed", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%s: the port is not a number from 1 to 65535", endpoint)
	}
	return nil
}
