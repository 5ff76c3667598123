package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/kube/fleet"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/silence"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// clusters are the clusters that vouch for nodes and readers.
type clusters struct {
	identity *identity.Authority
	clients  map[string]*fleet.Client
	log      *slog.Logger
}

// openClusters reads the file of clusters. Without it the center's own token is the only identity.
func (s *serveOptions) openClusters(dir, token string, log *slog.Logger) (*clusters, error) {
	c := &clusters{clients: map[string]*fleet.Client{}, log: log}
	config := identity.Config{Program: "eventcenter", Local: token, Dir: filepath.Join(dir, "clusters"), Log: log}
	if s.clusters != "" {
		vouchers, err := settings.File(s.clusters, identity.Read)
		if err != nil {
			return nil, fmt.Errorf("--clusters %s: %w", s.clusters, err)
		}
		for _, one := range vouchers.Clusters {
			if one.Kubeconfig != "" {
				if err := secretfile.Check(one.Kubeconfig); err != nil {
					return nil, fmt.Errorf("--clusters %s: cluster %s: kubeconfig: %w", s.clusters, one.Name, err)
				}
			}
			client, err := fleet.New(fleet.Config{Kubeconfig: one.Kubeconfig, UserAgent: "eventcenter/" + Version,
				PoolLabel: one.PoolLabel, Selector: one.NodeSelector, Log: log.With("cluster", one.Name)})
			if err != nil {
				return nil, fmt.Errorf("--clusters %s: cluster %s: %w", s.clusters, one.Name, err)
			}
			c.clients[one.Name] = client
			config.Vouchers = append(config.Vouchers, identity.Voucher{Cluster: one, Apiserver: client, Node: client.UID})
		}
	}
	var err error
	c.identity, err = identity.New(config)
	return c, err
}

// handshake makes the server request a client certificate if a cluster vouches by certificates. Each request verifies
// it, so that a refusal can give the reason.
func (c *clusters) handshake(config *tls.Config) *tls.Config {
	if c.identity.ClientCAs() == nil {
		return config
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		asking := config.Clone()
		asking.ClientAuth, asking.ClientCAs = tls.RequestClientCert, c.identity.ClientCAs()
		return asking, nil
	}
	return config
}

// run watches the clusters until ctx ends.
func (c *clusters) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { _ = c.identity.Run(ctx) }) // logs errors
	for _, client := range c.clients {
		all.Go(func() { client.Watch(ctx) })
	}
	all.Wait()
}

// judge looks for silent nodes until ctx ends. alive is the interval of the agents' signs of life.
func (c *clusters) judge(ctx context.Context, center *eventcenter.Center, append appender, alive time.Duration) {
	var all sync.WaitGroup
	for name, client := range c.clients {
		w := &silence.Watcher{Name: name, Cluster: watched{client}, Model: center.Model, Append: append,
			Interval: alive, Log: c.log}
		all.Go(func() { _ = w.Run(ctx) })
	}
	all.Wait()
}

// watched adapts a cluster to package silence.
type watched struct{ *fleet.Client }

// Nodes implements silence.Cluster.
func (w watched) Nodes() (map[string]silence.Node, bool) {
	all, ok := w.Client.Nodes()
	nodes := make(map[string]silence.Node, len(all))
	for name, n := range all {
		nodes[name] = silence.Node(n)
	}
	return nodes, ok
}
