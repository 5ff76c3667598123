package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"

	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// Peers is the number of replicas, fixed from the first start on.
const Peers = 3

// Settings describe the journal of several replicas.
type Settings struct {
	// Journal is "jetstream".
	Journal string `yaml:"journal"`
	// Name of this replica among the peers. Empty: the host name.
	Name string `yaml:"name"`
	// Listen is the address for the other replicas, HOST:PORT. Addresses other than loopback need TLS.
	Listen string `yaml:"listen"`
	// Peers are all replicas, including this one.
	Peers []Peer `yaml:"peers"`
	// SecretFile is the absolute path of a file with the replicas' common secret, at least 16 characters.
	SecretFile string `yaml:"secretFile"`
	// TLS between the replicas: each presents a certificate, and demands one.
	TLS TLS `yaml:"tls"`
	// NATS is an external cluster, instead of the servers in the replicas.
	NATS NATS `yaml:"nats"`
}

// Peer is a replica.
type Peer struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"` // HOST:PORT
}

// TLS names files, which are read again when they change. CAFile is read only at the start.
type TLS struct {
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	CAFile   string `yaml:"caFile"`
}

// NATS is an external cluster of at least three servers.
type NATS struct {
	URL             string `yaml:"url"`
	CredentialsFile string `yaml:"credentialsFile"`
	CAFile          string `yaml:"caFile"`
}

var peerName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// Read reads settings strictly: an unknown key is an error.
func Read(r io.Reader) (s Settings, err error) {
	if err := settings.Read(r, &s); err != nil {
		return s, err
	}
	if s.Name == "" {
		s.Name, err = os.Hostname()
	}
	return s, cmp.Or(err, s.problem())
}

// Outside reports whether the NATS servers are external.
func (s Settings) Outside() bool { return s.NATS.URL != "" }

// problem returns the first error in the settings.
func (s Settings) problem() error {
	if s.Journal != "jetstream" {
		return fmt.Errorf("journal: %.40q, want \"jetstream\"", s.Journal)
	}
	for key, name := range map[string]string{"secretFile": s.SecretFile, "tls.certFile": s.TLS.CertFile,
		"tls.keyFile": s.TLS.KeyFile, "tls.caFile": s.TLS.CAFile, "nats.credentialsFile": s.NATS.CredentialsFile,
		"nats.caFile": s.NATS.CAFile} {
		if name != "" && !filepath.IsAbs(name) {
			return fmt.Errorf("%s: %q is no absolute path", key, name)
		}
	}
	if s.Outside() {
		if len(s.Peers) > 0 || s.Listen != "" || s.SecretFile != "" || s.TLS != (TLS{}) {
			return errors.New("nats.url: an outside cluster has no peers, listen, secretFile and tls")
		}
		return nil
	}
	return s.peersProblem()
}

func (s Settings) peersProblem() error {
	if len(s.Peers) != Peers {
		return fmt.Errorf("peers: %d, want %d: all replicas, this one too", len(s.Peers), Peers)
	}
	names, loopback := map[string]bool{}, isLoopback(s.Listen)
	for i, p := range s.Peers {
		if !peerName.MatchString(p.Name) || names[p.Name] {
			return fmt.Errorf("peers.%d.name: %.80q: want letters, digits and '-', each name once", i, p.Name)
		}
		if _, _, err := net.SplitHostPort(p.Address); err != nil {
			return fmt.Errorf("peers.%d.address: %w", i, err)
		}
		names[p.Name] = true
		loopback = loopback && isLoopback(p.Address)
	}
	withTLS := s.TLS.CertFile != "" && s.TLS.KeyFile != "" && s.TLS.CAFile != ""
	_, _, err := net.SplitHostPort(s.Listen)
	switch {
	case !names[s.Name]:
		return fmt.Errorf("name: %.80q is none of the peers", s.Name)
	case err != nil:
		return fmt.Errorf("listen: %w", err)
	case s.SecretFile == "":
		return errors.New("secretFile: must be set")
	case !withTLS && s.TLS != (TLS{}):
		return errors.New("tls: certFile, keyFile and caFile belong together")
	case !withTLS && !loopback:
		return errors.New("tls: must be set where listen or a peer is not on loopback")
	}
	return nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
