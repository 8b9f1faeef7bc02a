package storetest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"starfish/internal/store/embedded"
)

// User is who may read and write what begins with /starfish/, in an etcd with
// authentication.
const (
	User     = "trainee"
	Password = "a password with blanks"
	// Stranger may log in with the same password, and no more.
	Stranger = "stranger"
)

// root may do everything.
const root = "root"

// SecureEtcd is an etcd with certificates, authentication, or both.
type SecureEtcd struct {
	Server    *embedded.Server
	Authority *Authority // nil without certificates
	Client    Pair       // a certificate of User
	// PasswordFile holds Password and a line end.
	PasswordFile string
	Endpoints    []string // with https:// if there are certificates

	t testing.TB
}

// Security says what an etcd asks for.
type Security struct {
	// Certificates: connections are secure.
	Certificates bool
	// ClientCertificates: it asks clients for one, too.
	ClientCertificates bool
	// TokenSeconds, if not 0, turns authentication on; a token that is not used
	// for that long ends.
	TokenSeconds uint
}

// Secure starts an etcd that runs until the end of the test.
func Secure(t testing.TB, s Security) *SecureEtcd {
	t.Helper()
	e := &SecureEtcd{t: t, PasswordFile: filepath.Join(t.TempDir(), "password")}
	require.NoError(t, os.WriteFile(e.PasswordFile, []byte(Password+"\n"), 0o600))
	var pair Pair
	if s.Certificates {
		e.Authority = NewAuthority(t)
		pair, e.Client = e.Authority.Server(), e.Authority.Client(User)
	}
	var err error
	e.Server, err = embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Tune: func(c *embed.Config) {
		c.BcryptCost = 4 // the least
		if s.TokenSeconds > 0 {
			c.AuthTokenTTL = s.TokenSeconds
		}
		if !s.Certificates {
			return
		}
		c.ListenClientUrls[0].Scheme, c.AdvertiseClientUrls[0].Scheme = "https", "https"
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = pair.Cert, pair.Key
		if s.ClientCertificates { // the file alone asks for them
			c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = e.Authority.File, true
		}
	}})
	require.NoError(t, err)
	t.Cleanup(e.Server.Close)
	e.Endpoints = e.Server.Endpoints()
	for i := range e.Endpoints {
		if s.Certificates {
			e.Endpoints[i] = "https://" + e.Endpoints[i]
		}
	}
	if s.TokenSeconds > 0 {
		e.authenticate()
	}
	return e
}

// TLS are the settings of a client.
func (e *SecureEtcd) TLS() *tls.Config {
	e.t.Helper()
	if e.Authority == nil {
		return nil
	}
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(e.Authority.File)
	require.NoError(e.t, err)
	require.True(e.t, pool.AppendCertsFromPEM(pem))
	cert, err := tls.LoadX509KeyPair(e.Client.Cert, e.Client.Key)
	require.NoError(e.t, err)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}

// authenticate turns authentication on.
func (e *SecureEtcd) authenticate() {
	e.t.Helper()
	admin, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints, TLS: e.TLS(), Logger: zap.NewNop()})
	require.NoError(e.t, err)
	defer func() { require.NoError(e.t, admin.Close()) }()
	ctx := e.t.Context()
	const role = "starfish"
	for _, name := range []string{root, User, Stranger} {
		_, err = admin.UserAdd(ctx, name, Password)
		require.NoError(e.t, err)
	}
	_, err = admin.UserGrantRole(ctx, root, root)
	require.NoError(e.t, err)
	_, err = admin.RoleAdd(ctx, role)
	require.NoError(e.t, err)
	prefix := "/starfish/"
	_, err = admin.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(e.t, err)
	_, err = admin.UserGrantRole(ctx, User, role)
	require.NoError(e.t, err)
	_, err = admin.AuthEnable(ctx)
	require.NoError(e.t, err)
}
