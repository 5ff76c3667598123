package inspect

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Scan is one pass's view of the host. What several listers and the truth need is read once, when it is first asked for. It
// belongs to one goroutine.
type Scan struct {
	Host *host.Host

	mounts      func() ([]host.Mount, error)
	processes   func() (processTable, error)
	attachments func() ([]host.Attachment, error)
	pins        func() ([]pin, error)
	kubelet     func() (host.Process, error)
	sandboxes   func() ([]*cri.PodSandbox, error)
	containers  func() ([]*cri.Container, error)
	dirs        map[string]string // resolved directories of network namespaces
}

// NewScan begins a pass. Its paths have symbolic links resolved where the kernel tells resolved ones.
func NewScan(ctx context.Context, h *host.Host) *Scan {
	resolved := *h
	resolved.Paths.KubeletRoot = resolve(h.Files, h.Paths.KubeletRoot)
	resolved.Paths.NetnsDirs = nil
	for _, dir := range h.Paths.NetnsDirs {
		resolved.Paths.NetnsDirs = append(resolved.Paths.NetnsDirs, resolve(h.Files, dir))
	}
	s := &Scan{Host: &resolved, dirs: make(map[string]string)}
	s.mounts = sync.OnceValues(resolved.Mounts)
	s.processes = sync.OnceValues(func() (processTable, error) { return readProcesses(ctx, &resolved) })
	s.attachments = sync.OnceValues(resolved.Attachments)
	s.pins = sync.OnceValues(s.readPins)
	s.kubelet = sync.OnceValues(func() (host.Process, error) {
		if h.Kubelet.Process == nil {
			return host.Process{}, fmt.Errorf("kubelet: %w", host.ErrNotConfigured)
		}
		return h.Kubelet.Process()
	})
	s.sandboxes = sync.OnceValues(func() ([]*cri.PodSandbox, error) { return ask(ctx, "runtime", h.Runtime.Sandboxes) })
	s.containers = sync.OnceValues(func() ([]*cri.Container, error) { return ask(ctx, "runtime", h.Runtime.Containers) })
	return s
}

// ask calls a door's function, which is nil where the host has no such thing.
func ask[T any](ctx context.Context, what string, door func(context.Context) (T, error)) (T, error) {
	if door == nil {
		var none T
		return none, fmt.Errorf("%s: %w", what, host.ErrNotConfigured)
	}
	return door(ctx)
}

// resolve returns a directory of the node itself without symbolic links, since the mount table shows none: kubelet's root
// may be a link to another disk, and /var/run is one to /run. What cannot be resolved is left as it is.
func resolve(files host.Files, dir string) string {
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
