package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store/storetest"
)

// A whole job, under kills, over an etcd with certificates and passwords, whose
// tokens end when they were not used for a second; every command finds it, and no
// lease is left.
func TestSecureEtcd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a whole job")
	}
	e := storetest.Secure(t, storetest.Security{Certificates: true, ClientCertificates: true, TokenSeconds: 1})
	flags := []string{
		"--etcd-endpoints", strings.Join(e.Endpoints, ","), "--etcd-user", storetest.User, "--etcd-password-file", e.PasswordFile,
		"--etcd-cacert", e.Authority.File, "--etcd-cert", e.Client.Cert, "--etcd-key", e.Client.Key,
	}
	var env []string // the same, but for the endpoints
	for i := 2; i < len(flags); i += 2 {
		env = append(env, "STARFISH_"+strings.ToUpper(strings.ReplaceAll(flags[i][2:], "-", "_"))+"="+flags[i+1])
	}
	dir, passes := filepath.Join(t.TempDir(), "run"), 40
	c := newCall(t, append([]string{"run"}, append(flags, "-f", count, "--dir", dir, "--set", "train.passes=40", "--set", "lease_ttl=2s",
		"--chaos", "trainer=2s,pserver=4s", "--result", "-", "--export", filepath.Join(dir, "counts.txt"))...)...).succeed()
	require.EqualValues(t, passes*32561, c.result().Records)
	requireExact(t, filepath.Join(dir, "counts.txt"), passes)
	c.leavesNothing()

	for _, args := range [][]string{
		{"status", "--job", "count", flags[0], flags[1]}, {"status", "--dir", dir}, {"jobs", flags[0], flags[1]}, {"queue", "audit", "--dir", dir},
		{"export", "--dir", dir, "-o", filepath.Join(dir, "again.txt")},
	} {
		newCall(t, args...).env(env...).succeed()
	}
	newCall(t, "status", "--job", "count", "--etcd-endpoints", strings.Join(e.Endpoints, ","), "--etcd-cacert", e.Authority.File).
		refuses(2, "connect to etcd at "+e.Endpoints[0]+": no secure connection: remote error: tls: certificate required; "+
			"--etcd-cacert, --etcd-cert and --etcd-key name the certificates")
	require.Eventually(t, func() bool {
		n, err := e.Server.Leases(t.Context())
		return err == nil && n == 0
	}, 10*time.Second, 50*time.Millisecond, "leases of the dead go")
}
