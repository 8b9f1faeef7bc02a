package storetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
)

// Authority signs certificates.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// File holds its own certificate, in PEM.
	File string
}

// Pair are the files of a certificate and its key, in PEM.
type Pair struct{ Cert, Key string }

// NewAuthority makes an authority that nobody trusts but those that are given
// its file.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := a.template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.File = a.sign("authority", template).Cert
	return a
}

// Server makes a certificate for 127.0.0.1.
func (a *Authority) Server() Pair {
	t := a.template("server")
	t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.sign("server", t)
}

// Client makes a certificate for a user.
func (a *Authority) Client(user string) Pair { return a.sign("client-"+user, a.template(user)) }

func (a *Authority) template(name string) *x509.Certificate {
	now := clock.System.Now()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// sign makes a key and its certificate; the first signs itself.
func (a *Authority) sign(name string, template *x509.Certificate) Pair {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
		a.cert, a.key = template, key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	return Pair{a.write(name+".crt", "CERTIFICATE", cert), a.write(name+".key", "EC PRIVATE KEY", secret)}
}

func (a *Authority) write(name, kind string, der []byte) string {
	file := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}
