// Package hostscan is one pass's view of the host: data that several listers and witnesses of an inspection need is
// read once, and a hanging source holds the pass up no longer than its stage. It only reads, and makes no verdicts.
package hostscan

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	leases "github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Scan is one pass's view of the host. Data that several listers and the inventory need is read once, on first use.
type Scan struct {
	Host *host.Host

	Ends        Deadline
	OptOut      func(labels, annotations map[string]string) string // why its objects must stay; may be nil
	Mounts      func() ([]mount.Mount, error)
	Processes   func() (ProcessTable, error)
	Attachments func() ([]cni.Attachment, error)
	NetnsMounts func() ([]NetnsMount, error)
	Kubelet     func() (host.Process, error)
	Runtime     func() (host.Process, error)
	Sandboxes   func() ([]*cri.PodSandbox, error)
	Containers  func() ([]*cri.Container, error)
	Leases      func() ([]leases.Lease, error)
	Records     func() ([]containers.Container, error) // containerd's containers

	mu   sync.Mutex        // guards dirs
	dirs map[string]string // resolved directories of network namespaces
}

// New begins a pass, whose stages end in time. Symbolic links are resolved in those of the host's paths that the kernel
// reports in resolved form.
func New(ctx context.Context, h *host.Host, ends Deadline) *Scan {
	resolved := *h
	resolved.Paths.KubeletRoot = Resolve(h.Files, h.Paths.KubeletRoot)
	if h.Paths.ContainerdState != "" {
		resolved.Paths.ContainerdState = Resolve(h.Files, h.Paths.ContainerdState)
	}
	resolved.Paths.NetnsDirs = nil
	for _, dir := range h.Paths.NetnsDirs {
		resolved.Paths.NetnsDirs = append(resolved.Paths.NetnsDirs, Resolve(h.Files, dir))
	}
	s := &Scan{Host: &resolved, dirs: make(map[string]string), Ends: ends}
	s.Mounts = readOnce(ctx, s, Local, "the mount table", func(context.Context) ([]mount.Mount, error) {
		return mount.Table(&resolved)
	})
	s.Processes = readOnce(ctx, s, Local, "/proc", func(ctx context.Context) (ProcessTable, error) {
		return readProcesses(ctx, &resolved)
	})
	s.Attachments = readOnce(ctx, s, Local, "the cache of CNI", func(context.Context) ([]cni.Attachment, error) {
		return cni.Attachments(&resolved)
	})
	s.NetnsMounts = readOnce(ctx, s, Local, "network namespaces", func(context.Context) ([]NetnsMount, error) {
		return s.readNetnsMounts()
	})
	s.Kubelet = readOnce(ctx, s, Local, "the search for kubelet's process", func(context.Context) (host.Process,
		error) {
		if h.Kubelet.Process == nil {
			return host.Process{}, fmt.Errorf("kubelet: %w", hosterr.ErrNotConfigured)
		}
		return h.Kubelet.Process()
	})
	s.Runtime = readOnce(ctx, s, Runtime, "the runtime's process", func(ctx context.Context) (host.Process, error) {
		return host.Ask(ctx, "runtime", h.Runtime.Process)
	})
	s.Sandboxes = readOnce(ctx, s, Runtime, "the runtime", func(ctx context.Context) ([]*cri.PodSandbox, error) {
		return host.Ask(ctx, "runtime", h.Runtime.Sandboxes)
	})
	s.Containers = readOnce(ctx, s, Runtime, "the runtime", func(ctx context.Context) ([]*cri.Container, error) {
		return host.Ask(ctx, "runtime", h.Runtime.Containers)
	})
	s.Leases = readOnce(ctx, s, Runtime, "containerd", func(ctx context.Context) ([]leases.Lease, error) {
		return host.Ask(ctx, "containerd", h.Containerd.Leases)
	})
	s.Records = readOnce(ctx, s, Runtime, "containerd", func(ctx context.Context) ([]containers.Container, error) {
		return host.Ask(ctx, "containerd", h.Containerd.Containers)
	})
	return s
}

// KubeletMounts returns kubelet's mount table if it differs from the agent's.
func (s *Scan) KubeletMounts() ([]mount.Mount, error) {
	kubelet, err := s.Kubelet()
	if err != nil {
		return nil, nil //nolint:nilerr // not running; the inventory has that error
	}
	files := s.Host.Files
	own, ownErr := files.Link("/proc/self/ns/mnt")
	its, itsErr := files.Link(fmt.Sprintf("/proc/%d/ns/mnt", kubelet.PID))
	if ownErr == nil && itsErr == nil && own == its {
		return nil, nil
	}
	return mount.TableOf(s.Host, kubelet.PID)
}

// readOnce returns a function that reads on its first call, and abandons the read when the stage is over.
func readOnce[T any](ctx context.Context, s *Scan, of Stage, what string,
	read func(context.Context) (T, error)) func() (T,
	error) {
	return sync.OnceValues(func() (T, error) { return Within(ctx, s.Ends, of, what, read) })
}

// Resolve returns a directory of the node without symbolic links, as the mount table shows it: kubelet's root may be a
// link to another disk, and /var/run is one to /run. An unresolvable path is returned unchanged.
func Resolve(files host.Files, dir string) string {
	real, err := filepath.EvalSymlinks(files.Path(dir))
	if err != nil {
		return filepath.Clean(dir)
	}
	root := files.Path("/")
	if root == "/" {
		return real
	}
	return filepath.Join("/", strings.TrimPrefix(real, root))
}
