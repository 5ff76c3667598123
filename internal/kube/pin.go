package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/client-go/util/cert"

	"github.com/nodeagent/nodeagent/internal/host"
)

// servingPin decides whether a server is this node's kubelet. Its serving certificate is commonly self-signed, and
// names addresses of the node but not the loopback. So the certificate must be the very one on disk in kubelet's
// directory, readable by kubelet's own user only; or the configured CA must have signed it and it must name this node.
// Another process that binds the port while kubelet is down is refused in the handshake, before any token is sent.
// Files that users other than root can write prove nothing: see package owned.
type servingPin struct {
	files host.Files
	paths host.Paths
	node  string
	host  string // as in the URL
}

var errNotKubelet = errors.New("the server does not prove to be this node's kubelet")

func (p servingPin) check(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNotKubelet
	}
	leaf := state.PeerCertificates[0]
	var problems []error
	for _, name := range p.candidates() {
		certificates, err := p.read(name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if slices.ContainsFunc(certificates, leaf.Equal) {
			return nil
		}
		if name == p.paths.KubeletCAFile {
			err := p.signed(state.PeerCertificates, certificates)
			if err == nil {
				return nil
			}
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	return fmt.Errorf("%w: %w", errNotKubelet, errors.Join(problems...))
}

// candidates are the possible certificate files: the configured one (kubelet's tlsCertFile, or a CA), the one that
// kubelet created itself, and the one that the cluster signed (serverTLSBootstrap).
func (p servingPin) candidates() []string {
	var names []string
	if p.paths.KubeletCAFile != "" {
		names = append(names, p.paths.KubeletCAFile)
	}
	return append(names,
		filepath.Join(p.paths.KubeletRoot, "pki/kubelet.crt"),
		filepath.Join(p.paths.KubeletRoot, "pki/kubelet-server-current.pem"))
}

func (p servingPin) read(name string) ([]*x509.Certificate, error) {
	data, err := p.files.ReadOwned(name)
	if err != nil {
		return nil, err
	}
	certificates, err := cert.ParseCertsPEM(data) // skips the key in kubelet-server-current.pem
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return certificates, nil
}

// signed verifies the chain and that the certificate is for this node.
func (p servingPin) signed(chain, roots []*x509.Certificate) error {
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool()}
	for _, root := range roots {
		options.Roots.AddCert(root)
	}
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	leaf := chain[0]
	if _, err := leaf.Verify(options); err != nil {
		return err
	}
	if p.node != "" && (leaf.Subject.CommonName == "system:node:"+p.node || leaf.VerifyHostname(p.node) == nil) {
		return nil
	}
	return leaf.VerifyHostname(p.host)
}
