package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/hostns"
	"github.com/nodeagent/nodeagent/internal/kube"
)

// publish makes the program available next to its socket while it runs. The returned function removes it.
func publish(cfg config.Config, log *slog.Logger) func() {
	remove, err := hostns.Publish(filepath.Dir(cfg.Socket), cfg.StateDir)
	if err != nil {
		log.Warn("publish the program on the host failed", "err", err)
		return func() {}
	}
	return func() {
		if err := remove(); err != nil {
			log.Warn("remove the copy of the program from the host failed", "err", err)
		}
	}
}

func (d *daemon) containerPaths() (status.ContainerPaths, error) {
	a := d.current.Load()
	if a == nil {
		return status.ContainerPaths{}, errStarting
	}
	if !a.revision.cfg.FromContainer {
		return status.ContainerPaths{}, nil
	}
	return status.ContainerPaths{Config: externalPath(d.source.File),
		ServiceAccount: externalPath(a.revision.cfg.ServiceAccountDir), Apiserver: kube.PodServer()}, nil
}

// externalPath returns the path by which another process opens a path of this one.
func externalPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/proc/self/"); ok {
		return fmt.Sprintf("/proc/%d/%s", os.Getpid(), rest)
	}
	return path
}
