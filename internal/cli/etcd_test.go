package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/storetest"
	"starfish/job"
)

// credentials are all that an etcd may ask for.
func credentials(e *storetest.SecureEtcd) Etcd {
	return Etcd{
		Endpoints: e.Endpoints, Timeout: 20 * time.Second, User: storetest.User, PasswordFile: e.PasswordFile,
		CACert: e.Authority.File, Cert: e.Client.Cert, Key: e.Client.Key,
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestConnectSecurely(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	tls := storetest.Secure(t, storetest.Security{Certificates: true})
	mutual := storetest.Secure(t, storetest.Security{Certificates: true, ClientCertificates: true})
	all := storetest.Secure(t, storetest.Security{Certificates: true, TokenSeconds: 5})
	named := storetest.Secure(t, storetest.Security{Certificates: true, ClientCertificates: true, TokenSeconds: 5})
	plain := storetest.Secure(t, storetest.Security{})
	other := storetest.NewAuthority(t)
	stranger := all.Authority.Client("nobody")
	none := filepath.Join(t.TempDir(), "absent")

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	silent := listener.Addr().String()

	cases := map[string]struct {
		etcd *storetest.SecureEtcd
		set  func(*Etcd)
		code int
		says string
	}{
		"everything":                         {all, func(*Etcd) {}, 0, ""},
		"without a scheme":                   {all, func(e *Etcd) { e.Endpoints[0] = strings.TrimPrefix(e.Endpoints[0], "https://") }, 0, ""},
		"a user where none is asked for":     {tls, func(*Etcd) {}, 0, ""},
		"no client certificate":              {tls, func(e *Etcd) { e.Cert, e.Key = "", "" }, 0, ""},
		"a client certificate":               {mutual, func(e *Etcd) { e.User, e.PasswordFile = "", "" }, 0, ""},
		"one member is away":                 {tls, func(e *Etcd) { e.Endpoints = append([]string{"https://127.0.0.1:1"}, e.Endpoints...) }, 0, ""},
		"a client certificate is missing":    {mutual, func(e *Etcd) { e.Cert, e.Key = "", "" }, 2, "no secure connection: remote error: tls: certificate required"},
		"a client certificate of others":     {mutual, func(e *Etcd) { p := other.Client("x"); e.Cert, e.Key = p.Cert, p.Key }, 2, "no secure connection: remote error: tls: "},
		"an authority of others":             {tls, func(e *Etcd) { e.CACert = other.File }, 2, "no secure connection: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		"the system's authorities":           {tls, func(e *Etcd) { e.CACert = "" }, 2, "x509: certificate signed by unknown authority; --etcd-cacert"},
		"certificates for a plain etcd":      {plain, func(e *Etcd) { e.CACert, e.Timeout = other.File, time.Second }, 3, "the connection was ended at once"},
		"certificates for http://":           {tls, func(e *Etcd) { e.Endpoints[0] = strings.Replace(e.Endpoints[0], "https", "http", 1) }, 2, "has no use for a certificate: write https://"},
		"http:// beside https://":            {tls, func(e *Etcd) { e.Endpoints = append(e.Endpoints, "http://127.0.0.1:1") }, 2, "--etcd-endpoints: http://127.0.0.1:1 beside https://"},
		"no authority there":                 {tls, func(e *Etcd) { e.CACert = none }, 2, "--etcd-cacert: open " + none + ": no such file"},
		"an authority that is none":          {tls, func(e *Etcd) { e.CACert = e.PasswordFile }, 2, "holds no certificate in PEM"},
		"no certificate there":               {tls, func(e *Etcd) { e.Cert = none }, 2, "--etcd-cert, --etcd-key: open " + none},
		"a key of another certificate":       {tls, func(e *Etcd) { e.Key = stranger.Key }, 2, "--etcd-cert, --etcd-key: tls: private key does not match public key"},
		"a certificate without its key":      {tls, func(e *Etcd) { e.Key = "" }, 2, "--etcd-cert needs --etcd-key"},
		"a key without its certificate":      {tls, func(e *Etcd) { e.Cert = "" }, 2, "--etcd-key needs --etcd-cert"},
		"a user without password":            {all, func(e *Etcd) { e.PasswordFile = "" }, 2, "--etcd-user needs --etcd-password-file"},
		"a password without user":            {all, func(e *Etcd) { e.User = "" }, 2, "--etcd-password-file needs --etcd-user"},
		"no password there":                  {all, func(e *Etcd) { e.PasswordFile = none }, 2, "--etcd-password-file: open " + none},
		"an empty password":                  {all, func(e *Etcd) { e.PasswordFile = file(t, "\n") }, 2, "is empty"},
		"a wrong password":                   {all, func(e *Etcd) { e.PasswordFile = file(t, "guess") }, 2, "user or password is wrong: --etcd-user " + storetest.User},
		"an unknown user":                    {all, func(e *Etcd) { e.User = "guess" }, 2, "user or password is wrong: --etcd-user guess"},
		"a user without access":              {all, func(e *Etcd) { e.User = storetest.Stranger }, 2, "the user has no access: it must be allowed"},
		"nobody":                             {all, func(e *Etcd) { e.User, e.PasswordFile, e.Cert, e.Key = "", "", "", "" }, 2, "it asks for a user and a password: --etcd-user and --etcd-password-file"},
		"the user of the client certificate": {named, func(e *Etcd) { e.User, e.PasswordFile = "", "" }, 0, ""},
		"a plain client": {tls, func(e *Etcd) {
			*e = Etcd{Endpoints: []string{strings.TrimPrefix(e.Endpoints[0], "https://")}, Timeout: time.Second}
		}, 3, "the connection was ended at once"},
		"a silent place": {tls, func(e *Etcd) { e.Endpoints[0], e.Timeout = "https://"+silent, 300*time.Millisecond }, 3, "within 300ms: "},
		"nobody there":   {all, func(e *Etcd) { e.Endpoints[0], e.Timeout = "https://127.0.0.1:1", 300*time.Millisecond }, 3, "was not reached within 300ms: connect: connection refused"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e Etcd
			if c.etcd == plain {
				e = Etcd{Endpoints: plain.Endpoints, Timeout: 20 * time.Second}
			} else {
				e = credentials(c.etcd)
			}
			e.Endpoints = append([]string(nil), e.Endpoints...)
			c.set(&e)
			st, closeStore, err := e.Connect(t.Context(), log)
			if c.code != 0 {
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.code, job.ExitCode(err), err)
				require.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err)
			defer closeStore()
			_, err = st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("/starfish/job/"+name, nil, 0)}})
			require.NoError(t, err)
		})
	}
}

// What a process is given it can hand on.
func TestEnvironmentOfCredentials(t *testing.T) {
	t.Parallel()
	given := Etcd{User: "me", PasswordFile: "secret", CACert: "/ca", Cert: "cert", Key: "key"}
	pairs, err := given.Environment()
	require.NoError(t, err)
	env := make(map[string]string)
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	var got Etcd
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	got.Register(fs)
	require.NoError(t, FromEnvironment(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
	here, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, Etcd{
		Timeout: DefaultEtcdTimeout, User: "me", PasswordFile: filepath.Join(here, "secret"), CACert: "/ca",
		Cert: filepath.Join(here, "cert"), Key: filepath.Join(here, "key"),
	}, got)

	pairs, err = new(Etcd).Environment()
	require.NoError(t, err)
	require.Empty(t, pairs)
	require.NoError(t, new(Etcd).RefuseCredentials())
	require.EqualError(t, given.RefuseCredentials(), "--etcd-user needs --etcd-endpoints")
}
