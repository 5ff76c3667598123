package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// authority signs the lab's certificates. Its key stays in the lab's folder: kube-controller-manager signs with it.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// leaf describes one certificate: a client if hosts is empty, otherwise a server.
type leaf struct {
	file  string
	name  string
	group string
	hosts []string
}

func createPKI(dir, node string) error {
	ca, err := newAuthority(filepath.Join(dir, "pki"))
	if err != nil {
		return err
	}
	leaves := []leaf{
		{file: "apiserver", name: "kube-apiserver", hosts: []string{"127.0.0.1", "localhost", NodeIP, hostOfGuest, firstService,
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}},
		{file: "kubelet-serving", name: "system:node:" + node, group: "system:nodes",
			hosts: []string{"127.0.0.1", "localhost", node, NodeIP}},
		{file: "kubelet", name: "system:node:" + node, group: "system:nodes"},
		{file: "kubelet-client", name: "kube-apiserver-kubelet-client", group: "system:masters"},
		{file: "controller-manager", name: "system:kube-controller-manager"},
		{file: "scheduler", name: "system:kube-scheduler"},
		{file: "admin", name: "nodeagent-lab-admin", group: "system:masters"},
	}
	for _, l := range leaves {
		if err := ca.issue(l); err != nil {
			return fmt.Errorf("certificate %s: %w", l.file, err)
		}
	}
	return writeKeyPair(ca.dir, "sa")
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request := certificate("nodeagent-lab-ca", "")
	request.IsCA, request.BasicConstraintsValid = true, true
	request.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, request, request, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{dir, cert, key}, writePair(dir, "ca", der, key)
}

func (ca *authority) issue(l leaf) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request := certificate(l.name, l.group)
	request.KeyUsage = x509.KeyUsageDigitalSignature
	request.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(l.hosts) > 0 {
		request.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, host := range l.hosts {
		if ip := net.ParseIP(host); ip != nil {
			request.IPAddresses = append(request.IPAddresses, ip)
		} else {
			request.DNSNames = append(request.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, request, ca.cert, key.Public(), ca.key)
	if err != nil {
		return err
	}
	return writePair(ca.dir, l.file, der, key)
}

func certificate(name, group string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		serial = big.NewInt(time.Now().UnixNano()) // it only has to be unique
	}
	c := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // the clocks of virtual machines jump
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
	if group != "" {
		c.Subject.Organization = []string{group}
	}
	return c
}

func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der, 0o644); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, name+".key"), key)
}

// writeKeyPair creates the key that signs ServiceAccount tokens.
func writeKeyPair(dir, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, name+".pub"), "PUBLIC KEY", public, 0o644); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, name+".key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return writeFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// identity is the user of a kubeconfig: a certificate with its key, or a file with a token.
type identity struct {
	Cert, Key, TokenFile string
}

var kubeconfigTemplate = template.Must(template.New("kubeconfig").Parse(`apiVersion: v1
kind: Config
clusters:
- name: nodeagent-lab
  cluster:
    server: {{.Server}}
    certificate-authority: {{.CA}}
users:
- name: user
  user:
{{- if .TokenFile}}
    tokenFile: {{.TokenFile}}
{{- else}}
    client-certificate: {{.Cert}}
    client-key: {{.Key}}
{{- end}}
contexts:
- name: nodeagent-lab
  context: {cluster: nodeagent-lab, user: user}
current-context: nodeagent-lab
`))

func (l *Lab) writeKubeconfig(path string, who identity) error {
	return renderFile(path, kubeconfigTemplate, map[string]string{
		"Server": l.Server(), "CA": l.Paths.CAFile, "Cert": who.Cert, "Key": who.Key, "TokenFile": who.TokenFile,
	})
}
