// Package cluster is shared by the replicas of an event center: a NATS server in each of them, or an external one, the
// elected worker, and the agents' signs of life, which the replicas exchange.
package cluster

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

const (
	clusterName = "eventcenter"
	startLimit  = 30 * time.Second // for the server to accept its own center
	handOver    = 2 * time.Second  // for the server to hand over its leaderships

	// A replica that answers no ping for two to three intervals is not connected. Elections take longer.
	pingEvery, pingsOut = 2 * time.Second, 2
	maxCatchUp          = 16 << 20 // bytes on their way to a replica that was away: its pings wait for them
)

// Node is the NATS of one replica: a server in this process, or a connection to external ones.
type Node struct {
	Conn *nats.Conn

	server *server.Server // nil: external
}

// Config is the configuration of a server in this process.
type Config struct {
	Name   string // of this replica, the same at each start
	Dir    string // of the servers' files
	Listen string // for the other replicas; empty: there are none
	Routes []string
	Secret string
	TLS    *tls.Config // nil: none
	Log    *slog.Logger
}

// Start starts a server and connects to it. It listens only to the other replicas: the center has an in-process
// connection.
func Start(c Config) (*Node, error) {
	// A server with routes needs a client listener too: on loopback, unused. Without one it also does not hand over its
	// leaderships.
	own := rand.Text()
	most, err := storeLimit(c.Dir)
	if err != nil {
		return nil, err
	}
	o := &server.Options{ServerName: c.Name, Host: "127.0.0.1", Port: server.RANDOM_PORT, Authorization: own,
		AuthTimeout: startLimit.Seconds(), NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Clean(c.Dir), SyncAlways: true, // acknowledge only messages on disk
		MaxPayload: jetstream.MaxMessage, MaxPending: 8 * jetstream.MaxMessage,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: most, LameDuckDuration: handOver, LameDuckGracePeriod: handOver / 4}
	if c.Listen != "" {
		host, port, err := net.SplitHostPort(c.Listen)
		if err != nil {
			return nil, fmt.Errorf("listen %q: %w", c.Listen, err)
		}
		if o.Cluster.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("listen %q: %w", c.Listen, err)
		}
		o.Cluster.Name, o.Cluster.Host, o.Cluster.NoAdvertise = clusterName, host, true
		o.Cluster.Username, o.Cluster.Password = clusterName, c.Secret
		o.Cluster.TLSConfig, o.Cluster.TLSTimeout = c.TLS, 5
		o.Cluster.AuthTimeout = 6
		o.Cluster.PingInterval, o.Cluster.MaxPingsOut, o.JetStreamMaxCatchup = pingEvery, pingsOut, maxCatchUp
		for _, peer := range c.Routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: peer, User: url.UserPassword(clusterName, c.Secret)})
		}
	}
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("nats-server: %w", err)
	}
	s.SetLogger(logger{c.Log.With("part", "nats")}, false, false)
	s.Start()
	if !s.ReadyForConnections(startLimit) {
		s.Shutdown()
		return nil, errors.New("nats-server: it does not start; see its log")
	}
	conn, err := nats.Connect("", append(always(c.Log), nats.InProcessServer(s), nats.Token(own), nats.Timeout(startLimit))...)
	if err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("nats-server: %w", err)
	}
	return &Node{conn, s}, nil
}

// storeLimit returns how many bytes the files in a directory may take: three quarters of what they take now and what is
// free. The server's default counts only what is free: with half of a volume in use it accepts nothing after a restart.
func storeLimit(dir string) (most int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	dir, err = filepath.EvalSymlinks(dir) // WalkDir follows none
	if err != nil {
		return 0, err
	}
	var used int64
	_ = filepath.WalkDir(dir, func(_ string, file fs.DirEntry, err error) error {
		if err == nil && file.Type().IsRegular() {
			if info, err := file.Info(); err == nil {
				used += info.Size()
			}
		}
		return nil // a file that has vanished, and a directory that cannot be read (lost+found), count as empty
	})
	var volume syscall.Statfs_t
	if err := syscall.Statfs(dir, &volume); err != nil {
		return 0, fmt.Errorf("size of %s: %w", dir, err)
	}
	return int64(0.75 * (float64(used) + float64(volume.Bavail)*float64(volume.Bsize))), nil
}

// Connect connects to external NATS servers.
func Connect(address, credentials, ca string, log *slog.Logger) (*Node, error) {
	o := append(always(log), nats.RetryOnFailedConnect(true))
	if credentials != "" {
		if err := secretfile.Check(credentials); err != nil {
			return nil, fmt.Errorf("nats: credentialsFile: %w", err)
		}
		o = append(o, nats.UserCredentials(credentials))
	}
	if ca != "" {
		o = append(o, nats.RootCAs(ca))
	}
	conn, err := nats.Connect(address, o...)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return &Node{Conn: conn}, nil
}

// always returns the options of a connection that reconnects for ever.
func always(log *slog.Logger) []nats.Option {
	return []nats.Option{nats.Name("eventcenter"), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second),
		nats.IgnoreAuthErrorAbort(), // credentials and accounts may come later: each connection reads the file
		nats.ReconnectBufSize(-1),   // a message that cannot be sent now fails now
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("connection to NATS lost, reconnecting", "err", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("NATS client failed", "err", err)
		})}
}

// Alone returns why other replicas cannot be reached: callers learn it without waiting for a timeout. Nil: unknown.
func (n *Node) Alone() error {
	if !n.Conn.IsConnected() {
		return errors.New("there is no connection to NATS")
	}
	return n.CutOff()
}

// CutOff returns why the server in this process can reach no other: events cannot be stored now. Nil: unknown.
func (n *Node) CutOff() error {
	if n.server != nil && n.server.NumRoutes() == 0 {
		return errors.New("no other replica is connected")
	}
	return nil
}

// Close closes the connection and the server. Before that, the server hands its leaderships to others.
func (n *Node) Close() {
	n.Conn.Close()
	if n.server != nil {
		n.server.LameDuckShutdown()
		n.server.WaitForShutdown()
	}
}

// logger writes the server's log into the center's.
type logger struct{ log *slog.Logger }

func (l logger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l logger) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l logger) Errorf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l logger) Fatalf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l logger) Debugf(string, ...any)           {}
func (l logger) Tracef(string, ...any)           {}
