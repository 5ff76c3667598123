// Package identity says who speaks to the event center, and who may read: nodes by the tokens of their agents or by
// kubelet's client certificate, readers by the rights that their cluster gives them. Which cluster a node is of follows
// from which of the configured clusters vouches for it, never from what it sends. It accepts nothing of which no
// cluster is sure, and says why in words for operators.
package identity

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Settings are those of the clusters that vouch for nodes and readers.
type Settings struct {
	Clusters []Cluster `yaml:"clusters"`
}

// Cluster is how one cluster vouches for its nodes and readers.
type Cluster struct {
	// Name is that in the source of its nodes' events.
	Name string `yaml:"name"`
	// Kubeconfig is the absolute path of a file with the address of its apiserver and the center's credentials there; it
	// must not name a program. Empty: the ServiceAccount of the center's own pod.
	Kubeconfig string `yaml:"kubeconfig"`
	// Audience of the tokens of agents. Empty: no token speaks for a node.
	Audience string `yaml:"audience"`
	// Agents are the ServiceAccounts that agents run as, NAMESPACE/NAME.
	Agents []string `yaml:"agents"`
	// Detectors find faults of nodes beside the agents.
	Detectors []Detector `yaml:"detectors"`
	// ClientCAFile is the absolute path of the authorities of kubelets' client certificates, PEM; read again when it
	// changes. Empty: no certificate speaks for a node.
	ClientCAFile string `yaml:"clientCAFile"`
	// Readers has this cluster's RBAC decide who may read. What they read is of all clusters.
	Readers bool `yaml:"readers"`
	// PoolLabel is the label of Nodes whose value is the pool.
	PoolLabel string `yaml:"poolLabel"`
	// NodeSelector is a label selector of the Nodes that are expected to have an agent. Empty: all.
	NodeSelector string `yaml:"nodeSelector"`
}

// Detector is a program beside the agents that raises and ends faults of nodes.
type Detector struct {
	// Name is the last part of the source of its events: /clusters/CLUSTER/nodes/NODE/NAME.
	Name string `yaml:"name"`
	// ServiceAccount that it runs as, NAMESPACE/NAME, with a token for the cluster's audience.
	ServiceAccount string `yaml:"serviceAccount"`
	// EveryNode has it speak of all nodes of the cluster. False: of the node that its token names alone.
	EveryNode bool `yaml:"everyNode"`
}

const (
	maxSettings = 1 << 20 // bytes
	maxClusters = 100
)

var (
	clusterName    = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`) // it is a file's name too
	serviceAccount = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

// Read reads settings strictly: a key that is not known is an error.
func Read(r io.Reader) (s Settings, err error) {
	decoder := yaml.NewDecoder(io.LimitReader(r, maxSettings))
	decoder.KnownFields(true)
	if err := decoder.Decode(&s); err != nil {
		return s, err
	}
	if err := decoder.Decode(&Settings{}); !errors.Is(err, io.EOF) {
		return s, errors.New("more than one document")
	}
	return s, s.problem()
}

// problem returns what is wrong.
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
			return fmt.Errorf("clusters.%d: name %q stands there twice", i, c.Name)
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

// detector returns the detector that runs as a user; the zero value: none does.
func (c Cluster) detector(user string) Detector {
	for _, d := range c.Detectors {
		if user == userOf(d.ServiceAccount) {
			return d
		}
	}
	return Detector{}
}

// userOf returns the name of a ServiceAccount as the apiserver has it.
func userOf(account string) string {
	return "system:serviceaccount:" + strings.Replace(account, "/", ":", 1)
}

// users returns the names of the agents' ServiceAccounts as the apiserver has them.
func (c Cluster) users() []string {
	users := make([]string, 0, len(c.Agents))
	for _, agent := range c.Agents {
		users = append(users, userOf(agent))
	}
	return users
}
