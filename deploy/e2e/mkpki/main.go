// Command mkpki writes what the programs of a Kubernetes cluster that is thrown away
// know one another by into a directory: certificates of an authority, the API
// server, and each named node, and kubeconfigs of an administrator, the controller
// manager, the scheduler, the proxy and the nodes.
//
//	mkpki -d DIR -server https://IP:6443 -ip 127.0.0.1,10.96.0.1,IP node1=IP1 node2=IP2
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"starfish/internal/clock"
)

// check ends the program with an error.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkpki:", err)
		os.Exit(1)
	}
}

var (
	dirF    = flag.String("d", "pki", "output folder")
	server  = flag.String("server", "https://127.0.0.1:6443", "API server URL for the kubeconfigs")
	ips     = flag.String("ip", "127.0.0.1", "IPs in the API server's certificate")
	names   = flag.String("dns", "localhost,kubernetes,kubernetes.default,kubernetes.default.svc,kubernetes.default.svc.cluster.local", "names in it")
	caCert  *x509.Certificate
	caKey   *ecdsa.PrivateKey
	serial  int64
	caPEM   []byte
	notFrom = clock.System.Now().Add(-time.Hour)
)

func write(name string, b []byte) { check(os.WriteFile(filepath.Join(*dirF, name), b, 0o600)) }

func keyPEM(k *ecdsa.PrivateKey) []byte {
	b, err := x509.MarshalPKCS8PrivateKey(k)
	check(err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b})
}

func issue(file, cn string, orgs []string, ipl, dns []string) (cert, key []byte) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	serial++
	t := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: cn, Organization: orgs},
		NotBefore: notFrom, NotAfter: notFrom.Add(365 * 24 * time.Hour), DNSNames: dns,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	for _, s := range ipl {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(s))
	}
	parent, signer := caCert, caKey
	if parent == nil {
		t.IsCA, t.BasicConstraintsValid, t.KeyUsage, t.ExtKeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature, nil
		parent, signer = t, k
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &k.PublicKey, signer)
	check(err)
	cert, key = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM(k)
	write(file+".crt", cert)
	write(file+".key", key)
	if caCert == nil {
		caCert, err = x509.ParseCertificate(der)
		check(err)
		caKey, caPEM = k, cert
	}
	return cert, key
}

func kubeconfig(file, cn string, orgs []string, ipl, dns []string) {
	c, k := issue(file, cn, orgs, ipl, dns)
	e := base64.StdEncoding.EncodeToString
	write(file+".kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: u}}]
current-context: e2e
`, *server, e(caPEM), e(c), e(k)))
}

func main() {
	flag.Parse()
	check(os.MkdirAll(*dirF, 0o700))
	issue("ca", "e2e-ca", nil, nil, nil)
	issue("apiserver", "kube-apiserver", nil, strings.Split(*ips, ","), strings.Split(*names, ","))
	issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}, nil, nil)
	issue("front-proxy", "front-proxy-client", nil, nil, nil)
	kubeconfig("admin", "e2e-admin", []string{"system:masters"}, nil, nil)
	kubeconfig("controller-manager", "system:kube-controller-manager", nil, nil, nil)
	kubeconfig("scheduler", "system:kube-scheduler", nil, nil, nil)
	kubeconfig("proxy", "system:kube-proxy", nil, nil, nil)
	for _, a := range flag.Args() {
		n, ip, _ := strings.Cut(a, "=")
		kubeconfig(n, "system:node:"+n, []string{"system:nodes"}, []string{ip}, []string{n})
	}
	sa, err := rsa.GenerateKey(rand.Reader, 2048)
	check(err)
	b, err := x509.MarshalPKIXPublicKey(&sa.PublicKey)
	check(err)
	write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(sa)}))
	write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b}))
}
