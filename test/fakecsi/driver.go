// Package fakecsi is a CSI driver and its registrar in one, for tests: it uses the real protocols with a real kubelet
// (pluginregistration v1 on a socket in plugins_registry, the Identity and Node services of CSI on its own socket) and
// can be made to fail in each way in which drivers fail. It serves no storage that outlives it.
package fakecsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Options say where and as whom a driver serves.
type Options struct {
	Name        string // of the driver
	KubeletRoot string // its plugins_registry and plugins folders hold the sockets
	NodeID      string // what NodeGetInfo answers; "fake-node" when empty
	Versions    []string
	Knobs       Knobs
	Publish     Publish // what NodePublishVolume mounts
	Role        Role    // what of the two it is
}

// Role names the sockets that are served: in a cluster driver and registrar are two containers of one pod.
type Role string

// The roles.
const (
	Both          Role = "" // driver and registrar in one
	DriverOnly    Role = "driver"
	RegistrarOnly Role = "registrar"
)

// Publish names what NodePublishVolume does with a target.
type Publish string

// The ways to publish.
const (
	PublishTmpfs Publish = "tmpfs" // the zero value means the same
	PublishBind  Publish = "bind"  // of the staging path, or of a folder of the driver where there is none
)

// Knobs make a driver fail. They may be turned while it runs.
type Knobs struct {
	RefuseGetInfo bool   `json:"refuseGetInfo"` // GetInfo answers an error
	HangGetInfo   bool   `json:"hangGetInfo"`   // GetInfo never answers
	NotReady      bool   `json:"notReady"`      // Probe answers ready=false
	ProbeError    string `json:"probeError"`    // Probe answers FailedPrecondition with this text
	HangProbe     bool   `json:"hangProbe"`     // Probe never answers
	NodeInfoError string `json:"nodeInfoError"` // NodeGetInfo fails with this text, so kubelet rejects the driver
	EmptyNodeID   bool   `json:"emptyNodeID"`   // NodeGetInfo names no node, so kubelet rejects the driver
	FailMounts    bool   `json:"failMounts"`    // NodeStageVolume and NodePublishVolume fail
}

// Driver is a driver that runs.
type Driver struct {
	options   Options
	servers   []*grpc.Server
	listeners []*net.UnixListener
	done      sync.WaitGroup
	statuses  chan *registration.RegistrationStatus // kubelet's notifications; the oldest is dropped where none is read
	stopped   chan struct{}                         // closed by Stop: ends calls that hang

	// mu guards what follows.
	mu    sync.Mutex
	knobs Knobs
	once  bool
}

// Start serves a driver until Stop or Abandon, or until ctx ends (which is a Stop).
func Start(ctx context.Context, o Options) (*Driver, error) {
	if o.NodeID == "" {
		o.NodeID = "fake-node"
	}
	if len(o.Versions) == 0 {
		o.Versions = []string{"1.0.0"}
	}
	d := &Driver{options: o, knobs: o.Knobs, statuses: make(chan *registration.RegistrationStatus, 16),
		stopped: make(chan struct{})}
	var err error
	if o.Role != RegistrarOnly {
		err = d.serve(d.Endpoint(), func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, identity{d: d})
			csi.RegisterNodeServer(s, node{d: d})
		})
	}
	if err == nil && o.Role != DriverOnly {
		// Last, as registrars do: kubelet asks the driver as soon as it sees this socket.
		err = d.serve(d.Socket(), func(s *grpc.Server) { registration.RegisterRegistrationServer(s, registrar{d: d}) })
	}
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	context.AfterFunc(ctx, func() { _ = d.Stop() })
	return d, nil
}

// Socket is the registration socket.
func (d *Driver) Socket() string {
	return filepath.Join(d.options.KubeletRoot, "plugins_registry", d.options.Name+"-reg.sock")
}

// Endpoint is the driver's own socket.
func (d *Driver) Endpoint() string {
	return filepath.Join(d.options.KubeletRoot, "plugins", d.options.Name, "csi.sock")
}

// Statuses are kubelet's results of the registration, one for each attempt.
func (d *Driver) Statuses() <-chan *registration.RegistrationStatus { return d.statuses }

// Set changes the knobs.
func (d *Driver) Set(k Knobs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.knobs = k
}

func (d *Driver) now() Knobs {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.knobs
}

// Stop ends the driver and removes its sockets, as a driver does on SIGTERM.
func (d *Driver) Stop() error { return d.end(true) }

// Abandon ends the driver and leaves its sockets behind, as a driver does that is killed.
func (d *Driver) Abandon() error { return d.end(false) }

func (d *Driver) end(unlink bool) error {
	d.mu.Lock()
	first := !d.once
	d.once = true
	d.mu.Unlock()
	if !first {
		return nil
	}
	close(d.stopped)
	for _, l := range d.listeners {
		l.SetUnlinkOnClose(unlink)
	}
	for _, s := range d.servers {
		s.Stop()
	}
	d.done.Wait()
	return nil
}

// serve listens on a socket, in place of a stale one.
func (d *Driver) serve(socket string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s := grpc.NewServer()
	register(s)
	d.listeners, d.servers = append(d.listeners, l), append(d.servers, s)
	d.done.Go(func() { _ = s.Serve(l) }) // ends with Stop; its error says no more
	return nil
}

// hang blocks a call until the driver ends: one that answered when its caller gives up might still be received.
func (d *Driver) hang() { <-d.stopped }
