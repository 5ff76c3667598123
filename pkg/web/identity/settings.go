// Package identity identifies the senders of requests to a program, and decides who may read: nodes by their agents' tokens or
// by kubelet's client certificate, readers by their rights in a cluster. A node belongs to the configured cluster that
// vouches for it, never to one that it claims. The package accepts no identity without a cluster that vouches for it,
// and explains refusals to operators.
package identity

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// Settings list the clusters that vouch for nodes and readers.
type Settings struct {
	Clusters []Cluster `yaml:"clusters"`
}

// Cluster configures how a cluster vouches for its nodes and readers.
type Cluster struct {
	// Name is the cluster in the source of its nodes' events.
	Name string `yaml:"name"`
	// Kubeconfig is the absolute path of a file with the address of its apiserver and the program's credentials there;
	// it must not use an exec plugin. Empty: the ServiceAccount of the program's own pod.
	Kubeconfig string `yaml:"kubeconfig"`
	// Audience is the audience of agents' tokens. Empty: nodes cannot use tokens.
	Audience string `yaml:"audience"`
	// Agents are the agents' ServiceAccounts, NAMESPACE/NAME.
	Agents []string `yaml:"agents"`
	// Detectors report faults of nodes in addition to the agents.
	Detectors []Detector `yaml:"detectors"`
	// ClientCAFile is the absolute path of the CAs of kubelets' client certificates, PEM; it is read again when it
	// changes. Empty: nodes cannot use certificates.
	ClientCAFile string `yaml:"clientCAFile"`
	// Readers lets this cluster's RBAC decide who may read. Its readers see all clusters.
	Readers bool `yaml:"readers"`
	// PoolLabel is the Node label with the name of the pool.
	PoolLabel string `yaml:"poolLabel"`
	// NodeSelector selects the Nodes that should have an agent, by label. Empty: all.
	NodeSelector string `yaml:"nodeSelector"`
}

// Detector is a program besides the agents that raises and ends faults of nodes.
type Detector struct {
	// Name is the last part of the source of its events: /clusters/CLUSTER/nodes/NODE/NAME.
	Name string `yaml:"name"`
	// ServiceAccount is the one that it runs as, NAMESPACE/NAME, with a token for the cluster's audience.
	ServiceAccount string `yaml:"serviceAccount"`
	// EveryNode lets it send for all nodes of the cluster. False: only for the node in its token.
	EveryNode bool `yaml:"everyNode"`
}

const (
	maxClusters = 100
)

var (
	clusterName    = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`) // it is also a file name
	serviceAccount = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

// Read reads settings strictly: an unknown key is an error.
func Read(r io.Reader) (s Settings, err error) {
	if err := settings.Read(r, &s); err != nil {
		return s, err
	}
	return s, s.problem()
}

// problem returns the first error in the settings.
func (s Settings) problem() error {
	names := map[string]bool{}
	if len(s.Clusters) == 0 || len(s.Clusters) > maxClusters {
		return fmt.Errorf("clusters: %d, want 1 to %d", len(s.Clusters), maxClusters)
	}
	for i, c := range s.Clusters {
		if err := c.problem(); err != nil {
			return fmt.Errorf("clusters.%d: %w", i, err)
		}
		if names[c.Name] {
			return fmt.Errorf("clusters.%d: name %q is given twice", i, c.Name)
		}
		names[c.Name] = true
	}
	return nil
}

func (c Cluster) problem() error {
	if !clusterName.MatchString(c.Name) {
		return fmt.Errorf("name %.80q: want letters, digits, '.', '_' and '-', at most 63", c.Name)
	}
	if (c.Audience == "") != (len(c.Agents) == 0) {
		return errors.New("audience and agents belong together: a token is accepted for both")
	}
	for _, agent := range c.Agents {
		if !serviceAccount.MatchString(agent) {
			return fmt.Errorf("agents: %.200q: want NAMESPACE/NAME of a ServiceAccount", agent)
		}
	}
	for _, d := range c.Detectors {
		for _, other := range c.Detectors {
			if other != d && (other.Name == d.Name || other.ServiceAccount == d.ServiceAccount) {
				return fmt.Errorf("detectors: %q: two detectors need two names and two ServiceAccounts", d.Name)
			}
		}
		switch {
		case !event.IsDetector(d.Name):
			return fmt.Errorf("detectors: name %.80q: want letters, digits, '.', '_' and '-', at most 63", d.Name)
		case !serviceAccount.MatchString(d.ServiceAccount):
			return fmt.Errorf("detectors: %.200q: want NAMESPACE/NAME of a ServiceAccount", d.ServiceAccount)
		case slices.Contains(c.Agents, d.ServiceAccount):
			return fmt.Errorf("detectors: %s is the agents' ServiceAccount too", d.ServiceAccount)
		case c.Audience == "":
			return errors.New("detectors: no token is accepted without an audience")
		}
	}
	for key, name := range map[string]string{"kubeconfig": c.Kubeconfig, "clientCAFile": c.ClientCAFile} {
		if name != "" && !filepath.IsAbs(name) {
			return fmt.Errorf("%s: %q is no absolute path", key, name)
		}
	}
	return nil
}

// detector returns the detector that runs as a user; the zero value: none.
func (c Cluster) detector(user string) Detector {
	for _, d := range c.Detectors {
		if user == userOf(d.ServiceAccount) {
			return d
		}
	}
	return Detector{}
}

// userOf returns a ServiceAccount's user name in the apiserver.
func userOf(account string) string {
	return "system:serviceaccount:" + strings.Replace(account, "/", ":", 1)
}

// users returns the user names of the agents' ServiceAccounts in the apiserver.
func (c Cluster) users() []string {
	users := make([]string, 0, len(c.Agents))
	for _, agent := range c.Agents {
		users = append(users, userOf(agent))
	}
	return users
}
