// Package mutate is the only code of the agent that changes anything on the host. Each method makes one minimal change.
// Immediately before it, the method checks that the object is still the inspected one, because a name (a PID, a path,
// an interface) may belong to another object by now. Package mutate makes no decisions; pkg/remediate does.
//
// It never deletes recursively, never follows a symbolic link that a pod could have planted, never crosses a mount
// while deleting, never detaches a mount of a local filesystem, never kills by PID alone, and never deletes a link by
// name. A short-lived child makes any change that could block forever in the kernel: see package child.
package mutate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// ErrChanged means that the object is no longer the inspected one. The Mutator changed nothing.
var ErrChanged = child.ErrChanged

// ErrBusy means that the object is still in use. The Mutator changed nothing.
var ErrBusy = errors.New("busy")

// ErrTooManyAbandoned means that so many child processes hang in the kernel that no further one is started.
var ErrTooManyAbandoned = errors.New("too many hanging child processes")

// Refusal is the error for a change that the Mutator must not make.
type Refusal = child.Refusal

func refuse(format string, args ...any) error { return child.Refuse(format, args...) }

// errGone means that there is nothing left to do.
var errGone = child.ErrGone

// NotBegun is the error of a change before which something was asked that got no answer. Nothing was done.
type NotBegun struct{ Err error }

func (n NotBegun) Error() string { return "not begun: " + n.Err.Error() }

func (n NotBegun) Unwrap() error { return n.Err }

// WasNotBegun reports whether an error of a change says that nothing was done: it was refused, or not even tried.
func WasNotBegun(err error) bool {
	_, refused := errors.AsType[Refusal](err)
	_, unasked := errors.AsType[NotBegun](err)
	return refused || unasked || errors.Is(err, ErrChanged) || errors.Is(err, ErrBusy) ||
		errors.Is(err, ErrTooManyAbandoned) || errors.Is(err, hosterr.ErrNotConfigured)
}

func notBegun(err error) error {
	if err == nil || WasNotBegun(err) {
		return err
	}
	return NotBegun{err}
}

func changed(format string, args ...any) error { return child.Changed(format, args...) }

// Mutator makes changes on one host.
type Mutator struct {
	host     *host.Host
	log      *slog.Logger
	children children                 // of our own binary
	plugins  children                 // CNI's
	vacuum   children                 // of our own binary, waiting for journalctl
	runtime  cri.RuntimeServiceClient // nil if no runtime is configured
	images   cri.ImageServiceClient   // on the same connection
	closer   io.Closer
	systemd  func(ctx context.Context) (units, error) // nil units if systemd is not init
	jobs     jobs
}

// childLimit is how long one change may take in a child. Unmounting a filesystem first writes back its dirty pages.
const childLimit = 30 * time.Second

// New returns the Mutator of a host. It connects to the container runtime on first use.
func New(h *host.Host, log *slog.Logger) (*Mutator, error) {
	d := &Mutator{host: h, log: log, children: children{limit: childLimit}, plugins: children{limit: pluginLimit},
		vacuum: children{limit: vacuumLimit}}
	d.systemd, d.jobs = d.dialSystemd, systemdJobs{}
	if h.Paths.CRISocket == "" {
		return d, nil
	}
	socket := path.Clean("/" + h.Paths.CRISocket)
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return hostcri.DialRoots(ctx, socket)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", h.Paths.CRISocket, err)
	}
	d.runtime, d.images, d.closer = cri.NewRuntimeServiceClient(connection), cri.NewImageServiceClient(connection),
		connection
	return d, nil
}

// Close ends the connection to the runtime.
func (d *Mutator) Close() error {
	if d.closer == nil {
		return nil
	}
	return d.closer.Close()
}

// podsDir is kubelet's directory of pods. It is configured and thus trusted: symbolic links in its path are followed
// (kubelet's root is a link to another disk on many nodes), those below it never.
func (d *Mutator) podsDir() string { return path.Join("/", d.host.Paths.KubeletRoot, "pods") }
