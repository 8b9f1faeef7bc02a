package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// password reads the user's password: the file but for line ends at its end.
func (e *Etcd) password() (string, error) {
	if err := pair("--etcd-user", e.User, "--etcd-password-file", e.PasswordFile); err != nil || e.User == "" {
		return "", err
	}
	b, err := os.ReadFile(e.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("--etcd-password-file: %w", err)
	}
	password := strings.TrimRight(string(b), "\r\n")
	if password == "" {
		return "", fmt.Errorf("--etcd-password-file: %s is empty", e.PasswordFile)
	}
	return password, nil
}

// pair is an error if one of two flags is given without the other.
func pair(name, value, other, otherValue string) error {
	switch {
	case value != "" && otherValue == "":
		return fmt.Errorf("%s needs %s", name, other)
	case value == "" && otherValue != "":
		return fmt.Errorf("%s needs %s", other, name)
	}
	return nil
}

// tls reads the certificates. That of the client is read again for every
// connection, so that its files may be renewed while the process runs.
func (e *Etcd) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := pair("--etcd-cert", e.Cert, "--etcd-key", e.Key); err != nil {
		return nil, err
	}
	if e.CACert != "" {
		pem, err := os.ReadFile(e.CACert)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-cacert: %s holds no certificate in PEM", e.CACert)
		}
	}
	if e.Cert == "" {
		return c, nil
	}
	if _, err := e.clientCert(nil); err != nil {
		return nil, err
	}
	c.GetClientCertificate = e.clientCert
	return c, nil
}

func (e *Etcd) clientCert(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(e.Cert, e.Key)
	if err != nil {
		return nil, fmt.Errorf("--etcd-cert, --etcd-key: %w", err)
	}
	return &cert, nil
}
